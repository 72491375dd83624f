//! Points in time as people write and read them, and where `consume` starts.
//!
//! UTC only: no time zone database is carried along.

use super::units;
use imprint_client::Position;
use std::time::{SystemTime, UNIX_EPOCH};

const MICROS_PER_SECOND: u64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// Where to start reading, as written: `start`, `end`, `N`, `-N`, `@TIME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartAt {
    /// First kept message.
    Start,
    /// What comes after now.
    End,
    /// An offset.
    Offset(u64),
    /// The last so many messages.
    Last(u64),
    /// A point in time, resolved when the command runs.
    Time(TimeSpec),
}

/// A point in time, possibly relative to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSpec {
    /// Microseconds since the Unix epoch.
    At(u64),
    /// Microseconds before now.
    Ago(u64),
}

impl StartAt {
    /// Reads one of the forms.
    pub fn parse(text: &str) -> Result<StartAt, String> {
        let number = |digits: &str| digits.parse::<u64>().ok();
        match text {
            "start" => Ok(StartAt::Start),
            "end" => Ok(StartAt::End),
            _ => {
                if let Some(time) = text.strip_prefix('@') {
                    TimeSpec::parse(time).map(StartAt::Time)
                } else if let Some(count) = text.strip_prefix('-').and_then(number) {
                    Ok(StartAt::Last(count))
                } else if let Some(offset) = number(text) {
                    Ok(StartAt::Offset(offset))
                } else {
                    Err("expected start, end, an offset, -N or @TIME".to_owned())
                }
            }
        }
    }

    /// The position to ask a server for.
    pub fn position(&self, now_micros: u64) -> Position {
        match self {
            StartAt::Start => Position::First,
            StartAt::End => Position::Last(0),
            StartAt::Offset(offset) => Position::Offset(*offset),
            StartAt::Last(count) => Position::Last(*count),
            StartAt::Time(time) => Position::Timestamp(time.resolve(now_micros)),
        }
    }
}

/// Before which messages are trimmed, as written: an offset, `end`, `@TIME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrimBefore {
    written: String,
    at: StartAt,
}

impl TrimBefore {
    /// Reads one of the forms.
    pub fn parse(text: &str) -> Result<TrimBefore, String> {
        let at = match StartAt::parse(text) {
            Ok(at @ (StartAt::Offset(_) | StartAt::End | StartAt::Time(_))) => at,
            Err(problem) if text.starts_with('@') => return Err(problem),
            _ => return Err("expected an offset, end or @TIME".to_owned()),
        };
        let written = match at {
            StartAt::Offset(offset) => format!("offset {offset}"),
            _ => text.to_owned(),
        };
        Ok(TrimBefore { written, at })
    }

    /// The position to ask a server for.
    pub fn position(&self, now_micros: u64) -> Position {
        self.at.position(now_micros)
    }
}

impl std::fmt::Display for TrimBefore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.written)
    }
}

/// Now, in microseconds since the Unix epoch.
pub fn now_micros() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl TimeSpec {
    /// RFC 3339, `now`, `-1h`, or a number with its unit (`s`, `ms`, `us`) since the Unix epoch.
    pub fn parse(text: &str) -> Result<TimeSpec, String> {
        if text == "now" {
            return Ok(TimeSpec::Ago(0));
        }
        if let Some(ago) = text.strip_prefix('-') {
            return units::duration(ago)
                .map(|ago| TimeSpec::Ago(u64::try_from(ago.as_micros()).unwrap_or(u64::MAX)));
        }
        epoch_number(text)
            .or_else(|| rfc3339(text))
            .map(TimeSpec::At)
            .ok_or_else(|| {
                "expected RFC 3339 (2026-01-31T12:00:00Z), now, -1h, or a number with unit s, ms or us"
                    .to_owned()
            })
    }

    /// Microseconds since the Unix epoch.
    pub fn resolve(self, now_micros: u64) -> u64 {
        match self {
            TimeSpec::At(micros) => micros,
            TimeSpec::Ago(micros) => now_micros.saturating_sub(micros),
        }
    }
}

/// `1700000000s`, `1700000000000ms`, `…us`. The unit is not optional: a bare number has been all three.
fn epoch_number(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "s" => MICROS_PER_SECOND,
        "ms" => 1000,
        "us" => 1,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`, as microseconds since the Unix epoch.
fn rfc3339(text: &str) -> Option<u64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let [year, month, day] = fields(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = fields(clock, ':', [2, 2, 2])?;
    let valid = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !valid {
        return None;
    }
    let of_day = hour * 3600 + minute * 60 + second - zone_seconds(zone)?;
    let seconds = days_from_epoch(year, month, day) * SECONDS_PER_DAY + of_day;
    u64::try_from(seconds)
        .ok()?
        .checked_mul(MICROS_PER_SECOND)?
        .checked_add(fraction_micros(fraction)?)
}

fn fields<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut found = [0; N];
    for (slot, width) in found.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *slot = part.parse().ok()?;
    }
    parts.next().is_none().then_some(found)
}

fn zone_seconds(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let [hours, minutes] = fields(zone.get(1..)?, ':', [2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn fraction_micros(fraction: &str) -> Option<u64> {
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let six: String = fraction.chars().chain("000000".chars()).take(6).collect();
    six.parse().ok()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01, counting years from March so that the leap day is the last of its year.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year
        - 719_468
}

/// Year, month and day of a number of days from 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

/// RFC 3339 in UTC with microseconds.
pub fn format_micros(micros: u64) -> String {
    let (seconds, fraction) = (micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    // At most 2^64 / 10^6 seconds: fits.
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let (year, month, day) = date_of(seconds / SECONDS_PER_DAY);
    let of_day = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read() {
        assert_eq!(StartAt::parse("start"), Ok(StartAt::Start));
        assert_eq!(StartAt::parse("end"), Ok(StartAt::End));
        assert_eq!(StartAt::parse("17"), Ok(StartAt::Offset(17)));
        assert_eq!(StartAt::parse("-5"), Ok(StartAt::Last(5)));
        assert_eq!(
            StartAt::parse("@-1h"),
            Ok(StartAt::Time(TimeSpec::Ago(3_600_000_000)))
        );
        for bad in ["", "-", "x", "@", "@17", "-1h", "1.5", "@yesterday"] {
            assert!(StartAt::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_read_and_written() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:30:15.25Z", 951_827_415_250_000),
            ("2026-01-31T12:00:00+02:00", 1_769_853_600_000_000),
            ("1700000000s", 1_700_000_000_000_000),
            ("1700000000123ms", 1_700_000_000_123_000),
            ("1700000000123456us", 1_700_000_000_123_456),
        ] {
            assert_eq!(TimeSpec::parse(text), Ok(TimeSpec::At(micros)), "{text}");
        }
        assert_eq!(
            format_micros(951_827_415_250_000),
            "2000-02-29T12:30:15.250000Z"
        );
        for bad in [
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "1969-12-31T00:00:00Z",
            "1700000000",
        ] {
            assert!(TimeSpec::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_comes_back() {
        let mut expected = (1970, 1, 1);
        for day in 0..146_097 {
            assert_eq!(date_of(day), expected);
            assert_eq!(days_from_epoch(expected.0, expected.1, expected.2), day);
            expected.2 += 1;
            if expected.2 > days_in_month(expected.0, expected.1) {
                expected = (expected.0, expected.1 + 1, 1);
            }
            if expected.1 > 12 {
                expected = (expected.0 + 1, 1, 1);
            }
        }
    }
}
