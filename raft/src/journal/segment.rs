//! One segment file and what is known of it in memory.
//!
//! A segment holds batches back to back. Its name says with which offset, index and term it begins. Only the last segment of
//! a log is written; it may have zeros ahead of its end, which sealing cuts off. The index is sparse: an entry for the first
//! batch and for each that begins at least [`INDEX_STEP`] behind the last entry. A sealed segment's file and index are
//! loaded when it is read and may be dropped again.
//!
//! # What does a cold segment cost?
//!
//! A log may have tens of thousands of them, so one keeps neither its path nor a file, an index or anything else on the
//! heap: some 200 bytes in all, its place in the log's list included. A test holds that figure.

use std::mem::size_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::disk::{Cooling, DiskFile};

/// Bytes between two entries of the index, at least. A lookup walks that far and one batch more.
pub const INDEX_STEP: u64 = 64 << 10;
/// A batch whose Raft index is this far behind the last entry's gets an entry too, however few bytes lie between: so the
/// control entries that a lookup has to count are few.
pub const INDEX_STEP_ENTRIES: u64 = 4_096;

/// Where a segment begins: its file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// Offset of the first message.
    pub base_offset: u64,
    /// Raft index of the first batch.
    pub first_index: u64,
    /// Term of the first batch.
    pub term: u64,
}

impl SegmentName {
    /// The file name.
    pub fn file_name(&self) -> String {
        format!(
            "{:020}-{:020}-{:020}.seg",
            self.base_offset, self.first_index, self.term
        )
    }

    /// From a file name; `None` if it is not a segment's.
    pub fn parse(name: &str) -> Option<Self> {
        let mut numbers = name.strip_suffix(".seg")?.split('-');
        let mut next = || numbers.next().filter(|n| n.len() == 20)?.parse().ok();
        let parsed = Self {
            base_offset: next()?,
            first_index: next()?,
            term: next()?,
        };
        (parsed.file_name() == name).then_some(parsed)
    }
}

/// Where a batch lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// Raft index.
    pub index: u64,
    /// Offset of the first message.
    pub offset: u64,
    /// Byte in the file.
    pub pos: u64,
    /// Server time in microseconds.
    pub stamp: u64,
}

/// A segment. Shared by the writer and by readers that hold on to it.
#[derive(Debug)]
pub struct Segment {
    /// Where it begins.
    pub name: SegmentName,
    dir: Arc<Path>,
    body: Mutex<Body>,
    /// Held while bytes are written that may meet the zeros written ahead.
    pub(super) extent: Mutex<Extent>,
    place: AtomicU64,
    /// Held while the files beside the segment are written or removed; counts changes of the segment's file other than
    /// appends. Taken before any other lock.
    pub(super) beside: Mutex<u32>,
}

/// What is known of a segment's contents.
#[derive(Debug, Clone, Default)]
pub struct Body {
    /// Bytes of batches, those included that are still to be written.
    pub len: u64,
    /// Stamp of the first batch, if known.
    pub first_stamp: Option<u64>,
    /// Stamp of the last batch when the segment was opened for writing.
    pub last_stamp: u64,
    /// Entries in order; `None` until loaded.
    pub index: Option<Vec<Spot>>,
    /// Open while the segment is active or warm.
    pub file: Option<Arc<dyn DiskFile>>,
    /// No longer written.
    pub sealed: bool,
}

/// Who may write where in the active file.
#[derive(Debug, Default)]
pub(super) struct Extent {
    /// End of what the writer has claimed: zeros are only written behind.
    pub frontier: u64,
    /// End of the synced zeros.
    pub zeroed_end: u64,
    /// A zeroing job is on its way.
    pub zeroing: bool,
    /// No more zeros: sealed, cut or failed.
    pub closed: bool,
}

impl Extent {
    /// The zeroing job ends, and no other begins.
    pub fn stop_zeros(&mut self) {
        (self.zeroing, self.closed) = (false, true);
    }
}

impl Segment {
    /// A segment of which nothing is known but its name.
    pub fn new(dir: &Arc<Path>, name: SegmentName) -> Self {
        Self {
            name,
            dir: Arc::clone(dir),
            body: Mutex::new(Body::default()),
            extent: Mutex::new(Extent::default()),
            place: AtomicU64::new(0),
            beside: Mutex::default(),
        }
    }

    /// Its file.
    pub fn path(&self) -> PathBuf {
        self.dir.join(self.name.file_name())
    }

    /// Reads or changes what is known. Short; nothing else is locked inside.
    pub fn with<T>(&self, act: impl FnOnce(&mut Body) -> T) -> T {
        act(&mut self.body.lock())
    }

    /// Bytes of batches.
    pub fn len(&self) -> u64 {
        self.body.lock().len
    }

    /// The last indexed batch that begins at or before `at`, by index or by offset; `Err` if the index is not loaded.
    pub fn spot_before(&self, at: Seek) -> Result<Option<Spot>, NotLoaded> {
        let body = self.body.lock();
        let index = body.index.as_ref().ok_or(NotLoaded)?;
        let behind = match at {
            Seek::Index(wanted) => index.partition_point(|spot| spot.index <= wanted),
            Seek::Offset(wanted) => index.partition_point(|spot| spot.offset <= wanted),
            // The first batch at or after a time may begin before the first entry at or after it.
            Seek::Stamp(wanted) => index.partition_point(|spot| spot.stamp < wanted),
        };
        Ok(behind.checked_sub(1).and_then(|at| index.get(at)).copied())
    }
}

/// Only a sealed segment cools down: an active one is open for its writer.
impl Cooling for Segment {
    fn place(&self) -> &AtomicU64 {
        &self.place
    }

    fn cool_down(&self) {
        self.with(|body| {
            if body.sealed {
                body.file = None;
                body.index = None;
            }
        });
    }
}

/// What a lookup goes by.
#[derive(Debug, Clone, Copy)]
pub enum Seek {
    /// Raft index.
    Index(u64),
    /// Offset.
    Offset(u64),
    /// Server time in microseconds.
    Stamp(u64),
}

/// The segment's index has to be loaded first.
#[derive(Debug, Clone, Copy)]
pub struct NotLoaded;

impl Body {
    /// Bytes of the index in memory.
    pub fn index_bytes(&self) -> u64 {
        let spots = self.index.as_ref().map_or(0, Vec::capacity);
        spots as u64 * size_of::<Spot>() as u64
    }

    /// Adds a batch at the end.
    pub fn push(&mut self, spot: Spot, batch_len: u64) {
        if self.len == 0 {
            self.first_stamp = Some(spot.stamp);
        }
        self.len = spot.pos + batch_len;
        if let Some(index) = self.index.as_mut() {
            index_push(index, spot);
        }
    }

    /// Forgets everything from `len` on.
    pub fn cut(&mut self, len: u64) {
        self.len = len;
        if let Some(index) = self.index.as_mut() {
            index.truncate(index.partition_point(|spot| spot.pos < len));
        }
    }
}

/// Adds a batch to a sparse index if it is far enough from the last one in it.
pub fn index_push(index: &mut Vec<Spot>, spot: Spot) {
    let far = index.last().is_none_or(|last| {
        spot.pos.saturating_sub(last.pos) >= INDEX_STEP
            || spot.index.saturating_sub(last.index) >= INDEX_STEP_ENTRIES
    });
    if far {
        index.push(spot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside this a segment has its counters as an `Arc` and its place in the log's list: three words.
    #[test]
    fn a_cold_segment_is_small() {
        let bytes = size_of::<Segment>() + 3 * size_of::<usize>();
        assert!(bytes <= 200, "{bytes}");
    }
}
