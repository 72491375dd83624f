//! Names and settings of topics: what is allowed, and how settings are written canonically.
//!
//! Checked by the service, so that the caller hears of it before anything is proposed, and again
//! when the command is applied, which is the authority.

use crate::config::units::parse_size;
use std::collections::BTreeMap;

/// Bytes of a topic name: it becomes part of file and metric names.
pub const MAX_TOPIC_NAME_BYTES: usize = 249;
/// Each partition is a Raft group with tasks of its own on every replica.
pub const MAX_PARTITIONS_PER_TOPIC: u32 = 1000;

/// The settings that a topic may have, each a size, with the range in bytes.
const SETTINGS: &[(&str, u64, u64)] = &[
    ("max_batch_bytes", 256, 64 << 20),
    ("segment_bytes", 64 << 10, 16 << 30),
];

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

/// Checks names and ranges and gives the settings with plain numbers as values.
pub fn canonical(settings: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refusal> {
    let mut canonical = BTreeMap::new();
    for (name, value) in settings {
        let field = format!("settings.{name}");
        let Some((_, min, max)) = SETTINGS.iter().find(|(known, ..)| known == name) else {
            let known: Vec<&str> = SETTINGS.iter().map(|(known, ..)| *known).collect();
            let problem = format!("unknown setting; known: {}", known.join(", "));
            return Err(refuse(field, problem));
        };
        match parse_size(value) {
            Ok(bytes) if (*min..=*max).contains(&bytes) => {
                canonical.insert(name.clone(), bytes.to_string());
            }
            Ok(bytes) => {
                return Err(refuse(
                    field,
                    format!("{bytes} is not in {min}..={max} bytes"),
                ));
            }
            Err(error) => return Err(refuse(field, format!("{value:?} is {error}"))),
        }
    }
    Ok(canonical)
}

/// A setting of a topic in bytes, if it has that setting.
pub fn bytes(settings: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    settings.get(name).and_then(|value| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let given = BTreeMap::from([("segment_bytes".to_string(), "1MiB".to_string())]);
        assert_eq!(canonical(&given).expect("fine")["segment_bytes"], "1048576");
        for (name, value) in [
            ("segment_bytes", "1"),
            ("segment_bytes", "x"),
            ("color", "red"),
        ] {
            let given = BTreeMap::from([(name.to_string(), value.to_string())]);
            let refusal = canonical(&given).expect_err("refused");
            assert_eq!(refusal.field, format!("settings.{name}"));
        }
    }
}
