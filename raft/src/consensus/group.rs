//! One replica of one Raft group, as the rest of the node sees it.
//!
//! Invariants:
//! * A proposal is answered at most once, and an answer of "not leader" means that nothing was
//!   appended. Whatever else goes wrong after the hand-over to openraft is an unknown outcome.
//! * The commit point never falls while the replica is open.
//! * A sleeping (quiesced) group is woken before it is written to or read linearizably.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::batch::AdmittedBatch;
use imprint_proto::ids::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardReason, ForwardToLeader, RaftError};
use openraft::raft::ReadPolicy;
use openraft::{Raft, ServerState};
use tokio::sync::watch;
use tokio::time::Instant;

use super::fitness::Fitness;
use super::keeper::KeeperTask;
use super::machine::GroupMachine;
use super::snapshot::SnapshotFiles;
use super::store::{Installing, OnDamage};
use super::types::{AppRecord, Applied, LogId, TypeConfig, log_pos};
use crate::disk::offloaded;
use crate::journal::{Journal, RollSettings, VoidOutcome};

pub(crate) type GroupRaft = Raft<TypeConfig, GroupMachine>;

/// What a committed proposal got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposed {
    /// Offset of the first message.
    pub base_offset: u64,
    /// Offset of the last message.
    pub last_offset: u64,
    /// Server time stamped at append, microseconds since the Unix epoch.
    pub timestamp_us: u64,
    /// The leader's term.
    pub epoch: u64,
    /// The state machine's answer; empty for data groups.
    pub reply: Bytes,
}

/// Why a proposal has no result.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was appended; ask the leader.
    #[error("this replica does not lead the group; leader: {leader:?}")]
    NotLeader { leader: Option<NodeId> },
    /// Nothing was appended: the next offset is another than the one asked for.
    #[error("expected the next offset to be {expected}, it is {next}")]
    OffsetMismatch { expected: u64, next: u64 },
    /// Nothing was appended: the append refused the batch.
    #[error("the append refused the batch: {0}")]
    Refused(String),
    /// Nothing was appended: a trim may only take what is committed.
    #[error("can't trim up to {upto}: committed are the offsets {start}..{commit}")]
    TrimAboveCommit { upto: u64, start: u64, commit: u64 },
    /// Nothing was appended: the disk has no room for data.
    #[error("the disk has no room for data")]
    NoRoom,
    /// The batch may or may not be in the log.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The replica has stopped.
    #[error("the replica has stopped: {0}")]
    Stopped(String),
}

/// Why a linearizable read can't be served here.
#[derive(Debug, thiserror::Error)]
pub enum LinearizeError {
    #[error("this replica does not lead the group; leader: {leader:?}")]
    NotLeader { leader: Option<NodeId> },
    #[error("leadership could not be confirmed within the deadline")]
    Timeout,
    #[error("leadership could not be confirmed: {0}")]
    Failed(String),
}

/// One replica.
pub struct Group {
    pub(crate) id: u64,
    pub(crate) replica: u64,
    pub(crate) raft: GroupRaft,
    pub(crate) journal: Arc<Journal>,
    pub(crate) commit: watch::Receiver<u64>,
    pub(crate) sleep: Sleep,
    pub(super) installing: Installing,
    /// The log is kept short by snapshots of the state, not by trims.
    pub(super) keeps_state: bool,
    pub(super) files: Arc<SnapshotFiles>,
    pub(super) _keeper: KeeperTask,
    /// Whether it may lead.
    pub(crate) fitness: Fitness,
    /// What reads do that meet damage.
    pub(crate) on_damage: watch::Sender<OnDamage>,
    /// How to open it again after a repair.
    pub(crate) again: parking_lot::Mutex<Option<super::groups::GroupSpec>>,
}

/// Whether the group is quiesced, and since when it could be.
#[derive(Debug)]
pub(crate) struct Sleep {
    asleep: AtomicBool,
    opened: Instant,
    /// Milliseconds after `opened` of the last write or wake.
    active_ms: AtomicU64,
}

impl Sleep {
    pub(crate) fn new() -> Self {
        Sleep {
            asleep: AtomicBool::new(false),
            opened: Instant::now(),
            active_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    /// True when this call put it to sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        !self.asleep.swap(true, Ordering::AcqRel)
    }

    /// True when this call woke it.
    pub(crate) fn wake(&self) -> bool {
        self.touch();
        self.asleep.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn touch(&self) {
        let ms = self.opened.elapsed().as_millis() as u64;
        self.active_ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn idle_for(&self) -> Duration {
        let now = self.opened.elapsed();
        now.saturating_sub(Duration::from_millis(
            self.active_ms.load(Ordering::Relaxed),
        ))
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("id", &self.id)
            .field("replica", &self.replica)
            .finish_non_exhaustive()
    }
}

/// A lease that ran out (the group slept, or a voter was slow) is renewed this often before the
/// proposal is given back.
const LEASE_RETRIES: u32 = 20;
/// The wait between two of those tries: a heartbeat's round trip takes less.
const LEASE_RETRY_WAIT: Duration = Duration::from_millis(5);

impl Group {
    /// The group's id: the partition id, or 0 for the controller.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// This replica's id.
    pub fn replica_id(&self) -> u64 {
        self.replica
    }

    /// The replica's log.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// True when no data may be appended here. The controller's few bytes always may: deleting a topic makes room.
    pub(crate) fn has_no_room(&self) -> bool {
        self.id != 0 && self.journal.io().space.is_full()
    }

    /// Whether this entry is in the log here.
    pub(crate) fn holds(&self, id: &LogId) -> bool {
        let pos = log_pos(id);
        let purged = self.journal.purged();
        purged >= Some(pos) || self.journal.term_at(pos.index) == Some(pos.term)
    }

    pub(crate) fn raft(&self) -> &GroupRaft {
        &self.raft
    }

    /// The node of the leader that this replica knows of.
    pub fn leader(&self) -> Option<NodeId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        let membership = metrics.membership_config.membership();
        membership
            .get_node(&leader)
            .map(|node| NodeId(node.node_id))
    }

    /// True when this replica leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.raft.metrics().borrow_watched().state == ServerState::Leader
    }

    /// The current term.
    pub fn epoch(&self) -> u64 {
        self.raft.metrics().borrow_watched().current_term
    }

    /// The members: replica id, node id, whether it votes.
    pub fn members(&self) -> Vec<(u64, NodeId, bool)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let voters: Vec<u64> = membership.voter_ids().collect();
        membership
            .nodes()
            .map(|(id, node)| (*id, NodeId(node.node_id), voters.contains(id)))
            .collect()
    }

    /// True when the group is quiesced on this node.
    pub fn is_asleep(&self) -> bool {
        self.sleep.is_asleep()
    }

    /// First offset that isn't committed, as this replica knows.
    pub fn commit_offset(&self) -> u64 {
        *self.commit.borrow()
    }

    /// A view of the commit point that can be awaited.
    pub fn watch_commit(&self) -> watch::Receiver<u64> {
        self.commit.clone()
    }

    /// Waits until the commit point is above `offset`; false when the deadline came first or the
    /// replica closed.
    pub async fn wait_commit_above(&self, offset: u64, deadline: Instant) -> bool {
        let mut commit = self.commit.clone();
        let wait = commit.wait_for(|point| *point > offset);
        matches!(tokio::time::timeout_at(deadline, wait).await, Ok(Ok(_)))
    }

    /// Waits until some replica leads, as this one knows, and gives its node.
    pub async fn wait_leader(&self, deadline: Instant) -> Option<NodeId> {
        let mut metrics = self.raft.metrics();
        loop {
            // A vote names the leader before the membership says where it lives.
            if let Some(node) = self.leader() {
                return Some(node);
            }
            let changed = tokio::time::timeout_at(deadline, metrics.changed());
            changed.await.ok()?.ok()?;
        }
    }

    /// Appends a batch and waits until it is committed.
    ///
    /// The caller owns the deadline; when it passes, the batch may still be committed later.
    pub async fn propose(
        &self,
        batch: AdmittedBatch,
        expected_offset: Option<u64>,
        deadline: Instant,
    ) -> Result<Proposed, ProposeError> {
        if self.has_no_room() {
            return Err(ProposeError::NoRoom);
        }
        let record = || AppRecord::Admitted {
            batch: batch.clone(),
            expected_offset,
        };
        let (epoch, applied) = self.write(record, deadline).await?;
        proposed(epoch, applied)
    }

    /// Lets everything below `upto` go, on all replicas, and gives the first offset that is kept: at least `upto`. What was
    /// trimmed before stays so. Whole segments are deleted; reads below the start are refused at once.
    ///
    /// The caller owns the deadline; when it passes, the trim may still happen.
    pub async fn trim(&self, upto: u64, deadline: Instant) -> Result<u64, ProposeError> {
        if self.keeps_state {
            let reason = "this log goes with the snapshots of its state".into();
            return Err(ProposeError::Refused(reason));
        }
        let (start, commit) = (self.journal.start_offset(), self.commit_offset());
        if self.is_leader() && upto > commit {
            return Err(ProposeError::TrimAboveCommit {
                upto,
                start,
                commit,
            });
        }
        if self.is_leader() && upto <= start {
            return Ok(start);
        }
        match self.write(|| AppRecord::Trim { upto }, deadline).await? {
            (_, Applied::Trimmed { start_offset }) => Ok(start_offset),
            (_, other) => Err(no_outcome(&other)),
        }
    }

    /// Makes segments end by other settings from here on, on all replicas.
    pub async fn change_roll(
        &self,
        settings: RollSettings,
        deadline: Instant,
    ) -> Result<(), ProposeError> {
        self.write(|| AppRecord::Settings(settings), deadline)
            .await
            .map(drop)
    }

    /// The settings that the next batch is appended under here.
    pub fn roll_settings(&self) -> RollSettings {
        self.journal.roll_settings()
    }

    /// Has a record committed and applied here; gives the term that it was written in.
    async fn write(
        &self,
        record: impl Fn() -> AppRecord,
        deadline: Instant,
    ) -> Result<(u64, Applied), ProposeError> {
        self.wake();
        let mut tries = 0;
        loop {
            let write = tokio::time::timeout_at(deadline, self.raft.client_write(record()));
            let error = match write.await {
                Ok(Ok(response)) => {
                    return Ok((response.log_id.leader_id.term, response.data));
                }
                Ok(Err(error)) => error,
                Err(_) => return Err(ProposeError::Unknown("the deadline passed".into())),
            };
            if !lease_expired(&error) || tries == LEASE_RETRIES || !self.is_leader() {
                return Err(propose_error(error));
            }
            tries += 1;
            self.renew_lease().await;
        }
    }

    async fn renew_lease(&self) {
        // Only a stopped core can't be triggered; the next write says so.
        let _ = self.raft.trigger().heartbeat().await;
        tokio::time::sleep(LEASE_RETRY_WAIT).await;
    }

    /// Confirms by a round trip to a majority that this replica leads, and waits until everything
    /// acknowledged before the call is visible here.
    pub async fn linearize(&self, deadline: Instant) -> Result<(), LinearizeError> {
        self.wake();
        let read = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        match tokio::time::timeout_at(deadline, read).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(match error.into_forward_to_leader() {
                Some(forward) => LinearizeError::NotLeader {
                    leader: leader_node(&forward),
                },
                None => LinearizeError::Failed("no majority answered".into()),
            }),
            Err(_) => Err(LinearizeError::Timeout),
        }
    }

    /// Asks the replica on `node` to take over. Returns when the request is queued.
    pub async fn transfer_leader(&self, node: NodeId) -> bool {
        let members = self.members();
        let target = members.iter().find(|(_, at, voter)| *at == node && *voter);
        match target {
            Some((replica, _, _)) => {
                self.wake();
                self.raft.trigger().transfer_leader(*replica).await.is_ok()
            }
            None => false,
        }
    }

    /// Stops the Raft tasks; those that wait for a repair stop waiting.
    pub(crate) async fn stop(&self) {
        self.on_damage.send_replace(OnDamage::Stop);
        // What waits for room would hold up the core.
        self.journal.stop_waiting();
        // A core that panicked has stopped too.
        let _ = self.raft.shutdown().await;
        // A snapshot may still be written by a thread that nobody waits for any more.
        let files = Arc::clone(&self.files);
        let _ = offloaded(self.journal.io(), move || files.close()).await;
    }

    /// Ends a quiesced group's sleep; the first write of a leader then renews its lease.
    pub(crate) fn wake(&self) {
        if self.sleep.wake() {
            self.raft.runtime_config().tick(true);
        }
    }
}

fn proposed(epoch: u64, applied: Applied) -> Result<Proposed, ProposeError> {
    match applied {
        Applied::Batch {
            base_offset,
            next_offset,
            base_timestamp_us,
            reply,
        } => Ok(Proposed {
            base_offset,
            last_offset: next_offset.saturating_sub(1),
            timestamp_us: base_timestamp_us,
            epoch,
            reply,
        }),
        Applied::Voided(outcome) => Err(match VoidOutcome::decode(outcome) {
            Ok(VoidOutcome::OffsetMismatch { expected, next }) => {
                ProposeError::OffsetMismatch { expected, next }
            }
            Ok(other) => ProposeError::Refused(format!("{other:?}")),
            Err(e) => ProposeError::Refused(format!("an outcome that can't be read: {e}")),
        }),
        other => Err(no_outcome(&other)),
    }
}

fn no_outcome(applied: &Applied) -> ProposeError {
    ProposeError::Unknown(format!("applying the entry answered: {applied}"))
}

type WriteError = RaftError<TypeConfig, ClientWriteError<TypeConfig>>;

fn lease_expired(error: &WriteError) -> bool {
    error
        .forward_to_leader()
        .is_some_and(|forward| forward.reason == ForwardReason::LeaseExpired)
}

fn propose_error(error: WriteError) -> ProposeError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            ProposeError::NotLeader {
                leader: leader_node(&forward),
            }
        }
        RaftError::APIError(other) => ProposeError::Unknown(other.to_string()),
        RaftError::Fatal(fatal) => ProposeError::Stopped(fatal.to_string()),
    }
}

fn leader_node(forward: &ForwardToLeader<TypeConfig>) -> Option<NodeId> {
    forward
        .leader_node
        .as_ref()
        .map(|node| NodeId(node.node_id))
}
