//! The types that openraft is instantiated with, and their translation to the journal's.
//!
//! A normal entry exists in memory as one of [`AppRecord`]'s variants. `Admitted` is born in a
//! proposal and dies in the journal's append; only the other variants can be encoded for a peer,
//! so an unstamped batch can't leave the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use imprint_proto::batch::{AdmittedBatch, StampedBatch};
use imprint_proto::envelope;
use openraft::entry::RaftEntry;
use openraft::{EntryPayload, Membership};

use super::runtime::SeamRuntime;
use crate::journal::{ControlKind, LogPos, NewEntry, RollSettings, StoredEntry};

openraft::declare_raft_types!(
    /// One type configuration for every group, the controller's included.
    pub TypeConfig:
        D = AppRecord,
        R = Applied,
        NodeId = u64,
        Node = ReplicaNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = SeamRuntime,
);

pub(crate) type LogId = openraft::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(crate) type CommittedLeaderId = openraft::alias::CommittedLeaderIdOf<TypeConfig>;
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type GroupMembership = Membership<u64, ReplicaNode>;

/// Where a replica lives: the payload of an openraft node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaNode {
    /// The node's id.
    pub node_id: u64,
    /// The node's internal RPC address when the membership was written. A hint: the peer table
    /// knows the current one.
    pub address: String,
}

impl fmt::Display for ReplicaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} at {}", self.node_id, self.address)
    }
}

/// What a normal entry carries.
pub enum AppRecord {
    /// A checked batch that the leader's append will stamp.
    Admitted {
        batch: AdmittedBatch,
        expected_offset: Option<u64>,
    },
    /// A batch as it is stored, replicated and polled.
    Stamped(StampedBatch),
    /// A proposal that the append refused, with the encoded outcome in its place.
    Void(Bytes),
    /// Everything below this offset may be deleted.
    Trim { upto: u64 },
    /// From here on segments end by these settings.
    Settings(RollSettings),
}

impl fmt::Display for AppRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppRecord::Admitted { batch, .. } => {
                write!(f, "admitted batch of {} bytes", batch.batch_length())
            }
            AppRecord::Stamped(batch) => write!(
                f,
                "batch at offset {} of {} messages",
                batch.base_offset(),
                batch.message_count()
            ),
            AppRecord::Void(outcome) => write!(f, "void, {} bytes", outcome.len()),
            AppRecord::Trim { upto } => write!(f, "trim below offset {upto}"),
            AppRecord::Settings(settings) => write!(f, "{settings:?}"),
        }
    }
}

impl fmt::Debug for AppRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What applying an entry answers to its proposer.
#[derive(Debug)]
pub enum Applied {
    /// A control entry without an answer.
    None,
    /// The batch is committed at these offsets.
    Batch {
        base_offset: u64,
        next_offset: u64,
        base_timestamp_us: u64,
        /// The state machine's answer; empty for plain data.
        reply: Bytes,
    },
    /// The append refused the batch; the encoded outcome says why.
    Voided(Bytes),
    /// The log begins here now, durably on this replica.
    Trimmed { start_offset: u64 },
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Applied::None => f.write_str("control entry"),
            Applied::Batch {
                base_offset,
                next_offset,
                ..
            } => write!(f, "offsets {base_offset}..{next_offset}"),
            Applied::Voided(_) => f.write_str("void"),
            Applied::Trimmed { start_offset } => write!(f, "the log starts at {start_offset}"),
        }
    }
}

pub(crate) fn log_id(pos: LogPos) -> LogId {
    LogId::new(CommittedLeaderId { term: pos.term }, pos.index)
}

pub(crate) fn log_pos(id: &LogId) -> LogPos {
    LogPos {
        term: id.leader_id.term,
        index: id.index,
    }
}

imprint_proto::envelope! {
    /// A group's membership as it stands in the control log and in AppendEntries.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct MembershipRecord: version 0, compat 0 {
        configs: Vec<Vec<u64>>,
        nodes: BTreeMap<u64, MemberRecord>,
    }
}

imprint_proto::envelope! {
    /// One member: voter or learner.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct MemberRecord: version 0, compat 0 {
        node_id: u64,
        address: String,
    }
}

pub(crate) fn encode_membership(membership: &GroupMembership) -> Bytes {
    let configs = membership
        .get_joint_config()
        .iter()
        .map(|config| config.iter().copied().collect())
        .collect();
    let nodes = membership
        .nodes()
        .map(|(id, node)| {
            let record = MemberRecord {
                node_id: node.node_id,
                address: node.address.clone(),
            };
            (*id, record)
        })
        .collect();
    envelope::encode(&MembershipRecord { configs, nodes })
}

/// A membership that can't be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MembershipError {
    #[error("the membership record can't be decoded: {0}")]
    Decode(#[from] envelope::EnvelopeError),
    #[error("the membership record contradicts itself: {0}")]
    Inconsistent(String),
}

pub(crate) fn decode_membership(bytes: Bytes) -> Result<GroupMembership, MembershipError> {
    let record: MembershipRecord = envelope::decode(bytes)?;
    if record.configs.is_empty() && record.nodes.is_empty() {
        return Ok(Membership::default());
    }
    let configs: Vec<BTreeSet<u64>> = record
        .configs
        .into_iter()
        .map(|config| config.into_iter().collect())
        .collect();
    let nodes: BTreeMap<u64, ReplicaNode> = record
        .nodes
        .into_iter()
        .map(|(id, member)| {
            let node = ReplicaNode {
                node_id: member.node_id,
                address: member.address,
            };
            (id, node)
        })
        .collect();
    Membership::new(configs, nodes).map_err(|e| MembershipError::Inconsistent(e.to_string()))
}

/// What the journal is to append for an entry that openraft hands over.
pub(crate) fn to_journal(entry: Entry) -> NewEntry {
    let pos = log_pos(&entry.log_id());
    match entry.payload {
        EntryPayload::Blank => control(pos, ControlKind::Blank),
        EntryPayload::Membership(m) => control(pos, ControlKind::Membership(encode_membership(&m))),
        EntryPayload::Normal(AppRecord::Admitted {
            batch,
            expected_offset,
        }) => NewEntry::Admit {
            pos,
            batch,
            expected_offset,
        },
        EntryPayload::Normal(AppRecord::Stamped(batch)) => NewEntry::Data { pos, batch },
        EntryPayload::Normal(AppRecord::Void(outcome)) => control(pos, ControlKind::Void(outcome)),
        EntryPayload::Normal(AppRecord::Trim { upto }) => control(pos, ControlKind::Trim { upto }),
        EntryPayload::Normal(AppRecord::Settings(settings)) => {
            control(pos, ControlKind::Settings(settings))
        }
    }
}

fn control(pos: LogPos, kind: ControlKind) -> NewEntry {
    NewEntry::Control { pos, kind }
}

/// The entry that openraft sees for what the journal holds.
pub(crate) fn from_journal(stored: StoredEntry) -> Result<Entry, MembershipError> {
    let (pos, payload) = match stored {
        StoredEntry::Data { pos, batch } => (pos, EntryPayload::Normal(AppRecord::Stamped(batch))),
        StoredEntry::Control { pos, kind } => (pos, control_payload(kind)?),
    };
    Ok(Entry::new(log_id(pos), payload))
}

type Payload = openraft::alias::PayloadOf<TypeConfig>;

fn control_payload(kind: ControlKind) -> Result<Payload, MembershipError> {
    Ok(match kind {
        ControlKind::Blank => EntryPayload::Blank,
        ControlKind::Membership(bytes) => EntryPayload::Membership(decode_membership(bytes)?),
        ControlKind::Trim { upto } => EntryPayload::Normal(AppRecord::Trim { upto }),
        ControlKind::Void(outcome) => EntryPayload::Normal(AppRecord::Void(outcome)),
        ControlKind::Settings(settings) => EntryPayload::Normal(AppRecord::Settings(settings)),
    })
}
