//! The bytes of Raft messages between nodes.
//!
//! Every message is one envelope. AppendEntries is written by hand into parts, so that a batch's
//! blob is shared with the journal's cache instead of copied; the result is byte for byte what the
//! envelope's own encoder would give for [`AppendMessage`] (a test holds the two together).

use bytes::{BufMut, Bytes, BytesMut};
use imprint_proto::batch::StampedBatch;
use imprint_proto::envelope::{self, EnvelopeError};
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, VoteRequest, VoteResponse};
use openraft::{EntryPayload, impls};

use super::types::{
    AppRecord, Entry, LogId, MembershipError, TypeConfig, Vote, decode_membership,
    encode_membership, log_id,
};
use crate::journal::{LogPos, RollSettings};

imprint_proto::envelope! {
    /// A vote: term, candidate, and whether a majority granted it.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct VoteWire: version 0, compat 0 {
        term: u64,
        candidate: u64,
        committed: bool,
    }
}

imprint_proto::envelope! {
    /// Term and index of one log entry.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct LogIdWire: version 0, compat 0 {
        term: u64,
        index: u64,
    }
}

imprint_proto::envelope! {
    /// One log entry. `kind` says what `body` is: see `entry_kind`.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct EntryWire: version 0, compat 0 {
        term: u64,
        index: u64,
        kind: u8,
        body: Bytes,
    }
}

imprint_proto::envelope! {
    /// AppendEntries: to which replica of which group, from which leadership, after which entry.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct AppendMessage: version 0, compat 0 {
        group: u64,
        replica: u64,
        vote: VoteWire,
        prev: Option<LogIdWire>,
        commit: Option<LogIdWire>,
        entries: Vec<EntryWire>,
    }
}

imprint_proto::envelope! {
    /// The answer to AppendEntries. `result`: 0 matched up to `log_id`, 1 conflict at `log_id`,
    /// 2 a higher vote.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct AppendReply: version 0, compat 0 {
        result: u8,
        log_id: Option<LogIdWire>,
        vote: Option<VoteWire>,
    }
}

imprint_proto::envelope! {
    /// RequestVote and its pre-vote form.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct VoteMessage: version 0, compat 0 {
        group: u64,
        replica: u64,
        vote: VoteWire,
        last: Option<LogIdWire>,
        leadership_transfer: bool,
    }
}

imprint_proto::envelope! {
    /// The answer to RequestVote.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct VoteReply: version 0, compat 0 {
        vote: VoteWire,
        granted: bool,
        last: Option<LogIdWire>,
    }
}

imprint_proto::envelope! {
    /// Tells a follower to campaign at once.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct TransferMessage: version 0, compat 0 {
        group: u64,
        replica: u64,
        from: VoteWire,
        to: u64,
        last: Option<LogIdWire>,
    }
}

imprint_proto::envelope! {
    /// A whole snapshot: its meta and its body.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SnapshotMessage: version 0, compat 0 {
        group: u64,
        replica: u64,
        vote: VoteWire,
        last: Option<LogIdWire>,
        membership_at: Option<LogIdWire>,
        membership: Bytes,
        body: Bytes,
    }
}

imprint_proto::envelope! {
    /// Groups that their leader wants to put to sleep.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct QuiesceMessage: version 0, compat 0 {
        groups: Vec<QuiesceItem>,
    }
}

imprint_proto::envelope! {
    /// One group to put to sleep, if the follower stands at exactly this vote and entry.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct QuiesceItem: version 0, compat 0 {
        group: u64,
        replica: u64,
        vote: VoteWire,
        last: LogIdWire,
    }
}

imprint_proto::envelope! {
    /// Per group of the request, in its order: whether the follower now sleeps.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct QuiesceReply: version 0, compat 0 {
        asleep: Vec<bool>,
    }
}

imprint_proto::envelope! {
    /// Asks whether a node has opened its replicas of some groups.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct GroupStateMessage: version 0, compat 0 {
        groups: Vec<u64>,
    }
}

imprint_proto::envelope! {
    /// Per group of the request, in its order: whether a replica is open there.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct GroupStateReply: version 1, compat 0 {
        open: Vec<bool>,
        /// Whether the replica there may lack what it acknowledged. Empty: an old node, which never says so and counts as
        /// sound; an old reader takes each replica for sound too, as it did before.
        #[since(1)]
        suspect: Vec<bool> = Vec::new(),
    }
}

/// The kinds of [`EntryWire`]: pinned, never reused.
mod entry_kind {
    pub const BLANK: u8 = 0;
    pub const DATA: u8 = 1;
    pub const MEMBERSHIP: u8 = 2;
    pub const TRIM: u8 = 3;
    pub const VOID: u8 = 4;
    pub const SETTINGS: u8 = 5;
}

/// Why a message between nodes was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CodecError {
    #[error("the message can't be decoded: {0}")]
    Envelope(#[from] EnvelopeError),
    #[error("entry {index} stands where entry {expected} belongs")]
    OutOfPlace { index: u64, expected: u64 },
    #[error("index {0} is the last there is: nothing can follow it")]
    LastIndex(u64),
    #[error("entry {index} has kind {kind}, which this version doesn't know")]
    UnknownEntryKind { index: u64, kind: u8 },
    #[error("entry {index} holds a batch that doesn't check: {source}")]
    Batch {
        index: u64,
        source: imprint_proto::batch::BatchError,
    },
    #[error("entry {index} holds a membership that doesn't check: {source}")]
    Membership { index: u64, source: MembershipError },
    #[error("entry {index} holds a trim of {len} bytes, expected 8")]
    Trim { index: u64, len: usize },
    #[error("entry {index} holds settings that don't check: {source}")]
    Settings { index: u64, source: EnvelopeError },
    #[error("append reply has result {0}, which this version doesn't know")]
    UnknownResult(u8),
    #[error("append reply with result {0} lacks its field")]
    MissingField(u8),
    #[error("an unstamped batch at index {0} was about to leave the leader")]
    Unstamped(u64),
}

impl From<&Vote> for VoteWire {
    fn from(vote: &Vote) -> Self {
        VoteWire {
            term: vote.leader_id.term,
            candidate: vote.leader_id.voted_for,
            committed: vote.committed,
        }
    }
}

impl VoteWire {
    pub(crate) fn vote(&self) -> Vote {
        Vote {
            leader_id: impls::leader_id_std::LeaderId {
                term: self.term,
                voted_for: self.candidate,
            },
            committed: self.committed,
        }
    }
}

impl From<&LogId> for LogIdWire {
    fn from(id: &LogId) -> Self {
        LogIdWire {
            term: id.leader_id.term,
            index: id.index,
        }
    }
}

impl LogIdWire {
    pub(crate) fn log_id(&self) -> LogId {
        log_id(LogPos {
            term: self.term,
            index: self.index,
        })
    }
}

pub(crate) fn wire_opt(id: Option<&LogId>) -> Option<LogIdWire> {
    id.map(LogIdWire::from)
}

pub(crate) fn log_id_opt(wire: Option<LogIdWire>) -> Option<LogId> {
    wire.map(|w| w.log_id())
}

/// Length of an envelope header without checksum, bytes.
const ENVELOPE_HEADER: usize = 6;
/// Length of an entry up to its body: envelope header, term, index, kind, body length. Bytes.
const ENTRY_PREFIX: usize = ENVELOPE_HEADER + 8 + 8 + 1 + 4;

/// Encodes AppendEntries into parts that share the batches' memory.
pub(crate) fn encode_append(
    group: u64,
    replica: u64,
    request: &AppendEntriesRequest<TypeConfig>,
) -> Result<Vec<Bytes>, CodecError> {
    let head = AppendMessage {
        group,
        replica,
        vote: VoteWire::from(&request.vote),
        prev: wire_opt(request.prev_log_id.as_ref()),
        commit: wire_opt(request.leader_commit.as_ref()),
        entries: Vec::new(),
    };
    let head = envelope::encode(&head);
    let bodies = request
        .entries
        .iter()
        .map(entry_body)
        .collect::<Result<Vec<_>, _>>()?;
    let entries_len: usize = bodies.iter().map(|b| ENTRY_PREFIX + b.len()).sum();

    // The head ends with the count of entries, four bytes: it is patched, with the outer size.
    let mut parts = PartsWriter::new(head.len() + ENTRY_PREFIX);
    let body_len = head.len() - ENVELOPE_HEADER + entries_len;
    parts.put(&head[..2]);
    parts.put(&(body_len as u32).to_le_bytes());
    parts.put(&head[ENVELOPE_HEADER..head.len() - 4]);
    parts.put(&(bodies.len() as u32).to_le_bytes());
    for (entry, body) in request.entries.iter().zip(bodies) {
        parts.put_entry(entry, body);
    }
    Ok(parts.finish())
}

struct EntryBody {
    kind: u8,
    parts: [Bytes; 2],
}

impl EntryBody {
    fn one(kind: u8, body: Bytes) -> Self {
        EntryBody {
            kind,
            parts: [body, Bytes::new()],
        }
    }

    fn len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }
}

fn entry_body(entry: &Entry) -> Result<EntryBody, CodecError> {
    Ok(match &entry.payload {
        EntryPayload::Blank => EntryBody::one(entry_kind::BLANK, Bytes::new()),
        EntryPayload::Membership(m) => EntryBody::one(entry_kind::MEMBERSHIP, encode_membership(m)),
        EntryPayload::Normal(AppRecord::Stamped(batch)) => {
            let (header, blob) = batch.parts();
            EntryBody {
                kind: entry_kind::DATA,
                parts: [header.clone(), blob.clone()],
            }
        }
        EntryPayload::Normal(AppRecord::Void(outcome)) => {
            EntryBody::one(entry_kind::VOID, outcome.clone())
        }
        EntryPayload::Normal(AppRecord::Trim { upto }) => EntryBody::one(
            entry_kind::TRIM,
            Bytes::copy_from_slice(&upto.to_le_bytes()),
        ),
        EntryPayload::Normal(AppRecord::Settings(settings)) => {
            EntryBody::one(entry_kind::SETTINGS, settings.encode())
        }
        EntryPayload::Normal(AppRecord::Admitted { .. }) => {
            return Err(CodecError::Unstamped(entry.log_id.index));
        }
    })
}

/// Collects small writes into one buffer and shares large ones.
struct PartsWriter {
    parts: Vec<Bytes>,
    small: BytesMut,
}

/// Below this, copying costs less than one more part in a vectored write. Bytes.
const SHARE_FROM_BYTES: usize = 1024;

impl PartsWriter {
    fn new(capacity: usize) -> Self {
        PartsWriter {
            parts: Vec::new(),
            small: BytesMut::with_capacity(capacity),
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.small.put_slice(bytes);
    }

    fn put_entry(&mut self, entry: &Entry, body: EntryBody) {
        let size = (ENTRY_PREFIX - ENVELOPE_HEADER + body.len()) as u32;
        self.put(&[0, 0]);
        self.put(&size.to_le_bytes());
        self.put(&entry.log_id.leader_id.term.to_le_bytes());
        self.put(&entry.log_id.index.to_le_bytes());
        self.put(&[body.kind]);
        self.put(&(body.len() as u32).to_le_bytes());
        for part in body.parts {
            self.put_shared(part);
        }
    }

    fn put_shared(&mut self, bytes: Bytes) {
        if bytes.len() < SHARE_FROM_BYTES {
            self.put(&bytes);
        } else {
            self.cut();
            self.parts.push(bytes);
        }
    }

    fn cut(&mut self) {
        if !self.small.is_empty() {
            self.parts.push(self.small.split().freeze());
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.cut();
        self.parts
    }
}

/// Turns a received message into openraft's request; every batch is checked on the way.
pub(crate) fn append_request(
    message: AppendMessage,
) -> Result<AppendEntriesRequest<TypeConfig>, CodecError> {
    let group = message.group;
    check_places(message.prev.as_ref(), &message.entries)?;
    let entries = message
        .entries
        .into_iter()
        .map(|wire| entry_from_wire(wire, group))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(AppendEntriesRequest {
        vote: message.vote.vote(),
        prev_log_id: log_id_opt(message.prev),
        leader_commit: log_id_opt(message.commit),
        entries,
    })
}

/// Entries follow one another, the first one the entry before them: whoever works with them counts on it.
fn check_places(prev: Option<&LogIdWire>, entries: &[EntryWire]) -> Result<(), CodecError> {
    let after = |index: u64| index.checked_add(1).ok_or(CodecError::LastIndex(index));
    let mut expected = prev.map_or(Ok(0), |prev| after(prev.index))?;
    for entry in entries {
        if entry.index != expected {
            return Err(CodecError::OutOfPlace {
                index: entry.index,
                expected,
            });
        }
        expected = after(entry.index)?;
    }
    Ok(())
}

fn entry_from_wire(wire: EntryWire, group: u64) -> Result<Entry, CodecError> {
    let index = wire.index;
    let payload = match wire.kind {
        entry_kind::BLANK => EntryPayload::Blank,
        entry_kind::DATA => {
            let batch = StampedBatch::verify(wire.body, group)
                .map_err(|source| CodecError::Batch { index, source })?;
            EntryPayload::Normal(AppRecord::Stamped(batch))
        }
        entry_kind::MEMBERSHIP => EntryPayload::Membership(
            decode_membership(wire.body)
                .map_err(|source| CodecError::Membership { index, source })?,
        ),
        entry_kind::TRIM => {
            let len = wire.body.len();
            let upto =
                <[u8; 8]>::try_from(&wire.body[..]).map_err(|_| CodecError::Trim { index, len })?;
            EntryPayload::Normal(AppRecord::Trim {
                upto: u64::from_le_bytes(upto),
            })
        }
        entry_kind::VOID => EntryPayload::Normal(AppRecord::Void(wire.body)),
        entry_kind::SETTINGS => EntryPayload::Normal(AppRecord::Settings(
            RollSettings::decode(wire.body)
                .map_err(|source| CodecError::Settings { index, source })?,
        )),
        kind => return Err(CodecError::UnknownEntryKind { index, kind }),
    };
    let id = log_id(LogPos {
        term: wire.term,
        index,
    });
    Ok(Entry::new(id, payload))
}

pub(crate) type StreamResult = Result<Option<LogId>, StreamAppendError<TypeConfig>>;

pub(crate) fn encode_append_reply(result: &StreamResult) -> Bytes {
    let reply = match result {
        Ok(matched) => AppendReply {
            result: 0,
            log_id: wire_opt(matched.as_ref()),
            vote: None,
        },
        Err(StreamAppendError::Conflict(id)) => AppendReply {
            result: 1,
            log_id: Some(LogIdWire::from(id)),
            vote: None,
        },
        Err(StreamAppendError::HigherVote(vote)) => AppendReply {
            result: 2,
            log_id: None,
            vote: Some(VoteWire::from(vote)),
        },
    };
    envelope::encode(&reply)
}

pub(crate) fn decode_append_reply(bytes: Bytes) -> Result<StreamResult, CodecError> {
    let reply: AppendReply = envelope::decode(bytes)?;
    match reply.result {
        0 => Ok(Ok(log_id_opt(reply.log_id))),
        1 => {
            let id = reply.log_id.ok_or(CodecError::MissingField(1))?;
            Ok(Err(StreamAppendError::Conflict(id.log_id())))
        }
        2 => {
            let vote = reply.vote.ok_or(CodecError::MissingField(2))?;
            Ok(Err(StreamAppendError::HigherVote(vote.vote())))
        }
        other => Err(CodecError::UnknownResult(other)),
    }
}

pub(crate) fn vote_message(
    group: u64,
    replica: u64,
    request: &VoteRequest<TypeConfig>,
) -> VoteMessage {
    VoteMessage {
        group,
        replica,
        vote: VoteWire::from(&request.vote),
        last: wire_opt(request.last_log_id.as_ref()),
        leadership_transfer: request.leadership_transfer,
    }
}

impl VoteMessage {
    pub(crate) fn request(self) -> VoteRequest<TypeConfig> {
        VoteRequest {
            vote: self.vote.vote(),
            last_log_id: log_id_opt(self.last),
            leadership_transfer: self.leadership_transfer,
        }
    }
}

pub(crate) fn encode_vote_reply(response: &VoteResponse<TypeConfig>) -> Bytes {
    envelope::encode(&VoteReply {
        vote: VoteWire::from(&response.vote),
        granted: response.vote_granted,
        last: wire_opt(response.last_log_id.as_ref()),
    })
}

pub(crate) fn decode_vote_reply(bytes: Bytes) -> Result<VoteResponse<TypeConfig>, CodecError> {
    let reply: VoteReply = envelope::decode(bytes)?;
    Ok(VoteResponse {
        vote: reply.vote.vote(),
        vote_granted: reply.granted,
        last_log_id: log_id_opt(reply.last),
    })
}
