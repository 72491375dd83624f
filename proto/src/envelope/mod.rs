//! The envelope: versioned values between nodes, and in records that outlive a release.
//!
//! ```text
//! plain       = [version u8][compat u8][size u32][body]
//! checksummed = [version u8][compat u8][size u32][crc32c u32][body]
//! ```
//!
//! `size` counts the body, the CRC covers the body alone. Fields follow one another in declared
//! order, without tags. A type says its version, the oldest reader version it is still safe for
//! (`compat`), and its fields, in one place: [`envelope!`](crate::envelope!).
//!
//! # What may change?
//!
//! Append a field with a default, and raise `version`. An old reader skips it; a new reader of an
//! old value takes the default, whose comment says what it means. Never reorder, never change a
//! field's meaning; `compat` goes up only for a break, and then old readers refuse the value.
//!
//! Each crate lists its types ([`Kind`]), and keeps bytes of every version of each in its `corpus`
//! directory; tests hold the two and the declarations together.
//!
//! # Can what was read be changed under another reader?
//!
//! No: byte strings are slices of the input that share its memory, and [`Bytes`] gives no way to
//! write to memory that is shared.
//!
//! ```compile_fail,E0594
//! # use bytes::Bytes;
//! let mut shared = Bytes::from_static(b"shared");
//! shared[0] = b'S';
//! ```
//!
//! ```compile_fail,E0308
//! # use bytes::Bytes;
//! let mut shared = Bytes::from_static(b"shared");
//! let slice: &mut [u8] = shared.as_ref();
//! ```
//!
//! # Which rules does a reader apply?
//!
//! In this order, each its own [`EnvelopeError`]; the CRC is checked after R4, before any field.
//!
//! | rule | refused |
//! |---|---|
//! | R1 | the size exceeds the buffer |
//! | R2 | the envelope crosses its parent's end |
//! | R3 | the writer's compat is newer than the reader's version |
//! | R4 | the writer's version is older than the reader's compat |
//! | R5 | a field spills over its own scope |
//! | R6 | bytes are left after the outermost envelope |
//!
//! A scope that ends between fields leaves the rest at their defaults; unknown bytes at the end of
//! a scope are skipped. Every count and length is held against the bytes left in its scope before
//! anything is allocated.
//!
//! # How are fields encoded?
//!
//! Numbers fixed-width little-endian; bool and the mark of an optional one byte, 0 or 1; enums
//! `i32`; strings, bytes, vectors and maps with a `u32` length or count in front, maps in strictly
//! ascending key order; durations `i64` nanoseconds; 16-byte ids raw; envelopes with their header.
//! So equal values have equal bytes.

mod declared;
mod error;
mod fields;
mod macros;
mod refused;
mod scope;
mod specimen;

pub use declared::{DeclarationFault, Decoder, FieldInfo, Kind, assert_declared};
pub use error::{EnvelopeError, Rule};
pub use refused::refused;
pub use scope::Scope;
pub use specimen::{Shape, Specimens};

use crate::wire::wire_len;
use bytes::Bytes;

/// Bytes of a plain envelope's header.
pub const HEADER_LEN: usize = 6;

/// Bytes of a checksummed envelope's header.
pub const CHECKED_HEADER_LEN: usize = 10;

/// A value that can stand in an envelope's body.
pub trait Field: Sized {
    /// The fewest bytes that a value takes. A count of values that can't fit is refused before
    /// anything is allocated for it. At least 1.
    const MIN_LEN: usize;

    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Takes the value from the front of the scope.
    ///
    /// # Errors
    /// Any rule of the reader that the bytes break.
    fn get(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError>;

    /// A value for the corpus and the fuzzers.
    fn specimen(of: &mut Specimens) -> Self;
}

/// A type with a version. Implemented by [`envelope!`](crate::envelope!) and
/// [`envelope_union!`](crate::envelope_union!) rather than by hand.
pub trait Envelope: Field {
    /// The type's name, for errors.
    const NAME: &'static str;
    /// The version that this build writes, and the newest that it understands.
    const VERSION: u8;
    /// The oldest version whose readers understand what this build writes, and the oldest writer
    /// that this build reads.
    const COMPAT: u8;
    /// The fields in their order; of a union, its messages.
    const FIELDS: &'static [FieldInfo];

    /// Appends the body as a writer of `version` would: without the fields that came later.
    fn put_fields(&self, version: u8, out: &mut Vec<u8>);

    /// Reads the body from a scope that ends where the envelope ends.
    ///
    /// # Errors
    /// Any rule of the reader that the bytes break.
    fn get_fields(scope: &mut Scope<'_>) -> Result<Self, EnvelopeError>;

    /// A value of which every field is a specimen.
    fn specimen_fields(of: &mut Specimens) -> Self;
}

/// Whether an envelope's header carries a CRC of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Plain,
    Checked,
}

impl Header {
    const fn header_len(self) -> usize {
        match self {
            Self::Plain => HEADER_LEN,
            Self::Checked => CHECKED_HEADER_LEN,
        }
    }
}

/// The value in a plain envelope.
pub fn encode<T: Envelope>(value: &T) -> Bytes {
    encode_as(value, T::VERSION)
}

/// The value as an older writer would have written it: what came after that version is left out.
/// Values nested in it are of the present version all the same.
pub fn encode_as<T: Envelope>(value: &T, version: u8) -> Bytes {
    let mut out = Vec::new();
    put_envelope(value, version, Header::Plain, &mut out);
    Bytes::from(out)
}

/// The value in an envelope with a checksum: for what rests on disk.
pub fn encode_checked<T: Envelope>(value: &T) -> Bytes {
    let mut out = Vec::new();
    put_envelope(value, T::VERSION, Header::Checked, &mut out);
    Bytes::from(out)
}

/// Reads a plain envelope that fills `bytes`. Byte strings inside are slices of `bytes`.
///
/// # Errors
/// The first rule that is broken.
pub fn decode<T: Envelope>(bytes: Bytes) -> Result<T, EnvelopeError> {
    scope::read_whole(&bytes, Header::Plain).inspect_err(refused::count)
}

/// Reads a checksummed envelope that fills `bytes`.
///
/// # Errors
/// The first rule that is broken.
pub fn decode_checked<T: Envelope>(bytes: Bytes) -> Result<T, EnvelopeError> {
    scope::read_whole(&bytes, Header::Checked).inspect_err(refused::count)
}

/// Reads a plain envelope from the front of `bytes` and gives what follows it back: for a payload
/// of an envelope with batches behind it, which thus need no copy on either side.
///
/// # Errors
/// The first rule that is broken, R6 aside.
pub fn decode_prefix<T: Envelope>(bytes: Bytes) -> Result<(T, Bytes), EnvelopeError> {
    let (value, end) = scope::read_front(&bytes, Header::Plain).inspect_err(refused::count)?;
    Ok((value, bytes.slice(end..)))
}

/// As [`decode_prefix`], for a checksummed envelope: records back to back in a file.
///
/// # Errors
/// The first rule that is broken, R6 aside.
pub fn decode_checked_prefix<T: Envelope>(bytes: Bytes) -> Result<(T, Bytes), EnvelopeError> {
    let (value, end) = scope::read_front(&bytes, Header::Checked).inspect_err(refused::count)?;
    Ok((value, bytes.slice(end..)))
}

/// Appends a value in a plain envelope, header included: what a nested envelope looks like.
pub fn put_nested<T: Envelope>(value: &T, out: &mut Vec<u8>) {
    put_envelope(value, T::VERSION, Header::Plain, out);
}

/// Takes a nested envelope, header included, bounded by its own size and its parent's end.
///
/// # Errors
/// The first rule that is broken.
pub fn get_nested<T: Envelope>(scope: &mut Scope<'_>) -> Result<T, EnvelopeError> {
    scope.envelope(Header::Plain)
}

fn put_envelope<T: Envelope>(value: &T, version: u8, kind: Header, out: &mut Vec<u8>) {
    let start = out.len();
    let body = start + kind.header_len();
    out.extend_from_slice(&[version, T::COMPAT.min(version)]);
    out.resize(body, 0);
    value.put_fields(version, out);
    let size = wire_len(out.len() - body);
    out[start + 2..start + 6].copy_from_slice(&size.to_le_bytes());
    if kind == Header::Checked {
        let crc = crc32c::crc32c(&out[body..]);
        out[start + 6..body].copy_from_slice(&crc.to_le_bytes());
    }
}
