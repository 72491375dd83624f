//! openraft's state machine: what happens when an entry is committed here.
//!
//! For a data group the log is the state, so applying means moving the commit point and answering
//! the proposer. A group with a state of its own (the controller's) puts it behind [`Machine`].
//!
//! Invariants:
//! * The commit point moves before the proposer is answered, so that a poll on this node sees what
//!   was acknowledged.
//! * A data group resumes at the durable committed mark; a group with state replays from its
//!   snapshot. Neither is ever ahead of the synced journal.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use imprint_proto::batch::StampedBatch;
use imprint_proto::envelope;
use openraft::entry::RaftEntry;
use openraft::storage::{
    EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta,
};
use openraft::{EntryPayload, OptionalSend};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::codec::{LogIdWire, log_id_opt, wire_opt};
use super::types::{
    AppRecord, Applied, Entry, LogId, StoredMembership, TypeConfig, decode_membership,
    encode_membership, log_id,
};
use crate::disk::{Io, read_file, replace_file};
use crate::journal::Journal;

type SnapshotOf = openraft::alias::SnapshotOf<TypeConfig, Bytes>;
type SnapshotMetaOf = openraft::alias::SnapshotMetaOf<TypeConfig>;

/// A replicated state beside the log. Calls come from one task, in log order.
pub trait Machine: Send + Sync + 'static {
    /// False when the log itself is the state: then a restart resumes at the committed mark.
    fn keeps_state(&self) -> bool {
        true
    }

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

imprint_proto::envelope! {
    /// A snapshot file: the cut, the membership at the cut, and the machine's state.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SnapshotRecord: version 0, compat 0 {
        last: Option<LogIdWire>,
        membership_at: Option<LogIdWire>,
        membership: Bytes,
        state: Bytes,
    }
}

/// The state machine of one group.
pub(crate) struct GroupMachine {
    io: Io,
    journal: Arc<Journal>,
    shared: Arc<Mutex<MachineState>>,
    commit: watch::Sender<u64>,
    snapshot_path: PathBuf,
}

struct MachineState {
    machine: Box<dyn Machine>,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl GroupMachine {
    /// `commit` is the group's commit point, an offset; it is set to where the state resumes.
    pub(crate) fn new(
        io: Io,
        journal: &Arc<Journal>,
        machine: Box<dyn Machine>,
        commit: watch::Sender<u64>,
    ) -> io::Result<Self> {
        let (applied, membership) = if machine.keeps_state() {
            (None, StoredMembership::default())
        } else {
            resume_point(journal)?
        };
        let resumed = match &applied {
            Some(id) => journal.offset_after(id.index)?,
            None => None,
        };
        let offset = resumed.unwrap_or_else(|| journal.start_offset());
        commit.send_replace(offset);
        let snapshot_path = journal.dir().join("snapshot");
        let state = MachineState {
            machine,
            applied,
            membership,
        };
        Ok(GroupMachine {
            io,
            journal: Arc::clone(journal),
            shared: Arc::new(Mutex::new(state)),
            commit,
            snapshot_path,
        })
    }

    /// A trim is durable here before it is answered.
    async fn apply_trim(&self, id: LogId, upto: u64) -> io::Result<Applied> {
        self.journal.trim(upto).await?;
        self.shared.lock().applied = Some(id);
        Ok(Applied::Trimmed {
            start_offset: self.journal.start_offset(),
        })
    }

    fn apply_entry(&self, entry: &Entry) -> Applied {
        let id = entry.log_id();
        let mut state = self.shared.lock();
        if let Some(membership) = entry.get_membership() {
            state.membership = StoredMembership::new(Some(id), membership);
        }
        state.applied = Some(id);
        match &entry.payload {
            EntryPayload::Normal(AppRecord::Stamped(batch)) => {
                let reply = state.machine.apply(batch);
                self.commit.send_replace(batch.next_offset());
                Applied::Batch {
                    base_offset: batch.base_offset(),
                    next_offset: batch.next_offset(),
                    base_timestamp_us: batch.base_timestamp(),
                    reply,
                }
            }
            EntryPayload::Normal(AppRecord::Void(outcome)) => Applied::Voided(outcome.clone()),
            _ => Applied::None,
        }
    }

    fn write_snapshot(&self, bytes: &[u8]) -> io::Result<()> {
        replace_file(&*self.io.disk, &self.snapshot_path, &[bytes])
    }

    fn read_snapshot(&self) -> io::Result<Option<SnapshotOf>> {
        if !self.io.disk.exists(&self.snapshot_path)? {
            return Ok(None);
        }
        let bytes = read_file(&*self.io.disk, &self.snapshot_path)?;
        let path = self.snapshot_path.display();
        let record: SnapshotRecord = envelope::decode_checked(bytes.into()).map_err(|e| {
            let reason = format!("snapshot {path} does not check: {e}");
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })?;
        record.into_snapshot().map(Some)
    }
}

/// Where a data group goes on after a restart: its committed mark and the membership up to there.
fn resume_point(journal: &Journal) -> io::Result<(Option<LogId>, StoredMembership)> {
    let Some(committed) = journal.committed() else {
        return Ok((None, StoredMembership::default()));
    };
    let membership = match journal.last_membership(committed.index) {
        Some((pos, bytes)) => {
            let membership = decode_membership(bytes).map_err(io::Error::other)?;
            StoredMembership::new(Some(log_id(pos)), membership)
        }
        None => StoredMembership::default(),
    };
    Ok((Some(log_id(committed)), membership))
}

/// A snapshot's bytes, as in its file.
pub(crate) fn encode_snapshot(snapshot: &SnapshotOf) -> Bytes {
    let record = SnapshotRecord::new(&snapshot.meta, snapshot.snapshot.clone());
    envelope::encode_checked(&record)
}

impl SnapshotRecord {
    fn into_snapshot(self) -> io::Result<SnapshotOf> {
        let membership = decode_membership(self.membership).map_err(io::Error::other)?;
        let meta = SnapshotMeta {
            last_log_id: log_id_opt(self.last),
            last_membership: StoredMembership::new(log_id_opt(self.membership_at), membership),
        };
        Ok(Snapshot {
            meta,
            snapshot: self.state,
        })
    }

    pub(crate) fn new(meta: &SnapshotMetaOf, state: Bytes) -> Self {
        SnapshotRecord {
            last: wire_opt(meta.last_log_id.as_ref()),
            membership_at: wire_opt(meta.last_membership.log_id().as_ref()),
            membership: encode_membership(meta.last_membership.membership()),
            state,
        }
    }
}

impl RaftStateMachine<TypeConfig> for GroupMachine {
    type SnapshotData = Bytes;
    type SnapshotBuilder = GroupMachine;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.shared.lock();
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

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        GroupMachine {
            io: self.io.clone(),
            journal: Arc::clone(&self.journal),
            shared: Arc::clone(&self.shared),
            commit: self.commit.clone(),
            snapshot_path: self.snapshot_path.clone(),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf,
        snapshot: Bytes,
    ) -> Result<(), io::Error> {
        let bytes = envelope::encode_checked(&SnapshotRecord::new(meta, snapshot.clone()));
        self.write_snapshot(&bytes)?;
        let mut state = self.shared.lock();
        state.machine.restore(snapshot).map_err(io::Error::other)?;
        state.applied = meta.last_log_id;
        state.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf>, io::Error> {
        self.read_snapshot()
    }
}

impl RaftSnapshotBuilder<TypeConfig> for GroupMachine {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf, io::Error> {
        let (meta, body) = {
            let state = self.shared.lock();
            let meta = SnapshotMeta {
                last_log_id: state.applied,
                last_membership: state.membership.clone(),
            };
            (meta, state.machine.snapshot())
        };
        let bytes = envelope::encode_checked(&SnapshotRecord::new(&meta, body.clone()));
        self.write_snapshot(&bytes)?;
        Ok(Snapshot {
            meta,
            snapshot: body,
        })
    }
}
