//! Putting a damaged or missing segment together again, from what is good of it and from what peers have.
//!
//! A mend writes the segment anew, beside the old one, from its first byte on: good runs are copied, holes are filled with
//! batches that are offered. An offered batch is taken from whoever it comes if its index, term and offset are exactly what
//! this log's own control entries expect there: by the rules of Raft it is the same batch then. Only [`Mend::finish`]
//! touches what was there, and only after the new file was synced and checked again:
//!
//! 1. the bad bytes are copied to `quarantine/` and synced;
//! 2. the new file is renamed over the old one, and the directory synced;
//! 3. the digest is written, then the mark is removed.
//!
//! # What does a crash leave?
//!
//! Before the rename the old state, beside a file that the next start removes; after it the new one, at worst with a mark
//! that the next check takes away. Where several segments are missing each that is renamed makes the gap smaller, never
//! another.
//!
//! Memory is bounded by one batch and the list of runs, whatever the segment's size.

mod copy;
mod finish;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::batch::{BatchError, StampedBatch};

use super::damage::{BadRange, Companion, DamageKind, is_lost};
use super::places::Places;
use super::segment::SegmentName;
use super::survey::{GoodRun, Order, Piece, SurveyError, survey};
use super::{Journal, LogPos};
use crate::disk::{Disk, DiskFile, OpenMode};

pub use finish::{MendError, Mended};

/// A batch with its place, on its way from a replica that has it to one that lacks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairBatch {
    /// Its place in Raft's log.
    pub pos: LogPos,
    /// First offset of the segment that holds it: the same on every replica.
    pub segment_base: u64,
    /// The batch.
    pub batch: StampedBatch,
}

/// What a mend needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The place of the batch; `None` if nothing here tells it, because everything before is missing too.
    pub from: Option<LogPos>,
    /// Its first offset.
    pub offset: u64,
    /// Offset up to which batches are wanted.
    pub upto_offset: u64,
}

/// Why an offered batch was not taken. The mend stands where it stood.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// All is there.
    #[error("no batch is wanted any more")]
    NotWanted,
    /// The peer's segment begins before what was asked for; the batches from there on are wanted now.
    #[error("the segment begins at offset {segment_base}, from there on its batches are wanted")]
    BeginsEarlier {
        /// Where it begins.
        segment_base: u64,
    },
    /// Another place than the control entries expect.
    #[error("batch of entry {found} at offset {offset}, expected {expected}")]
    WrongPlace {
        /// What was expected.
        expected: String,
        /// What came.
        found: LogPos,
        /// Its offset.
        offset: u64,
    },
    /// It goes beyond the segment, or names a segment that it can't be in.
    #[error(
        "batch {from_offset}..{to_offset} of the segment at {segment_base} does not fit into {base}..{end}"
    )]
    WrongSegment {
        /// The batch's first offset.
        from_offset: u64,
        /// The offset after it.
        to_offset: u64,
        /// The segment that it is said to be in.
        segment_base: u64,
        /// Where the mended range begins.
        base: u64,
        /// Where it ends.
        end: u64,
    },
    /// The batch itself.
    #[error("batch of entry {pos}")]
    Batch {
        /// Its place.
        pos: LogPos,
        /// What is wrong with it.
        source: BatchError,
    },
    /// Writing it.
    #[error("writing a mended segment: {0}")]
    Io(#[from] io::Error),
}

/// What is to be mended: decided by whoever knows the log.
pub(super) struct Plan {
    pub disk: Arc<dyn Disk>,
    pub dir: Arc<Path>,
    pub group: u64,
    /// The damaged segment, or a missing one whose name is known.
    pub name: Option<SegmentName>,
    /// First offset.
    pub base: u64,
    /// Whether the segment may begin below `base`: only for what is missing at the log's begin.
    pub may_begin_below: bool,
    /// The index that the first batch may have at least; `None` if nothing tells it.
    pub first_index: Option<u64>,
    /// Offset that has to be reached.
    pub end: u64,
    pub ending: Ending,
    pub places: Places,
    /// Valid batches of the old file are used.
    pub trusted: bool,
}

/// What comes behind the range that is mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Another segment, which begins with this index.
    Segment { first_index: u64 },
    /// The end of the log: what is good behind is kept as far as it follows on.
    Log,
    /// A cut that was begun: what is behind goes.
    Cut,
}

/// A segment that is being written.
struct Output {
    name: SegmentName,
    file: Arc<dyn DiskFile>,
    len: u64,
}

/// See the module's text.
pub struct Mend {
    plan: Plan,
    source: Option<Arc<dyn DiskFile>>,
    /// Good runs that are not copied yet.
    runs: VecDeque<GoodRun>,
    /// What is bad of the old file.
    bad: Vec<BadRange>,
    outputs: Vec<Output>,
    /// Files that are removed again unless they are put in place.
    made: Vec<PathBuf>,
    offset: u64,
    /// The index that the next batch may have at least.
    next_index: Option<u64>,
    stamp: u64,
    fetched_batches: u64,
    fetched_bytes: u64,
    /// Byte of the old file behind the last one copied.
    copied_to: u64,
    /// Set for a journal that goes on meanwhile.
    journal: Option<Arc<Journal>>,
}

impl std::fmt::Debug for Mend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mend")
            .field("group", &self.plan.group)
            .field("base", &self.plan.base)
            .field("end", &self.plan.end)
            .field("at", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Mend {
    /// Looks at what is there and begins. Blocks; reads the whole segment.
    pub(super) fn begin(plan: Plan, journal: Option<Arc<Journal>>) -> Result<Self, MendError> {
        let mut mend = Self {
            source: None,
            runs: VecDeque::new(),
            bad: Vec::new(),
            outputs: Vec::new(),
            made: Vec::new(),
            offset: plan.base,
            next_index: plan.first_index,
            stamp: 0,
            fetched_batches: 0,
            fetched_bytes: 0,
            copied_to: 0,
            journal,
            plan,
        };
        mend.look()?;
        mend.copy_runs()?;
        Ok(mend)
    }

    /// First offset of what is mended.
    pub fn base_offset(&self) -> u64 {
        self.plan.base
    }

    /// Finds the good runs of the old file.
    fn look(&mut self) -> Result<(), MendError> {
        let Some(name) = self.plan.name else {
            return Ok(());
        };
        let path = self.plan.dir.join(name.file_name());
        let file = match self.plan.disk.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if is_lost(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        file.drop_cached()?;
        let sealed = matches!(self.plan.ending, Ending::Segment { .. });
        let order = Order {
            path: &path,
            group: self.plan.group,
            base_offset: name.base_offset,
            end_offset: if sealed { self.plan.end } else { u64::MAX },
            sealed,
        };
        let surveyed = match survey(file.as_ref(), &order, &mut |_| true) {
            Ok(surveyed) => surveyed,
            Err(SurveyError::Io(error)) => return Err(error.into()),
            Err(SurveyError::Stopped) => return Ok(()),
        };
        for piece in surveyed.pieces {
            match piece {
                Piece::Good(run) if self.plan.trusted => self.runs.push_back(run),
                Piece::Good(_) => {}
                Piece::Bad(range) => self.bad.push(range),
            }
        }
        if !self.plan.trusted {
            self.bad = vec![BadRange {
                path,
                segment_base: name.base_offset,
                from_byte: 0,
                to_byte: Some(surveyed.file_len),
                from_offset: name.base_offset,
                to_offset: self.plan.end,
                kind: DamageKind::Foreign,
                found: "old or foreign content".to_owned(),
            }];
        }
        self.source = Some(file);
        Ok(())
    }

    /// The place of the next batch, if it is known.
    fn expected(&self) -> Option<Result<LogPos, String>> {
        let next = self.next_index?;
        Some(self.plan.places.of(next, self.offset))
    }

    /// What is needed next; `None` when nothing is, and [`Mend::finish`] can be called.
    pub fn wanted(&self) -> Option<Wanted> {
        if self.offset >= self.plan.end {
            return None;
        }
        let next_run = self.runs.front().map_or(u64::MAX, |run| run.from_offset);
        Some(Wanted {
            from: self.expected().and_then(Result::ok),
            offset: self.offset,
            upto_offset: next_run.min(self.plan.end),
        })
    }

    /// Takes a batch if it is exactly the one that is wanted.
    pub fn offer(&mut self, offered: RepairBatch) -> Result<(), OfferError> {
        if self.wanted().is_none() {
            return Err(OfferError::NotWanted);
        }
        self.find_begin(&offered)?;
        self.check_place(&offered)?;
        self.check_segment(&offered)?;
        let RepairBatch {
            pos,
            segment_base,
            batch,
        } = offered;
        let wrap = |source| OfferError::Batch { pos, source };
        let batch = StampedBatch::verify(batch.to_contiguous(), self.plan.group).map_err(wrap)?;
        batch.verify_chain(self.offset, self.stamp).map_err(wrap)?;
        // While good runs follow in the same file no segment can end.
        let begins = segment_base == batch.base_offset() && self.runs.is_empty();
        if begins && self.outputs.last().is_some_and(|out| out.len > 0) {
            self.begin_output(pos)?;
        }
        self.write(pos, &batch)?;
        self.fetched_batches += 1;
        self.fetched_bytes += batch.len();
        self.copy_runs()?;
        Ok(())
    }

    /// A segment missing at the log's begin starts where the peer's does.
    fn find_begin(&mut self, offered: &RepairBatch) -> Result<(), OfferError> {
        let segment_base = offered.segment_base;
        let fresh = self.outputs.is_empty() && self.plan.may_begin_below;
        if !fresh || segment_base > self.plan.base {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.offset, segment_base);
        self.plan.base = segment_base;
        if before > segment_base && offered.batch.base_offset() != segment_base {
            return Err(OfferError::BeginsEarlier { segment_base });
        }
        Ok(())
    }

    fn check_place(&self, offered: &RepairBatch) -> Result<(), OfferError> {
        let (found, offset) = (offered.pos, offered.batch.base_offset());
        let wrong = |expected: String| OfferError::WrongPlace {
            expected,
            found,
            offset,
        };
        if offset != self.offset {
            return Err(wrong(format!("offset {}", self.offset)));
        }
        let places = &self.plan.places;
        // Where nothing tells the index the offered one must at least not contradict anything that is known.
        let expected = match self.expected() {
            Some(expected) => expected,
            None => places.of(found.index, offset),
        };
        let known_term = places.knows_term(found.index) || self.next_index.is_some();
        match expected {
            Ok(expected) if expected.index == found.index => {
                if known_term && expected.term != found.term {
                    return Err(wrong(format!("entry {expected}")));
                }
                Ok(())
            }
            Ok(expected) => Err(wrong(format!("entry {expected}"))),
            Err(contradiction) => Err(wrong(contradiction)),
        }
    }

    fn check_segment(&self, offered: &RepairBatch) -> Result<(), OfferError> {
        let (from_offset, to_offset) = (offered.batch.base_offset(), offered.batch.next_offset());
        let segment_base = offered.segment_base;
        let too_long = self.plan.ending != Ending::Log && to_offset > self.plan.end;
        if segment_base <= from_offset && !too_long {
            return Ok(());
        }
        Err(OfferError::WrongSegment {
            from_offset,
            to_offset,
            segment_base,
            base: self.plan.base,
            end: self.plan.end,
        })
    }

    fn begin_output(&mut self, pos: LogPos) -> io::Result<()> {
        let fresh = SegmentName {
            base_offset: self.offset,
            first_index: pos.index,
            term: pos.term,
        };
        let named = self
            .plan
            .name
            .filter(|name| name.base_offset == self.offset);
        let name = named.unwrap_or(fresh);
        let path = Companion::Mend.path(&self.plan.dir.join(name.file_name()));
        // Whoever took the files may have taken the directory too.
        self.plan.disk.create_dir_all(&self.plan.dir)?;
        let file = self.plan.disk.open(&path, OpenMode::Truncate)?;
        self.made.push(path);
        self.outputs.push(Output { name, file, len: 0 });
        Ok(())
    }

    /// Adds a checked batch in its place.
    fn write(&mut self, pos: LogPos, batch: &StampedBatch) -> io::Result<()> {
        if self.outputs.is_empty() {
            self.begin_output(pos)?;
        }
        let (header, blob) = batch.parts();
        if let Some(out) = self.outputs.last_mut() {
            out.file.write_all_at(&[header, blob], out.len)?;
            out.len += batch.len();
        }
        self.offset = batch.next_offset();
        self.stamp = batch.base_timestamp();
        self.next_index = Some(pos.index + 1);
        Ok(())
    }
}

/// A batch read back from a file, fully checked.
pub(super) fn read_batch(
    file: &dyn DiskFile,
    pos: u64,
    group: u64,
) -> io::Result<Result<StampedBatch, String>> {
    let mut header = [0; imprint_proto::batch::HEADER_LEN];
    if file.read_at(&mut header, pos)? < header.len() {
        return Ok(Err("the file ends".to_owned()));
    }
    let len = match imprint_proto::batch::peek_length(&header) {
        Ok(len) => usize::try_from(len).map_err(io::Error::other)?,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut bytes = vec![0; len];
    let got = file.read_at(&mut bytes, pos)?;
    bytes.truncate(got);
    Ok(StampedBatch::verify(Bytes::from(bytes), group).map_err(|error| error.to_string()))
}
