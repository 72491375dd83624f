//! Data directories that an earlier version left, and what must be in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ledger::Ledger;

/// The topic in every fixture.
pub const TOPIC: &str = "kept";
/// Who sent what was there before, in a ledger.
const EARLIER: u64 = 0;

/// What a fixture holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// First kept offset.
    pub start: u64,
    /// Payload by offset.
    pub messages: BTreeMap<u64, String>,
}

impl Expected {
    /// What was acknowledged from `start` on.
    pub fn of(ledger: &Ledger, start: u64) -> Self {
        let kept = ledger.by_offset().range(start..);
        Expected {
            start,
            messages: kept.map(|(offset, text)| (*offset, text.clone())).collect(),
        }
    }

    /// Writes `expected.json` into the fixture.
    pub fn write(&self, fixture: &Path) {
        let messages: serde_json::Map<String, serde_json::Value> = self
            .messages
            .iter()
            .map(|(offset, text)| (offset.to_string(), text.as_str().into()))
            .collect();
        let json = serde_json::json!({ "start": self.start, "messages": messages });
        let text = serde_json::to_string_pretty(&json).expect("plain values");
        fs::write(fixture.join("expected.json"), text + "\n").expect("a writable directory");
    }

    /// Reads `expected.json` of a fixture.
    pub fn read(fixture: &Path) -> Self {
        let text = fs::read_to_string(fixture.join("expected.json")).expect("it has one");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let messages = json["messages"].as_object().expect("messages by offset");
        let message = |(offset, text): (&String, &serde_json::Value)| {
            let text = text.as_str().expect("a payload");
            (offset.parse().expect("an offset"), text.to_owned())
        };
        Expected {
            start: json["start"].as_u64().expect("an offset"),
            messages: messages.iter().map(message).collect(),
        }
    }

    /// Puts what was there before into a ledger.
    pub fn add_to(&self, ledger: &mut Ledger) {
        for (offset, text) in &self.messages {
            ledger.sent(EARLIER, text);
            ledger.acknowledged(*offset, text);
        }
        if self.start > 0 {
            ledger.allow_trims();
        }
    }
}

/// The fixtures in the repository, in order.
pub fn all() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let entries = fs::read_dir(dir).expect("the fixtures are in the repository");
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.join("expected.json").is_file())
        .collect();
    found.sort();
    found
}
