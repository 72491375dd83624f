//! openraft's state machine: what happens when an entry is committed here.
//!
//! For a data group the log is the state, so applying means moving the commit point and answering
//! the proposer. A group with a state of its own (the controller's) puts it behind [`Machine`].
//!
//! Invariants:
//! * The commit point moves before the proposer is answered, so that a poll on this node sees what
//!   was acknowledged. A trim is durable here before its proposer is answered.
//! * A data group resumes at the durable committed mark; a group with state replays from its
//!   snapshot. Neither is ever ahead of the synced journal.
//! * A snapshot file that is ahead of the journal is one whose installation a crash cut off: it is
//!   finished before Raft looks at the log.
//! * A file that can't be used leads to a longer replay, or to a refusal that names it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use imprint_proto::batch::StampedBatch;
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, SnapshotMeta};
use openraft::{EntryPayload, OptionalSend};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::snapshot::{Found, Place, Snap, SnapshotFiles, SnapshotMetaOf, SnapshotOf};
use super::types::{
    AppRecord, Applied, Entry, LogId, StoredMembership, TypeConfig, decode_membership, log_id,
    log_pos,
};
use crate::disk::offloaded;
use crate::journal::{Journal, LogPos};

/// A replicated state beside the log. Calls come from one task, in log order.
pub trait Machine: Send + Sync + 'static {
    /// False when the log itself is the state: then a restart resumes at the committed mark.
    fn keeps_state(&self) -> bool {
        true
    }

    /// A machine in its first state, seen by whoever sees this one: for a replica that is closed for
    /// a repair and opened again.
    fn fresh(&self) -> Box<dyn Machine>;

    /// Applies one committed batch. Must be deterministic and must not fail: what can't be applied
    /// is answered with an error in the reply.
    fn apply(&mut self, batch: &StampedBatch) -> Bytes;

    /// The whole state as versioned bytes.
    fn snapshot(&self) -> Bytes;

    /// Replaces the state; the text says why the bytes were refused.
    fn restore(&mut self, snapshot: Bytes) -> Result<(), String>;
}

/// A data group: nothing beside the log.
#[derive(Debug, Default)]
pub struct NoMachine;

impl Machine for NoMachine {
    fn keeps_state(&self) -> bool {
        false
    }

    fn fresh(&self) -> Box<dyn Machine> {
        Box::new(NoMachine)
    }

    fn apply(&mut self, _batch: &StampedBatch) -> Bytes {
        Bytes::new()
    }

    fn snapshot(&self) -> Bytes {
        Bytes::new()
    }

    fn restore(&mut self, _snapshot: Bytes) -> Result<(), String> {
        Ok(())
    }
}

/// When a group with a state takes the next snapshot: as soon as its log has grown by one of these since the last one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotEvery {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// Why a state can't be resumed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error("snapshot {} can't be used: {reason}", path.display())]
    Unusable { path: PathBuf, reason: String },
    #[error("there is no snapshot")]
    Missing,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The state machine of one group; clones share it.
#[derive(Clone)]
pub(crate) struct GroupMachine(Arc<Core>);

struct Core {
    journal: Arc<Journal>,
    state: Mutex<MachineState>,
    commit: watch::Sender<u64>,
    files: Arc<SnapshotFiles>,
    /// Where the newest snapshot cuts the log, for those who wait for it.
    built: watch::Sender<Option<LogPos>>,
    /// There may be something to do for the keeper.
    due: Notify,
    keeps_state: bool,
    every: SnapshotEvery,
}

struct MachineState {
    machine: Box<dyn Machine>,
    applied: Option<LogId>,
    membership: StoredMembership,
    next_offset: u64,
    last_stamp_us: u64,
    grown: Grown,
}

/// What was applied since the last snapshot.
#[derive(Debug, Default)]
struct Grown {
    bytes: u64,
    entries: u64,
}

impl GroupMachine {
    /// Resumes where the disk says. `commit` is the group's commit point, an offset; it is set to where the state resumes.
    pub(crate) async fn open(
        journal: &Arc<Journal>,
        machine: Box<dyn Machine>,
        every: SnapshotEvery,
        commit: watch::Sender<u64>,
    ) -> Result<Self, ResumeError> {
        let disk = Arc::clone(&journal.io().disk);
        let files = SnapshotFiles::new(disk, journal.dir(), journal.group());
        let files = Arc::new(files);
        let finder = Arc::clone(&files);
        let found = offloaded(journal.io(), move || finder.find()).await??;
        let keeps_state = machine.keeps_state();
        let state = MachineState {
            machine,
            applied: None,
            membership: StoredMembership::default(),
            next_offset: journal.start_offset(),
            last_stamp_us: 0,
            grown: Grown::default(),
        };
        let newest = files.newest().map(|place| place.pos);
        let machine = GroupMachine(Arc::new(Core {
            journal: Arc::clone(journal),
            state: Mutex::new(state),
            commit,
            files,
            built: watch::Sender::new(newest),
            due: Notify::new(),
            keeps_state,
            every,
        }));
        if keeps_state {
            machine.resume_state(found).await?;
        } else {
            machine.resume_data(found).await?;
        }
        Ok(machine)
    }

    /// A data group goes on at its committed mark, with the membership up to there.
    async fn resume_data(&self, found: Found) -> Result<(), ResumeError> {
        let journal = &self.0.journal;
        if let Some((_, snap)) = found.good.first() {
            self.finish_install(snap).await?;
        }
        let committed = journal.committed().max(journal.purged());
        let reader = Arc::clone(journal);
        let offset = offloaded(journal.io(), move || match committed {
            Some(pos) => reader.offset_after(pos.index),
            None => Ok(None),
        })
        .await??;
        let offset = offset.unwrap_or_else(|| journal.start_offset());
        let mut state = self.0.state.lock();
        state.applied = committed.map(log_id);
        state.next_offset = offset;
        if let Some((pos, bytes)) = committed.and_then(|pos| journal.last_membership(pos.index)) {
            let membership = decode_membership(bytes).map_err(io::Error::other)?;
            state.membership = StoredMembership::new(Some(log_id(pos)), membership);
        }
        self.0.commit.send_replace(offset);
        Ok(())
    }

    /// A group with a state goes on at the newest snapshot that the log reaches back to, or at the log's beginning.
    async fn resume_state(&self, found: Found) -> Result<(), ResumeError> {
        let journal = &self.0.journal;
        let purged = journal.purged();
        let mut why = found
            .damaged
            .into_iter()
            .next()
            .map(|damaged| ResumeError::Unusable {
                path: damaged.path,
                reason: damaged.reason.to_string(),
            });
        for (path, snap) in found.good {
            if purged.is_some_and(|purged| log_pos(&snap.last) < purged) {
                continue;
            }
            let restored = self.0.state.lock().machine.restore(snap.machine.clone());
            if let Err(reason) = restored {
                tracing::error!(path = %path.display(), reason, "the state in a snapshot was refused");
                why.get_or_insert(ResumeError::Unusable { path, reason });
                continue;
            }
            self.finish_install(&snap).await?;
            self.adopt(&snap);
            return Ok(());
        }
        match (purged, why) {
            (None, None) => {}
            (None, Some(why)) => {
                tracing::warn!(group = journal.group(), %why, "the whole log is replayed");
            }
            (Some(_), why) => return Err(why.unwrap_or(ResumeError::Missing)),
        }
        self.0.commit.send_replace(journal.start_offset());
        Ok(())
    }

    /// Does what is missing of a snapshot's installation: nothing, unless a crash cut it off.
    async fn finish_install(&self, snap: &Snap) -> io::Result<()> {
        let journal = &self.0.journal;
        let at = log_pos(&snap.last);
        let ends_there = journal.last() == Some(at) && journal.purged() == Some(at);
        if journal.holds(at) && !ends_there {
            return Ok(());
        }
        if !ends_there {
            tracing::warn!(group = journal.group(), cut = %snap.last, "an installation that was cut off is finished");
        }
        journal.install_cut(snap.cut()).await?;
        journal.note_stamp(snap.last_stamp_us);
        journal.note_committed(at);
        if self.0.keeps_state {
            self.write_before(snap.clone()).await?;
        }
        Ok(())
    }

    fn adopt(&self, snap: &Snap) {
        let mut state = self.0.state.lock();
        state.applied = Some(snap.last);
        state.membership = snap.membership.clone();
        state.next_offset = snap.next_offset;
        state.last_stamp_us = snap.last_stamp_us;
        state.grown = Grown::default();
        self.raise_commit(snap.next_offset);
    }

    fn raise_commit(&self, offset: u64) {
        self.0.commit.send_if_modified(|commit| {
            let rises = offset > *commit;
            *commit = offset.max(*commit);
            rises
        });
    }

    async fn write(&self, snap: Snap) -> io::Result<()> {
        let files = Arc::clone(&self.0.files);
        self.on_disk(move || files.write(&snap)).await?;
        let newest = self.0.files.newest().map(|place| place.pos);
        self.0.built.send_replace(newest);
        Ok(())
    }

    async fn write_before(&self, snap: Snap) -> io::Result<()> {
        let files = Arc::clone(&self.0.files);
        self.on_disk(move || files.write_before(&snap)).await
    }

    /// Writes files: waits where there is no room, so that a full disk stops no replica.
    async fn on_disk(
        &self,
        write: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let journal = &self.0.journal;
        let ends = || journal.stops_waiting();
        journal.io().patiently(journal.group(), write, ends).await
    }

    /// A trim is durable here before it is answered; then the log's keeper looks what can go.
    async fn apply_trim(&self, id: LogId, upto: u64) -> io::Result<Applied> {
        self.0.journal.trim(upto).await?;
        let mut state = self.0.state.lock();
        state.applied = Some(id);
        state.grown.entries += 1;
        self.0.due.notify_one();
        Ok(Applied::Trimmed {
            start_offset: self.0.journal.start_offset(),
        })
    }

    fn apply_entry(&self, entry: &Entry) -> Applied {
        let id = entry.log_id();
        let mut state = self.0.state.lock();
        if let Some(membership) = entry.get_membership() {
            state.membership = StoredMembership::new(Some(id), membership);
        }
        state.applied = Some(id);
        state.grown.entries += 1;
        let applied = match &entry.payload {
            EntryPayload::Normal(AppRecord::Stamped(batch)) => {
                let reply = state.machine.apply(batch);
                state.next_offset = batch.next_offset();
                state.last_stamp_us = batch.base_timestamp();
                state.grown.bytes += batch.len();
                self.raise_commit(batch.next_offset());
                Applied::Batch {
                    base_offset: batch.base_offset(),
                    next_offset: batch.next_offset(),
                    base_timestamp_us: batch.base_timestamp(),
                    reply,
                }
            }
            EntryPayload::Normal(AppRecord::Void(outcome)) => Applied::Voided(outcome.clone()),
            _ => Applied::None,
        };
        if self.0.keeps_state && self.0.every.is_reached(&state.grown) {
            self.0.due.notify_one();
        }
        applied
    }

    /// The state as it is now, and where.
    pub(super) fn snap_of_state(&self) -> Option<Snap> {
        let state = self.0.state.lock();
        let last = state.applied?;
        Some(Snap {
            last,
            membership: state.membership.clone(),
            next_offset: state.next_offset,
            last_stamp_us: state.last_stamp_us,
            settings: self.0.journal.last_settings(last.index),
            machine: state.machine.snapshot(),
        })
    }

    /// The cut of a data group, or the state of any other.
    async fn snap(&self) -> io::Result<Option<Snap>> {
        if self.0.keeps_state {
            return Ok(self.snap_of_state());
        }
        let applied = self.0.state.lock().applied.as_ref().map(log_pos);
        let journal = Arc::clone(&self.0.journal);
        let cut = offloaded(self.0.journal.io(), move || journal.cut(applied)).await??;
        cut.map(|cut| Snap::of_cut(cut).map_err(io::Error::other))
            .transpose()
    }

    /// Waits for the keeper's next turn.
    pub(super) async fn wait_due(&self) {
        self.0.due.notified().await;
    }

    /// Has the keeper look whether there is something to do.
    pub(super) fn note_due(&self) {
        self.0.due.notify_one();
    }

    /// Whether a snapshot would let something go.
    pub(super) fn wants_snapshot(&self) -> bool {
        let newest = self.0.files.newest().map(|place| place.pos);
        let state = self.0.state.lock();
        if self.0.keeps_state {
            let at = state.applied.as_ref().map(log_pos);
            return self.0.every.is_reached(&state.grown) && at > newest;
        }
        let applied = state.applied.as_ref().map(log_pos);
        self.0.journal.cut_pos(applied) > newest
    }

    /// Up to where the log may be purged: see [`super::snapshot`].
    pub(super) fn purge_target(&self) -> Option<Place> {
        if self.0.keeps_state {
            self.0.files.before()
        } else {
            self.0.files.newest()
        }
    }

    /// Where the newest snapshot file cuts the log, to be awaited.
    pub(super) fn watch_built(&self) -> watch::Receiver<Option<LogPos>> {
        self.0.built.subscribe()
    }

    /// The snapshot's files, to be closed when the replica has stopped.
    pub(super) fn files(&self) -> Arc<SnapshotFiles> {
        Arc::clone(&self.0.files)
    }

    pub(super) fn keeps_state(&self) -> bool {
        self.0.keeps_state
    }

    pub(super) fn journal(&self) -> &Arc<Journal> {
        &self.0.journal
    }
}

impl SnapshotEvery {
    fn is_reached(&self, grown: &Grown) -> bool {
        grown.bytes >= self.bytes || grown.entries >= self.entries
    }
}

impl RaftStateMachine<TypeConfig> for GroupMachine {
    type SnapshotData = Bytes;
    type SnapshotBuilder = GroupMachine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.0.state.lock();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let applied = match &entry.payload {
                EntryPayload::Normal(AppRecord::Trim { upto }) => {
                    self.apply_trim(entry.log_id(), *upto).await?
                }
                _ => self.apply_entry(&entry),
            };
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    /// Unless forced, only where a snapshot says more than the last one.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<GroupMachine> {
        (force || self.wants_snapshot()).then(|| self.clone())
    }

    async fn get_snapshot_builder(&mut self) -> GroupMachine {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf,
        snapshot: Bytes,
    ) -> Result<(), io::Error> {
        let snap = Snap::received(meta, snapshot).map_err(io::Error::other)?;
        {
            let mut state = self.0.state.lock();
            if state.applied >= Some(snap.last) {
                return Ok(());
            }
            let restored = state.machine.restore(snap.machine.clone());
            restored.map_err(io::Error::other)?;
        }
        self.write(snap.clone()).await?;
        self.0.journal.install_cut(snap.cut()).await?;
        self.0.journal.note_committed(log_pos(&snap.last));
        if self.0.keeps_state {
            self.write_before(snap.clone()).await?;
        }
        self.adopt(&snap);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf>, io::Error> {
        let journal = &self.0.journal;
        let files = Arc::clone(&self.0.files);
        let found = offloaded(journal.io(), move || files.find()).await??;
        let lost = !found.damaged.is_empty();
        let purged = journal.purged();
        let mut good = found.good.into_iter().map(|(_, snap)| snap);
        if let Some(snap) = good.find(|snap| Some(log_pos(&snap.last)) >= purged) {
            return Ok(Some(snap.into_openraft()));
        }
        // What the files held can be told anew.
        if purged.is_none() && !lost {
            return Ok(None);
        }
        Ok(self.snap().await?.map(Snap::into_openraft))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for GroupMachine {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf, io::Error> {
        let Some(snap) = self.snap().await? else {
            let meta = SnapshotMeta {
                last_log_id: None,
                last_membership: StoredMembership::default(),
            };
            return Ok(SnapshotOf {
                meta,
                snapshot: Bytes::new(),
            });
        };
        // A snapshot is never ahead of what a power cut would leave of the log.
        self.0.journal.drain().await?;
        self.write(snap.clone()).await?;
        self.0.state.lock().grown = Grown::default();
        self.0.due.notify_one();
        Ok(snap.into_openraft())
    }
}
