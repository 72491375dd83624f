//! The declarations: a type's version, its compat and its fields in one place.

/// Declares a struct that travels in an envelope.
///
/// Fields are public and encoded in the order in which they stand. A field with a default may be
/// absent at the end of a scope. `since(N)` says in which version a field came; such a field needs
/// a default, and a comment that says what the default means: a reader of an old value goes on with
/// the default, and an old reader goes on as if it stood there.
///
/// ```
/// imprint_proto::envelope! {
///     /// What a node says about itself.
///     #[derive(Clone, Debug, PartialEq)]
///     pub struct Status: version 1, compat 0 {
///         id: i32,
///         alive: bool = false,
///         /// `None`: the node did not say; an old node never does.
///         #[since(1)]
///         disk_free_bytes: Option<u64> = None,
///     }
/// }
///
/// let old = [0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 1];
/// let status: Status = imprint_proto::envelope::decode(old.to_vec().into())?;
/// assert_eq!(status, Status { id: 7, alive: true, disk_free_bytes: None });
/// # Ok::<(), imprint_proto::envelope::EnvelopeError>(())
/// ```
///
/// # What does not compile?
///
/// A declaration that breaks a rule of [`FieldInfo::fault`](crate::envelope::FieldInfo::fault). A
/// late field without a default:
///
/// ```compile_fail,E0080
/// imprint_proto::envelope! {
///     pub struct Status: version 1, compat 0 { id: i32, /** Free bytes. */ #[since(1)] free: u64 }
/// }
/// ```
///
/// A late field that does not say what its default means:
///
/// ```compile_fail,E0080
/// imprint_proto::envelope! {
///     pub struct Status: version 1, compat 0 { id: i32, #[since(1)] free: u64 = 0 }
/// }
/// ```
///
/// A field from a version that the type has not reached:
///
/// ```compile_fail,E0080
/// imprint_proto::envelope! {
///     pub struct Status: version 1, compat 0 { id: i32, /** 0: unknown. */ #[since(2)] free: u64 = 0 }
/// }
/// ```
///
/// Fields that are not in the order of their versions: that is one that was put in, not appended.
///
/// ```compile_fail,E0080
/// imprint_proto::envelope! {
///     pub struct Status: version 1, compat 0 { /** 0: unknown. */ #[since(1)] free: u64 = 0, id: i32 }
/// }
/// ```
///
/// A compat that is newer than the version:
///
/// ```compile_fail,E0080
/// imprint_proto::envelope! {
///     pub struct Status: version 0, compat 1 { id: i32 }
/// }
/// ```
///
/// Two fields of one name:
///
/// ```compile_fail,E0124
/// imprint_proto::envelope! {
///     pub struct Status: version 0, compat 0 { id: i32, id: i32 }
/// }
/// ```
///
/// And the one that they all were before their one fault:
///
/// ```
/// imprint_proto::envelope! {
///     pub struct Status: version 1, compat 0 { id: i32, /** 0: unknown. */ #[since(1)] free: u64 = 0 }
/// }
/// ```
#[macro_export]
macro_rules! envelope {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident : version $version:literal, compat $compat:literal {
            $(
                $(#[doc = $doc:expr])*
                $(#[since($since:literal)])?
                $fvis:vis $field:ident : $ty:ty $(= $default:expr)?
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $(
                $(#[doc = $doc])*
                pub $field: $ty,
            )*
        }

        const _: () = $crate::envelope::assert_declared::<$name>();

        impl $crate::envelope::Envelope for $name {
            const NAME: &'static str = stringify!($name);
            const VERSION: u8 = $version;
            const COMPAT: u8 = $compat;
            const FIELDS: &'static [$crate::envelope::FieldInfo] = &[$(
                $crate::envelope::FieldInfo {
                    name: stringify!($field),
                    ty: stringify!($ty),
                    since: $crate::envelope!(@since $($since)?),
                    has_default: $crate::envelope!(@given $($default)?),
                    is_documented: $crate::envelope!(@given $($doc)*),
                },
            )*];

            #[allow(unused_variables)]
            fn put_fields(&self, version: u8, out: &mut ::std::vec::Vec<u8>) {
                $(
                    if $crate::envelope!(@since $($since)?) <= version {
                        $crate::envelope::Field::put(&self.$field, out);
                    }
                )*
            }

            #[allow(unused_variables)]
            fn get_fields(
                scope: &mut $crate::envelope::Scope<'_>,
            ) -> ::std::result::Result<Self, $crate::envelope::EnvelopeError> {
                $(
                    scope.field(stringify!($field));
                    let $field: $ty = if scope.is_at_end() {
                        $crate::envelope!(@absent scope $($default)?)
                    } else {
                        $crate::envelope::Field::get(scope)?
                    };
                )*
                ::std::result::Result::Ok(Self { $($field),* })
            }

            #[allow(unused_variables)]
            fn specimen_fields(of: &mut $crate::envelope::Specimens) -> Self {
                $(let $field: $ty = $crate::envelope!(@specimen of $($default)?);)*
                Self { $($field),* }
            }
        }

        $crate::envelope!(@nested $name);
    };

    (@since) => { 0_u8 };
    (@since $since:literal) => { $since };
    (@given) => { false };
    (@given $($given:expr)+) => { true };
    (@specimen $of:ident) => { $crate::envelope::Field::specimen($of) };
    (@specimen $of:ident $default:expr) => {
        if $of.takes_defaults() { $default } else { $crate::envelope::Field::specimen($of) }
    };
    (@absent $scope:ident) => { return ::std::result::Result::Err($scope.missing()) };
    (@absent $scope:ident $default:expr) => { $default };

    (@nested $name:ident) => {
        impl $crate::envelope::Field for $name {
            const MIN_LEN: usize = $crate::envelope::HEADER_LEN;

            fn put(&self, out: &mut ::std::vec::Vec<u8>) {
                $crate::envelope::put_nested(self, out);
            }

            fn get(
                scope: &mut $crate::envelope::Scope<'_>,
            ) -> ::std::result::Result<Self, $crate::envelope::EnvelopeError> {
                $crate::envelope::get_nested(scope)
            }

            fn specimen(of: &mut $crate::envelope::Specimens) -> Self {
                of.nested()
            }
        }
    };
}

/// Declares an enum of envelopes: one of several messages, told apart by a pinned number.
///
/// It is an envelope itself, of the number as `i32` and the message with its own header. A number
/// that the reader does not know is refused: write a new one only once everyone can read it.
///
/// ```
/// # imprint_proto::envelope! {
/// #     #[derive(Clone, Debug, PartialEq)]
/// #     pub struct Create: version 0, compat 0 { name: String }
/// # }
/// # imprint_proto::envelope! {
/// #     #[derive(Clone, Debug, PartialEq)]
/// #     pub struct Delete: version 0, compat 0 { id: u64 }
/// # }
/// imprint_proto::envelope_union! {
///     #[derive(Clone, Debug, PartialEq)]
///     pub enum Command: version 0, compat 0 {
///         1 => Create(Create),
///         2 => Delete(Delete),
///     }
/// }
///
/// let command = Command::Delete(Delete { id: 7 });
/// let bytes = imprint_proto::envelope::encode(&command);
/// assert_eq!(imprint_proto::envelope::decode::<Command>(bytes)?, command);
/// # Ok::<(), imprint_proto::envelope::EnvelopeError>(())
/// ```
///
/// Two messages of one number do not compile, but for that this is the same:
///
/// ```compile_fail
/// # imprint_proto::envelope! { pub struct Create: version 0, compat 0 { name: String } }
/// # imprint_proto::envelope! { pub struct Delete: version 0, compat 0 { id: u64 } }
/// imprint_proto::envelope_union! {
///     pub enum Command: version 0, compat 0 { 1 => Create(Create), 1 => Delete(Delete) }
/// }
/// ```
#[macro_export]
macro_rules! envelope_union {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident : version $version:literal, compat $compat:literal {
            $(
                $(#[doc = $doc:expr])*
                $tag:literal => $variant:ident($ty:ty)
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $(
                $(#[doc = $doc])*
                $variant($ty),
            )+
        }

        const _: () = $crate::envelope::assert_declared::<$name>();

        impl $crate::envelope::Envelope for $name {
            const NAME: &'static str = stringify!($name);
            const VERSION: u8 = $version;
            const COMPAT: u8 = $compat;
            const FIELDS: &'static [$crate::envelope::FieldInfo] = &[$(
                $crate::envelope::FieldInfo {
                    name: concat!(stringify!($tag), "=>", stringify!($variant)),
                    ty: stringify!($ty),
                    since: 0,
                    has_default: false,
                    is_documented: $crate::envelope!(@given $($doc)*),
                },
            )+];

            fn put_fields(&self, _version: u8, out: &mut ::std::vec::Vec<u8>) {
                match self {
                    $(Self::$variant(message) => {
                        let tag: i32 = $tag;
                        $crate::envelope::Field::put(&tag, out);
                        $crate::envelope::Field::put(message, out);
                    })+
                }
            }

            #[deny(unreachable_patterns)]
            fn get_fields(
                scope: &mut $crate::envelope::Scope<'_>,
            ) -> ::std::result::Result<Self, $crate::envelope::EnvelopeError> {
                scope.field("tag");
                let tag = <i32 as $crate::envelope::Field>::get(scope)?;
                match tag {
                    $($tag => {
                        scope.field(stringify!($variant));
                        <$ty as $crate::envelope::Field>::get(scope).map(Self::$variant)
                    })+
                    unknown => ::std::result::Result::Err(scope.unknown_variant(unknown)),
                }
            }

            fn specimen_fields(of: &mut $crate::envelope::Specimens) -> Self {
                let variants: &[fn(&mut $crate::envelope::Specimens) -> Self] = &[
                    $(|of| Self::$variant(<$ty as $crate::envelope::Field>::specimen(of)),)+
                ];
                variants[of.choice(variants.len())](of)
            }
        }

        $crate::envelope!(@nested $name);
    };
}

/// Declares an enum without data that is a field: an `i32` on the wire, each value pinned.
///
/// `closed`: an unknown value is refused. `open`: it is kept as `Other`, so that it survives a
/// reader that does not know it.
///
/// ```
/// imprint_proto::envelope_enum! {
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Durability: closed {
///         MajoritySynced = 0,
///         MajorityWritten = 1,
///     }
/// }
/// imprint_proto::envelope_enum! {
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Reason: open {
///         Stopped = 1,
///     }
/// }
/// ```
#[macro_export]
macro_rules! envelope_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident : closed {
            $($(#[doc = $doc:expr])* $variant:ident = $value:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[doc = $doc])* $variant,)+
        }

        impl $crate::envelope::Field for $name {
            const MIN_LEN: usize = 4;

            fn put(&self, out: &mut ::std::vec::Vec<u8>) {
                let value: i32 = match self { $(Self::$variant => $value,)+ };
                $crate::envelope::Field::put(&value, out);
            }

            #[deny(unreachable_patterns)]
            fn get(
                scope: &mut $crate::envelope::Scope<'_>,
            ) -> ::std::result::Result<Self, $crate::envelope::EnvelopeError> {
                match <i32 as $crate::envelope::Field>::get(scope)? {
                    $($value => ::std::result::Result::Ok(Self::$variant),)+
                    unknown => ::std::result::Result::Err(scope.unknown_variant(unknown)),
                }
            }

            fn specimen(of: &mut $crate::envelope::Specimens) -> Self {
                let variants = [$(|| Self::$variant,)+];
                variants[of.choice(variants.len())]()
            }
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident : open {
            $($(#[doc = $doc:expr])* $variant:ident = $value:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[doc = $doc])* $variant,)+
            /// A value that this build does not know.
            Other(i32),
        }

        impl $crate::envelope::Field for $name {
            const MIN_LEN: usize = 4;

            fn put(&self, out: &mut ::std::vec::Vec<u8>) {
                let value: i32 = match self {
                    $(Self::$variant => $value,)+
                    Self::Other(value) => *value,
                };
                $crate::envelope::Field::put(&value, out);
            }

            #[deny(unreachable_patterns)]
            fn get(
                scope: &mut $crate::envelope::Scope<'_>,
            ) -> ::std::result::Result<Self, $crate::envelope::EnvelopeError> {
                ::std::result::Result::Ok(
                    match <i32 as $crate::envelope::Field>::get(scope)? {
                        $($value => Self::$variant,)+
                        other => Self::Other(other),
                    },
                )
            }

            fn specimen(of: &mut $crate::envelope::Specimens) -> Self {
                let variants = [$(|| Self::$variant,)+];
                variants[of.choice(variants.len())]()
            }
        }
    };
}
