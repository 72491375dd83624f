//! What must hold once faults have stopped, asked of every node through its client interface.
//!
//! A send whose outcome is unknown may or may not be stored, at most once. Everything else is strict:
//! what was acknowledged stands at its offset with its bytes on every node, offsets are dense, nothing
//! is stored that nobody sent, nothing is stored twice, and each producer's messages keep their order.

use std::collections::{BTreeMap, BTreeSet};

use imprint_client::{Client, PollOptions, Position};
use imprint_proto::batch::{StampedBatch, split_batches};
use xxhash_rust::xxh3::xxh3_64;

/// What producers sent and what was acknowledged to them.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// By producer, in sending order.
    sent: BTreeMap<u64, Vec<String>>,
    /// Payload by offset.
    acknowledged: BTreeMap<u64, String>,
}

impl Ledger {
    pub fn sent(&mut self, who: u64, text: &str) {
        self.sent.entry(who).or_default().push(text.to_owned());
    }

    pub fn acknowledged(&mut self, offset: u64, text: &str) {
        self.acknowledged.insert(offset, text.to_owned());
    }

    /// Messages acknowledged.
    pub fn count(&self) -> u64 {
        self.acknowledged.len() as u64
    }
}

/// One node's log: its raw bytes and its payloads by offset.
#[derive(Debug, Clone, Default)]
struct NodeLog {
    bytes: Vec<u8>,
    payloads: BTreeMap<u64, String>,
}

/// Checks every node against the ledger and against the others. The text says what doesn't hold.
pub async fn audit(
    client: &Client,
    topic: &str,
    nodes: &[u64],
    ledger: &Ledger,
) -> Result<String, String> {
    let mut logs = Vec::new();
    for node in nodes {
        let log = read_all(client, topic, *node).await?;
        check_log(*node, &log, ledger)?;
        logs.push(log);
    }
    if logs.windows(2).any(|pair| pair[0].bytes != pair[1].bytes) {
        let sizes: Vec<usize> = logs.iter().map(|log| log.bytes.len()).collect();
        return Err(format!("the nodes' bytes differ, sizes {sizes:?}"));
    }
    let Some(first) = logs.first() else {
        return Err("no nodes to audit".into());
    };
    Ok(format!(
        "{} acknowledged, {} stored, {} bytes on each node with digest {:016x}",
        ledger.acknowledged.len(),
        first.payloads.len(),
        first.bytes.len(),
        xxh3_64(&first.bytes)
    ))
}

async fn read_all(client: &Client, topic: &str, node: u64) -> Result<NodeLog, String> {
    let mut log = NodeLog::default();
    let mut next = 0;
    loop {
        let options = PollOptions {
            at_node: Some(node),
            ..PollOptions::default()
        };
        let reply = client
            .poll(topic, 0, Position::Offset(next), options)
            .await
            .map_err(|e| format!("node {node} does not serve offset {next}: {e}"))?;
        if reply.batches.is_empty() {
            return Ok(log);
        }
        log.bytes.extend_from_slice(&reply.batches);
        for batch in split_batches(reply.batches) {
            let bytes = batch.map_err(|e| format!("node {node} sent a broken batch: {e}"))?;
            next = add_batch(node, next, bytes, &mut log)?;
        }
    }
}

fn add_batch(node: u64, next: u64, bytes: bytes::Bytes, log: &mut NodeLog) -> Result<u64, String> {
    let batch = StampedBatch::verify_unbound(bytes)
        .map_err(|e| format!("node {node} sent a batch that does not check: {e}"))?;
    if batch.base_offset() != next {
        return Err(format!(
            "node {node}: offset {next} is followed by a batch at {}",
            batch.base_offset()
        ));
    }
    for (offset, frame) in (next..).zip(batch.frames()) {
        let text = String::from_utf8_lossy(frame.payload).into_owned();
        log.payloads.insert(offset, text);
    }
    Ok(batch.next_offset())
}

fn check_log(node: u64, log: &NodeLog, ledger: &Ledger) -> Result<(), String> {
    for (offset, text) in &ledger.acknowledged {
        if log.payloads.get(offset) != Some(text) {
            let found = log.payloads.get(offset);
            return Err(format!(
                "node {node}: {text:?} was acknowledged at {offset}, there is {found:?}"
            ));
        }
    }
    let all_sent: BTreeSet<&str> = ledger.sent.values().flatten().map(String::as_str).collect();
    let mut seen = BTreeSet::new();
    for (offset, text) in &log.payloads {
        if !all_sent.contains(text.as_str()) {
            return Err(format!("node {node}: nobody sent {text:?} at {offset}"));
        }
        if !seen.insert(text) {
            return Err(format!("node {node}: {text:?} is stored twice"));
        }
    }
    for (who, sent) in &ledger.sent {
        let place: BTreeMap<&str, usize> = sent
            .iter()
            .enumerate()
            .map(|(place, text)| (text.as_str(), place))
            .collect();
        let order: Vec<usize> = log
            .payloads
            .values()
            .filter_map(|text| place.get(text.as_str()).copied())
            .collect();
        if order.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(format!(
                "node {node}: producer {who}'s messages are out of order"
            ));
        }
    }
    Ok(())
}

/// A dead checker is worse than none: each kind of fault must be found in an otherwise sound log.
#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> (NodeLog, Ledger) {
        let mut ledger = Ledger::default();
        let mut log = NodeLog::default();
        for (offset, (who, text)) in (0..).zip([(1, "a"), (2, "b"), (1, "c"), (2, "d")]) {
            ledger.sent(who, text);
            ledger.acknowledged(offset, text);
            log.payloads.insert(offset, text.to_owned());
        }
        (log, ledger)
    }

    #[test]
    fn a_sound_log_passes() {
        let (log, ledger) = sound();
        assert_eq!(check_log(1, &log, &ledger), Ok(()));
    }

    #[test]
    fn a_lost_message_is_found() {
        let (mut log, ledger) = sound();
        log.payloads.remove(&3);
        assert!(check_log(1, &log, &ledger).is_err());
    }

    #[test]
    fn changed_bytes_are_found() {
        let (mut log, ledger) = sound();
        log.payloads.insert(2, "C".into());
        assert!(check_log(1, &log, &ledger).is_err());
    }

    #[test]
    fn a_message_that_nobody_sent_is_found() {
        let (mut log, ledger) = sound();
        log.payloads.insert(4, "ghost".into());
        assert!(check_log(1, &log, &ledger).is_err());
    }

    #[test]
    fn a_message_stored_twice_is_found() {
        let (mut log, ledger) = sound();
        log.payloads.insert(4, "d".into());
        assert!(check_log(1, &log, &ledger).is_err());
    }

    #[test]
    fn a_broken_order_is_found() {
        let (mut log, mut ledger) = sound();
        ledger.sent(1, "e");
        ledger.sent(1, "f");
        log.payloads.insert(4, "f".into());
        log.payloads.insert(5, "e".into());
        assert!(check_log(1, &log, &ledger).is_err());
    }
}
