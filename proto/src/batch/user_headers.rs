//! User headers: the typed key-value pairs that may follow a payload.
//!
//! A block is a run of fields, key and value in turn, each `kind u8 | length u32 | data`. Kinds of
//! numbers have their natural size; kinds that this build does not know are kept as they are, so
//! that a newer producer's headers pass an older server; kind 0 is nobody's and refused.
//!
//! What is not checked: that a string is UTF-8, that a bool is 0 or 1, that keys are unique. Those
//! are between producer and consumer.

use crate::limits::BatchLimits;
use crate::wire::{array, u32_at, wire_len};
use std::fmt;

/// Bytes in front of a field's data: its kind and its length.
const FIELD_HEADER_LEN: usize = 5;

/// The type of a key or a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderKind(pub u8);

impl HeaderKind {
    pub const RAW: Self = Self(1);
    pub const STRING: Self = Self(2);
    pub const BOOL: Self = Self(3);
    pub const INT8: Self = Self(4);
    pub const INT16: Self = Self(5);
    pub const INT32: Self = Self(6);
    pub const INT64: Self = Self(7);
    pub const INT128: Self = Self(8);
    pub const UINT8: Self = Self(9);
    pub const UINT16: Self = Self(10);
    pub const UINT32: Self = Self(11);
    pub const UINT64: Self = Self(12);
    pub const UINT128: Self = Self(13);
    pub const FLOAT32: Self = Self(14);
    pub const FLOAT64: Self = Self(15);

    /// Bytes of data that the kind must have; `None` where any length goes.
    pub const fn fixed_len(self) -> Option<u32> {
        match self {
            Self::BOOL | Self::INT8 | Self::UINT8 => Some(1),
            Self::INT16 | Self::UINT16 => Some(2),
            Self::INT32 | Self::UINT32 | Self::FLOAT32 => Some(4),
            Self::INT64 | Self::UINT64 | Self::FLOAT64 => Some(8),
            Self::INT128 | Self::UINT128 => Some(16),
            _ => None,
        }
    }

    /// The kind's name, or `None` for one that this build does not know.
    pub const fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 16] = [
            "", "raw", "string", "bool", "int8", "int16", "int32", "int64", "int128", "uint8",
            "uint16", "uint32", "uint64", "uint128", "float32", "float64",
        ];
        match self.0 {
            1..=15 => Some(NAMES[self.0 as usize]),
            _ => None,
        }
    }
}

impl fmt::Display for HeaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "kind {}", self.0),
        }
    }
}

impl fmt::Debug for HeaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderKind({self})")
    }
}

/// What is wrong with a block of user headers. `at` is the byte of the block where the field
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// The whole block is longer than a message's headers may be.
    #[error("user headers of {len} bytes, limit {limit}")]
    BlockTooLong { len: u64, limit: u32 },
    /// A field's kind and length do not fit in what is left.
    #[error("field at byte {at}: 5 bytes of kind and length have only {left} left")]
    FieldHeaderCut { at: u64, left: u64 },
    /// Kind 0.
    #[error("field at byte {at}: kind 0 is not allowed")]
    KindZero { at: u64 },
    /// A field's data does not fit in what is left.
    #[error("field at byte {at}: {len} bytes of data have only {left} left")]
    FieldCut { at: u64, len: u32, left: u64 },
    /// A key or value without a single byte.
    #[error("field at byte {at}: empty")]
    FieldEmpty { at: u64 },
    /// A key or value longer than the limit.
    #[error("field at byte {at}: {len} bytes, limit {limit}")]
    FieldTooLong { at: u64, len: u32, limit: u32 },
    /// A kind of fixed size with another size.
    #[error("field at byte {at}: {kind} takes {expected} bytes, not {len}")]
    WrongSize {
        at: u64,
        kind: HeaderKind,
        expected: u32,
        len: u32,
    },
    /// The last key has no value.
    #[error("key at byte {at} has no value")]
    KeyWithoutValue { at: u64 },
}

/// A key or a value to write, or one that was read and decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeaderValue<'a> {
    Raw(&'a [u8]),
    String(&'a str),
    Bool(bool),
    Int8(i8),
    Int16(i16),
    Int32(i32),
    Int64(i64),
    Int128(i128),
    Uint8(u8),
    Uint16(u16),
    Uint32(u32),
    Uint64(u64),
    Uint128(u128),
    Float32(f32),
    Float64(f64),
    /// Any kind, data as it stands: one that this build does not know, or data that its kind does
    /// not explain (a string that is not UTF-8, a bool that is neither 0 nor 1).
    Other(HeaderKind, &'a [u8]),
}

impl<'a> HeaderValue<'a> {
    /// Decodes data of a kind. Data that the kind does not explain comes back as
    /// [`HeaderValue::Other`], so nothing is lost.
    pub fn decode(kind: HeaderKind, data: &'a [u8]) -> Self {
        let size_fits = kind
            .fixed_len()
            .is_none_or(|expected| expected as usize == data.len());
        if !size_fits {
            return Self::Other(kind, data);
        }
        match kind {
            HeaderKind::RAW => Self::Raw(data),
            HeaderKind::STRING => match std::str::from_utf8(data) {
                Ok(text) => Self::String(text),
                Err(_) => Self::Other(kind, data),
            },
            HeaderKind::BOOL if data[0] <= 1 => Self::Bool(data[0] == 1),
            HeaderKind::INT8 => Self::Int8(i8::from_le_bytes(array(data, 0))),
            HeaderKind::INT16 => Self::Int16(i16::from_le_bytes(array(data, 0))),
            HeaderKind::INT32 => Self::Int32(i32::from_le_bytes(array(data, 0))),
            HeaderKind::INT64 => Self::Int64(i64::from_le_bytes(array(data, 0))),
            HeaderKind::INT128 => Self::Int128(i128::from_le_bytes(array(data, 0))),
            HeaderKind::UINT8 => Self::Uint8(u8::from_le_bytes(array(data, 0))),
            HeaderKind::UINT16 => Self::Uint16(u16::from_le_bytes(array(data, 0))),
            HeaderKind::UINT32 => Self::Uint32(u32::from_le_bytes(array(data, 0))),
            HeaderKind::UINT64 => Self::Uint64(u64::from_le_bytes(array(data, 0))),
            HeaderKind::UINT128 => Self::Uint128(u128::from_le_bytes(array(data, 0))),
            HeaderKind::FLOAT32 => Self::Float32(f32::from_le_bytes(array(data, 0))),
            HeaderKind::FLOAT64 => Self::Float64(f64::from_le_bytes(array(data, 0))),
            _ => Self::Other(kind, data),
        }
    }

    /// The kind that stands in front of the data.
    pub const fn kind(&self) -> HeaderKind {
        match self {
            Self::Raw(_) => HeaderKind::RAW,
            Self::String(_) => HeaderKind::STRING,
            Self::Bool(_) => HeaderKind::BOOL,
            Self::Int8(_) => HeaderKind::INT8,
            Self::Int16(_) => HeaderKind::INT16,
            Self::Int32(_) => HeaderKind::INT32,
            Self::Int64(_) => HeaderKind::INT64,
            Self::Int128(_) => HeaderKind::INT128,
            Self::Uint8(_) => HeaderKind::UINT8,
            Self::Uint16(_) => HeaderKind::UINT16,
            Self::Uint32(_) => HeaderKind::UINT32,
            Self::Uint64(_) => HeaderKind::UINT64,
            Self::Uint128(_) => HeaderKind::UINT128,
            Self::Float32(_) => HeaderKind::FLOAT32,
            Self::Float64(_) => HeaderKind::FLOAT64,
            Self::Other(kind, _) => *kind,
        }
    }

    /// Hands the data's bytes to `with`.
    fn with_data<R>(&self, with: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Raw(data) | Self::Other(_, data) => with(data),
            Self::String(text) => with(text.as_bytes()),
            Self::Bool(value) => with(&[u8::from(*value)]),
            Self::Int8(value) => with(&value.to_le_bytes()),
            Self::Int16(value) => with(&value.to_le_bytes()),
            Self::Int32(value) => with(&value.to_le_bytes()),
            Self::Int64(value) => with(&value.to_le_bytes()),
            Self::Int128(value) => with(&value.to_le_bytes()),
            Self::Uint8(value) => with(&value.to_le_bytes()),
            Self::Uint16(value) => with(&value.to_le_bytes()),
            Self::Uint32(value) => with(&value.to_le_bytes()),
            Self::Uint64(value) => with(&value.to_le_bytes()),
            Self::Uint128(value) => with(&value.to_le_bytes()),
            Self::Float32(value) => with(&value.to_le_bytes()),
            Self::Float64(value) => with(&value.to_le_bytes()),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.kind().0);
        self.with_data(|data| {
            out.extend_from_slice(&wire_len(data.len()).to_le_bytes());
            out.extend_from_slice(data);
        });
    }
}

/// A user header to write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UserHeader<'a> {
    pub key: HeaderValue<'a>,
    pub value: HeaderValue<'a>,
}

impl<'a> UserHeader<'a> {
    /// A header named by a string.
    pub const fn new(key: &'a str, value: HeaderValue<'a>) -> Self {
        Self {
            key: HeaderValue::String(key),
            value,
        }
    }

    /// A header named by a string with a string for its value.
    pub const fn text(key: &'a str, value: &'a str) -> Self {
        Self::new(key, HeaderValue::String(value))
    }
}

/// Appends the headers' block to `out`. Checks nothing; see [`check`].
pub fn encode_into(headers: &[UserHeader<'_>], out: &mut Vec<u8>) {
    for header in headers {
        header.key.put(out);
        header.value.put(out);
    }
}

/// A user header borrowed from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserHeaderView<'a> {
    pub key_kind: HeaderKind,
    pub key: &'a [u8],
    pub value_kind: HeaderKind,
    pub value: &'a [u8],
}

impl<'a> UserHeaderView<'a> {
    /// The key if it is a string.
    pub fn key_str(&self) -> Option<&'a str> {
        match self.decoded().key {
            HeaderValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// Key and value as typed values.
    pub fn decoded(&self) -> UserHeader<'a> {
        UserHeader {
            key: HeaderValue::decode(self.key_kind, self.key),
            value: HeaderValue::decode(self.value_kind, self.value),
        }
    }
}

/// Iterates over a block of user headers. The first fault is the last item.
pub fn iter(block: &[u8]) -> UserHeaderIter<'_> {
    UserHeaderIter { block, at: 0 }
}

/// The first header of a block whose key is the string `key`. A malformed block is searched up to
/// its fault.
pub fn find<'a>(block: &'a [u8], key: &str) -> Option<UserHeaderView<'a>> {
    iter(block)
        .map_while(Result::ok)
        .find(|header| header.key_kind == HeaderKind::STRING && header.key == key.as_bytes())
}

/// Checks a block: the length of the whole, and then every field in order.
///
/// # Errors
/// The first fault.
pub fn check(block: &[u8], limits: &BatchLimits) -> Result<(), HeadersError> {
    if block.len() as u64 > u64::from(limits.max_user_headers_bytes) {
        return Err(HeadersError::BlockTooLong {
            len: block.len() as u64,
            limit: limits.max_user_headers_bytes,
        });
    }
    let mut headers = iter(block);
    while headers.at < block.len() {
        headers.pair(limits.max_header_field_bytes)?;
    }
    Ok(())
}

/// See [`iter`].
#[derive(Clone, Debug)]
pub struct UserHeaderIter<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> UserHeaderIter<'a> {
    fn pair(&mut self, field_limit: u32) -> Result<UserHeaderView<'a>, HeadersError> {
        let key_at = self.at as u64;
        let (key_kind, key) = self.field(field_limit)?;
        if self.at == self.block.len() {
            return Err(HeadersError::KeyWithoutValue { at: key_at });
        }
        let (value_kind, value) = self.field(field_limit)?;
        Ok(UserHeaderView {
            key_kind,
            key,
            value_kind,
            value,
        })
    }

    fn field(&mut self, limit: u32) -> Result<(HeaderKind, &'a [u8]), HeadersError> {
        let at = self.at as u64;
        let rest = &self.block[self.at..];
        let Some((head, data)) = rest.split_at_checked(FIELD_HEADER_LEN) else {
            let left = rest.len() as u64;
            return Err(HeadersError::FieldHeaderCut { at, left });
        };
        let kind = HeaderKind(head[0]);
        let len = u32_at(head, 1);
        check_field(at, kind, len, limit)?;
        let Some(data) = data.get(..len as usize) else {
            let left = data.len() as u64;
            return Err(HeadersError::FieldCut { at, len, left });
        };
        self.at += FIELD_HEADER_LEN + data.len();
        Ok((kind, data))
    }
}

fn check_field(at: u64, kind: HeaderKind, len: u32, limit: u32) -> Result<(), HeadersError> {
    if kind.0 == 0 {
        return Err(HeadersError::KindZero { at });
    }
    match kind.fixed_len() {
        Some(expected) if expected != len => Err(HeadersError::WrongSize {
            at,
            kind,
            expected,
            len,
        }),
        _ if len == 0 => Err(HeadersError::FieldEmpty { at }),
        _ if len > limit => Err(HeadersError::FieldTooLong { at, len, limit }),
        _ => Ok(()),
    }
}

impl<'a> Iterator for UserHeaderIter<'a> {
    type Item = Result<UserHeaderView<'a>, HeadersError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.block.len() {
            return None;
        }
        // A reader takes fields of any length: limits are admission's, and may have been other ones.
        let item = self.pair(u32::MAX);
        if item.is_err() {
            self.at = self.block.len();
        }
        Some(item)
    }
}
