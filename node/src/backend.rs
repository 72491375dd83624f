//! What the node needs from replication, as traits: the replicas on this node and the way to the
//! other nodes.
//!
//! The services, the reconciler and the forwarding are written against these, so that they can be
//! tested with a fake; `replication` implements them over the Raft groups. An error here says
//! whether anything can have come of the call, because that alone decides what may be tried again.

use async_trait::async_trait;
use bytes::Bytes;
use imprint_proto::{
    batch::AdmittedBatch,
    ids::{GroupId, NodeId, ReplicaId},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// Where a replica's log stands; offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogOffsets {
    /// First kept.
    pub start: u64,
    /// First that isn't committed, as this replica knows.
    pub commit: u64,
    /// First unwritten.
    pub end: u64,
    /// First that isn't synced here.
    pub synced: u64,
}

/// Where a log's segments end. A function of the log, so that all replicas cut alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollSettings {
    /// A batch that would take a segment past this opens a new one.
    pub segment_bytes: u64,
    /// A batch stamped this many microseconds after its segment's first opens a new one.
    pub segment_span_us: Option<u64>,
}

/// What a committed batch got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposed {
    pub base_offset: u64,
    /// Offset of the batch's last message.
    pub last_offset: u64,
    /// Server time stamped at append, microseconds since the Unix epoch.
    pub timestamp_us: u64,
    pub epoch: u64,
    /// The state machine's answer; empty for partitions.
    pub reply: Bytes,
}

/// Why a proposal has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was appended.
    #[error("this replica does not lead the group")]
    NotLeader { leader: Option<NodeId> },
    /// Nothing was appended.
    #[error("expected the next offset to be {expected}, it is {next}")]
    OffsetMismatch { expected: u64, next: u64 },
    /// Nothing was appended.
    #[error("the append refused the batch: {0}")]
    Refused(String),
    /// Nothing was appended: this node's disk has no room for data.
    #[error("this node's disk has no room for data")]
    NoRoom,
    /// It may or may not be in the log; `deadline` when the deadline came first.
    #[error("{detail}")]
    Unknown { detail: String, deadline: bool },
}

/// Why leadership could not be confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinearizeError {
    #[error("this replica does not lead the group")]
    NotLeader { leader: Option<NodeId> },
    #[error("{0}")]
    NotConfirmed(String),
}

/// Why stored batches could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("offset {offset} is below the first kept offset {start}")]
    BelowStart { offset: u64, start: u64 },
    #[error("stored bytes don't check: {0}")]
    Corrupt(String),
    #[error("the log can't be read: {0}")]
    Io(String),
}

/// Whole batches, as stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadBatches {
    /// Their bytes, back to back; a piece may be a part of a batch.
    pub pieces: Vec<Bytes>,
    /// Where the next read goes on.
    pub next_offset: u64,
    /// (epoch, first returned offset in it).
    pub epochs: Vec<(u64, u64)>,
}

/// A digest of one segment, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentDigest {
    pub base_offset: u64,
    pub end_offset: u64,
    /// 0 where only a part of it was hashed.
    pub bytes: u64,
    pub digest: u64,
    pub sealed: bool,
}

/// A digest of a replica's bytes from its start up to an offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDigest {
    pub start_offset: u64,
    /// Of the segments that were hashed as a whole.
    pub bytes: u64,
    pub digest: u64,
    pub segments: Vec<SegmentDigest>,
}

/// One segment of a replica's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSummary {
    pub base_offset: u64,
    /// Behind its last message.
    pub end_offset: u64,
    pub bytes: u64,
    /// No longer written.
    pub sealed: bool,
}

/// One replica on this node.
#[async_trait]
pub trait Replica: Send + Sync {
    fn replica_id(&self) -> ReplicaId;
    /// The node of the leader that this replica knows of.
    fn leader(&self) -> Option<NodeId>;
    fn is_leader(&self) -> bool;
    fn epoch(&self) -> u64;
    fn offsets(&self) -> LogOffsets;
    /// Bytes and number of segments.
    fn size(&self) -> (u64, u32);
    /// Follows the commit point, an offset.
    fn watch_commit(&self) -> watch::Receiver<u64>;
    async fn wait_leader(&self, deadline: Instant) -> Option<NodeId>;
    /// Appends and waits until committed.
    async fn propose(
        &self,
        batch: AdmittedBatch,
        expected_offset: Option<u64>,
        deadline: Instant,
    ) -> Result<Proposed, ProposeError>;
    /// Confirms that this replica leads and sees everything acknowledged before.
    async fn linearize(&self, deadline: Instant) -> Result<(), LinearizeError>;
    /// Batches from the one that holds `offset`, below `below`, at least one if there is one.
    async fn read(&self, offset: u64, below: u64, max_bytes: u64)
    -> Result<ReadBatches, ReadError>;
    /// First offset stamped at or after that time, microseconds; the end if there is none.
    async fn offset_for_time(&self, timestamp_us: u64) -> Result<u64, ReadError>;
    /// The segments that are stored, in order; a trimmed one may still be among them.
    fn segments(&self) -> Vec<SegmentSummary>;
    /// Server time of the batch that holds this offset, microseconds; `None` if it isn't there.
    async fn stamp_at(&self, offset: u64) -> Result<Option<u64>, ReadError>;
    /// Where segments end, at the log's end.
    fn roll_settings(&self) -> RollSettings;
    /// Has all replicas forget what is below `upto`, an offset at or below the commit point. Answers
    /// with the first kept offset once that is committed. A second time changes nothing.
    async fn trim(&self, upto: u64, deadline: Instant) -> Result<u64, ProposeError>;
    /// Changes where segments end, from here on in the log. A second time changes nothing.
    async fn change_roll(&self, roll: RollSettings, deadline: Instant) -> Result<(), ProposeError>;
    /// Digest of the bytes from the start up to `upto`, an offset that ends a batch.
    async fn digest(&self, upto: u64) -> Result<LogDigest, ReadError>;
    /// What of the log is damaged here; it is being fetched from other replicas.
    fn damage(&self) -> Vec<DamagedRange>;
    /// Hands leadership to some other replica's node; true if it was asked to take over.
    async fn step_down(&self) -> bool;
    /// Hands leadership to the replica on `node`; true if it was asked to take over.
    async fn step_down_to(&self, node: NodeId) -> bool;
    /// The nodes of the replicas that vote.
    fn voter_nodes(&self) -> Vec<NodeId>;
}

/// Offsets of which this node's bytes are bad or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRange {
    pub from_offset: u64,
    /// The offset after the last.
    pub to_offset: u64,
    /// The file, and what was found in it.
    pub found: String,
}

impl std::fmt::Display for DamagedRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "offsets {}..{}: {}",
            self.from_offset, self.to_offset, self.found
        )
    }
}

/// A replica that is closed until it was repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownReplica {
    pub group: GroupId,
    pub damage: Vec<DamagedRange>,
    /// What is being done about it, or why nothing helps yet.
    pub state: String,
}

/// What it takes to open a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReplica {
    pub group: GroupId,
    pub replica: ReplicaId,
    /// Every member of the group: where it lives and that node's internal address.
    pub members: BTreeMap<ReplicaId, (NodeId, String)>,
    /// This replica is the preferred leader and stands for election at once.
    pub preferred: bool,
    /// Where the log's segments end until an entry of the log says otherwise.
    pub roll: RollSettings,
}

/// A replica that didn't open or close.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReplicaError(pub String);

/// The replicas of this node.
#[async_trait]
pub trait Replicas: Send + Sync {
    fn get(&self, group: GroupId) -> Option<Arc<dyn Replica>>;
    /// The groups that are open here, without the controller's.
    fn open_groups(&self) -> Vec<GroupId>;
    /// The groups that have something stored here, open or not, without the controller's.
    fn stored_groups(&self) -> Vec<GroupId>;
    /// The replicas that are closed until they were repaired, the controller's among them.
    fn down(&self) -> Vec<DownReplica>;
    async fn open(&self, replica: OpenReplica) -> Result<(), ReplicaError>;
    /// Closes a replica, if it is open, and removes what it stored.
    async fn remove(&self, group: GroupId) -> Result<(), ReplicaError>;
}

/// Why a call to another node has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It never left this node, or the other one refused it unread.
    #[error("node {node} can't be reached: {detail}")]
    NotSent { node: NodeId, detail: String },
    /// It may have been carried out.
    #[error("node {node} did not answer: {detail}")]
    NoAnswer { node: NodeId, detail: String },
}

/// The other nodes.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Sends a forwarded call; the answer is that of the other node's `forward` handler.
    async fn forward(
        &self,
        node: NodeId,
        request: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<Bytes, PeerError>;
    fn is_alive(&self, node: NodeId) -> bool;
}

/// What is known of the cluster as a whole on this node.
pub trait ClusterView: Send + Sync {
    /// `None` until the cluster has formed.
    fn cluster_id(&self) -> Option<[u8; 16]>;
    /// The nodes that hold the controller's replicas; empty until the cluster has formed.
    fn controller_nodes(&self) -> Vec<NodeId>;
    /// What formation waits for, as a sentence.
    fn waiting_for(&self) -> String;
}
