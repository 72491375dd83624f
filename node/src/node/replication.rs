//! [`crate::backend`] over the Raft groups, the peer table and formation.
//!
//! The only place where this crate touches a group or a journal. Everything that reads a disk runs
//! where the I/O seam says, never on the runtime's own threads.

use crate::{
    backend::*,
    formation::{Formation, FormationRecord},
};
use async_trait::async_trait;
use bytes::Bytes;
use imprint_proto::{
    batch::AdmittedBatch,
    ids::{GroupId, NodeId, ReplicaId},
};
use imprint_raft::disk::offloaded;
use imprint_raft::{
    consensus::{self, Group, GroupSpec, Groups, NoMachine},
    disk::Io,
    journal::{self, BadRange, Journal, SegmentInfo},
    rpc::{CallOptions, Class, PeerTable, RpcError, methods},
    statelog::StateLog,
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// A group's replica on this node.
struct RaftReplica {
    group: Arc<Group>,
    io: Io,
    peers: Arc<PeerTable>,
}

impl RaftReplica {
    fn journal(&self) -> &Arc<Journal> {
        self.group.journal()
    }

    /// Runs something that may read the disk.
    async fn off_runtime<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Journal) -> Result<T, journal::ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let journal = Arc::clone(self.journal());
        offloaded(&self.io, move || read(&journal))
            .await
            .map_err(|error| ReadError::Io(error.to_string()))?
            .map_err(read_error)
    }
}

fn damaged_range(bad: BadRange) -> DamagedRange {
    DamagedRange {
        from_offset: bad.from_offset,
        to_offset: bad.to_offset,
        found: format!("{}: {}", bad.path.display(), bad.found),
    }
}

fn read_error(error: journal::ReadError) -> ReadError {
    let message = error.to_string();
    match error {
        journal::ReadError::BelowStart { offset, start, .. } => {
            ReadError::BelowStart { offset, start }
        }
        journal::ReadError::Corrupt { .. } => ReadError::Corrupt(message),
        _ => ReadError::Io(message),
    }
}

fn propose_error(error: consensus::ProposeError, deadline: Instant) -> ProposeError {
    use consensus::ProposeError as Raft;
    let detail = error.to_string();
    match error {
        Raft::NotLeader { leader } => ProposeError::NotLeader { leader },
        Raft::OffsetMismatch { expected, next } => ProposeError::OffsetMismatch { expected, next },
        Raft::Refused(reason) => ProposeError::Refused(reason),
        Raft::NoRoom => ProposeError::NoRoom,
        Raft::TrimAboveCommit { .. } => ProposeError::Refused(detail),
        // A replica that stops may have appended what it was just given.
        Raft::Unknown(_) | Raft::Stopped(_) => ProposeError::Unknown {
            detail,
            deadline: Instant::now() >= deadline,
        },
    }
}

#[async_trait]
impl Replica for RaftReplica {
    fn replica_id(&self) -> ReplicaId {
        ReplicaId(self.group.replica_id())
    }

    fn leader(&self) -> Option<NodeId> {
        self.group.leader()
    }

    fn is_leader(&self) -> bool {
        self.group.is_leader()
    }

    fn epoch(&self) -> u64 {
        self.group.epoch()
    }

    fn offsets(&self) -> LogOffsets {
        // The commit point first: the others only rise meanwhile, so it can't be above the end.
        let commit = self.group.commit_offset();
        let journal = self.journal();
        LogOffsets {
            start: journal.start_offset(),
            commit,
            end: journal.next_offset(),
            synced: journal.synced_offset(),
        }
    }

    fn size(&self) -> (u64, u32) {
        let journal = self.journal();
        let segments = u32::try_from(journal.segments().len()).unwrap_or(u32::MAX);
        (journal.total_bytes(), segments)
    }

    fn watch_commit(&self) -> watch::Receiver<u64> {
        self.group.watch_commit()
    }

    async fn wait_leader(&self, deadline: Instant) -> Option<NodeId> {
        self.group.wait_leader(deadline).await
    }

    async fn propose(
        &self,
        batch: AdmittedBatch,
        expected_offset: Option<u64>,
        deadline: Instant,
    ) -> Result<Proposed, ProposeError> {
        let result = self.group.propose(batch, expected_offset, deadline).await;
        let proposed = result.map_err(|error| propose_error(error, deadline))?;
        Ok(Proposed {
            base_offset: proposed.base_offset,
            last_offset: proposed.last_offset,
            timestamp_us: proposed.timestamp_us,
            epoch: proposed.epoch,
            reply: proposed.reply,
        })
    }

    async fn linearize(&self, deadline: Instant) -> Result<(), LinearizeError> {
        use consensus::LinearizeError as Raft;
        self.group.linearize(deadline).await.map_err(|error| {
            let detail = error.to_string();
            match error {
                Raft::NotLeader { leader } => LinearizeError::NotLeader { leader },
                Raft::Timeout | Raft::Failed(_) => LinearizeError::NotConfirmed(detail),
            }
        })
    }

    async fn read(
        &self,
        offset: u64,
        below: u64,
        max_bytes: u64,
    ) -> Result<ReadBatches, ReadError> {
        let read = self
            .off_runtime(move |journal| journal.read_stamped(offset, below, max_bytes))
            .await?;
        let mut pieces = Vec::with_capacity(read.batches.len() * 2);
        for batch in &read.batches {
            let (header, blob) = batch.parts();
            pieces.extend([header.clone(), blob.clone()]);
        }
        Ok(ReadBatches {
            pieces,
            next_offset: read.next_offset,
            epochs: read.epochs,
        })
    }

    async fn offset_for_time(&self, timestamp_us: u64) -> Result<u64, ReadError> {
        self.off_runtime(move |journal| journal.offset_for_time(timestamp_us))
            .await
    }

    fn segments(&self) -> Vec<SegmentSummary> {
        let summary = |info: SegmentInfo| SegmentSummary {
            base_offset: info.base_offset,
            end_offset: info.end_offset,
            bytes: info.bytes,
            sealed: info.sealed,
        };
        self.journal().segments().into_iter().map(summary).collect()
    }

    async fn stamp_at(&self, offset: u64) -> Result<Option<u64>, ReadError> {
        let stamp = move |journal: &Journal| {
            let read = journal.read_stamped(offset, journal.next_offset(), 1)?;
            Ok(read.batches.first().map(|batch| batch.base_timestamp()))
        };
        match self.off_runtime(stamp).await {
            Err(ReadError::BelowStart { .. }) => Ok(None),
            other => other,
        }
    }

    fn roll_settings(&self) -> RollSettings {
        let roll = self.group.roll_settings();
        RollSettings {
            segment_bytes: roll.segment_bytes,
            segment_span_us: roll.segment_span_us,
        }
    }

    async fn trim(&self, upto: u64, deadline: Instant) -> Result<u64, ProposeError> {
        let trimmed = self.group.trim(upto, deadline).await;
        trimmed.map_err(|error| propose_error(error, deadline))
    }

    async fn change_roll(&self, roll: RollSettings, deadline: Instant) -> Result<(), ProposeError> {
        let settings = journal::RollSettings {
            segment_bytes: roll.segment_bytes,
            segment_span_us: roll.segment_span_us,
        };
        let changed = self.group.change_roll(settings, deadline).await;
        changed.map_err(|error| propose_error(error, deadline))
    }

    async fn digest(&self, upto: u64) -> Result<LogDigest, ReadError> {
        let digest = self
            .off_runtime(move |journal| journal.digest(upto))
            .await?;
        let infos = self.journal().segments();
        let segments: Vec<SegmentDigest> = digest
            .segments
            .iter()
            .map(|segment| {
                let whole = |info: &&SegmentInfo| {
                    info.base_offset == segment.base_offset && info.end_offset == segment.end_offset
                };
                let info = infos.iter().find(whole);
                SegmentDigest {
                    base_offset: segment.base_offset,
                    end_offset: segment.end_offset,
                    bytes: info.map_or(0, |info| info.bytes),
                    digest: segment.xxh3,
                    sealed: info.is_some_and(|info| info.sealed),
                }
            })
            .collect();
        Ok(LogDigest {
            start_offset: digest.base_offset,
            bytes: segments.iter().map(|segment| segment.bytes).sum(),
            digest: digest.xxh3,
            segments,
        })
    }

    fn damage(&self) -> Vec<DamagedRange> {
        self.journal()
            .damage()
            .into_iter()
            .map(damaged_range)
            .collect()
    }

    async fn step_down(&self) -> bool {
        if !self.is_leader() {
            return false;
        }
        let own = self.group.replica_id();
        let members = self.group.members();
        let other = members
            .iter()
            .find(|(id, node, voter)| *id != own && *voter && self.peers.is_alive(*node));
        match other {
            Some((_, node, _)) => self.group.transfer_leader(*node).await,
            None => false,
        }
    }

    async fn step_down_to(&self, node: NodeId) -> bool {
        self.is_leader() && self.group.transfer_leader(node).await
    }

    fn voter_nodes(&self) -> Vec<NodeId> {
        let members = self.group.members().into_iter();
        members
            .filter_map(|(_, node, voter)| voter.then_some(node))
            .collect()
    }
}

/// How long a member that shouldn't lead first waits before it founds the group in the other's place.
const STAND_IN_AFTER: Duration = Duration::from_secs(2);

/// When a member founds a group that has nothing yet.
pub(super) fn bootstrap_delay(preferred: bool) -> Duration {
    if preferred {
        Duration::ZERO
    } else {
        STAND_IN_AFTER
    }
}

/// The groups of this node.
pub(super) struct RaftReplicas {
    pub groups: Arc<Groups>,
    pub state: Arc<StateLog>,
    pub io: Io,
    pub peers: Arc<PeerTable>,
}

#[async_trait]
impl Replicas for RaftReplicas {
    fn get(&self, group: GroupId) -> Option<Arc<dyn Replica>> {
        let group = self.groups.get(group.0)?;
        Some(Arc::new(RaftReplica {
            group,
            io: self.io.clone(),
            peers: Arc::clone(&self.peers),
        }))
    }

    fn open_groups(&self) -> Vec<GroupId> {
        let all = self.groups.all();
        let ids = all.iter().map(|group| GroupId(group.id()));
        ids.filter(|id| id.0 != 0).collect()
    }

    fn stored_groups(&self) -> Vec<GroupId> {
        let ids = self.state.groups().into_iter().map(GroupId);
        ids.filter(|id| id.0 != 0).collect()
    }

    fn down(&self) -> Vec<DownReplica> {
        let down = self.groups.down_groups().into_iter();
        down.map(|down| DownReplica {
            group: GroupId(down.group),
            damage: down.ranges.into_iter().map(damaged_range).collect(),
            state: down.state,
        })
        .collect()
    }

    async fn open(&self, replica: OpenReplica) -> Result<(), ReplicaError> {
        let members = replica.members.into_iter();
        let spec = GroupSpec {
            group_id: replica.group.0,
            replica_id: replica.replica.0,
            members: members.map(|(id, node)| (id.0, node)).collect(),
            bootstrap_delay: Some(bootstrap_delay(replica.preferred)),
            machine: Box::new(NoMachine),
            segment_bytes: replica.roll.segment_bytes,
            segment_span_us: replica.roll.segment_span_us,
        };
        match self.groups.open_group(spec).await {
            Ok(_) => Ok(()),
            Err(error) => Err(ReplicaError(error.to_string())),
        }
    }

    async fn remove(&self, group: GroupId) -> Result<(), ReplicaError> {
        let dropped = self.groups.drop_group(group.0).await;
        dropped.map_err(|error| ReplicaError(error.to_string()))
    }
}

/// The way to the other nodes.
pub(super) struct RaftPeers(pub Arc<PeerTable>);

#[async_trait]
impl Peers for RaftPeers {
    async fn forward(
        &self,
        node: NodeId,
        request: Vec<Bytes>,
        timeout: Duration,
    ) -> Result<Bytes, PeerError> {
        let Some(peer) = self.0.get(node) else {
            let detail = "its address isn't known".to_string();
            return Err(PeerError::NotSent { node, detail });
        };
        let options = CallOptions {
            timeout,
            class: Class::Bulk,
            compress: false,
        };
        let answer = peer.call(methods::FORWARD, request.into(), options).await;
        answer.map_err(|error: RpcError| {
            let detail = error.to_string();
            if error.outcome_unknown() {
                PeerError::NoAnswer { node, detail }
            } else {
                PeerError::NotSent { node, detail }
            }
        })
    }

    fn is_alive(&self, node: NodeId) -> bool {
        self.0.is_alive(node)
    }
}

/// What formation knows.
pub(super) struct Formed(pub Arc<Formation>);

impl ClusterView for Formed {
    fn cluster_id(&self) -> Option<[u8; 16]> {
        self.0.cluster_id()
    }

    fn controller_nodes(&self) -> Vec<NodeId> {
        let record: Option<FormationRecord> = self.0.record();
        let members = record.map(|record| record.members).unwrap_or_default();
        members
            .iter()
            .map(|member| NodeId(member.node_id))
            .collect()
    }

    fn waiting_for(&self) -> String {
        self.0.waiting_for()
    }
}

impl consensus::Machine for crate::controller::ControllerMachine {
    fn fresh(&self) -> Box<dyn consensus::Machine> {
        Box::new(self.anew())
    }

    fn apply(&mut self, batch: &imprint_proto::batch::StampedBatch) -> Bytes {
        self.apply_batch(batch)
    }

    fn snapshot(&self) -> Bytes {
        self.encode_state()
    }

    fn restore(&mut self, snapshot: Bytes) -> Result<(), String> {
        self.restore_state(snapshot)
    }
}

/// The disk's counters, for the metrics page.
pub(super) fn disk_counts(io: &Io) -> Vec<(&'static str, &'static str, u64)> {
    let counts = io.watch.counts();
    vec![
        ("disk_syncs", "Syncs of files and directories", counts.syncs),
        (
            "disk_failures",
            "Changes on the disk that failed, for want of room or otherwise",
            counts.failures,
        ),
        (
            "disk_written_bytes",
            "Bytes written to files",
            counts.written_bytes,
        ),
        (
            "disk_read_bytes",
            "Bytes read from files",
            counts.read_bytes,
        ),
        (
            "disk_no_space",
            "Writes that found no space",
            io.space.hits(),
        ),
    ]
}

/// The counters of repair and scrub, for the metrics page.
pub(super) fn repair_counts(groups: &Groups) -> Vec<(&'static str, &'static str, u64)> {
    let counts = groups.repair_counts();
    vec![
        (
            "segments_repaired",
            "Damaged segments repaired from other replicas",
            counts.segments_repaired,
        ),
        (
            "repair_bytes_fetched",
            "Bytes fetched from other replicas for repairs",
            counts.bytes_fetched,
        ),
        (
            "repair_failures",
            "Repairs that did not succeed and are tried again",
            counts.failures,
        ),
        (
            "segments_scrubbed",
            "Sealed segments that were read again and checked",
            counts.segments_scrubbed,
        ),
        (
            "scrub_bytes",
            "Bytes read by the scrub",
            counts.bytes_scrubbed,
        ),
        (
            "scrub_findings",
            "Segments that the scrub found damaged",
            counts.scrub_findings,
        ),
    ]
}
