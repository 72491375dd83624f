//! The segment that was written last: what a walk over it finds, and what follows from that.
//!
//! Looking comes first and changes nothing; only when all of it ends well are torn tails cut and empty segments removed.

use std::io;
use std::sync::Arc;

use super::{OpenError, Opening};
use crate::disk::{DiskFile, OpenMode};
use crate::journal::damage::Companion;
use crate::journal::files::bad_range;
use crate::journal::places::index_of;
use crate::journal::quarantine::{Quarantine, Reason};
use crate::journal::segment::Segment;
use crate::journal::walk::{Check, Walked, Window, last_nonzero, walk_segment};

/// What follows from a walk over the active segment; see the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Torn,
    Corrupt,
}

pub(super) fn judge(walked: &Walked, must_have: u64) -> Verdict {
    match (walked.next_offset >= must_have, &walked.bad) {
        (true, None) => Verdict::Good,
        (true, Some(_)) => Verdict::Torn,
        (false, _) => Verdict::Corrupt,
    }
}

/// The active segment after recovery.
pub(super) struct Active {
    pub walked: Walked,
    pub file: Arc<dyn DiskFile>,
}

/// A segment at the end of the log, as a walk found it.
pub(super) struct Examined {
    segment: Arc<Segment>,
    file: Arc<dyn DiskFile>,
    walked: Walked,
    /// Walked by headers only, because a clean stop tells where it ends.
    trusted: bool,
    verdict: Verdict,
}

impl Opening<'_> {
    /// Walks segments from the last one on until one holds a batch. Changes nothing.
    pub(super) fn examine(
        &self,
        segments: &[Arc<Segment>],
        must_have: u64,
    ) -> Result<Vec<Examined>, OpenError> {
        let mut must_have = must_have;
        let mut examined = Vec::new();
        for (n, segment) in segments.iter().enumerate().rev() {
            let file = self
                .disk
                .open(&segment.path(), OpenMode::Write)
                .map_err(|e| self.io(e))?;
            let (walked, trusted) = self.walk_active(segment, file.as_ref())?;
            let verdict = judge(&walked, must_have);
            if verdict == Verdict::Corrupt {
                return Err(OpenError::Corrupt(bad_range(segment, &walked, must_have)));
            }
            let holds_data = walked.last.is_some();
            examined.push(Examined {
                segment: Arc::clone(segment),
                file,
                walked,
                trusted,
                verdict,
            });
            if holds_data {
                break;
            }
            if n > 0 {
                must_have = must_have.max(segment.name.base_offset);
            }
        }
        Ok(examined)
    }

    /// Cuts what is torn and removes those at the end that hold nothing. `None` if no segment is left.
    pub(super) fn settle(
        &self,
        segments: &mut Vec<Arc<Segment>>,
        examined: Vec<Examined>,
    ) -> io::Result<Option<Active>> {
        for found in examined {
            if found.verdict == Verdict::Torn {
                self.cut_torn(&found.segment, found.file.as_ref(), &found.walked)?;
            }
            if found.walked.last.is_some() {
                if !found.trusted {
                    // What a killed process wrote may still be in the page cache only.
                    found.file.sync_all()?;
                    self.disk.sync_dir(self.dir)?;
                }
                return Ok(Some(Active {
                    walked: found.walked,
                    file: found.file,
                }));
            }
            Companion::remove_all(self.disk, &found.segment.path())?;
            self.disk.remove_file(&found.segment.path())?;
            self.disk.sync_dir(self.dir)?;
            segments.pop();
        }
        Ok(None)
    }

    /// Walks by headers if a clean stop says where the end is and it is there, else with the full check.
    pub(super) fn walk_active(
        &self,
        segment: &Segment,
        file: &dyn DiskFile,
    ) -> Result<(Walked, bool), OpenError> {
        let first = (segment.name.first_index, segment.name.base_offset);
        let index_of = |from: u64, offset: u64| index_of(&self.kept.controls, from, offset);
        let walk =
            |check| walk_segment(file, self.group, first, check, &index_of).map_err(|e| self.io(e));
        if let Some(stop) = self
            .clean
            .filter(|stop| stop.segment == segment.name.base_offset)
            .filter(|_| self.damage.of_segment(segment.name.base_offset).is_empty())
        {
            let walked = walk(Check::Headers)?;
            if walked.bad.is_none()
                && (walked.end, walked.next_offset) == (stop.len, stop.next_offset)
            {
                return Ok((walked, true));
            }
        }
        // What the process before read or wrote may be in memory otherwise than on the medium.
        file.drop_cached().map_err(|e| self.io(e))?;
        Ok((walk(Check::Full)?, false))
    }

    /// Row c.
    fn cut_torn(&self, segment: &Segment, file: &dyn DiskFile, walked: &Walked) -> io::Result<()> {
        let file_len = file.len()?;
        let end = last_nonzero(&mut Window::new(file), walked.end, file_len)?.unwrap_or(walked.end);
        tracing::warn!(
            path = %segment.path().display(), from = walked.end, to = end, bad = ?walked.bad,
            "a torn tail is cut off and kept in quarantine"
        );
        Quarantine::of(self.disk, self.dir, self.group)?.copy(
            Reason::TornTail,
            &segment.path(),
            file,
            walked.end..end,
        )?;
        file.set_len(walked.end)?;
        file.sync_all()
    }
}
