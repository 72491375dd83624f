//! Decoded things as names and values, so that whoever shows them need not know each kind.

use std::fmt::{self, Write as _};

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// Nothing there.
    None,
    /// A count, a position, an id.
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// Words.
    Text(String),
    /// Bytes, shown as lower-case hex.
    Hex(Vec<u8>),
    /// Several, in order.
    Many(Vec<Fields>),
}

/// Names and values in the order in which they are shown.
pub type Fields = Vec<(&'static str, Field)>;

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Number(n) => write!(f, "{n}"),
            Self::Flag(yes) => f.write_str(if *yes { "yes" } else { "no" }),
            Self::Text(text) => f.write_str(text),
            Self::Hex(bytes) => f.write_str(&hex(bytes)),
            Self::Many(all) => write!(f, "{}", all.len()),
        }
    }
}

impl From<u64> for Field {
    fn from(n: u64) -> Self {
        Self::Number(n)
    }
}

impl From<bool> for Field {
    fn from(yes: bool) -> Self {
        Self::Flag(yes)
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<T: Into<Field>> From<Option<T>> for Field {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing to a String can't fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
