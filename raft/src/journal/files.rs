//! Which sealed segments are open, and their indexes in memory: the last few that were read.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::config::{BadRange, ReadError};
use super::segment::Segment;
use super::walk::{Check, Walked, walk_segment};
use super::{Inner, Journal};
use crate::disk::{DiskFile, OpenMode};

/// Sealed segments that are open, least recently read first.
#[derive(Debug, Default)]
pub(super) struct WarmSegments {
    open: VecDeque<Arc<Segment>>,
}

impl WarmSegments {
    /// Notes that a segment was read; closes what is over the bound.
    fn touch(&mut self, segment: &Arc<Segment>, bound: usize) {
        self.open.retain(|other| !Arc::ptr_eq(other, segment));
        self.open.push_back(Arc::clone(segment));
        while self.open.len() > bound.max(1) {
            if let Some(cold) = self.open.pop_front() {
                cold.with(|body| {
                    if body.sealed {
                        body.file = None;
                        body.index = None;
                    }
                });
            }
        }
    }
}

impl Inner {
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
        if sealed {
            self.keep_warm(segment);
        }
        if let Some(file) = file {
            return Ok(file);
        }
        let mode = if sealed {
            OpenMode::Read
        } else {
            OpenMode::Write
        };
        let file = self.io.disk.open(&segment.path, mode)?;
        segment.with(|body| body.file = Some(Arc::clone(&file)));
        Ok(file)
    }

    /// Notes that a sealed segment was just used: it stays open, the one unused for longest is closed.
    pub(super) fn keep_warm(&self, segment: &Arc<Segment>) {
        self.warm.lock().touch(segment, self.cfg.warm_segments);
    }

    /// Walks a sealed segment's headers and keeps its index.
    pub(super) fn load(&self, segment: &Arc<Segment>) -> Result<(), ReadError> {
        let file = self.readable(segment)?;
        let index_of = |from, _| Ok(self.inner.lock().index_of(from));
        let first = (segment.name.first_index, segment.name.base_offset);
        let walked = walk_segment(file.as_ref(), self.group, first, Check::Headers, &index_of)?;
        let end_offset = self.inner.lock().shape.end_of(segment);
        if walked.bad.is_some() || walked.next_offset != end_offset {
            return Err(ReadError::Corrupt(bad_range(segment, &walked, end_offset)));
        }
        segment.with(|body| {
            body.index = Some(walked.index);
            body.first_stamp = walked.first_stamp;
        });
        Ok(())
    }
}

/// What a walk found wrong, for the error.
pub(super) fn bad_range(segment: &Segment, walked: &Walked, to_offset: u64) -> BadRange {
    let found = match &walked.bad {
        Some(bad) => bad.found.clone(),
        None => "the batches end".to_owned(),
    };
    BadRange {
        path: segment.path.clone(),
        from_byte: walked.end,
        from_offset: walked.next_offset,
        to_offset,
        found,
    }
}
