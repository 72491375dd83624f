//! Reading: from the tail in memory, else from segments.
//!
//! What comes from a disk is checked, both levels of checksums and the chain of offsets, before anybody sees it. Something
//! wrong is an error, never a shorter answer. Readers hold a segment's file open while they need it; trimming it away
//! meanwhile does them no harm once it is open.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use imprint_proto::batch::{BatchHeader, HEADER_LEN, StampedBatch};

use super::config::ReadError;
use super::lookup::{Located, corrupt};
use super::segment::{Segment, Spot};
use super::{Inner, Journal, LogPos, StoredEntry};

/// Whole batches of a client's read, as views of the log.
#[derive(Debug, Clone, Default)]
pub struct StampedRead {
    /// From the one that holds the asked offset, without gaps.
    pub batches: Vec<StampedBatch>,
    /// Offset after the last of them; the asked one if there are none.
    pub next_offset: u64,
    /// Epochs of what is returned, each with its first offset as far as this log knows.
    pub epochs: Vec<(u64, u64)>,
}

/// Whole batches of a client's read, each in one piece.
#[derive(Debug, Clone, Default)]
pub struct ReadBatches {
    /// From the one that holds the asked offset, without gaps.
    pub batches: Vec<Bytes>,
    /// Offset after the last of them; the asked one if there are none.
    pub next_offset: u64,
    /// Epochs of what is returned, each with its first offset as far as this log knows.
    pub epochs: Vec<(u64, u64)>,
}

/// Batches to read from one segment.
pub(super) struct Run {
    pub segment: Arc<Segment>,
    /// Batches that begin at or behind this offset are not read.
    pub below: u64,
    pub max_count: u64,
    pub max_bytes: u64,
}

/// Counts bytes; the first thing is always granted.
pub(super) struct Budget {
    pub left: u64,
    used: bool,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        Self {
            left: bytes,
            used: false,
        }
    }

    pub fn take(&mut self, bytes: u64) -> bool {
        if self.used && bytes > self.left {
            return false;
        }
        self.left = self.left.saturating_sub(bytes);
        self.used = true;
        true
    }
}

/// What a control entry counts for in a reader's budget, in bytes, beside its content.
const CONTROL_COST: u64 = 64;

fn cost(entry: &StoredEntry) -> u64 {
    match entry {
        StoredEntry::Control { .. } => CONTROL_COST,
        StoredEntry::Data { batch, .. } => batch.len(),
    }
}

/// What to do next to read entries.
enum Next {
    Finished,
    Disk { run: Run, first: LogPos },
}

impl Inner {
    /// Takes what is in memory; says what has to come from the disk.
    fn plan_entries(
        &self,
        at: &mut u64,
        to: u64,
        out: &mut Vec<StoredEntry>,
        budget: &mut Budget,
    ) -> io::Result<Next> {
        let shape = &self.shape;
        let end = to.min(shape.end_index());
        *at = (*at).max(shape.first_index());
        let tail_first = self.tail.first_index().unwrap_or(u64::MAX);
        while *at < end {
            if *at >= tail_first {
                let rest = self
                    .tail
                    .entries_from(*at)
                    .take_while(|entry| entry.pos().index < end);
                for entry in rest {
                    if !budget.take(cost(entry)) {
                        break;
                    }
                    out.push(entry.clone());
                }
                return Ok(Next::Finished);
            }
            let Some(control) = shape.controls.get(at) else {
                return self.plan_run(*at, end.min(tail_first), budget);
            };
            let pos = LogPos {
                term: control.term,
                index: *at,
            };
            let entry = StoredEntry::Control {
                pos,
                kind: control.kind.clone(),
            };
            if !budget.take(cost(&entry)) {
                return Ok(Next::Finished);
            }
            out.push(entry);
            *at += 1;
        }
        Ok(Next::Finished)
    }

    fn plan_run(&self, at: u64, end: u64, budget: &Budget) -> io::Result<Next> {
        let shape = &self.shape;
        let missing = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("no segment holds entry {at}"),
            )
        };
        let segment = shape.segment_by_index(at).ok_or_else(missing)?;
        let next_control = shape
            .controls
            .range(at..)
            .next()
            .map_or(u64::MAX, |(index, _)| *index);
        let max_count = end.min(next_control) - at;
        let below = self.disk_end(&segment);
        let first = LogPos {
            term: shape.term_of(at),
            index: at,
        };
        Ok(Next::Disk {
            run: Run {
                segment,
                below,
                max_count,
                max_bytes: budget.left,
            },
            first,
        })
    }

    /// The offset up to which a segment can be read from the disk.
    pub(super) fn disk_end(&self, segment: &Segment) -> u64 {
        let unwritten = self.tail.first_offset().unwrap_or(u64::MAX);
        self.shape.end_of(segment).min(unwritten)
    }

    /// Batches between a known spot and an index.
    pub(super) fn batches_between(&self, spot: Spot, index: u64) -> u64 {
        let controls = self
            .shape
            .controls
            .range(spot.index..index.max(spot.index))
            .count() as u64;
        index.saturating_sub(spot.index).saturating_sub(controls)
    }

    fn check_range(&self, offset: u64) -> Result<(), ReadError> {
        let (start, end) = (self.shape.start_offset, self.shape.next_offset);
        if offset < start {
            return Err(ReadError::BelowStart { offset, start, end });
        }
        if offset > end {
            return Err(ReadError::AboveEnd { offset, start, end });
        }
        Ok(())
    }

    fn take_from_tail(
        &self,
        offset: u64,
        below: u64,
        budget: &mut Budget,
    ) -> Option<Vec<StampedBatch>> {
        let mut out = Vec::new();
        for entry in self.tail.batches_from(offset)? {
            let StoredEntry::Data { batch, .. } = entry else {
                continue;
            };
            if batch.next_offset() > below || !budget.take(batch.len()) {
                break;
            }
            out.push(batch.clone());
        }
        Some(out)
    }
}

impl Journal {
    /// Entries `from..to`, at least one if there is one, as many as `max_bytes` allow. What was purged is left out: the
    /// entries say where they stand. Blocks if they are not in memory.
    pub fn read(&self, from: u64, to: u64, max_bytes: u64) -> io::Result<Vec<StoredEntry>> {
        let mut out = Vec::new();
        let mut budget = Budget::new(max_bytes);
        let mut at = from;
        loop {
            let (next, cuts) = {
                let inner = self.inner.lock();
                (
                    inner.plan_entries(&mut at, to, &mut out, &mut budget)?,
                    inner.shape.cuts,
                )
            };
            let Next::Disk { run, first } = next else {
                return Ok(out);
            };
            let batches = match self.read_entries(&run, first) {
                Err(_) if self.inner.lock().shape.cuts != cuts => continue,
                result => self.judged(&run.segment, cuts, result)?,
            };
            for (index, batch) in (first.index..).zip(batches) {
                if !budget.take(batch.len()) {
                    return Ok(out);
                }
                out.push(StoredEntry::Data {
                    pos: LogPos {
                        term: first.term,
                        index,
                    },
                    batch,
                });
                at = index + 1;
            }
        }
    }

    /// As [`Journal::read`], but only if nothing has to come from the disk. Never blocks.
    pub fn read_cached(&self, from: u64, to: u64, max_bytes: u64) -> Option<Vec<StoredEntry>> {
        let mut out = Vec::new();
        let mut at = from;
        let mut budget = Budget::new(max_bytes);
        let next = self
            .inner
            .lock()
            .plan_entries(&mut at, to, &mut out, &mut budget);
        matches!(next, Ok(Next::Finished)).then_some(out)
    }

    fn read_entries(&self, run: &Run, first: LogPos) -> Result<Vec<StampedBatch>, ReadError> {
        let located = self.locate_index(&run.segment, first.index)?;
        let below = self.undamaged_from(located.header.base_offset)?;
        self.read_run(run, below, &located)
    }

    /// Whole batches from the one that holds `offset`, those that end at or before `below`: at least one if there is one,
    /// as many as `max_bytes` allow. Blocks if they are not in memory.
    ///
    /// # Errors
    /// An offset outside of the log; its end is inside.
    pub fn read_stamped(
        &self,
        offset: u64,
        below: u64,
        max_bytes: u64,
    ) -> Result<StampedRead, ReadError> {
        let mut budget = Budget::new(max_bytes);
        let mut batches: Vec<StampedBatch> = Vec::new();
        let (mut at, mut tries) = (offset, 0);
        loop {
            let (run, cuts) = {
                let inner = self.inner.lock();
                inner.check_range(at)?;
                if at >= below || at >= inner.shape.next_offset {
                    break;
                }
                if let Some(more) = inner.take_from_tail(at, below, &mut budget) {
                    batches.extend(more);
                    break;
                }
                let missing = || {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("no segment holds offset {at}"),
                    )
                };
                let segment = inner.shape.segment_by_offset(at).ok_or_else(missing)?;
                let disk_end = inner.disk_end(&segment).min(below);
                (
                    Run {
                        segment,
                        below: disk_end,
                        max_count: u64::MAX,
                        max_bytes: budget.left,
                    },
                    inner.shape.cuts,
                )
            };
            let more = match self.read_offsets(&run, at) {
                Err(_) if self.inner.lock().shape.cuts != cuts => continue,
                result => match self.judged(&run.segment, cuts, result) {
                    // What is before the damage is good; whoever goes on from its end is told.
                    Err(ReadError::Corrupt(_)) if !batches.is_empty() => break,
                    Err(ReadError::Corrupt(range)) if !range.holds(at) && tries < 3 => {
                        tries += 1;
                        continue;
                    }
                    judged => judged?,
                },
            };
            let mut full = more.is_empty();
            for batch in more {
                full = batch.next_offset() > below || !budget.take(batch.len());
                if full {
                    break;
                }
                at = batch.next_offset();
                batches.push(batch);
            }
            if full {
                break;
            }
        }
        let next_offset = batches.last().map_or(offset, StampedBatch::next_offset);
        let first = batches.first().map_or(offset, StampedBatch::base_offset);
        let epochs = self.inner.lock().shape.epochs(first, next_offset);
        Ok(StampedRead {
            batches,
            next_offset,
            epochs,
        })
    }

    fn read_offsets(&self, run: &Run, offset: u64) -> Result<Vec<StampedBatch>, ReadError> {
        let below = self.undamaged_from(offset)?;
        let located = self.locate_offset(&run.segment, offset)?;
        self.read_run(run, below, &located)
    }

    /// Where the next marked range behind an offset begins; an error inside of one.
    pub(super) fn undamaged_from(&self, offset: u64) -> Result<u64, ReadError> {
        match self.damage.at(offset) {
            Some(range) => Err(ReadError::Corrupt(range)),
            None => Ok(self.damage.next_from(offset)),
        }
    }

    /// As [`Journal::read_stamped`], each batch in one piece: no copy if it came from the disk, one if it came from memory.
    pub fn read_bytes(
        &self,
        offset: u64,
        below: u64,
        max_bytes: u64,
    ) -> Result<ReadBatches, ReadError> {
        let StampedRead {
            batches,
            next_offset,
            epochs,
        } = self.read_stamped(offset, below, max_bytes)?;
        let batches = batches.iter().map(StampedBatch::to_contiguous).collect();
        Ok(ReadBatches {
            batches,
            next_offset,
            epochs,
        })
    }

    /// Reads and checks whole batches from a located one on.
    pub(super) fn read_run(
        &self,
        run: &Run,
        below: u64,
        first: &Located,
    ) -> Result<Vec<StampedBatch>, ReadError> {
        let segment = &run.segment;
        let below = below.min(run.below);
        let file = self.readable(segment)?;
        let there = segment.len().saturating_sub(first.pos);
        let wanted = run
            .max_bytes
            .min(READ_BYTES)
            .max(first.header.batch_length)
            .min(there);
        let mut buf = BytesMut::zeroed(usize::try_from(wanted).map_err(io::Error::other)?);
        let got = file.read_at(&mut buf, first.pos)?;
        buf.truncate(got);
        let mut rest = buf.freeze();
        let mut batches = Vec::new();
        let (mut pos, mut offset, mut stamp) = (first.pos, first.header.base_offset, 0);
        while offset < below && (batches.len() as u64) < run.max_count {
            let Some(batch) = cut_batch(&mut rest, self.group, offset, stamp)
                .map_err(|found| corrupt(segment, pos, offset, found))?
            else {
                break;
            };
            pos += batch.len();
            offset = batch.next_offset();
            stamp = batch.base_timestamp();
            batches.push(batch);
        }
        if batches.is_empty() {
            return Err(corrupt(segment, pos, offset, "the file ends".to_owned()));
        }
        Ok(batches)
    }
}

/// Takes the next batch off the front, fully checked; `None` if only a part of it is there.
fn cut_batch(
    rest: &mut Bytes,
    group: u64,
    offset: u64,
    stamp: u64,
) -> Result<Option<StampedBatch>, String> {
    if rest.len() < HEADER_LEN {
        return Ok(None);
    }
    let text = |error: imprint_proto::batch::BatchError| error.to_string();
    let header = BatchHeader::decode_checked(rest).map_err(text)?;
    let Some(len) = usize::try_from(header.batch_length)
        .ok()
        .filter(|len| *len <= rest.len())
    else {
        return Ok(None);
    };
    let batch = StampedBatch::verify(rest.split_to(len), group).map_err(text)?;
    batch.verify_chain(offset, stamp).map_err(text)?;
    Ok(Some(batch))
}

/// Bytes read from a segment at a time, unless one batch is larger.
const READ_BYTES: u64 = 4 << 20;
