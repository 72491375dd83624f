//! Sizes, durations and addresses as people write them.
//!
//! Rules, the same everywhere a value is read:
//! * **size**: a whole number and an optional unit, at most one space between. No unit and `B` mean
//!   bytes; `kB`, `MB`, `GB`, `TB` are powers of 1000; `KiB`, `MiB`, `GiB`, `TiB` are powers of
//!   1024. Letter case does not matter, fractions are refused.
//! * **duration**: a whole number and a unit out of `us`, `ms`, `s`, `m`, `h`. A bare number is
//!   refused, since nobody can tell what it means.
//! * **address**: `host:port`, an IPv6 host in brackets.

use std::{fmt, str::FromStr, time::Duration};

/// Why a value could not be read; the text completes "is ...".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error(
        "not a size: expected a whole number of bytes with an optional unit such as 64MiB or 1GB"
    )]
    Size,
    #[error("not a duration: expected a whole number with a unit out of us, ms, s, m, h")]
    Duration,
    #[error("not an address: expected host:port with a port in 0..=65535, IPv6 hosts in brackets")]
    Address,
    #[error("too large to represent")]
    Overflow,
}

/// Reads a size in bytes.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split_number(text).ok_or(UnitError::Size)?;
    let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(UnitError::Size),
    };
    number.checked_mul(factor).ok_or(UnitError::Overflow)
}

/// Reads a duration.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split_number(text).ok_or(UnitError::Duration)?;
    let micros: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(UnitError::Duration),
    };
    number
        .checked_mul(micros)
        .map(Duration::from_micros)
        .ok_or(UnitError::Overflow)
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    digits.parse().ok().map(|number| (number, unit))
}

/// Writes a size with the largest binary unit that divides it, so that reading it gives the same.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    for (factor, unit) in UNITS {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

/// Writes a duration with the largest unit that divides it.
pub fn format_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    const UNITS: [(u128, &str); 4] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    for (factor, unit) in UNITS {
        if micros >= factor && micros.is_multiple_of(factor) {
            return format!("{}{unit}", micros / factor);
        }
    }
    format!("{micros}us")
}

/// `host:port` as written; the host is a name or an IP address and is resolved at each dial.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Name or address, IPv6 without its brackets.
    pub host: String,
    pub port: u16,
}

impl HostPort {
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Stands for every interface and so means nothing to somebody else.
    pub fn is_wildcard(&self) -> bool {
        self.host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_unspecified())
    }

    pub fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HostPort {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (host, port) = text.rsplit_once(':').ok_or(UnitError::Address)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or(UnitError::Address)?,
            None if host.contains(':') => return Err(UnitError::Address),
            None => host,
        };
        let bad = |c: char| c.is_whitespace() || "/@=,[]".contains(c);
        if host.is_empty() || host.contains(bad) || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(UnitError::Address);
        }
        let port = port.parse().map_err(|_| UnitError::Address)?;
        Ok(Self::new(host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_written_rule() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1GB", 1_000_000_000),
            ("1gib", 1 << 30),
            ("3kb", 3000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "1.5MiB", "-1", "1  MiB", "1MiBs", "1M", " 1"] {
            assert_eq!(parse_size(text), Err(UnitError::Size), "{text:?}");
        }
        assert_eq!(
            parse_size("18446744073709551615KiB"),
            Err(UnitError::Overflow)
        );
    }

    #[test]
    fn formatted_values_read_back() {
        for bytes in [0, 1, 1023, 1024, 1 << 20, (4 << 20) - 4096, 1 << 40] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        for micros in [0, 1, 999, 1000, 250_000, 1_000_000, 90_000_000] {
            let duration = Duration::from_micros(micros);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }

    #[test]
    fn a_duration_needs_its_unit() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("250"), Err(UnitError::Duration));
        assert_eq!(parse_duration("1w"), Err(UnitError::Duration));
    }

    #[test]
    fn addresses_keep_their_host() {
        let v6: HostPort = "[::]:7460".parse().expect("address");
        assert!(v6.is_wildcard());
        assert_eq!(v6.to_string(), "[::]:7460");
        let name: HostPort = "Imprint-1.local:0".parse().expect("address");
        assert_eq!(name, HostPort::new("Imprint-1.local", 0));
        for text in [
            "host",
            ":1",
            "host:",
            "host:70000",
            "::1:7460",
            "a b:1",
            "h:+1",
        ] {
            assert_eq!(text.parse::<HostPort>(), Err(UnitError::Address), "{text}");
        }
    }
}
