//! What must hold once faults have stopped, asked of every node through its client interface.
//!
//! A send whose outcome is unknown may or may not be stored, at most once. Everything else is strict:
//! what was acknowledged stands at its offset with its bytes on every node, offsets are dense, nothing
//! is stored that nobody sent or that was refused, nothing is stored twice, and each producer's messages
//! keep their order. A node may lag, and then serves a prefix; it may never serve anything else. Only
//! where the ledger allows trims may the front be gone, and then nodes may lag in that, too.

use std::collections::{BTreeMap, BTreeSet};

use imprint_client::{Client, ClientError, Code, PollOptions, Position};
use imprint_proto::batch::{StampedBatch, split_batches};
use xxhash_rust::xxh3::xxh3_64;

pub use crate::ledger::Ledger;

/// Why an audit doesn't hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// A node serves less than it has to, and nothing wrong: it may be catching up, so ask again.
    #[error("{0}")]
    Behind(String),
    /// A promise is broken. Asking again can only hide it.
    #[error("broken: {0}")]
    Broken(String),
}

use AuditError::{Behind, Broken};

/// One node's log from its first kept offset on: its raw bytes and its payloads by offset.
#[derive(Debug, Clone, Default)]
struct NodeLog {
    start: u64,
    bytes: Vec<u8>,
    payloads: BTreeMap<u64, String>,
}

/// What every node serves, once it was checked: the same bytes on each.
#[derive(Debug, Clone)]
pub struct Audited {
    /// All batches, as each node gives them out.
    pub bytes: Vec<u8>,
    /// The first kept offset.
    pub start: u64,
    acknowledged: u64,
    refused: u64,
    stored: usize,
}

impl std::fmt::Display for Audited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} acknowledged, {} refused, {} stored from {} on, {} bytes on each node with digest {:016x}",
            self.acknowledged,
            self.refused,
            self.stored,
            self.start,
            self.bytes.len(),
            xxh3_64(&self.bytes)
        )
    }
}

/// Checks every node against the ledger and against the others.
pub async fn audit(
    client: &Client,
    topic: &str,
    nodes: &[u64],
    ledger: &Ledger,
) -> Result<Audited, AuditError> {
    let mut logs = Vec::new();
    let mut behind = None;
    // A node that lags must not keep the others from being looked at.
    for node in nodes {
        match read_all(client, topic, *node, ledger).await {
            Ok(log) => logs.push((*node, log)),
            Err(error @ Broken(_)) => return Err(error),
            Err(error @ Behind(_)) => behind = Some(error),
        }
    }
    let audited = judge(&logs, ledger)?;
    match behind {
        Some(error) => Err(error),
        None => Ok(audited),
    }
}

/// Broken comes before behind, whichever node shows it.
fn judge(logs: &[(u64, NodeLog)], ledger: &Ledger) -> Result<Audited, AuditError> {
    let verdicts: Vec<_> = logs
        .iter()
        .map(|(node, log)| check_log(*node, log, ledger))
        .chain(logs.windows(2).map(|pair| check_same(&pair[0], &pair[1])))
        .collect();
    let broken = |verdict: &&Result<(), AuditError>| matches!(verdict, Err(Broken(_)));
    if let Some(verdict) = verdicts.iter().find(broken) {
        verdict.clone()?;
    }
    verdicts.into_iter().collect::<Result<(), _>>()?;
    let Some((_, first)) = logs.first() else {
        return Err(Behind("no node serves".into()));
    };
    Ok(Audited {
        bytes: first.bytes.clone(),
        start: first.start,
        acknowledged: ledger.count(),
        refused: ledger.count_refused(),
        stored: first.payloads.len(),
    })
}

/// Of two nodes one may lag; what both have is the same.
fn check_same(a: &(u64, NodeLog), b: &(u64, NodeLog)) -> Result<(), AuditError> {
    let ((left, a), (right, b)) = (a, b);
    if a.start != b.start {
        let starts = format!("start at {} and {}", a.start, b.start);
        return Err(Behind(format!("nodes {left} and {right} {starts}")));
    }
    let common = a.bytes.len().min(b.bytes.len());
    let sizes = format!("{} and {} bytes", a.bytes.len(), b.bytes.len());
    if a.bytes[..common] != b.bytes[..common] {
        return Err(Broken(format!(
            "nodes {left} and {right} differ in {sizes}"
        )));
    }
    match a.bytes.len() == b.bytes.len() {
        true => Ok(()),
        false => Err(Behind(format!("nodes {left} and {right} have {sizes}"))),
    }
}

async fn read_all(
    client: &Client,
    topic: &str,
    node: u64,
    ledger: &Ledger,
) -> Result<NodeLog, AuditError> {
    let mut log = NodeLog::default();
    let mut next = 0;
    let mut position = Position::First;
    loop {
        let options = PollOptions {
            at_node: Some(node),
            ..PollOptions::default()
        };
        let reply = client
            .poll(topic, 0, position, options)
            .await
            .map_err(|e| not_served(node, next, &e, ledger))?;
        if matches!(position, Position::First) {
            (next, log.start) = (reply.start_offset, reply.start_offset);
        }
        if reply.batches.is_empty() {
            return Ok(log);
        }
        log.bytes.extend_from_slice(&reply.batches);
        for batch in split_batches(reply.batches) {
            let bytes =
                batch.map_err(|e| Broken(format!("node {node} sent a broken batch: {e}")))?;
            next = add_batch(node, next, bytes, &mut log)?;
        }
        position = Position::Offset(next);
    }
}

/// Damage, and a log that ends before what the node itself gave out, are no matter of patience.
fn not_served(node: u64, next: u64, error: &ClientError, ledger: &Ledger) -> AuditError {
    let text = format!("node {node} does not serve offset {next}: {error}");
    // Retention overtook the reader.
    let trimmed = error.offsets().is_some_and(|(start, _)| start > next);
    if trimmed && ledger.may_be_trimmed() {
        return Behind(text);
    }
    match error.code() {
        Code::DataLoss | Code::OutOfRange => Broken(text),
        _ => Behind(text),
    }
}

fn add_batch(
    node: u64,
    next: u64,
    bytes: bytes::Bytes,
    log: &mut NodeLog,
) -> Result<u64, AuditError> {
    let batch = StampedBatch::verify_unbound(bytes)
        .map_err(|e| Broken(format!("node {node} sent a batch that does not check: {e}")))?;
    if batch.base_offset() != next {
        return Err(Broken(format!(
            "node {node}: offset {next} is followed by a batch at {}",
            batch.base_offset()
        )));
    }
    for (offset, frame) in (next..).zip(batch.frames()) {
        let text = String::from_utf8_lossy(frame.payload).into_owned();
        log.payloads.insert(offset, text);
    }
    Ok(batch.next_offset())
}

fn check_log(node: u64, log: &NodeLog, ledger: &Ledger) -> Result<(), AuditError> {
    if let Some(clash) = ledger.clash() {
        return Err(Broken(clash.to_owned()));
    }
    if log.start > 0 && !ledger.may_be_trimmed() {
        let start = log.start;
        return Err(Broken(format!(
            "node {node} starts at {start}, nobody trimmed"
        )));
    }
    check_stored(node, log, ledger)?;
    check_order(node, log, ledger)?;
    check_acknowledged(node, log, ledger)
}

fn check_acknowledged(node: u64, log: &NodeLog, ledger: &Ledger) -> Result<(), AuditError> {
    let mut missing = None;
    for (offset, text) in ledger.by_offset().range(log.start..) {
        match log.payloads.get(offset) {
            Some(found) if found == text => {}
            Some(found) => {
                return Err(Broken(format!(
                    "node {node}: {text:?} was acknowledged at {offset}, there is {found:?}"
                )));
            }
            None => missing = missing.or(Some((offset, text))),
        }
    }
    // Offsets are dense, so what is missing is missing at the end.
    match missing {
        None => Ok(()),
        Some((offset, text)) => Err(Behind(format!(
            "node {node}: {text:?} was acknowledged at {offset}, the log ends at {}",
            log.start + log.payloads.len() as u64
        ))),
    }
}

fn check_stored(node: u64, log: &NodeLog, ledger: &Ledger) -> Result<(), AuditError> {
    let sent = ledger.by_producer().values().flatten();
    let all_sent: BTreeSet<&str> = sent.map(String::as_str).collect();
    let mut seen = BTreeSet::new();
    for (n, (offset, text)) in (log.start..).zip(&log.payloads) {
        let problem = if *offset != n {
            format!("{offset} stands where {n} belongs")
        } else if !all_sent.contains(text.as_str()) {
            format!("nobody sent {text:?} at {offset}")
        } else if ledger.is_refused(text) {
            format!("{text:?} was refused and stands at {offset}")
        } else if !seen.insert(text) {
            format!("{text:?} is stored twice, again at {offset}")
        } else {
            continue;
        };
        return Err(Broken(format!("node {node}: {problem}")));
    }
    Ok(())
}

fn check_order(node: u64, log: &NodeLog, ledger: &Ledger) -> Result<(), AuditError> {
    for (who, sent) in ledger.by_producer() {
        let place: BTreeMap<&str, usize> = sent.iter().map(String::as_str).zip(0..).collect();
        let order: Vec<usize> = log
            .payloads
            .values()
            .filter_map(|text| place.get(text.as_str()).copied())
            .collect();
        if order.windows(2).any(|pair| pair[0] > pair[1]) {
            return Err(Broken(format!(
                "node {node}: producer {who}'s messages are out of order"
            )));
        }
    }
    Ok(())
}

/// A dead checker is worse than none: each kind of fault must be found in an otherwise sound log, and
/// only a log that is merely short may be asked again.
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
            log.bytes.extend_from_slice(text.as_bytes());
        }
        (log, ledger)
    }

    fn is_broken(log: &NodeLog, ledger: &Ledger) -> bool {
        matches!(check_log(1, log, ledger), Err(Broken(_)))
    }

    #[test]
    fn a_sound_log_passes() {
        let (log, ledger) = sound();
        assert_eq!(check_log(1, &log, &ledger), Ok(()));
    }

    #[test]
    fn a_message_lost_at_the_end_never_passes_but_may_come() {
        let (mut log, ledger) = sound();
        log.payloads.remove(&3);
        assert!(matches!(check_log(1, &log, &ledger), Err(Behind(_))));
    }

    #[test]
    fn a_message_lost_in_the_middle_is_broken() {
        let (mut log, ledger) = sound();
        log.payloads.remove(&2);
        assert!(is_broken(&log, &ledger));
    }

    /// The sound log without its first two messages.
    fn trimmed() -> (NodeLog, Ledger) {
        let (mut log, mut ledger) = sound();
        ledger.allow_trims();
        log.start = 2;
        log.payloads = log.payloads.split_off(&2);
        log.bytes.drain(..2);
        (log, ledger)
    }

    #[test]
    fn a_front_that_nobody_trimmed_is_broken() {
        let (log, ledger) = trimmed();
        assert_eq!(check_log(1, &log, &ledger), Ok(()));
        assert!(is_broken(&log, &sound().1));
    }

    #[test]
    fn a_node_that_has_yet_to_trim_is_behind() {
        let (log, ledger) = trimmed();
        let verdict = judge(&[(1, sound().0), (2, log)], &ledger);
        assert!(matches!(verdict, Err(Behind(_))));
    }

    #[test]
    fn a_message_lost_behind_a_trimmed_front_is_broken() {
        let (mut log, ledger) = trimmed();
        log.payloads.remove(&2);
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn changed_bytes_are_found() {
        let (mut log, ledger) = sound();
        log.payloads.insert(2, "C".into());
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn another_message_at_an_acknowledged_offset_is_found() {
        let (mut log, mut ledger) = sound();
        ledger.sent(3, "unknown");
        log.payloads.insert(3, "unknown".into());
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn a_message_that_nobody_sent_is_found() {
        let (mut log, ledger) = sound();
        log.payloads.insert(4, "ghost".into());
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn a_refused_message_that_is_stored_is_found() {
        let (mut log, mut ledger) = sound();
        ledger.sent(1, "e");
        ledger.refused("e");
        assert_eq!(check_log(1, &log, &ledger), Ok(()));
        log.payloads.insert(4, "e".into());
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn a_message_stored_twice_is_found() {
        let (mut log, ledger) = sound();
        log.payloads.insert(4, "d".into());
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn an_offset_acknowledged_twice_is_found() {
        let (log, mut ledger) = sound();
        ledger.acknowledged(3, "d");
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn a_broken_order_is_found() {
        let (mut log, mut ledger) = sound();
        ledger.sent(1, "e");
        ledger.sent(1, "f");
        log.payloads.insert(4, "f".into());
        log.payloads.insert(5, "e".into());
        assert!(is_broken(&log, &ledger));
    }

    #[test]
    fn nodes_that_differ_are_broken_and_one_that_lags_is_behind() {
        let (log, ledger) = sound();
        let (mut other, mut short) = (log.clone(), log.clone());
        other.bytes[1] ^= 1;
        short.bytes.pop();
        short.payloads.remove(&3);
        let verdict = |second: &NodeLog| {
            judge(&[(1, log.clone()), (2, second.clone())], &ledger).map(|audited| audited.stored)
        };
        assert_eq!(verdict(&log), Ok(4));
        assert!(matches!(verdict(&other), Err(Broken(_))));
        assert!(matches!(verdict(&short), Err(Behind(_))));
    }

    #[test]
    fn a_lagging_node_does_not_excuse_a_broken_one() {
        let (log, ledger) = sound();
        let (mut short, mut ghost) = (log.clone(), log);
        short.bytes.pop();
        short.payloads.remove(&3);
        ghost.payloads.insert(4, "ghost".into());
        let verdict = judge(&[(1, short), (2, ghost)], &ledger);
        assert!(matches!(verdict, Err(Broken(_))));
    }
}
