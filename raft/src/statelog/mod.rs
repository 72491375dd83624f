//! The state log: what Raft can't lose, of all groups of a node, in one append-only log kept as two copies.
//!
//! Votes, control entries, purge positions and marks are small, many, and due at the same moments in many groups, so they
//! share one log and its syncs. `a.log` and `b.log` hold the same bytes.
//!
//! * A record is durable when its `done` is called with `Ok`: both copies were written and synced.
//! * Appends that arrive while a sync is running share the next one. One sync at a time.
//! * Marks ([`StateLog::note_synced`], [`StateLog::note_committed`]) only travel with the next sync, or with
//!   [`StateLog::flush_lazy`]. Nobody waits for them, and one per group is kept at most.
//! * When most of the file is old news it is rewritten: aside, synced, renamed, directory synced, one copy after the other.
//!   Copies of different generations can only mean a crash between the two renames; the later one is whole.
//! * A failed write or sync is final: every pending and later append is answered with the error.
//! * A write that finds no space is neither: the copy's write is left with the [`crate::disk::SpaceGate`] and done again when
//!   there may be room; the flight lands when both copies have it. A rewriting that finds none is given up until the log has
//!   doubled once more.
//!
//! `scan` says how damage is told from a torn tail. It must not know segments or openraft.

pub(crate) mod open;
pub mod record;
pub(crate) mod scan;
mod state;
pub(crate) mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

pub use open::{Presence, StateLogError};
pub use record::Record;
pub use state::{NodeState, drop_controls};
pub use types::{
    CleanStop, Control, ControlKind, GroupState, LogPos, Marks, PendingCut, RollSettings,
    VoteRecord,
};

use crate::disk::{DiskFile, Io, is_no_space};

/// Called once, with the outcome of what was asked for.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A log below this size is not worth rewriting.
const COMPACT_FLOOR_BYTES: u64 = 1 << 20;

/// See the module's text. Shared by all groups of the node.
pub struct StateLog {
    io: Io,
    dir: PathBuf,
    inner: Mutex<Inner>,
    /// What is durable. Only the flushing job changes it.
    state: Mutex<NodeState>,
    /// Clean stops of the run before, each taken once.
    clean: Mutex<BTreeMap<u64, CleanStop>>,
}

struct Inner {
    queue: Vec<(Vec<Record>, Done)>,
    /// The latest marks noted of each group, whether durable or not.
    marks: BTreeMap<u64, Marks>,
    /// Groups whose marks are not durable.
    unflushed: BTreeSet<u64>,
    /// Groups dropped in this run: late marks of theirs must not bring them back.
    dropped: BTreeSet<u64>,
    lazy_wanted: bool,
    running: bool,
    failed: Option<Arc<str>>,
    files: Files,
}

#[derive(Clone)]
struct Files {
    copies: [Arc<dyn DiskFile>; 2],
    generation: u64,
    len: u64,
    compacted_len: u64,
}

/// One group of records on its way to both copies.
struct Flight {
    bytes: Bytes,
    pos: u64,
    records: Vec<Record>,
    dones: Vec<Done>,
}

/// The two writes of a flight; who finishes last goes on.
struct Landing {
    left: AtomicUsize,
    error: Mutex<Option<io::Error>>,
    flight: Mutex<Option<Flight>>,
}

/// How one copy's write ended.
enum Landed {
    /// The other copy's write is still under way.
    First,
    /// Both are done.
    Last,
    /// It found no space and is done again when there may be some.
    Waits,
}

/// Under which the state log waits for room; groups wait under their ids.
const GATE_KEY: u64 = u64::MAX;

fn failure(reason: &str) -> io::Error {
    io::Error::other(format!("the state log failed before: {reason}"))
}

impl Inner {
    fn forget_dropped(&mut self, records: &[Record]) {
        for record in records {
            if let Record::Dropped { group } = record {
                self.dropped.insert(*group);
                self.marks.remove(group);
                self.unflushed.remove(group);
            }
        }
    }
}

impl StateLog {
    /// Appends records; they are written in the order of calls. `done` is called when they are durable.
    pub fn append(self: &Arc<Self>, records: Vec<Record>, done: Done) {
        let refused = {
            let mut inner = self.inner.lock();
            match inner.failed.clone() {
                Some(reason) => Some((reason, done)),
                None => {
                    inner.forget_dropped(&records);
                    inner.queue.push((records, done));
                    None
                }
            }
        };
        match refused {
            Some((reason, done)) => done(Err(failure(&reason))),
            None => self.start(),
        }
    }

    /// As [`StateLog::append`], for a task that waits.
    pub async fn append_synced(self: &Arc<Self>, records: Vec<Record>) -> io::Result<()> {
        let (tell, told) = tokio::sync::oneshot::channel();
        self.append(records, Box::new(move |result| drop(tell.send(result))));
        told.await.unwrap_or_else(|_| Err(failure("stopped")))
    }

    /// As [`StateLog::append`], for a thread that may block.
    pub fn append_blocking(self: &Arc<Self>, records: Vec<Record>) -> io::Result<()> {
        let (tell, told) = std::sync::mpsc::channel();
        self.append(records, Box::new(move |result| drop(tell.send(result))));
        told.recv().unwrap_or_else(|_| Err(failure("stopped")))
    }

    /// Notes that a group's data is synced up to here. Becomes durable with the next sync.
    pub fn note_synced(&self, group: u64, synced_offset: u64) {
        self.note(group, |marks| marks.synced_offset = synced_offset);
    }

    /// Notes what a group knows to be committed. Becomes durable with the next sync.
    pub fn note_committed(&self, group: u64, committed: LogPos) {
        self.note(group, |marks| marks.committed = Some(committed));
    }

    fn note(&self, group: u64, change: impl Fn(&mut Marks)) {
        let mut inner = self.inner.lock();
        if inner.dropped.contains(&group) {
            return;
        }
        change(inner.marks.entry(group).or_default());
        inner.unflushed.insert(group);
    }

    /// Makes the noted marks durable soon. Called every 100 ms; does nothing if there are none.
    pub fn flush_lazy(self: &Arc<Self>) {
        {
            let mut inner = self.inner.lock();
            if inner.unflushed.is_empty() || inner.failed.is_some() {
                return;
            }
            inner.lazy_wanted = true;
        }
        self.start();
    }

    /// What is kept of a group, marks that are not durable yet left out.
    pub fn group(&self, group: u64) -> Option<GroupState> {
        self.state.lock().groups.get(&group).cloned()
    }

    /// All groups that something is kept of.
    pub fn groups(&self) -> Vec<u64> {
        self.state.lock().groups.keys().copied().collect()
    }

    /// The replica whose data lies here, if its marker was written.
    pub fn replica_marker(&self, group: u64) -> Option<u64> {
        self.state
            .lock()
            .groups
            .get(&group)
            .and_then(|state| state.replica)
    }

    /// Writes the marker of a replica.
    pub async fn set_replica_marker(self: &Arc<Self>, group: u64, replica: u64) -> io::Result<()> {
        self.append_synced(vec![Record::Replica { group, replica }])
            .await
    }

    /// How the group was closed in the run before; answered once.
    pub fn take_clean_stop(&self, group: u64) -> Option<CleanStop> {
        self.clean.lock().remove(&group)
    }

    /// Bytes of one copy.
    pub fn len_bytes(&self) -> u64 {
        self.inner.lock().files.len
    }

    fn start(self: &Arc<Self>) {
        {
            let mut inner = self.inner.lock();
            if inner.running {
                return;
            }
            inner.running = true;
        }
        let log = Arc::clone(self);
        self.io.offload.run(Box::new(move || log.work()));
    }

    /// Flushes until nothing is queued. Exactly one such job exists while `running` is set.
    fn work(self: Arc<Self>) {
        while let Some((flight, files)) = self.take_off() {
            let landing = Arc::new(Landing {
                left: AtomicUsize::new(2),
                error: Mutex::new(None),
                flight: Mutex::new(Some(flight)),
            });
            let (log, second) = (Arc::clone(&self), Arc::clone(&landing));
            let file = Arc::clone(&files.copies[1]);
            self.io.offload.run(Box::new(move || {
                if let Landed::Last = log.land(&second, &file) {
                    log.work();
                }
            }));
            match self.land(&landing, &files.copies[0]) {
                Landed::Last => {}
                Landed::First | Landed::Waits => return,
            }
        }
    }

    /// Does a copy's write again.
    fn land_again(self: Arc<Self>, landing: Arc<Landing>, file: Arc<dyn DiskFile>) {
        let offload = Arc::clone(&self.io.offload);
        offload.run(Box::new(move || {
            if let Landed::Last = self.land(&landing, &file) {
                self.work();
            }
        }));
    }

    /// The next group of records, or `None` with `running` cleared.
    fn take_off(&self) -> Option<(Flight, Files)> {
        let mut inner = self.inner.lock();
        if inner.queue.is_empty() && !inner.lazy_wanted {
            inner.running = false;
            return None;
        }
        inner.lazy_wanted = false;
        let unflushed = std::mem::take(&mut inner.unflushed);
        let lazy: Vec<_> = unflushed
            .into_iter()
            .filter_map(|g| inner.marks.get(&g).map(|marks| (g, *marks)))
            .collect();
        let queued = std::mem::take(&mut inner.queue);
        let files = inner.files.clone();
        drop(inner);
        let mut records = vec![Record::Flush {
            synced_len: files.len,
        }];
        records.extend(
            lazy.into_iter()
                .map(|(group, marks)| Record::Marks { group, marks }),
        );
        let mut dones = Vec::with_capacity(queued.len());
        for (more, done) in queued {
            records.extend(more);
            dones.push(done);
        }
        let mut bytes = BytesMut::new();
        records
            .iter()
            .for_each(|record| record::encode_into(record, &mut bytes));
        Some((
            Flight {
                bytes: bytes.freeze(),
                pos: files.len,
                records,
                dones,
            },
            files,
        ))
    }

    /// Writes one copy, and finishes the flight if the other one is done too.
    fn land(self: &Arc<Self>, landing: &Arc<Landing>, file: &Arc<dyn DiskFile>) -> Landed {
        let flown = landing
            .flight
            .lock()
            .as_ref()
            .map(|flight| (flight.bytes.clone(), flight.pos));
        if let Some((bytes, pos)) = flown {
            let write = || file.write_all_at(&[&bytes], pos);
            let written = self.io.space.with_reserve(self.io.disk.as_ref(), write);
            match written {
                Err(error) if self.io.space.may_pass(&error) && !self.io.space.is_closed() => {
                    tracing::debug!(%error, "the state log waits for room on the disk");
                    let (log, landing) = (Arc::clone(self), Arc::clone(landing));
                    let file = Arc::clone(file);
                    let again = move || log.land_again(landing, file);
                    self.io.space.wait(GATE_KEY, again);
                    return Landed::Waits;
                }
                written => {
                    if let Err(error) = written.and_then(|()| file.sync_data()) {
                        landing.error.lock().get_or_insert(error);
                    }
                }
            }
        }
        if landing.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Landed::First;
        }
        let flight = landing.flight.lock().take();
        let error = landing.error.lock().take();
        match (flight, error) {
            // Another log's sync failed meanwhile: no vote is answered any more.
            (Some(flight), None) if self.io.has_failed() => {
                self.end("the disk has failed", flight.dones);
            }
            (Some(flight), None) => self.arrived(flight),
            (Some(flight), Some(error)) => self.failed_with(&error, flight.dones),
            (None, _) => {}
        }
        Landed::Last
    }

    fn arrived(&self, flight: Flight) {
        let len = {
            let mut state = self.state.lock();
            flight.records.iter().for_each(|record| state.apply(record));
            flight.pos + flight.bytes.len() as u64
        };
        let compacted_len = {
            let mut inner = self.inner.lock();
            inner.files.len = len;
            inner.files.compacted_len
        };
        flight.dones.into_iter().for_each(|done| done(Ok(())));
        let worth_it = len > COMPACT_FLOOR_BYTES.max(compacted_len.saturating_mul(2));
        if worth_it && let Err(error) = self.compact() {
            if is_no_space(&error) {
                tracing::warn!(%error, "no room to rewrite the state log");
                self.inner.lock().files.compacted_len = len;
                return;
            }
            self.fail(&format!("rewriting the state log: {error}"), Vec::new());
        }
    }

    fn compact(&self) -> io::Result<()> {
        let state = self.state.lock().clone();
        let generation = self.inner.lock().files.generation + 1;
        let files = open::write_copies(self.io.disk.as_ref(), &self.dir, generation, &state)?;
        self.inner.lock().files = files;
        Ok(())
    }

    /// A write that ends because nobody waits for room any more is no failure of the disk; anything else is.
    fn failed_with(&self, error: &io::Error, dones: Vec<Done>) {
        let reason = format!("state log: {error}");
        if self.io.space.may_pass(error) {
            self.end(&reason, dones);
        } else {
            self.fail(&reason, dones);
        }
    }

    fn fail(&self, reason: &str, dones: Vec<Done>) {
        self.inner
            .lock()
            .failed
            .get_or_insert_with(|| reason.into());
        self.io.fatal(None, reason);
        self.end(reason, dones);
    }

    /// Answers everybody with the failure.
    fn end(&self, reason: &str, dones: Vec<Done>) {
        let queued = {
            let mut inner = self.inner.lock();
            inner.failed.get_or_insert_with(|| reason.into());
            inner.lazy_wanted = false;
            std::mem::take(&mut inner.queue)
        };
        for done in dones
            .into_iter()
            .chain(queued.into_iter().map(|(_, done)| done))
        {
            done(Err(failure(reason)));
        }
    }
}

impl fmt::Debug for StateLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateLog")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}
