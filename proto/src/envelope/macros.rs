//! The declarations: a type's version, its compat and its fields in one place.

/// Declares a struct that travels in an envelope.
///
/// Fields are public and encoded in the order in which they stand. A field with a default may be
/// absent at the end of a scope. `since(N)` says in which version a field came; such a field needs
/// a default.
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

        const _: () = {
            assert!($compat <= $version, "compat is newer than version");
            $($crate::envelope!(@check_since $version [$($since)?] [$($default)?]);)*
        };

        impl $crate::envelope::Envelope for $name {
            const NAME: &'static str = stringify!($name);
            const VERSION: u8 = $version;
            const COMPAT: u8 = $compat;

            #[allow(unused_variables)]
            fn put_fields(&self, out: &mut ::std::vec::Vec<u8>) {
                $($crate::envelope::Field::put(&self.$field, out);)*
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
        }

        $crate::envelope!(@nested $name);
    };

    (@check_since $version:literal [] [$($default:expr)?]) => {};
    (@check_since $version:literal [$since:literal] [$default:expr]) => {
        assert!(0 < $since && $since <= $version, "since is not within the versions")
    };
    (@check_since $version:literal [$since:literal] []) => {
        compile_error!("a field that came later needs a default")
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

        const _: () = assert!($compat <= $version, "compat is newer than version");

        impl $crate::envelope::Envelope for $name {
            const NAME: &'static str = stringify!($name);
            const VERSION: u8 = $version;
            const COMPAT: u8 = $compat;

            fn put_fields(&self, out: &mut ::std::vec::Vec<u8>) {
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
        }
    };
}
