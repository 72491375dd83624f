//! Names and settings of topics: what is allowed, and how settings are written canonically.
//!
//! [`SETTINGS`] is the one list of settings: checks, refusals and `imprint topic options` follow it.
//! Checked by the service, so that the caller hears of it before anything is proposed, and again
//! when the command is applied, which is the authority.
//!
//! The settings that decide where segments end are always written out in a topic's record
//! ([`write_out_roll`]): a node's own default must not, since all replicas have to cut alike.

use super::setting_values::{self as values, ValueError};
use crate::backend::RollSettings;
use std::collections::BTreeMap;

/// Bytes of a topic name: it becomes part of file and metric names.
pub const MAX_TOPIC_NAME_BYTES: usize = 249;
/// Each partition is a Raft group with tasks of its own on every replica.
pub const MAX_PARTITIONS_PER_TOPIC: u32 = 1000;

/// What a setting's number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Milliseconds,
}

/// One setting that a topic may have.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    pub unit: Unit,
    pub min: u64,
    pub max: u64,
    /// `none` is a value, and stands for no limit.
    pub may_be_none: bool,
    /// For people; the value itself or where it comes from.
    pub default: &'static str,
    pub meaning: &'static str,
}

const HUNDRED_YEARS_MS: u64 = 36_500 * 86_400_000;

/// Every setting, by name.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "max_batch_bytes",
        unit: Unit::Bytes,
        min: 256,
        max: 64 << 20,
        may_be_none: false,
        default: "limits.max_batch_bytes of each node",
        meaning: "Largest producer batch; a topic may allow less than the nodes do, not more.",
    },
    Setting {
        name: "retention_bytes",
        unit: Unit::Bytes,
        min: 0,
        max: 1 << 60,
        may_be_none: true,
        default: "none",
        meaning: "Of each partition at least this much is kept: the oldest segment goes when what is left is as large. The active segment always stays.",
    },
    Setting {
        name: "retention_ms",
        unit: Unit::Milliseconds,
        min: 1,
        max: HUNDRED_YEARS_MS,
        may_be_none: true,
        default: "none",
        meaning: "How long messages are kept at least: a segment goes when its newest message is older. The active segment always stays.",
    },
    Setting {
        name: SEGMENT_BYTES,
        unit: Unit::Bytes,
        min: 64 << 10,
        max: 16 << 30,
        may_be_none: false,
        default: "storage.segment_bytes of the node that takes the call",
        meaning: "A batch that would take a segment past this opens a new one. Retention deletes whole segments.",
    },
    Setting {
        name: SEGMENT_MS,
        unit: Unit::Milliseconds,
        min: 100,
        max: HUNDRED_YEARS_MS,
        may_be_none: true,
        default: "none",
        meaning: "A batch stamped this long after its segment's first opens a new one.",
    },
];

const SEGMENT_BYTES: &str = "segment_bytes";
const SEGMENT_MS: &str = "segment_ms";

impl Setting {
    /// The allowed range in words.
    pub fn range(&self) -> String {
        let none = if self.may_be_none { " or none" } else { "" };
        let (min, max) = (
            values::show(self.unit, self.min),
            values::show(self.unit, self.max),
        );
        format!("{min}..={max}{none}")
    }

    /// A value as it is kept: a plain number, or `none`.
    fn canonical(&self, value: &str) -> Result<String, String> {
        let number = match values::parse(self.unit, value) {
            Ok(Some(number)) => number,
            Ok(None) if self.may_be_none => return Ok(values::NONE.to_string()),
            Ok(None) => return Err(format!("{value:?} is not in {}", self.range())),
            Err(error @ ValueError::Form(_)) => {
                return Err(format!("{value:?} is {error}; allowed: {}", self.range()));
            }
            Err(ValueError::Overflow) => {
                return Err(format!("{value:?} is not in {}", self.range()));
            }
        };
        if !(self.min..=self.max).contains(&number) {
            return Err(format!("{value:?} is not in {}", self.range()));
        }
        Ok(number.to_string())
    }
}

/// The setting of that name.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// A kept value for people: with its unit.
pub fn show(name: &str, value: &str) -> String {
    let number = value.parse().ok();
    match (find(name), number) {
        (Some(setting), Some(number)) => values::show(setting.unit, number),
        _ => value.to_string(),
    }
}

/// Something that can't be accepted, with the field that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub field: String,
    pub problem: String,
}

fn refuse(field: impl Into<String>, problem: impl Into<String>) -> Refusal {
    Refusal {
        field: field.into(),
        problem: problem.into(),
    }
}

fn known(field: &str, name: &str) -> Result<&'static Setting, Refusal> {
    find(name).ok_or_else(|| {
        let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        let problem = format!("unknown setting {name:?}; known: {}", known.join(", "));
        refuse(field, problem)
    })
}

/// Accepts 1 to 249 of `[a-zA-Z0-9._-]`, but neither "." nor "..".
pub fn check_name(name: &str) -> Result<(), Refusal> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.is_empty() || name.len() > MAX_TOPIC_NAME_BYTES {
        let problem = format!(
            "{} bytes long; allowed: 1..={MAX_TOPIC_NAME_BYTES}",
            name.len()
        );
        return Err(refuse("name", problem));
    }
    if !name.bytes().all(allowed) || name == "." || name == ".." {
        let problem = format!(
            "{name:?} is not a topic name; allowed: letters, digits, '.', '_', '-', but not \".\" or \"..\""
        );
        return Err(refuse("name", problem));
    }
    Ok(())
}

pub fn check_partitions(partitions: u32) -> Result<(), Refusal> {
    if (1..=MAX_PARTITIONS_PER_TOPIC).contains(&partitions) {
        return Ok(());
    }
    let problem = format!("{partitions} is not in 1..={MAX_PARTITIONS_PER_TOPIC}");
    Err(refuse("partitions", problem))
}

/// Settings by name, canonical text.
pub type Settings = BTreeMap<String, String>;

/// Checks names and ranges and gives the settings with plain numbers as values. `field` is the
/// request's field that has them.
pub fn canonical(field: &str, settings: &Settings) -> Result<Settings, Refusal> {
    let mut canonical = BTreeMap::new();
    for (name, value) in settings {
        let field = format!("{field}.{name}");
        let value = known(&field, name)?.canonical(value);
        let value = value.map_err(|problem| refuse(field, problem))?;
        canonical.insert(name.clone(), value);
    }
    Ok(canonical)
}

/// A change of settings: what is set, canonical, and what goes back to its default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    pub set: Settings,
    pub unset: Vec<String>,
}

impl Change {
    /// Checks names, ranges, and that the two parts don't contradict each other.
    pub fn check(set: &Settings, unset: &[String]) -> Result<Self, Refusal> {
        if set.is_empty() && unset.is_empty() {
            return Err(refuse("set", "nothing is set or unset"));
        }
        let set = canonical("set", set)?;
        for name in unset {
            known("unset", name)?;
            if set.contains_key(name) {
                let problem = format!("{name:?} is set and unset in one call");
                return Err(refuse("unset", problem));
            }
        }
        let unset = unset.to_vec();
        Ok(Self { set, unset })
    }

    /// Makes an unset of what is always written out a set to the default.
    pub fn write_out_roll(mut self, default_segment_bytes: u64) -> Self {
        for name in std::mem::take(&mut self.unset) {
            match roll_default(&name, default_segment_bytes) {
                Some(value) => drop(self.set.insert(name, value)),
                None => self.unset.push(name),
            }
        }
        self
    }

    /// The settings after the change.
    pub fn apply(self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        for name in &self.unset {
            settings.remove(name);
        }
        settings.extend(self.set);
        settings
    }
}

fn roll_default(name: &str, default_segment_bytes: u64) -> Option<String> {
    match name {
        SEGMENT_BYTES => Some(default_segment_bytes.to_string()),
        SEGMENT_MS => Some(values::NONE.to_string()),
        _ => None,
    }
}

/// Adds the settings that decide where segments end, where they aren't set.
pub fn write_out_roll(settings: &mut Settings, default_segment_bytes: u64) {
    for name in [SEGMENT_BYTES, SEGMENT_MS] {
        if let Some(value) = roll_default(name, default_segment_bytes) {
            settings.entry(name.to_string()).or_insert(value);
        }
    }
}

/// A setting's number, if the topic has that setting and it is not `none`.
pub fn number(settings: &Settings, name: &str) -> Option<u64> {
    settings.get(name).and_then(|value| value.parse().ok())
}

/// Where segments are to end; `None` for a topic from before that was written out.
pub fn roll(settings: &Settings) -> Option<RollSettings> {
    Some(RollSettings {
        segment_bytes: number(settings, SEGMENT_BYTES)?,
        segment_span_us: number(settings, SEGMENT_MS).map(|ms| ms.saturating_mul(1000)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Settings {
        BTreeMap::from([(name.to_string(), value.to_string())])
    }

    #[test]
    fn names_at_the_limit_and_past_it() {
        assert!(check_name(&"a".repeat(MAX_TOPIC_NAME_BYTES)).is_ok());
        assert!(check_name("Orders.eu-1_x").is_ok());
        for name in [
            "",
            ".",
            "..",
            "a b",
            "a/b",
            "é",
            &"a".repeat(MAX_TOPIC_NAME_BYTES + 1),
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn settings_become_plain_numbers() {
        for (name, value, kept) in [
            ("segment_bytes", "1MiB", "1048576"),
            ("segment_ms", "1h", "3600000"),
            ("segment_ms", "none", "none"),
            ("retention_ms", "7d", "604800000"),
            ("retention_ms", "-1", "none"),
            ("retention_ms", "1500", "1500"),
            ("retention_bytes", "0", "0"),
            ("retention_bytes", "1GB", "1000000000"),
        ] {
            let canonical = canonical("settings", &one(name, value)).expect(value);
            assert_eq!(canonical[name], kept, "{name}={value}");
            let shown = show(name, kept);
            assert_eq!(
                self::canonical("settings", &one(name, &shown)).expect("reads back"),
                canonical
            );
        }
    }

    #[test]
    fn a_refusal_names_field_value_and_range() {
        for (name, value, says) in [
            ("segment_bytes", "1", "\"1\" is not in 64KiB..=16GiB"),
            ("segment_bytes", "none", "\"none\" is not in 64KiB..=16GiB"),
            ("segment_bytes", "x", "\"x\" is not a size"),
            (
                "segment_ms",
                "1ms",
                "\"1ms\" is not in 100ms..=36500d or none",
            ),
            ("retention_ms", "0", "\"0\" is not in 1ms..=36500d or none"),
            ("retention_ms", "1y", "\"1y\" is not a duration"),
            ("retention_ms", "99999999999999999d", "is not in"),
            ("retention_bytes", "-2", "is not a size"),
            (
                "color",
                "red",
                "unknown setting \"color\"; known: max_batch_bytes, retention_bytes",
            ),
        ] {
            let refusal = canonical("settings", &one(name, value)).expect_err("refused");
            assert_eq!(refusal.field, format!("settings.{name}"));
            assert!(refusal.problem.contains(says), "{}", refusal.problem);
        }
    }

    #[test]
    fn a_change_sets_and_unsets() {
        let mut before = one("retention_ms", "5");
        write_out_roll(&mut before, 70_000);
        let unset = ["retention_ms".to_string(), "segment_bytes".to_string()];
        let change = Change::check(&one("segment_ms", "2s"), &unset).expect("fine");
        let after = change.write_out_roll(80_000).apply(&before);
        let roll = roll(&after).expect("written out");
        assert_eq!(
            (roll.segment_bytes, roll.segment_span_us),
            (80_000, Some(2_000_000))
        );
        assert_eq!(number(&after, "retention_ms"), None);
        assert_eq!(after.len(), 2);
        for (set, unset, field) in [
            (Settings::new(), vec![], "set"),
            (one("x", "1"), vec![], "set.x"),
            (Settings::new(), vec!["x".to_string()], "unset"),
            (
                one("segment_ms", "2s"),
                vec!["segment_ms".to_string()],
                "unset",
            ),
        ] {
            let refusal = Change::check(&set, &unset).expect_err("refused");
            assert_eq!(refusal.field, field);
        }
    }

    #[test]
    fn each_setting_is_explained() {
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
        assert!(
            SETTINGS
                .iter()
                .all(|setting| setting.meaning.ends_with('.'))
        );
    }
}
