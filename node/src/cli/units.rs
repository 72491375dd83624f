//! How values are written on the command line: durations, sizes, pairs, delimiters.

use std::time::Duration;

/// `500ms`, `3s`, `2m`, `1h`, `1d`; a plain number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a number with a unit, such as 500ms or 3s".to_owned())?;
    let millis = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("unknown unit {unit:?}: ms, s, m, h or d")),
    };
    number
        .checked_mul(millis)
        .map(Duration::from_millis)
        .ok_or_else(|| "too long".to_owned())
}

/// `1024`, `64KiB`, `4MiB`, `1GiB`, and the decimal `kB`, `MB`, `GB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| "expected a number of bytes, such as 1024 or 4MiB".to_owned())?;
    let factor = match unit {
        "" | "B" => 1,
        "kB" => 1000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => {
            return Err(format!(
                "unknown unit {unit:?}: B, kB, KiB, MB, MiB, GB or GiB"
            ));
        }
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| "too large".to_owned())
}

/// `KEY=VALUE`, split at the first equals sign.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// What separates messages; may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delimiter(pub Vec<u8>);

impl Delimiter {
    /// Text with escapes.
    pub fn parse(text: &str) -> Result<Delimiter, String> {
        unescape(text).map(Delimiter)
    }
}

/// Resolves `\n \r \t \0 \\ \xHH`.
pub fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let (byte, used) = escape(&rest[at + 1..])?;
        bytes.push(byte);
        rest = &rest[at + 1 + used..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

/// The byte that an escape stands for and how long it is, the backslash left aside.
fn escape(after: &str) -> Result<(u8, usize), String> {
    match after.as_bytes() {
        [b'n', ..] => Ok((b'\n', 1)),
        [b'r', ..] => Ok((b'\r', 1)),
        [b't', ..] => Ok((b'\t', 1)),
        [b'0', ..] => Ok((0, 1)),
        [b'\\', ..] => Ok((b'\\', 1)),
        [b'x', high, low, ..] => match (hex(*high), hex(*low)) {
            (Some(high), Some(low)) => Ok((high << 4 | low, 3)),
            _ => Err("\\x needs two hexadecimal digits".to_owned()),
        },
        _ => Err("a backslash is followed by n, r, t, 0, \\ or xHH".to_owned()),
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "3 s", "3y", "-1s", "99999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("1024"), Ok(1024));
        assert_eq!(bytes("4MiB"), Ok(4 << 20));
        assert_eq!(bytes("2kB"), Ok(2000));
        for bad in ["", "MiB", "4M", "99999999999999GiB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs_split_at_the_first_equals_sign() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(key_value("a="), Ok(("a".into(), String::new())));
        assert!(key_value("=b").is_err());
        assert!(key_value("a").is_err());
    }

    #[test]
    fn escapes_resolve() {
        assert_eq!(
            unescape(r"a\n\t\0\\\x1fé"),
            Ok(b"a\n\t\0\\\x1f\xc3\xa9".to_vec())
        );
        assert_eq!(unescape(""), Ok(Vec::new()));
        for bad in [r"\", r"\q", r"\x1", r"\xzz", r"\é"] {
            assert!(unescape(bad).is_err(), "{bad}");
        }
    }
}
