//! Both sides of a repair on an open journal: what is to be mended here, and what a peer is given for it.

use std::sync::Arc;

use super::config::ReadError;
use super::damage::DamageKind;
use super::lookup::{Located, corrupt, header_at};
use super::mend::{Ending, Mend, MendError, Plan, RepairBatch};
use super::places::{Places, index_of};
use super::read::{Budget, Run};
use super::segment::{Seek, Segment, SegmentName};
use super::walk::Window;
use super::{Inner, Journal, LogPos, StoredEntry};

impl Journal {
    /// Begins to mend a sealed segment, or one that is known to be missing. Blocks; reads the whole segment.
    pub fn mend(self: &Arc<Self>, base_offset: u64) -> Result<Mend, MendError> {
        let marks = self.damage.of_segment(base_offset);
        let missing = marks.iter().find_map(|range| {
            let name = range.path.file_name()?.to_str()?;
            SegmentName::parse(name)
        });
        let plan = {
            let inner = self.inner.lock();
            let shape = &inner.shape;
            let there = shape.segment_by_offset(base_offset);
            let there = there.filter(|segment| segment.name.base_offset == base_offset);
            if there.as_ref().is_some_and(|s| !s.with(|body| body.sealed)) {
                return Err(MendError::Active(base_offset));
            }
            let name = there.as_ref().map(|segment| segment.name).or(missing);
            let name = name.ok_or(MendError::NoSegment(base_offset))?;
            let next = shape
                .segments
                .iter()
                .find(|segment| segment.name.base_offset > base_offset)
                .ok_or(MendError::Active(base_offset))?;
            let next = self
                .missing_before(base_offset, next.name)
                .unwrap_or(next.name);
            Plan {
                disk: Arc::clone(&self.io.disk),
                dir: Arc::clone(&self.dir),
                group: self.group,
                name: Some(name),
                base: base_offset,
                may_begin_below: false,
                first_index: Some(name.first_index),
                end: next.base_offset,
                ending: Ending::Segment {
                    first_index: next.first_index,
                },
                places: Places {
                    controls: shape.controls.clone(),
                    terms: shape.terms.clone(),
                },
                trusted: marks.iter().all(|range| range.kind != DamageKind::Foreign),
            }
        };
        Mend::begin(plan, Some(Arc::clone(self)))
    }

    /// A segment that is known to be missing between another one and the next that is there.
    fn missing_before(&self, base_offset: u64, next: SegmentName) -> Option<SegmentName> {
        let missing = self.damage.next_base(base_offset);
        if missing >= next.base_offset {
            return None;
        }
        let marks = self.damage.of_segment(missing);
        marks.iter().find_map(|range| {
            let name = range.path.file_name()?.to_str()?;
            SegmentName::parse(name)
        })
    }

    /// Whole batches with their places, from the one that holds `from_offset` on, for a replica that lacks them: at least
    /// one if there is one, as many as `max_bytes` allow, never over a hole. Also what was trimmed, as long as its segment
    /// is there. Blocks.
    ///
    /// # Errors
    /// An offset outside of the kept segments, or inside of damage.
    pub fn read_for_repair(
        &self,
        from_offset: u64,
        max_bytes: u64,
    ) -> Result<Vec<RepairBatch>, ReadError> {
        let mut out: Vec<RepairBatch> = Vec::new();
        let mut budget = Budget::new(max_bytes);
        let mut at = from_offset;
        loop {
            let (run, cuts) = {
                let inner = self.inner.lock();
                inner.check_kept(at)?;
                if at == inner.shape.next_offset {
                    return Ok(out);
                }
                if inner.take_placed(at, &mut budget, &mut out) {
                    return Ok(out);
                }
                let Some(segment) = inner.shape.segment_by_offset(at) else {
                    return Ok(out);
                };
                let below = inner.disk_end(&segment);
                let run = Run {
                    segment,
                    below,
                    max_count: u64::MAX,
                    max_bytes: budget.left,
                };
                (run, inner.shape.cuts)
            };
            let more = match self.read_placed(&run, at) {
                Err(_) if self.inner.lock().shape.cuts != cuts => continue,
                result => match self.judged(&run.segment, cuts, result) {
                    Err(ReadError::Corrupt(_)) if !out.is_empty() => return Ok(out),
                    judged => judged?,
                },
            };
            for placed in more {
                if !budget.take(placed.batch.len()) {
                    return Ok(out);
                }
                at = placed.batch.next_offset();
                out.push(placed);
            }
        }
    }

    /// Batches of one segment with their places, which are counted from the last place in the index.
    fn read_placed(&self, run: &Run, offset: u64) -> Result<Vec<RepairBatch>, ReadError> {
        let below = self.undamaged_from(offset)?;
        let segment = &run.segment;
        let spot = self.spot_before(segment, Seek::Offset(offset))?;
        let file = self.readable(segment)?;
        let mut window = Window::new(file.as_ref());
        let (mut pos, mut from, mut index) = (spot.pos, spot.offset, spot.index);
        let header = loop {
            let header = header_at(segment, &mut window, pos, from)?;
            let next = header.next_offset().unwrap_or(u64::MAX);
            if next > offset {
                break header;
            }
            pos += header.batch_length;
            from = next;
            index = self.place_of(segment, index + 1, from, pos)?.index;
        };
        let batches = self.read_run(run, below, &Located { pos, header })?;
        let mut placed = Vec::with_capacity(batches.len());
        for batch in batches {
            let at = self.place_of(segment, index, batch.base_offset(), pos)?;
            (index, pos) = (at.index + 1, pos + batch.len());
            placed.push(RepairBatch {
                pos: at,
                segment_base: segment.name.base_offset,
                batch,
            });
        }
        Ok(placed)
    }

    fn place_of(
        &self,
        segment: &Segment,
        from_index: u64,
        offset: u64,
        pos: u64,
    ) -> Result<LogPos, ReadError> {
        let inner = self.inner.lock();
        let index = index_of(&inner.shape.controls, from_index, offset)
            .map_err(|found| corrupt(segment, pos, offset, found))?;
        Ok(LogPos {
            term: inner.shape.term_of(index),
            index,
        })
    }
}

impl Inner {
    /// As for a client's read, but everything that is kept may be asked for.
    fn check_kept(&self, offset: u64) -> Result<(), ReadError> {
        let (start, end) = (self.shape.start_offset, self.shape.next_offset);
        let first = self.shape.segments.front();
        let kept = first.map_or(start, |segment| segment.name.base_offset);
        if offset < kept {
            return Err(ReadError::BelowStart { offset, start, end });
        }
        if offset > end {
            return Err(ReadError::AboveEnd { offset, start, end });
        }
        Ok(())
    }

    /// Takes what is in memory; says whether the offset was there.
    fn take_placed(&self, offset: u64, budget: &mut Budget, out: &mut Vec<RepairBatch>) -> bool {
        let Some(entries) = self.tail.batches_from(offset) else {
            return false;
        };
        for entry in entries {
            let StoredEntry::Data { pos, batch } = entry else {
                continue;
            };
            let segment = self.shape.segment_by_offset(batch.base_offset());
            let Some(segment) = segment.filter(|_| budget.take(batch.len())) else {
                break;
            };
            out.push(RepairBatch {
                pos: *pos,
                segment_base: segment.name.base_offset,
                batch: batch.clone(),
            });
        }
        true
    }
}
