//! Values of topic settings as people write them: sizes and durations, with or without units, and
//! `none`.
//!
//! A bare duration counts milliseconds, because the setting's name says so (`retention_ms`).

use super::settings::Unit;
use crate::config::units::{UnitError, format_size, parse_size};

/// No limit, as it is kept.
pub(super) const NONE: &str = "none";

/// Milliseconds in each unit, the largest first.
const DURATIONS: &[(u64, &str)] = &[
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "m"),
    (1_000, "s"),
    (1, "ms"),
];

/// Why a value can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    #[error("{0}")]
    Form(&'static str),
    #[error("too large to represent")]
    Overflow,
}

const SIZE_FORM: &str =
    "not a size: expected a whole number of bytes with an optional unit such as 64MiB or 1GB";
const DURATION_FORM: &str = "not a duration: expected a whole number of milliseconds, or one with a unit out of ms, s, m, h, d";

/// Reads a value; `Ok(None)` is no limit.
pub(super) fn parse(unit: Unit, text: &str) -> Result<Option<u64>, ValueError> {
    if text == NONE || text == "-1" {
        return Ok(None);
    }
    let number = match unit {
        Unit::Bytes => parse_size(text).map_err(|error| match error {
            UnitError::Overflow => ValueError::Overflow,
            _ => ValueError::Form(SIZE_FORM),
        }),
        Unit::Milliseconds => parse_millis(text),
    };
    number.map(Some)
}

fn parse_millis(text: &str) -> Result<u64, ValueError> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let factor = match unit {
        "" => Some(1),
        unit => DURATIONS
            .iter()
            .find(|(_, name)| *name == unit)
            .map(|(factor, _)| *factor),
    };
    match factor {
        Some(factor) if !digits.is_empty() => {
            let number = digits.parse::<u64>().ok();
            let millis = number.and_then(|number| number.checked_mul(factor));
            millis.ok_or(ValueError::Overflow)
        }
        _ => Err(ValueError::Form(DURATION_FORM)),
    }
}

/// Writes a number with the largest unit that divides it, so that reading it gives the same.
pub(super) fn show(unit: Unit, number: u64) -> String {
    match unit {
        Unit::Bytes => format_size(number),
        Unit::Milliseconds => show_millis(number),
    }
}

fn show_millis(millis: u64) -> String {
    let fits = |(factor, _): &&(u64, &str)| millis >= *factor && millis.is_multiple_of(*factor);
    match DURATIONS.iter().find(fits) {
        Some((factor, name)) => format!("{}{name}", millis / factor),
        None => format!("{millis}ms"),
    }
}
