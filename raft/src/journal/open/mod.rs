//! Opening a journal: what is on the disk becomes a log again, or an error that says what is wrong. It never guesses.
//!
//! # Which recovery decision follows from what is found?
//!
//! Sealed segments were synced before the next one was made; they are checked when they are read. The active one is walked:
//! by headers after a clean stop, else with the full check, to the end of its file. Let `E` be the offset after its good
//! batches, `B` whatever comes behind them unless that is zeros to the end, and `S` what must be there: the durable synced
//! mark, or the offset of the last control entry, since a control entry is synced after its data.
//!
//! | | found | decision |
//! |---|---|---|
//! | a | a cut that was begun | finished first |
//! | b | no `B`, `E >= S` | good |
//! | c | `B`, `E >= S` | torn: the bytes go to `quarantine/`, the segment is cut at `E` |
//! | d | `B`, `E < S` | corrupt: nothing is changed, the range is named |
//! | e | no `B`, `E < S` | corrupt: synced data is missing |
//! | f | the last segment holds no good batch, and `S` does not want one | it is removed (what it held is in quarantine); the one before is active, and must reach the removed one's base |
//! | g | no segment, `S` at or below where a log without segments begins | good, empty |
//! | h | no segment, `S` above that | corrupt: synced data is missing |
//! | i | the first segment begins above the first kept offset | corrupt: a segment is missing |
//! | j | names out of order, or control entries where data stands | inconsistent: nothing is changed |
//! | k | clean stop recorded, but the active segment is not as recorded | as without a clean stop |
//! | l | control entries above the last data, in order, at offset `E` | good: they are the log's end |
//! | m | indexes missing behind the last data, all of them purged | good: the next batch opens a segment |
//! | n | the committed mark above the log's end | taken back to the end |
//! | o | files that are not segments | left alone |
//! | p | segments that trim and purge have passed | the deletion is finished |
//! | r | a trim at or below the committed mark, above the first kept offset | the first kept offset rises to it, durably |
//! | q | segments of a group that the state log knows nothing of | inconsistent: without votes and control entries they are no log |
//! | r | zeros where the last batches were, `E >= S` | good: the log ends where they begin |
//! | s | a hole, good batches behind it up to `S` or beyond | corrupt, as d; a rescue fetches the hole and keeps the rest |
//! | t | an older copy of the active segment | as e, because it ends below `S` |
//! | u | a sealed segment is damaged | good: found and marked by the first who reads or checks it, served around, mended while open |
//! | v | a sealed segment's file is gone, its digest is there | good: marked as missing at once |
//! | w | valid batches in a sealed segment that are not those that were sealed: an older copy, another log's | good: the next check marks the whole segment |
//! | x | another partition's bytes | bad bytes like any others: by `S` in the active segment, as u in a sealed one |
//! | y | a digest that is missing, can't be read, or is another segment's | good: the next check makes it again |
//! | z | a mark that is missing or can't be read | good: found again, or the whole segment counts as damaged until a check |
//! | aa | the control log is ahead of the segments: its last entry stands at an offset above `E` | corrupt, as e: data is synced before a control entry |
//! | ab | the control log is behind: a segment begins in a term that no control entry, purge or segment before it tells of | inconsistent: a term's first entry is synced before its data |
//! | ac | a sealed file that the disk does not give back (an input error, no permission) | good without it: the range is marked, the end is where it was |
//! | ad | the last file that the disk does not give back | an error; nothing is changed, and the log never ends before |
//! | ae | a segment that was being put together, or a small file that was being written | removed: what they replace is still there |
//! | af | a mended segment with its mark, the power having gone between the two | good; the next check takes the mark away |
//! | ag | a mark in the active segment | walked in full also after a clean stop; what is marked had been synced, so it counts for `S` |
//!
//! A test checks that every row has a test of its letter. Both orders of a crash between any two writes are tested by power
//! cuts before each change of the disk, for appends, truncations, purges and trims, mends and rescues.

mod active;
mod beside;
mod cut;
mod end;
mod rescue;
mod sealed;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use rescue::{Rescue, RescueError, StartCut};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::config::{JournalConfig, OpenError};
use super::damage::{BadRange, DamageBook, DamageKind};
use super::shape::Shape;
use super::tail::TailCache;
use super::writer::{Queue, Work};
use super::{Inner, Journal, RollSettings};
use crate::disk::{Disk, Io};
use crate::statelog::{CleanStop, GroupState, Record, StateLog};

/// Everything that opening looks at.
struct Opening<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    group: u64,
    kept: &'a GroupState,
    clean: Option<CleanStop>,
    damage: &'a DamageBook,
}

impl Journal {
    /// Opens the journal in `dir`, or begins a new one. Blocks; see the module's table for what it decides.
    pub fn open(
        io: Io,
        dir: PathBuf,
        state: Arc<StateLog>,
        group: u64,
        cfg: JournalConfig,
    ) -> Result<Arc<Self>, OpenError> {
        let wrap = |source| OpenError::Io {
            path: dir.clone(),
            source,
        };
        let known = state.group(group);
        let is_known = known.is_some();
        let kept = known.unwrap_or_default();
        let disk = Arc::clone(&io.disk);
        let clean = state.take_clean_stop(group);
        let damage = DamageBook::default();
        let opening = Opening {
            disk: disk.as_ref(),
            dir: &dir,
            group,
            kept: &kept,
            clean,
            damage: &damage,
        };
        disk.create_dir_all(&dir).map_err(wrap)?;
        if let Some(cut) = kept.cut {
            opening.finish_cut(cut)?;
            state
                .append_blocking(vec![Record::CutDone { group }])
                .map_err(wrap)?;
        }
        if !is_known && !opening.segments()?.is_empty() {
            let found = "the state log knows nothing of these segments".to_owned();
            return Err(opening.inconsistent(&dir, found));
        }
        if kept.clean.is_some() {
            // Closed earlier in this run: what was recorded then is no promise for the next run.
            state.append_blocking(vec![Record::Opened]).map_err(wrap)?;
        }
        let mut shape = opening.recover(cfg.initial_roll())?;
        let committed = kept.marks.committed.max(kept.purged).min(shape.last);
        if shape.follow_trims(committed) {
            let start_offset = shape.start_offset;
            let start = Record::Start {
                group,
                start_offset,
            };
            state.append_blocking(vec![start]).map_err(wrap)?;
        }
        let inner = Inner {
            synced_offset: shape.next_offset,
            synced: shape.last,
            shape,
            tail: TailCache::default(),
            queue: Queue::default(),
            vote: kept.vote,
            committed,
            failed: None,
            closed: false,
            stop_waiting: false,
        };
        let inner = Mutex::new(inner);
        let journal = Arc::new(Self {
            io,
            dir: dir.into(),
            group,
            cfg,
            state,
            inner,
            damage,
            room: Notify::new(),
        });
        journal.finish_trim()?;
        Ok(journal)
    }

    /// Row p. Only the files: the control entries go with the next trim or purge.
    fn finish_trim(&self) -> Result<(), OpenError> {
        let has_expired = self.inner.lock().shape.expired() > 0;
        if !has_expired {
            return Ok(());
        }
        for work in self.drop_expired() {
            let done = match work {
                Work::State(records) => self.state.append_blocking(records),
                Work::Disk(act) => act(self),
                _ => Ok(()),
            };
            done.map_err(|source| OpenError::Io {
                path: self.dir.to_path_buf(),
                source,
            })?;
        }
        Ok(())
    }
}

impl Opening<'_> {
    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io {
            path: self.dir.to_owned(),
            source,
        }
    }

    fn inconsistent(&self, path: &Path, found: String) -> OpenError {
        OpenError::Inconsistent {
            path: path.to_owned(),
            found,
        }
    }

    fn missing(&self, from_offset: u64, to_offset: u64) -> OpenError {
        OpenError::Corrupt(BadRange {
            path: self.dir.to_owned(),
            segment_base: from_offset,
            from_byte: 0,
            to_byte: None,
            from_offset,
            to_offset,
            kind: DamageKind::Missing,
            found: "segments are missing".to_owned(),
        })
    }

    /// Rows b to p.
    fn recover(&self, initial_roll: RollSettings) -> Result<Shape, OpenError> {
        let mut segments = self.segments()?;
        segments
            .iter()
            .try_for_each(|segment| self.check_name(&segment.name))?;
        self.check_terms(&segments)?;
        let first_base = segments.first().map(|segment| segment.name.base_offset);
        if let Some(base) = first_base.filter(|base| *base > self.kept.start_offset) {
            return Err(self.missing(self.kept.start_offset, base));
        }
        self.load_marks(&segments)?;
        let must_have = self.must_have(&segments);
        let examined = self.examine(&segments, must_have)?;
        let active = self
            .settle(&mut segments, examined)
            .map_err(|e| self.io(e))?;
        let end = match &active {
            Some(active) => active.walked.next_offset,
            None => first_base.unwrap_or(self.kept.empty_end),
        };
        if end < must_have {
            return Err(self.missing(end, must_have));
        }
        let last_data = active
            .as_ref()
            .and_then(|active| active.walked.last)
            .map(|spot| spot.index);
        self.describe(&segments, active)?;
        let mut shape = Shape {
            controls: self.kept.controls.clone(),
            purged: self.kept.purged,
            next_offset: end,
            start_offset: self.kept.start_offset.max(first_base.unwrap_or(0)),
            last_stamp: segments
                .last()
                .map_or(0, |segment| segment.with(|body| body.last_stamp)),
            segments: segments.into(),
            ..Shape::new(initial_roll)
        };
        shape.terms = end::terms(&shape);
        shape.find_roll();
        self.place_end(&mut shape, last_data)?;
        self.tidy(&shape)?;
        Ok(shape)
    }
}
