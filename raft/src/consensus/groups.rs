//! The registry of the replicas that this node holds.
//!
//! Invariants:
//! * A replica is opened as a voter only where its marker says that it was created here, or where
//!   it is being created for the first time: a wiped disk never votes under an old replica id.
//! * At most one replica of a group lives on a node.
//! * Dropping a group stops its Raft tasks before its files go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use imprint_proto::ids::NodeId;
use openraft::{Config, Raft, SnapshotPolicy};
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};

use super::bootstrap::Bootstrap;
use super::catchup::CatchUpLimit;
use super::fitness::Fitness;
use super::group::{Group, Sleep};
use super::keeper;
use super::machine::{GroupMachine, Machine, ResumeError, SnapshotEvery};
use super::network::GroupNetwork;
use super::repair::{Down, DownGroup, Patient, RepairCounts, RepairStats};
use super::scrub::ScrubConfig;
use super::store::{Installing, LogStore, OnDamage};
use super::suspect::Suspects;
use crate::disk::Io;
use crate::disk::offloaded;
use crate::journal::{BadRange, Journal, JournalConfig, OpenError, Rescue};
use crate::rpc::PeerTable;
use crate::statelog::{Record, StateLog};

/// Timing and limits that all groups of a node share.
#[derive(Debug, Clone)]
pub struct GroupsConfig {
    /// A leader's heartbeat interval for groups that aren't asleep.
    pub heartbeat_interval: Duration,
    /// A follower campaigns after a random time between these two without its leader.
    pub election_timeout_min: Duration,
    pub election_timeout_max: Duration,
    /// A leader puts a group to sleep after this long without a write.
    pub quiesce_after: Duration,
    /// Bytes of each group's newest batches kept in memory.
    pub tail_cache_bytes: u64,
    /// How fast sealed segments are read again.
    pub scrub: ScrubConfig,
    /// Bytes a second that are read from the disk for replicas that lag, all groups together; 0 is no limit. At the tail
    /// nothing is read from the disk, and nothing limited.
    pub catch_up_bytes_per_second: u64,
    /// A group with a state takes a snapshot when its log has grown by this many bytes: about what a start replays in a
    /// fraction of a second.
    pub snapshot_after_bytes: u64,
    /// As `snapshot_after_bytes`, for many small entries: their cost at a start is per entry.
    pub snapshot_after_entries: u64,
}

impl Default for GroupsConfig {
    fn default() -> Self {
        GroupsConfig {
            heartbeat_interval: Duration::from_millis(150),
            election_timeout_min: Duration::from_millis(600),
            election_timeout_max: Duration::from_millis(1200),
            quiesce_after: Duration::from_secs(5),
            tail_cache_bytes: 4 << 20,
            scrub: ScrubConfig::default(),
            catch_up_bytes_per_second: 64 << 20,
            snapshot_after_bytes: 4 << 20,
            snapshot_after_entries: 4096,
        }
    }
}

/// What it takes to open one replica.
pub struct GroupSpec {
    pub group_id: u64,
    pub replica_id: u64,
    /// The first members, used when `bootstrap` is set: replica id to node id and address.
    pub members: BTreeMap<u64, (NodeId, String)>,
    /// Write the first membership if the log is still empty this long after a majority of the
    /// members have opened their replicas. Zero for the member that should lead first, a few
    /// seconds for the others, in case it is down; they would write the same.
    pub bootstrap_delay: Option<Duration>,
    pub machine: Box<dyn Machine>,
    /// A segment is closed before the batch that would take it past this. Bytes.
    pub segment_bytes: u64,
    /// A segment is closed before a batch stamped this many microseconds after its first one. This and `segment_bytes` are in
    /// force until a change is proposed: they have to be the same on all replicas and at every start.
    pub segment_span_us: Option<u64>,
}

impl GroupSpec {
    /// What it takes to open the same replica again, from the state that its files give.
    fn again(&self) -> GroupSpec {
        GroupSpec {
            members: self.members.clone(),
            machine: self.machine.fresh(),
            ..*self
        }
    }
}

/// Why a replica didn't open.
#[derive(Debug, thiserror::Error)]
pub enum OpenGroupError {
    #[error("group {group}: {source}")]
    Journal { group: u64, source: OpenError },
    /// It opens by itself once what is damaged was fetched from other replicas.
    #[error("group {group}: {reason}; it waits for its repair")]
    Damaged { group: u64, reason: String },
    #[error(
        "group {group}: this directory belongs to replica {found}, not to replica {expected}; \
         a replica id is never given to another disk"
    )]
    ForeignReplica {
        group: u64,
        found: u64,
        expected: u64,
    },
    #[error(
        "group {group}: {reason}; the log does not reach back to the state's beginning, so the state can't be rebuilt here: \
         put the file back, or have the replica made anew from the others"
    )]
    Snapshot { group: u64, reason: String },
    #[error("group {group}: Raft did not start: {reason}")]
    Raft { group: u64, reason: String },
    #[error("group {group}: {source}")]
    Io { group: u64, source: std::io::Error },
}

impl OpenGroupError {
    /// Whether it was for want of room on the disk, and may work when there is some.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Journal { source, .. } => source.is_no_space(),
            Self::Io { source, .. } => crate::disk::is_no_space(source),
            _ => false,
        }
    }
}

/// All replicas of this node.
pub struct Groups {
    pub(crate) node_id: NodeId,
    pub(crate) config: GroupsConfig,
    pub(crate) peers: Arc<PeerTable>,
    pub(crate) io: Io,
    data_dir: PathBuf,
    pub(crate) state: Arc<StateLog>,
    pub(crate) suspects: Arc<Suspects>,
    raft_config: Arc<Config>,
    catch_up: Arc<CatchUpLimit>,
    open: RwLock<BTreeMap<u64, Arc<Group>>>,
    /// Groups that did not open because of damage.
    down: RwLock<BTreeMap<u64, Arc<Down>>>,
    /// Counts replicas that opened.
    opened: watch::Sender<u64>,
    /// What was repaired and scrubbed.
    pub(crate) repairs: RepairStats,
    /// Serialises open and drop, which take several steps.
    changes: Mutex<()>,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups")
            .field("node_id", &self.node_id)
            .field("open", &self.open.read().len())
            .finish_non_exhaustive()
    }
}

impl Groups {
    /// A registry without replicas. [`Groups::run`] must be spawned beside it.
    pub fn new(
        node_id: NodeId,
        config: GroupsConfig,
        peers: Arc<PeerTable>,
        io: Io,
        data_dir: PathBuf,
        state: Arc<StateLog>,
    ) -> Result<Arc<Self>, String> {
        let raft_config = raft_config(&config)
            .validate()
            .map_err(|e| format!("the Raft timing is contradictory: {e}"))?;
        let suspects = Suspects::load(&io, &data_dir, || state.groups());
        let catch_up = CatchUpLimit::new(config.catch_up_bytes_per_second);
        let groups = Arc::new(Groups {
            catch_up,
            node_id,
            config,
            peers,
            io,
            data_dir,
            state,
            suspects: Arc::new(suspects),
            raft_config: Arc::new(raft_config),
            open: RwLock::new(BTreeMap::new()),
            down: RwLock::new(BTreeMap::new()),
            opened: watch::Sender::new(0),
            repairs: RepairStats::default(),
            changes: Mutex::new(()),
        });
        let weak = Arc::downgrade(&groups);
        groups.io.set_last_words(move |group, failed| {
            if let Some(groups) = weak.upgrade() {
                groups.mark_suspect(group, failed);
            }
        });
        Ok(groups)
    }

    /// The replica of a group on this node, if it is open.
    pub fn get(&self, group_id: u64) -> Option<Arc<Group>> {
        self.open.read().get(&group_id).cloned()
    }

    /// Waits until a replica is open.
    pub async fn wait_open(&self, group_id: u64) -> Arc<Group> {
        let mut opened = self.opened.subscribe();
        loop {
            if let Some(group) = self.get(group_id) {
                return group;
            }
            // The sender is in this registry.
            if opened.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// All open replicas, by group id.
    pub fn all(&self) -> Vec<Arc<Group>> {
        self.open.read().values().cloned().collect()
    }

    pub(crate) fn io(&self) -> &Io {
        &self.io
    }

    /// What was repaired and scrubbed since the start.
    pub fn repair_counts(&self) -> RepairCounts {
        self.repairs.counts()
    }

    /// A group that did not open because of damage.
    pub(crate) fn down(&self, group_id: u64) -> Option<Arc<Down>> {
        self.down.read().get(&group_id).cloned()
    }

    pub(crate) fn all_down(&self) -> Vec<Arc<Down>> {
        self.down.read().values().cloned().collect()
    }

    pub(crate) fn forget_down(&self, group_id: u64) {
        self.down.write().remove(&group_id);
    }

    /// The groups that wait for their repair.
    pub fn down_groups(&self) -> Vec<DownGroup> {
        self.all_down().iter().map(|down| down.describe()).collect()
    }

    /// Opens a replica; an open one is returned as it is.
    ///
    /// # Errors
    /// With [`OpenGroupError::Damaged`] the replica is repaired in the background and then opened.
    pub async fn open_group(&self, spec: GroupSpec) -> Result<Arc<Group>, OpenGroupError> {
        let _one_at_a_time = self.changes.lock().await;
        if let Some(group) = self.get(spec.group_id) {
            return Ok(group);
        }
        if let Some(down) = self.down(spec.group_id) {
            let DownGroup { group, state, .. } = down.describe();
            return Err(OpenGroupError::Damaged {
                group,
                reason: state,
            });
        }
        let group = self.start(spec).await?;
        self.open.write().insert(group.id, Arc::clone(&group));
        self.opened.send_modify(|count| *count += 1);
        Ok(group)
    }

    async fn start(&self, spec: GroupSpec) -> Result<Arc<Group>, OpenGroupError> {
        let id = spec.group_id;
        let again = spec.again();
        self.check_marker(id, spec.replica_id).await?;
        let journal = match self.open_journal(&spec).await {
            Err(OpenGroupError::Journal {
                source: OpenError::Corrupt(bad),
                ..
            }) => return Err(self.take_down(spec, bad).await),
            opened => opened?,
        };
        let (commit_tx, commit) = watch::channel(0);
        let machine = self.resume(&journal, spec.machine, commit_tx).await?;
        let (keeps_state, files) = (machine.keeps_state(), machine.files());
        let network = GroupNetwork {
            group: id,
            peers: Arc::clone(&self.peers),
        };
        let on_damage = watch::Sender::new(OnDamage::Fail);
        let installing = Installing::none();
        let limit = Arc::clone(&self.catch_up);
        let mut store = LogStore::new(
            Arc::clone(&journal),
            on_damage.subscribe(),
            limit,
            installing.clone(),
        );
        if !keeps_state {
            store = store.without_replay();
        }
        let config = self.config_of(id);
        let raft = Raft::new(
            spec.replica_id,
            config,
            network,
            store.clone(),
            machine.clone(),
        )
        .await;
        let raft = match raft {
            Ok(raft) => raft,
            // What it needs to start with lies in a hole.
            Err(error) if journal.is_damaged() => {
                let reason = error.to_string();
                return Err(self.keep_down(again, Patient::Journal(journal), reason));
            }
            Err(error) => {
                return Err(OpenGroupError::Raft {
                    group: id,
                    reason: error.to_string(),
                });
            }
        };
        store.set_open();
        on_damage.send_replace(OnDamage::Wait);
        let keeper = keeper::spawn(raft.clone(), machine);
        let group = Arc::new(Group {
            id,
            replica: spec.replica_id,
            raft,
            journal,
            commit,
            sleep: Sleep::new(),
            installing,
            keeps_state,
            files,
            _keeper: keeper,
            fitness: Fitness::default(),
            on_damage,
            again: parking_lot::Mutex::new(Some(again)),
        });
        self.doubt(&group);
        if let Some(delay) = spec.bootstrap_delay {
            let bootstrap = Bootstrap {
                group: Arc::clone(&group),
                members: spec.members,
                peers: Arc::clone(&self.peers),
                own_node: self.node_id,
            };
            tokio::spawn(bootstrap.run(delay));
        }
        Ok(group)
    }

    /// A suspect replica must not campaign from its first moment on.
    fn config_of(&self, group: u64) -> Arc<Config> {
        if !self.suspects.has(group) {
            return Arc::clone(&self.raft_config);
        }
        Arc::new(Config {
            enable_elect: false,
            ..Config::clone(&self.raft_config)
        })
    }

    /// Keeps a damaged group for its repair.
    async fn take_down(&self, spec: GroupSpec, bad: BadRange) -> OpenGroupError {
        let group = spec.group_id;
        let reason = OpenError::Corrupt(bad).to_string();
        let (io, state) = (self.io.clone(), Arc::clone(&self.state));
        let dir = self.group_dir(group);
        let rescue = offloaded(&self.io, move || Rescue::open(io, dir, state, group)).await;
        match rescue {
            Ok(Ok(rescue)) => self.keep_down(spec, Patient::Rescue(Arc::new(rescue)), reason),
            Ok(Err(source)) => OpenGroupError::Journal { group, source },
            Err(source) => OpenGroupError::Io { group, source },
        }
    }

    fn keep_down(&self, spec: GroupSpec, patient: Patient, reason: String) -> OpenGroupError {
        let group = spec.group_id;
        tracing::error!(group, %reason, "a damaged group stays down until it is repaired");
        let down = Down::new(spec, self.node_id, patient);
        self.down.write().insert(group, down);
        OpenGroupError::Damaged { group, reason }
    }

    /// Closes a group whose active segment is damaged, so that it is repaired like one that did not open.
    pub(crate) async fn close_for_repair(&self, group: &Arc<Group>) -> Result<(), String> {
        let spec = group.again.lock().take();
        let spec = spec.ok_or("it is being closed already")?;
        {
            let _one_at_a_time = self.changes.lock().await;
            self.open.write().remove(&group.id);
            group.stop().await;
            // Without the mark of a clean stop: the next opening looks at all of the active segment.
            let drained = group.journal.drain().await;
            drained.map_err(|error| error.to_string())?;
        }
        match self.open_group(spec).await {
            Ok(_) | Err(OpenGroupError::Damaged { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn group_dir(&self, group: u64) -> PathBuf {
        crate::journal::group_dir(&self.data_dir, group)
    }

    async fn resume(
        &self,
        journal: &Arc<Journal>,
        machine: Box<dyn Machine>,
        commit: watch::Sender<u64>,
    ) -> Result<GroupMachine, OpenGroupError> {
        let group = journal.group();
        let every = SnapshotEvery {
            bytes: self.config.snapshot_after_bytes,
            entries: self.config.snapshot_after_entries,
        };
        let opened = GroupMachine::open(journal, machine, every, commit).await;
        opened.map_err(|error| match error {
            ResumeError::Io(source) => OpenGroupError::Io { group, source },
            other => OpenGroupError::Snapshot {
                group,
                reason: other.to_string(),
            },
        })
    }

    /// A replica that was created here keeps its id; another id on the same files is refused.
    async fn check_marker(&self, group: u64, replica: u64) -> Result<(), OpenGroupError> {
        match self.state.replica_marker(group) {
            Some(found) if found != replica => Err(OpenGroupError::ForeignReplica {
                group,
                found,
                expected: replica,
            }),
            Some(_) => Ok(()),
            None => self
                .state
                .set_replica_marker(group, replica)
                .await
                .map_err(|source| OpenGroupError::Io { group, source }),
        }
    }

    async fn open_journal(&self, spec: &GroupSpec) -> Result<Arc<Journal>, OpenGroupError> {
        let group = spec.group_id;
        let config = JournalConfig {
            segment_bytes: spec.segment_bytes,
            segment_span_us: spec.segment_span_us,
            tail_cache_bytes: self.config.tail_cache_bytes,
            ..JournalConfig::default()
        };
        let dir = self.group_dir(group);
        let io = self.io.clone();
        let state = Arc::clone(&self.state);
        offloaded(&self.io, move || {
            let open = || {
                let (io, state) = (io.clone(), Arc::clone(&state));
                Journal::open(io, dir.clone(), state, group, config)
            };
            match open() {
                // What recovery sets aside needs room.
                Err(error) if error.is_no_space() && io.space.hit(io.disk.as_ref()) => open(),
                other => other,
            }
        })
        .await
        .map_err(|source| OpenGroupError::Io { group, source })?
        .map_err(|source| OpenGroupError::Journal { group, source })
    }

    /// Stops a replica and deletes what it stored.
    pub async fn drop_group(&self, group_id: u64) -> Result<(), OpenGroupError> {
        let _one_at_a_time = self.changes.lock().await;
        self.forget_down(group_id);
        let Some(group) = self.open.write().remove(&group_id) else {
            return self.drop_closed(group_id).await;
        };
        group.stop().await;
        let journal = Arc::clone(&group.journal);
        journal
            .drop_group()
            .await
            .map_err(|source| OpenGroupError::Io {
                group: group_id,
                source,
            })
    }

    /// Deletes what a replica stored that isn't open: its state first, so that nothing of it votes again.
    async fn drop_closed(&self, group: u64) -> Result<(), OpenGroupError> {
        let wrap = |source| OpenGroupError::Io { group, source };
        if self.state.group(group).is_some() {
            let dropped = self.state.append_synced(vec![Record::Dropped { group }]);
            dropped.await.map_err(wrap)?;
        }
        let (disk, dir) = (Arc::clone(&self.io.disk), self.group_dir(group));
        offloaded(&self.io, move || {
            if !disk.exists(&dir)? {
                return Ok(());
            }
            disk.remove_dir_all(&dir)?;
            disk.sync_dir(crate::disk::parent(&dir)?)
        })
        .await
        .and_then(|removed| removed)
        .map_err(wrap)
    }

    pub(crate) fn flush_marks(&self) {
        self.state.flush_lazy();
    }

    /// Stops every replica; their files stay.
    pub async fn shutdown(&self) {
        let _one_at_a_time = self.changes.lock().await;
        let groups = std::mem::take(&mut *self.open.write());
        let stops = groups.values().map(|group| async {
            group.stop().await;
            group.journal.close().await
        });
        for result in futures_util::future::join_all(stops).await {
            if let Err(error) = result {
                tracing::warn!(%error, "a journal did not close cleanly; the next start re-checks it");
            }
        }
    }
}

fn raft_config(config: &GroupsConfig) -> Config {
    let ms = |d: Duration| d.as_millis() as u64;
    Config {
        cluster_name: "imprint".into(),
        heartbeat_interval: ms(config.heartbeat_interval),
        election_timeout_min: ms(config.election_timeout_min),
        election_timeout_max: ms(config.election_timeout_max),
        snapshot_policy: SnapshotPolicy::Never,
        // Purging follows a trim only, never a snapshot.
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: u64::MAX,
        max_payload_entries: 1024,
        enable_pre_vote: Some(true),
        // A restarted leader must be elected again: resuming its term could give an acknowledged
        // log id to another entry.
        enable_leader_restore: Some(false),
        // A replica that lost what it had acknowledged (rot in its last moments before a kill, or a
        // repair that began it anew) is brought up to date again. A wiped disk never gets this far:
        // its identity is refused. What a quorum accepted stays accepted.
        allow_log_reversion: Some(true),
        broadcast_submitted_on_append: Some(true),
        backoff: "50ms 100ms 200ms ...1s".into(),
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of these was found by breaking it: see the module's invariants and `raft_config`.
    #[test]
    fn the_settings_that_safety_rests_on() {
        let config = raft_config(&GroupsConfig::default())
            .validate()
            .expect("the defaults agree with each other");
        assert_eq!(config.enable_leader_restore, Some(false));
        assert_eq!(config.enable_pre_vote, Some(true));
        assert_eq!(config.snapshot_policy, SnapshotPolicy::Never);
        assert_eq!(config.max_in_snapshot_log_to_keep, u64::MAX);
    }
}
