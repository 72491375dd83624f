//! What producers sent, and what they were told about it.
//!
//! Each message is written down before it is sent, so whatever stands in a log and not here was sent by
//! nobody. Payloads are unique (producer, sequence, a random number), so a payload names its message. A
//! message that is neither acknowledged nor refused has an unknown outcome: stored once, or not at all.

use std::collections::{BTreeMap, BTreeSet};

/// The record of one test's messages.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// By producer, in sending order.
    sent: BTreeMap<u64, Vec<String>>,
    /// Payload by offset.
    acknowledged: BTreeMap<u64, String>,
    /// Payloads of which a definite answer said that they were not stored.
    refused: BTreeSet<String>,
    /// Acknowledgements at offsets that were acknowledged before.
    clashes: Vec<String>,
    /// Whether offsets at the front may be gone: retention or trims were at work.
    may_be_trimmed: bool,
}

impl Ledger {
    /// Before sending.
    pub fn sent(&mut self, who: u64, text: &str) {
        self.sent.entry(who).or_default().push(text.to_owned());
    }

    pub fn acknowledged(&mut self, offset: u64, text: &str) {
        if let Some(earlier) = self.acknowledged.insert(offset, text.to_owned()) {
            self.clashes.push(format!(
                "{earlier:?} and {text:?} were both acknowledged at {offset}"
            ));
        }
    }

    /// Not stored, says the answer.
    pub fn refused(&mut self, text: &str) {
        self.refused.insert(text.to_owned());
    }

    /// Messages acknowledged.
    pub fn count(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// Messages refused.
    pub fn count_refused(&self) -> u64 {
        self.refused.len() as u64
    }

    /// Acknowledged payloads by offset.
    pub fn by_offset(&self) -> &BTreeMap<u64, String> {
        &self.acknowledged
    }

    /// Each producer's payloads in sending order.
    pub fn by_producer(&self) -> &BTreeMap<u64, Vec<String>> {
        &self.sent
    }

    pub fn is_refused(&self, text: &str) -> bool {
        self.refused.contains(text)
    }

    /// Says that the front of the log may have been removed on purpose.
    pub fn allow_trims(&mut self) {
        self.may_be_trimmed = true;
    }

    pub fn may_be_trimmed(&self) -> bool {
        self.may_be_trimmed
    }

    /// Two acknowledgements of one offset, if there were.
    pub fn clash(&self) -> Option<&str> {
        self.clashes.first().map(String::as_str)
    }
}
