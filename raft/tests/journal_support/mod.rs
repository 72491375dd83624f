//! What the storage tests share: a node's storage on a given disk, batches, and calls that wait.

#![allow(dead_code, reason = "each test file uses its part of it")]

pub mod draw;
pub mod history;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use imprint_proto::batch::{AdmittedBatch, BatchBuilder, Message};
use imprint_proto::limits::BatchLimits;
use imprint_raft::disk::{Disk, InlineOffload, Io, Offload, SimDisk};
use imprint_raft::journal::{
    AppendError, ControlKind, Cut, Journal, JournalConfig, LogPos, NewEntry, OpenError, StateLog,
    StoredEntry,
};
use imprint_raft::seams::Clock;
use parking_lot::Mutex;

/// A clock that a test moves; it starts at one second.
#[derive(Debug)]
pub struct TestClock(pub AtomicU64);

impl Default for TestClock {
    fn default() -> Self {
        Self(AtomicU64::new(1_000_000))
    }
}

impl Clock for TestClock {
    fn now_micros(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn steady_micros(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub const GROUP: u64 = 7;

/// A node's storage: a disk, a state log and the journal of one group.
#[derive(Debug)]
pub struct Storage {
    pub io: Io,
    pub state: Arc<StateLog>,
    pub journal: Arc<Journal>,
}

pub fn io_on(disk: Arc<dyn Disk>, offload: Arc<dyn Offload>) -> Io {
    Io::new(disk, offload, Arc::new(TestClock::default()))
}

pub fn sim_io(disk: &SimDisk) -> Io {
    io_on(Arc::new(disk.clone()), Arc::new(InlineOffload))
}

pub fn data() -> PathBuf {
    PathBuf::from("/data")
}

pub fn group_dir(data: &Path) -> PathBuf {
    data.join("groups").join(format!("{GROUP:020}"))
}

/// Opens state log and journal below `data`.
pub fn open_in(io: Io, data: &Path, cfg: JournalConfig) -> Result<Storage, OpenError> {
    let state = StateLog::open(io.clone(), &data.join("state")).expect("state log");
    let journal = Journal::open(io.clone(), group_dir(data), Arc::clone(&state), GROUP, cfg)?;
    Ok(Storage { io, state, journal })
}

pub fn open_sim(disk: &SimDisk, cfg: JournalConfig) -> Storage {
    open_in(sim_io(disk), &data(), cfg).expect("journal")
}

/// Settings that make a few batches fill a segment and leave the tail cache.
pub fn small() -> JournalConfig {
    JournalConfig {
        segment_bytes: 2_000,
        tail_cache_bytes: 1_500,
        zero_step_bytes: 4_096,
        ..JournalConfig::default()
    }
}

pub fn at(term: u64, index: u64) -> LogPos {
    LogPos { term, index }
}

/// A snapshot's cut without settings.
pub fn cut(
    upto: LogPos,
    next_offset: u64,
    last_stamp_us: u64,
    membership: Option<(LogPos, bytes::Bytes)>,
) -> Cut {
    Cut {
        upto,
        next_offset,
        last_stamp_us,
        membership,
        settings: None,
    }
}

/// A batch of `count` messages of `len` bytes each, told apart by `tag`.
pub fn batch(tag: u64, count: u32, len: usize) -> AdmittedBatch {
    batch_for(GROUP, tag, count, len)
}

/// As [`batch`], for another group.
pub fn batch_for(group: u64, tag: u64, count: u32, len: usize) -> AdmittedBatch {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    for n in 0..count {
        let payload = vec![tag as u8; len];
        let id = u128::from(tag) << 32 | u128::from(n);
        let message = Message {
            id,
            origin_timestamp_us: 5,
            payload: &payload,
            headers: &[],
        };
        builder.push(message).expect("a message that fits");
    }
    let bytes = builder.build().expect("a batch").into_bytes();
    AdmittedBatch::admit(bytes, group, &BatchLimits::default()).expect("admitted")
}

pub fn blank(term: u64, index: u64) -> NewEntry {
    NewEntry::Control {
        pos: at(term, index),
        kind: ControlKind::Blank,
    }
}

pub fn membership(term: u64, index: u64, bytes: &'static [u8]) -> NewEntry {
    NewEntry::Control {
        pos: at(term, index),
        kind: ControlKind::Membership(bytes.into()),
    }
}

pub fn admit(term: u64, index: u64, tag: u64) -> NewEntry {
    admit_for(GROUP, term, index, tag)
}

pub fn admit_for(group: u64, term: u64, index: u64, tag: u64) -> NewEntry {
    NewEntry::Admit {
        pos: at(term, index),
        batch: batch_for(group, tag, 1 + (tag % 3) as u32, 100),
        expected_offset: None,
    }
}

/// What `done` was told, once it was called.
pub type Outcome = Arc<Mutex<Option<io::Result<()>>>>;

pub fn append(journal: &Arc<Journal>, entries: Vec<NewEntry>) -> Result<Outcome, AppendError> {
    let outcome: Outcome = Arc::default();
    let told = Arc::clone(&outcome);
    journal.append(entries, Box::new(move |result| *told.lock() = Some(result)))?;
    Ok(outcome)
}

/// Appends with inline jobs: synced when this returns.
pub fn append_ok(journal: &Arc<Journal>, entries: Vec<NewEntry>) {
    let outcome = append(journal, entries).expect("taken");
    outcome.lock().take().expect("called back").expect("synced");
}

/// Runs a call that is complete at once when jobs run inline.
pub fn now<T>(call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match call.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("waits although jobs run inline"),
    }
}

pub fn read_all(journal: &Journal) -> Vec<StoredEntry> {
    let mut entries = Vec::new();
    let mut from = 0;
    loop {
        let more = journal.read(from, u64::MAX, 1_000).expect("readable");
        let Some(last) = more.last() else {
            return entries;
        };
        from = last.pos().index + 1;
        entries.extend(more);
    }
}

/// Keeps jobs until the test runs them: lets appends arrive "during a sync".
#[derive(Clone, Default)]
pub struct ManualOffload(Arc<Mutex<std::collections::VecDeque<Job>>>);

type Job = Box<dyn FnOnce() + Send>;

impl Offload for ManualOffload {
    fn run(&self, job: Job) {
        self.0.lock().push_back(job);
    }
}

impl ManualOffload {
    /// Runs what is queued, and what that queues.
    pub fn run_all(&self) {
        loop {
            let Some(job) = self.0.lock().pop_front() else {
                return;
            };
            job();
        }
    }
}
