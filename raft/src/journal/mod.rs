//! The journal: one group's Raft log, kept as segments of batches and as control entries in the node's state log.
//!
//! One task appends. It assigns places and stamps in order, under a short lock; what it appended is readable at once, from
//! memory. Disk work is done by one job at a time per journal, run through [`crate::disk::Offload`]: it takes what is queued,
//! writes it, syncs once, and calls back. What arrives meanwhile shares the next sync.
//!
//! Order of what reaches the disk, each step synced before the next:
//! 1. data before a control entry, then the control entry (in the state log), then data behind it;
//! 2. a vote before anything that was appended after it;
//! 3. a cut: the intent, the cut files, the completion, then the first new append;
//! 4. a new segment: the old one cut to its end, the new name, then its first batch.
//!
//! A failed write or sync is final: every pending and later callback gets the error, `Io::fatal` is called once. A write that
//! finds no space is not a failure but waits for some, see `writer`.
//!
//! The mapping between Raft and the files is in `shape`, recovery and its decision table in `open`.
//!
//! Locks: `inner` is held for short, never while a callback, the offload or the disk is called. A segment's own locks are
//! taken inside.
//!
//! It must not know openraft, gRPC, or what a batch's messages mean.

mod append;
mod begin;
mod check;
mod config;
mod cut;
pub(crate) mod damage;
pub(crate) mod digest;
mod files;
mod lookup;
mod mend;
mod open;
pub(crate) mod places;
pub(crate) mod quarantine;
mod read;
mod repair;
mod segment;
mod shape;
mod survey;
mod tail;
mod unknown;
pub(crate) mod void;
pub(crate) mod walk;
mod writer;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::batch::{AdmittedBatch, StampedBatch};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use begin::Cut;
pub use check::{CheckError, Checked};
pub use config::{AppendError, JournalConfig, OpenError, ReadError};
pub use damage::{BadRange, DamageKind};
pub use lookup::{GroupDigest, SegmentDigest};
pub use mend::{Mend, MendError, Mended, OfferError, RepairBatch, Wanted};
pub use open::{Rescue, RescueError, StartCut};
pub use read::{ReadBatches, StampedRead};
pub use segment::SegmentName;
pub use survey::{GoodRun, Pace, Piece};
pub use unknown::{group_dir, set_aside_unknown_groups};
pub use void::VoidOutcome;

pub use crate::statelog::{ControlKind, Done, LogPos, RollSettings, StateLog, VoteRecord};

use crate::disk::Io;
use damage::DamageBook;
use shape::Shape;
use tail::TailCache;
use writer::Queue;

/// An entry on its way into the log.
#[derive(Debug, Clone)]
pub enum NewEntry {
    /// Not data.
    Control {
        /// Its place.
        pos: LogPos,
        /// What it says.
        kind: ControlKind,
    },
    /// A batch that a leader stamped: checked to follow on, kept unchanged.
    Data {
        /// Its place.
        pos: LogPos,
        /// The batch; its checksums were verified.
        batch: StampedBatch,
    },
    /// A batch that this leader admitted: stamped here, or made a void entry.
    Admit {
        /// Its place.
        pos: LogPos,
        /// The batch.
        batch: AdmittedBatch,
        /// The offset that the proposer wants for it.
        expected_offset: Option<u64>,
    },
}

impl NewEntry {
    /// Its place.
    pub fn pos(&self) -> LogPos {
        match self {
            Self::Control { pos, .. } | Self::Data { pos, .. } | Self::Admit { pos, .. } => *pos,
        }
    }
}

/// An entry in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredEntry {
    /// Not data.
    Control {
        /// Its place.
        pos: LogPos,
        /// What it says.
        kind: ControlKind,
    },
    /// A batch with its final bytes.
    Data {
        /// Its place.
        pos: LogPos,
        /// The batch.
        batch: StampedBatch,
    },
}

impl StoredEntry {
    /// Its place.
    pub fn pos(&self) -> LogPos {
        match self {
            Self::Control { pos, .. } | Self::Data { pos, .. } => *pos,
        }
    }
}

/// One segment, for describe calls and checkers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    /// First offset.
    pub base_offset: u64,
    /// Offset after the last.
    pub end_offset: u64,
    /// Bytes of batches.
    pub bytes: u64,
    /// No longer written.
    pub sealed: bool,
    /// Its file.
    pub path: PathBuf,
}

/// See the module's text.
pub struct Journal {
    io: Io,
    dir: Arc<Path>,
    group: u64,
    cfg: JournalConfig,
    state: Arc<StateLog>,
    inner: Mutex<Inner>,
    damage: DamageBook,
    room: Notify,
}

struct Inner {
    shape: Shape,
    tail: TailCache,
    queue: Queue,
    vote: Option<VoteRecord>,
    committed: Option<LogPos>,
    synced_offset: u64,
    synced: Option<LogPos>,
    failed: Option<Arc<str>>,
    closed: bool,
    /// What finds no space fails instead of waiting.
    stop_waiting: bool,
}

fn failed_before(reason: &str) -> io::Error {
    io::Error::other(format!("the journal failed before: {reason}"))
}

impl Journal {
    /// The last entry, or the purged position if there is none.
    pub fn last(&self) -> Option<LogPos> {
        self.inner.lock().shape.last
    }

    /// The last position that Raft asked to forget.
    pub fn purged(&self) -> Option<LogPos> {
        self.inner.lock().shape.purged
    }

    /// The last entry whose data and controls are synced.
    pub fn synced(&self) -> Option<LogPos> {
        self.inner.lock().synced
    }

    /// The last vote that was saved.
    pub fn vote(&self) -> Option<VoteRecord> {
        self.inner.lock().vote
    }

    /// The highest position known to be committed. After a start never above the log's end.
    pub fn committed(&self) -> Option<LogPos> {
        self.inner.lock().committed
    }

    /// Notes what is committed. Becomes durable without anybody waiting.
    pub fn note_committed(&self, pos: LogPos) {
        {
            let mut inner = self.inner.lock();
            if inner.committed.is_some_and(|known| known >= pos) {
                return;
            }
            inner.committed = Some(pos);
        }
        self.state.note_committed(self.group, pos);
    }

    /// The last membership at or before `upto`, with its place. Survives purging.
    pub fn last_membership(&self, upto: u64) -> Option<(LogPos, Bytes)> {
        self.inner.lock().shape.last_membership(upto)
    }

    /// The settings that the next batch is appended under.
    pub fn roll_settings(&self) -> RollSettings {
        self.inner.lock().shape.roll
    }

    /// The last change of settings at or before `upto`, with its place; `None` while the initial ones are in force.
    /// Survives purging.
    pub fn last_settings(&self, upto: u64) -> Option<(LogPos, RollSettings)> {
        self.inner.lock().shape.last_settings(upto)
    }

    /// Term of an entry, or of the purged position; `None` elsewhere.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.inner.lock().shape.term_at(index)
    }

    /// First unwritten offset.
    pub fn next_offset(&self) -> u64 {
        self.inner.lock().shape.next_offset
    }

    /// First kept offset.
    pub fn start_offset(&self) -> u64 {
        self.inner.lock().shape.start_offset
    }

    /// All data below is synced here.
    pub fn synced_offset(&self) -> u64 {
        self.inner.lock().synced_offset
    }

    /// Appended bytes that wait for their sync.
    pub fn unsynced_bytes(&self) -> u64 {
        self.inner.lock().queue.unsynced_bytes
    }

    /// Waits until less than the configured bytes wait for their sync. Called before an append.
    pub async fn wait_for_room(&self) {
        loop {
            let freed = self.room.notified();
            {
                let inner = self.inner.lock();
                if inner.failed.is_some()
                    || inner.queue.unsynced_bytes < self.cfg.max_unsynced_bytes
                {
                    return;
                }
            }
            freed.await;
        }
    }

    /// All segments, in order.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let inner = self.inner.lock();
        let shape = &inner.shape;
        let info = |segment: &Arc<segment::Segment>| SegmentInfo {
            base_offset: segment.name.base_offset,
            end_offset: shape.end_of(segment),
            bytes: segment.len(),
            sealed: segment.with(|body| body.sealed),
            path: segment.path(),
        };
        shape.segments.iter().map(info).collect()
    }

    /// Bytes of all batches kept.
    pub fn total_bytes(&self) -> u64 {
        self.inner
            .lock()
            .shape
            .segments
            .iter()
            .map(|segment| segment.len())
            .sum()
    }

    /// The group it belongs to.
    pub fn group(&self) -> u64 {
        self.group
    }

    /// The seams that it works through.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// The directory of its segments.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("group", &self.group)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}
