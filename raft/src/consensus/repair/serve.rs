//! Giving other replicas what they miss: read from the open log, or from what is good of a group that is down.
//!
//! A replica never gives what it can't check, and stops before a hole of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::envelope;
use tokio::time::Instant;

use super::wire::{
    DigestWire, DigestsMessage, DigestsReply, MAX_DIGESTS, ReadLogMessage, encode_pieces,
};
use crate::consensus::groups::Groups;
use crate::consensus::snapshot::encode_snapshot;
use crate::disk::offloaded;
use crate::rpc::{Replier, status};

/// The most that one answer carries, unless a single batch is larger. Bytes.
const ANSWER_BYTES: u64 = 1 << 20;
/// How long a leader may take to confirm that it leads.
const WORD_TIMEOUT: Duration = Duration::from_secs(2);

/// Answers [`crate::rpc::methods::READ_LOG`].
pub(crate) async fn read_log(groups: Arc<Groups>, payload: Bytes, reply: Replier) {
    let message: ReadLogMessage = match envelope::decode(payload) {
        Ok(message) => message,
        Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
    };
    match answer(&groups, message).await {
        Ok(parts) => reply.ok(parts),
        Err(reason) => reply.error(status::NOT_READY, &reason),
    }
}

async fn answer(groups: &Groups, message: ReadLogMessage) -> Result<Vec<Bytes>, String> {
    let (from, max) = (message.from_offset, message.max_bytes.min(ANSWER_BYTES));
    if let Some(down) = groups.down(message.group) {
        let patient = down.patient.clone();
        let read = offloaded(groups.io(), move || patient.read(from, max)).await;
        let pieces = read.map_err(|e| e.to_string())??;
        let (start, end) = down.patient.offsets();
        return Ok(encode_pieces(start, end, false, &pieces));
    }
    let group = groups.get(message.group);
    let group = group.ok_or_else(|| format!("group {} has no replica here", message.group))?;
    let leads = message.word && group.is_leader() && {
        let deadline = Instant::now() + WORD_TIMEOUT;
        group.linearize(deadline).await.is_ok()
    };
    // What the word is about: everything that was appended when it was given.
    let (start, end) = (
        group.journal().start_offset(),
        group.journal().next_offset(),
    );
    let journal = Arc::clone(group.journal());
    let read = offloaded(groups.io(), move || journal.read_for_repair(from, max)).await;
    let pieces = read.map_err(|e| e.to_string())?.unwrap_or_default();
    let leads = leads && group.is_leader();
    Ok(encode_pieces(start, end, leads, &pieces))
}

/// Answers [`crate::rpc::methods::SEGMENT_DIGESTS`].
pub(crate) async fn segment_digests(groups: Arc<Groups>, payload: Bytes, reply: Replier) {
    let message: DigestsMessage = match envelope::decode(payload) {
        Ok(message) => message,
        Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
    };
    let Some(group) = groups.get(message.group) else {
        let reason = format!("group {} has no replica here", message.group);
        return reply.error(status::NOT_READY, &reason);
    };
    let journal = Arc::clone(group.journal());
    let from = message.from_offset;
    let read = offloaded(groups.io(), move || journal.kept_digests(from, MAX_DIGESTS)).await;
    match read {
        Ok(digests) => {
            let segments = digests.iter().map(DigestWire::from).collect();
            reply.ok(vec![envelope::encode(&DigestsReply { segments })]);
        }
        Err(e) => reply.error(status::HANDLER_FAILED, &e.to_string()),
    }
}

/// Answers [`crate::rpc::methods::READ_CUT`]: a leader's snapshot, which for a group without state is where its log begins.
pub(crate) async fn read_cut(groups: Arc<Groups>, payload: Bytes, reply: Replier) {
    let message: DigestsMessage = match envelope::decode(payload) {
        Ok(message) => message,
        Err(e) => return reply.error(status::HANDLER_FAILED, &e.to_string()),
    };
    let Some(group) = groups.get(message.group).filter(|group| group.is_leader()) else {
        let reason = format!("group {} is not led here", message.group);
        return reply.error(status::NOT_READY, &reason);
    };
    match group.raft().get_snapshot().await {
        Ok(Some(snapshot)) => reply.ok(vec![encode_snapshot(&snapshot)]),
        Ok(None) => reply.error(status::NOT_READY, "the log was never trimmed"),
        Err(e) => reply.error(status::HANDLER_FAILED, &e.to_string()),
    }
}
