//! What a declaration says about a type, and which declarations are refused.

use super::{Envelope, EnvelopeError, Field, Shape, Specimens, decode, encode, encode_as};
use bytes::Bytes;
use std::collections::BTreeMap;

/// One field as it was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldInfo {
    pub name: &'static str,
    /// Its type as it stands in the source.
    pub ty: &'static str,
    /// The version that brought it.
    pub since: u8,
    /// Whether it may be absent at the end of a scope.
    pub has_default: bool,
    /// Whether a comment says what it means.
    pub is_documented: bool,
}

/// What is wrong with a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclarationFault {
    CompatAboveVersion,
    SinceAboveVersion,
    OutOfOrder,
    NoDefault,
    NoComment,
}

impl DeclarationFault {
    /// What the compiler says.
    pub const fn text(self) -> &'static str {
        match self {
            Self::CompatAboveVersion => "compat is newer than version",
            Self::SinceAboveVersion => "a field is from a version that the type has not reached",
            Self::OutOfOrder => "a field stands behind one of a later version: append fields",
            Self::NoDefault => "a field that came later needs a default",
            Self::NoComment => "a field that came later needs a comment on its default's meaning",
        }
    }
}

impl FieldInfo {
    /// The first thing that is wrong with a type of these versions and fields.
    pub const fn fault(version: u8, compat: u8, fields: &[Self]) -> Option<DeclarationFault> {
        if compat > version {
            return Some(DeclarationFault::CompatAboveVersion);
        }
        let mut reached = 0;
        let mut at = 0;
        while at < fields.len() {
            let field = &fields[at];
            if field.since > version {
                return Some(DeclarationFault::SinceAboveVersion);
            }
            if field.since < reached {
                return Some(DeclarationFault::OutOfOrder);
            }
            if field.since > 0 && !field.has_default {
                return Some(DeclarationFault::NoDefault);
            }
            if field.since > 0 && !field.is_documented {
                return Some(DeclarationFault::NoComment);
            }
            reached = field.since;
            at += 1;
        }
        None
    }
}

/// Stops the compiler at a declaration with a fault; for the declaring macros.
pub const fn assert_declared<T: Envelope>() {
    if let Some(fault) = FieldInfo::fault(T::VERSION, T::COMPAT, T::FIELDS) {
        panic!("{}", fault.text());
    }
}

/// A type with a version as a value, so that a crate can list all that it has.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub version: u8,
    pub compat: u8,
    pub fields: &'static [FieldInfo],
    /// Reads a plain envelope of it and writes what was read.
    pub rewrite: fn(Bytes) -> Result<Bytes, EnvelopeError>,
    /// A value in a plain envelope, as a writer of the version given writes it.
    pub specimen: fn(Shape, u8) -> Bytes,
    /// The types inside of it, with their versions.
    pub nested: fn() -> BTreeMap<&'static str, u8>,
}

impl Kind {
    /// Describes a type.
    pub const fn of<T: Envelope>() -> Self {
        Self {
            name: T::NAME,
            version: T::VERSION,
            compat: T::COMPAT,
            fields: T::FIELDS,
            rewrite: |bytes| decode::<T>(bytes).map(|value| encode(&value)),
            specimen: |shape, version| encode_as(&T::specimen(&mut Specimens::new(shape)), version),
            nested: nested::<T>,
        }
    }
}

fn nested<T: Field>() -> BTreeMap<&'static str, u8> {
    // Of this shape, every list has items and every optional has its value.
    let mut made = Specimens::new(Shape::Full);
    T::specimen(&mut made);
    made.nested_types().clone()
}

/// A reader of bytes from outside that does more than to read one envelope, as a value, so that a
/// crate can list all that it has.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    pub name: &'static str,
    /// Reads bytes; whether they were understood.
    pub read: fn(Bytes) -> bool,
    /// Bytes that it understands, each in another way.
    pub seeds: fn() -> Vec<Bytes>,
}
