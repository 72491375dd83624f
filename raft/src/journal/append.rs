//! Append: places and stamps are assigned in order, or everything is refused.
//!
//! Deciding ([`stage`]) is a plain function of the log's shape; only what it returns changes the log.

use std::sync::Arc;

use imprint_proto::batch::{AdmittedBatch, StampedBatch};

use super::segment::{Segment, SegmentName, Spot};
use super::shape::Shape;
use super::writer::Work;
use super::{
    AppendError, ControlKind, Done, Inner, Journal, LogPos, NewEntry, StoredEntry, VoidOutcome,
    failed_before,
};
use crate::statelog::{Control, Record};

/// An entry with its final content.
enum Staged {
    Control { pos: LogPos, kind: ControlKind },
    Data { pos: LogPos, batch: StampedBatch },
}

/// The moving end of the log while entries are staged.
struct Cursor {
    last: Option<LogPos>,
    term: u64,
    next_offset: u64,
    stamp: u64,
}

impl Cursor {
    fn check_place(&self, found: LogPos) -> Result<(), AppendError> {
        let follows = match self.last {
            None => true,
            Some(last) => last.index.checked_add(1) == Some(found.index) && found.term >= last.term,
        };
        if follows {
            Ok(())
        } else {
            Err(AppendError::NotNext {
                last: self.last,
                found,
            })
        }
    }

    fn take(&mut self, entry: NewEntry, now_us: u64) -> Result<Staged, AppendError> {
        let pos = entry.pos();
        self.check_place(pos)?;
        let staged = match entry {
            NewEntry::Control { kind, .. } => Staged::Control { pos, kind },
            NewEntry::Data { batch, .. } => self.take_stamped(pos, batch)?,
            NewEntry::Admit {
                batch,
                expected_offset,
                ..
            } => self.stamp(pos, batch, expected_offset, now_us)?,
        };
        self.last = Some(pos);
        match &staged {
            Staged::Control { .. } => self.term = pos.term,
            Staged::Data { batch, .. } => {
                self.next_offset = batch.next_offset();
                self.stamp = batch.base_timestamp();
            }
        }
        Ok(staged)
    }

    fn check_term(&self, found: LogPos) -> Result<(), AppendError> {
        if found.term == self.term {
            Ok(())
        } else {
            Err(AppendError::TermNotBegun {
                term: self.term,
                found,
            })
        }
    }

    fn take_stamped(&self, pos: LogPos, batch: StampedBatch) -> Result<Staged, AppendError> {
        self.check_term(pos)?;
        let chained = batch.verify_chain(self.next_offset, self.stamp);
        chained.map_err(|source| AppendError::Batch { pos, source })?;
        Ok(Staged::Data { pos, batch })
    }

    fn stamp(
        &self,
        pos: LogPos,
        batch: AdmittedBatch,
        expected_offset: Option<u64>,
        now_us: u64,
    ) -> Result<Staged, AppendError> {
        let next = self.next_offset;
        let void = |outcome: VoidOutcome| Staged::Control {
            pos,
            kind: ControlKind::Void(outcome.encode()),
        };
        if let Some(expected) = expected_offset.filter(|expected| *expected != next) {
            return Ok(void(VoidOutcome::OffsetMismatch { expected, next }));
        }
        self.check_term(pos)?;
        Ok(match batch.stamp(next, self.stamp.max(now_us)) {
            Ok(batch) => Staged::Data { pos, batch },
            Err((_, batch)) => void(VoidOutcome::OffsetOverflow {
                next,
                message_count: batch.message_count(),
            }),
        })
    }
}

fn stage(shape: &Shape, entries: Vec<NewEntry>, now_us: u64) -> Result<Vec<Staged>, AppendError> {
    let mut cursor = Cursor {
        last: shape.last,
        term: shape.last_term(),
        next_offset: shape.next_offset,
        stamp: shape.last_stamp,
    };
    entries
        .into_iter()
        .map(|entry| cursor.take(entry, now_us))
        .collect()
}

/// Whether a batch opens a segment: a function of the log's content alone, but for the initial settings.
fn rolls(shape: &Shape, batch: &StampedBatch) -> bool {
    let Some(active) = shape.segments.back() else {
        return true;
    };
    let (len, first_stamp) = active.with(|body| (body.len, body.first_stamp));
    let too_long = len > 0 && len.saturating_add(batch.len()) > shape.roll.segment_bytes;
    let age = batch
        .base_timestamp()
        .saturating_sub(first_stamp.unwrap_or(u64::MAX));
    let too_old = shape.roll.segment_span_us.is_some_and(|span| age >= span);
    let jumped = shape
        .jump
        .is_some_and(|jump| active.name.first_index <= jump);
    too_long || too_old || jumped
}

impl Journal {
    /// Appends entries; they are readable when this returns. `done` is called, maybe before this returns, when all of them
    /// are synced. Never blocks on the disk unless the offload runs jobs inline.
    ///
    /// The first entry of a log that holds nothing and was never purged may have any index: Raft begins at 0 or 1.
    ///
    /// # Errors
    /// Nothing was taken. `done` is called only if the journal failed before or is closed.
    pub fn append(self: &Arc<Self>, entries: Vec<NewEntry>, done: Done) -> Result<(), AppendError> {
        let now_us = self.io.clock.now_micros();
        let refused = {
            let mut inner = self.inner.lock();
            if let Some(reason) = inner.failed.clone() {
                Some((
                    AppendError::Failed(reason.to_string()),
                    failed_before(&reason),
                    done,
                ))
            } else if inner.closed {
                Some((AppendError::Closed, failed_before("closed"), done))
            } else {
                let staged = stage(&inner.shape, entries, now_us)?;
                for entry in staged {
                    self.install(&mut inner, entry);
                }
                let upto = inner.shape.last;
                let offset = inner.shape.next_offset;
                inner.queue.push(Work::Done { upto, offset, done });
                None
            }
        };
        if let Some((error, told, done)) = refused {
            done(Err(told));
            return Err(error);
        }
        self.start();
        Ok(())
    }

    fn install(&self, inner: &mut Inner, entry: Staged) {
        match entry {
            Staged::Control { pos, kind } => self.install_control(inner, pos, kind),
            Staged::Data { pos, batch } => self.install_data(inner, pos, batch),
        }
    }

    fn install_control(&self, inner: &mut Inner, pos: LogPos, kind: ControlKind) {
        let offset = inner.shape.next_offset;
        inner.shape.push_control(pos, kind.clone());
        inner.tail.push(
            offset,
            StoredEntry::Control {
                pos,
                kind: kind.clone(),
            },
        );
        let control = Control {
            term: pos.term,
            offset,
            kind,
        };
        let record = Record::Control {
            group: self.group,
            index: pos.index,
            control,
        };
        inner.queue.push(Work::State(vec![record]));
    }

    fn install_data(&self, inner: &mut Inner, pos: LogPos, batch: StampedBatch) {
        let shape = &mut inner.shape;
        if rolls(shape, &batch) {
            let name = SegmentName {
                base_offset: batch.base_offset(),
                first_index: pos.index,
                term: pos.term,
            };
            let segment = Arc::new(Segment::new(&self.dir, name));
            segment.with(|body| body.index = Some(Vec::new()));
            let seal = shape.segments.back().cloned();
            shape.segments.push_back(Arc::clone(&segment));
            inner.queue.push(Work::Roll {
                seal,
                create: segment,
            });
        }
        let Some(active) = shape.segments.back().cloned() else {
            return;
        };
        let file_pos = active.len();
        let spot = Spot {
            index: pos.index,
            offset: batch.base_offset(),
            pos: file_pos,
            stamp: batch.base_timestamp(),
        };
        active.with(|body| body.push(spot, batch.len()));
        shape.note_term(pos, batch.base_offset());
        shape.last = Some(pos);
        shape.next_offset = batch.next_offset();
        shape.last_stamp = batch.base_timestamp();
        inner.tail.push(
            batch.base_offset(),
            StoredEntry::Data {
                pos,
                batch: batch.clone(),
            },
        );
        inner.queue.push(Work::Write {
            segment: active,
            pos: file_pos,
            batch,
        });
    }
}
