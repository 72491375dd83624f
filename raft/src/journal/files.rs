//! Which sealed segments are open, and their indexes in memory: those of the node that were read last, see
//! [`crate::disk::WarmFiles`].

use std::io;
use std::sync::Arc;

use super::config::ReadError;
use super::damage::{BadRange, DamageKind};
use super::segment::Segment;
use super::walk::{Check, Walked, walk_segment};
use super::{Inner, Journal};
use crate::disk::{DiskFile, OpenMode};

/// Up to which offset a segment's batches are on the disk, and of which state of the log that is said.
struct ReadableEnd {
    offset: u64,
    sealed: bool,
    cuts: u64,
}

impl Inner {
    fn readable_end(&self, segment: &Segment) -> ReadableEnd {
        let sealed = segment.with(|body| body.sealed);
        let offset = match sealed {
            true => self.shape.end_of(segment),
            false => self.disk_end(segment),
        };
        ReadableEnd {
            offset,
            sealed,
            cuts: self.shape.cuts,
        }
    }

    /// Gives the data batches of a segment their indexes: control entries have the ones between.
    fn index_of(&self, from: u64) -> u64 {
        let mut index = from;
        while self.shape.controls.contains_key(&index) {
            index += 1;
        }
        index
    }
}

impl Journal {
    /// The file of a segment, opened if need be.
    pub(super) fn readable(&self, segment: &Arc<Segment>) -> io::Result<Arc<dyn DiskFile>> {
        let (sealed, file) = segment.with(|body| (body.sealed, body.file.clone()));
        let file = match file {
            Some(file) => file,
            None => {
                let mode = if sealed {
                    OpenMode::Read
                } else {
                    OpenMode::Write
                };
                let file = self.io.disk.open(&segment.path(), mode)?;
                segment.with(|body| body.file = Some(Arc::clone(&file)));
                file
            }
        };
        if sealed {
            self.keep_warm(segment);
        }
        Ok(file)
    }

    /// Notes that a sealed segment was just used: it stays open, of all in the node the one unused for longest is closed.
    /// Called after its file or index was set, so that nothing is open that the list doesn't know.
    pub(super) fn keep_warm(&self, segment: &Arc<Segment>) {
        let bytes = segment.with(|body| body.index_bytes());
        self.io.warm.touch(segment, bytes);
    }

    /// Walks a segment's headers and keeps its index.
    pub(super) fn load(&self, segment: &Arc<Segment>) -> Result<(), ReadError> {
        let file = self.readable(segment)?;
        let index_of = |from, _| Ok(self.inner.lock().index_of(from));
        let first = (segment.name.first_index, segment.name.base_offset);
        let mut end = self.inner.lock().readable_end(segment);
        if end.sealed {
            end.offset = self.sealed_end(segment);
        }
        let mut walked = walk_segment(file.as_ref(), self.group, first, Check::Headers, &index_of)?;
        let ends_well = match end.sealed {
            true => walked.bad.is_none() && walked.next_offset == end.offset,
            // Behind that the writer may be at work.
            false => walked.next_offset >= end.offset,
        };
        // Up to damage that is known the index serves as it is; behind it reads begin where the marks say.
        let marks = self.damage.of_segment(segment.name.base_offset);
        let known = |range: &BadRange| range.from_offset <= walked.next_offset;
        if !ends_well && !marks.iter().any(known) {
            return Err(ReadError::Corrupt(bad_range(segment, &walked, end.offset)));
        }
        walked.index.retain(|spot| spot.offset < end.offset);
        walked.index.shrink_to_fit();
        let inner = self.inner.lock();
        if inner.shape.cuts == end.cuts {
            segment.with(|body| {
                // What was appended meanwhile is behind.
                body.index.get_or_insert(walked.index);
                body.first_stamp = body.first_stamp.or(walked.first_stamp);
            });
        }
        drop(inner);
        if end.sealed {
            self.keep_warm(segment);
        }
        Ok(())
    }
}

/// What a walk found wrong, for the error.
pub(super) fn bad_range(segment: &Segment, walked: &Walked, to_offset: u64) -> BadRange {
    let (kind, found) = match &walked.bad {
        Some(bad) => (DamageKind::Bytes, bad.found.clone()),
        None => (DamageKind::Missing, "the batches end".to_owned()),
    };
    BadRange {
        path: segment.path(),
        segment_base: segment.name.base_offset,
        from_byte: walked.end,
        to_byte: None,
        from_offset: walked.next_offset,
        to_offset,
        kind,
        found,
    }
}
