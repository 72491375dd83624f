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
//! | q | segments of a group that the state log knows nothing of | inconsistent: without votes and control entries they are no log |

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::config::{BadRange, JournalConfig, OpenError};
use super::files::bad_range;
use super::segment::{Segment, SegmentName};
use super::shape::{Shape, TermStart};
use super::tail::TailCache;
use super::walk::{Check, Walked, Window, last_nonzero, walk_segment};
use super::writer::{Queue, Work};
use super::{Inner, Journal, LogPos, RollSettings};
use crate::disk::{self, Disk, DiskFile, Io, OpenMode};
use crate::statelog::{CleanStop, GroupState, PendingCut, Record, StateLog};

/// Everything that opening looks at.
struct Opening<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    group: u64,
    kept: &'a GroupState,
    clean: Option<CleanStop>,
}

/// What follows from a walk over the active segment; see the table.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Torn,
    Corrupt,
}

fn judge(walked: &Walked, must_have: u64) -> Verdict {
    match (walked.next_offset >= must_have, &walked.bad) {
        (true, None) => Verdict::Good,
        (true, Some(_)) => Verdict::Torn,
        (false, _) => Verdict::Corrupt,
    }
}

/// The active segment after recovery.
struct Active {
    walked: Walked,
    file: Arc<dyn DiskFile>,
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
        let opening = Opening {
            disk: disk.as_ref(),
            dir: &dir,
            group,
            kept: &kept,
            clean,
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
        let shape = opening.recover(cfg.initial_roll())?;
        let committed = kept.marks.committed.min(shape.last);
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
        };
        let inner = Mutex::new(inner);
        let journal = Arc::new(Self {
            io,
            dir: dir.into(),
            group,
            cfg,
            state,
            inner,
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
        let found = "segments are missing".to_owned();
        OpenError::Corrupt(BadRange {
            path: self.dir.to_owned(),
            from_byte: 0,
            from_offset,
            to_offset,
            found,
        })
    }

    /// The segments by their names, in order.
    fn segments(&self) -> Result<Vec<Arc<Segment>>, OpenError> {
        let names = self.disk.list(self.dir).map_err(|e| self.io(e))?;
        let mut found: Vec<SegmentName> = names
            .iter()
            .filter_map(|name| SegmentName::parse(name))
            .collect();
        found.sort_unstable();
        for pair in found.windows(2) {
            let [before, after] = pair else { continue };
            let rises =
                before.base_offset < after.base_offset && before.first_index < after.first_index;
            if !rises || before.term > after.term {
                let path = self.dir.join(after.file_name());
                return Err(
                    self.inconsistent(&path, format!("does not follow {}", before.file_name()))
                );
            }
        }
        let dir: Arc<Path> = self.dir.into();
        Ok(found
            .into_iter()
            .map(|name| Arc::new(Segment::new(&dir, name)))
            .collect())
    }

    /// Whether a segment's name fits between the control entries around its first batch.
    fn check_name(&self, name: &SegmentName) -> Result<(), OpenError> {
        let controls = &self.kept.controls;
        let before = controls.range(..name.first_index).next_back();
        let behind = controls.range(name.first_index..).next();
        let fits_before =
            before.is_none_or(|(_, c)| c.offset <= name.base_offset && c.term <= name.term);
        let fits_behind = behind.is_none_or(|(index, c)| {
            *index > name.first_index && c.offset > name.base_offset && c.term >= name.term
        });
        if fits_before && fits_behind {
            return Ok(());
        }
        let found = "does not fit between the control entries".to_owned();
        Err(self.inconsistent(&self.dir.join(name.file_name()), found))
    }

    /// Rows b to p.
    fn recover(&self, initial_roll: RollSettings) -> Result<Shape, OpenError> {
        let mut segments = self.segments()?;
        segments
            .iter()
            .try_for_each(|segment| self.check_name(&segment.name))?;
        let first_base = segments.first().map(|segment| segment.name.base_offset);
        if let Some(base) = first_base.filter(|base| *base > self.kept.start_offset) {
            return Err(self.missing(self.kept.start_offset, base));
        }
        let active = self.recover_active(&mut segments)?;
        let end = match &active {
            Some(active) => active.walked.next_offset,
            None => first_base.unwrap_or(self.kept.empty_end),
        };
        if end < self.kept.must_have() {
            return Err(self.missing(end, self.kept.must_have()));
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
        shape.terms = terms(&shape);
        shape.find_roll();
        self.place_end(&mut shape, last_data)?;
        Ok(shape)
    }

    /// Walks the last segment, removing those at the end that hold nothing. `None` if no segment is left.
    fn recover_active(
        &self,
        segments: &mut Vec<Arc<Segment>>,
    ) -> Result<Option<Active>, OpenError> {
        let mut must_have = self.kept.must_have();
        while let Some(segment) = segments.last().cloned() {
            let file = self
                .disk
                .open(&segment.path(), OpenMode::Write)
                .map_err(|e| self.io(e))?;
            let (walked, trusted) = self.walk_active(&segment, file.as_ref())?;
            let base = segment.name.base_offset;
            match judge(&walked, must_have) {
                Verdict::Corrupt => {
                    return Err(OpenError::Corrupt(bad_range(&segment, &walked, must_have)));
                }
                Verdict::Torn => self
                    .cut_torn(&segment, file.as_ref(), &walked)
                    .map_err(|e| self.io(e))?,
                Verdict::Good => {}
            }
            if walked.last.is_some() {
                if !trusted {
                    // What a killed process wrote may still be in the page cache only.
                    file.sync_all()
                        .and_then(|()| self.disk.sync_dir(self.dir))
                        .map_err(|e| self.io(e))?;
                }
                return Ok(Some(Active { walked, file }));
            }
            self.disk
                .remove_file(&segment.path())
                .map_err(|e| self.io(e))?;
            self.disk.sync_dir(self.dir).map_err(|e| self.io(e))?;
            segments.pop();
            if !segments.is_empty() {
                must_have = must_have.max(base);
            }
        }
        Ok(None)
    }

    /// Walks by headers if a clean stop says where the end is and it is there, else with the full check.
    fn walk_active(
        &self,
        segment: &Segment,
        file: &dyn DiskFile,
    ) -> Result<(Walked, bool), OpenError> {
        let first = (segment.name.first_index, segment.name.base_offset);
        let index_of = |from: u64, offset: u64| self.index_of(from, offset);
        let walk =
            |check| walk_segment(file, self.group, first, check, &index_of).map_err(|e| self.io(e));
        if let Some(stop) = self
            .clean
            .filter(|stop| stop.segment == segment.name.base_offset)
        {
            let walked = walk(Check::Headers)?;
            if walked.bad.is_none()
                && (walked.end, walked.next_offset) == (stop.len, stop.next_offset)
            {
                return Ok((walked, true));
            }
        }
        Ok((walk(Check::Full)?, false))
    }

    /// The index of the data batch at `offset`, from the first index that it may have: control entries come before it.
    fn index_of(&self, from: u64, offset: u64) -> Result<u64, String> {
        let mut index = from;
        for (at, control) in self.kept.controls.range(from..) {
            let in_place = *at == index && control.offset == offset;
            if in_place {
                index += 1;
                continue;
            }
            if *at == index || control.offset <= offset {
                let found = format!("control entry {at} stands at offset {}", control.offset);
                return Err(format!("{found}, data of index {index} at {offset}"));
            }
            break;
        }
        Ok(index)
    }

    /// Row c.
    fn cut_torn(&self, segment: &Segment, file: &dyn DiskFile, walked: &Walked) -> io::Result<()> {
        let file_len = file.len()?;
        let end = last_nonzero(&mut Window::new(file), walked.end, file_len)?.unwrap_or(walked.end);
        tracing::warn!(
            path = %segment.path().display(), from = walked.end, to = end, bad = ?walked.bad,
            "a torn tail is cut off and kept in quarantine"
        );
        self.quarantine(segment, file, walked.end, end)?;
        file.set_len(walked.end)?;
        file.sync_all()
    }

    fn quarantine(
        &self,
        segment: &Segment,
        file: &dyn DiskFile,
        from: u64,
        to: u64,
    ) -> io::Result<()> {
        let quarantine = quarantine_dir(self.dir)?;
        self.disk.create_dir_all(&quarantine)?;
        let count = self.disk.list(&quarantine)?.len();
        let name = format!(
            "{count:06}-group-{:020}-{}-at-{from}",
            self.group,
            segment.name.file_name()
        );
        let aside = self
            .disk
            .open(&quarantine.join(name), OpenMode::CreateNew)?;
        let mut window = Window::new(file);
        let mut at = from;
        while at < to {
            let len = usize::try_from((to - at).min(256 << 10)).unwrap_or(256 << 10);
            let bytes = window.get(at, len, len)?;
            aside.write_all_at(&[bytes], at - from)?;
            at += len as u64;
        }
        aside.sync_all()?;
        self.disk.sync_dir(&quarantine)
    }

    /// Notes what is known of each segment.
    fn describe(&self, segments: &[Arc<Segment>], active: Option<Active>) -> Result<(), OpenError> {
        let Some((last, sealed)) = segments.split_last() else {
            return Ok(());
        };
        for segment in sealed {
            let len = self
                .disk
                .file_len(&segment.path())
                .map_err(|e| self.io(e))?;
            segment.with(|body| (body.len, body.sealed) = (len, true));
        }
        let Some(Active { walked, file }) = active else {
            return Ok(());
        };
        let file_len = file.len().map_err(|e| self.io(e))?;
        {
            let mut extent = last.extent.lock();
            (extent.frontier, extent.zeroed_end) = (walked.end, file_len.max(walked.end));
        }
        last.with(|body| {
            body.len = walked.end;
            body.first_stamp = walked.first_stamp;
            body.last_stamp = walked.last.map_or(0, |spot| spot.stamp);
            body.index = Some(walked.index);
            body.file = Some(file);
        });
        Ok(())
    }

    /// Finds the last entry: rows j, l and m.
    fn place_end(&self, shape: &mut Shape, last_data: Option<u64>) -> Result<(), OpenError> {
        let purged = shape.purged.map(|pos| pos.index);
        let first_control = || shape.controls.keys().next().copied();
        let begin = last_data
            .or(purged)
            .map(|index| index + 1)
            .or_else(first_control);
        let mut next = begin.unwrap_or(0);
        let mut jump = None;
        for (index, control) in shape.controls.range(next..) {
            if *index != next {
                if purged.is_none_or(|purged| index - 1 > purged) {
                    return Err(
                        self.inconsistent(self.dir, format!("entries {next}..{index} are missing"))
                    );
                }
                jump = Some(index - 1);
            }
            if control.offset != shape.next_offset {
                let found = format!("control entry {index} stands at offset {}", control.offset);
                return Err(self.inconsistent(
                    self.dir,
                    format!("{found}, the log ends at {}", shape.next_offset),
                ));
            }
            next = index + 1;
        }
        if let Some(purged) = purged.filter(|purged| *purged >= next) {
            jump = Some(purged);
            next = purged + 1;
        }
        shape.jump = jump.filter(|_| last_data.is_some());
        let last = begin.and_then(|_| next.checked_sub(1));
        shape.last = last.map(
            |index| match shape.purged.filter(|purged| purged.index == index) {
                Some(purged) => purged,
                None => LogPos {
                    term: shape.term_of(index),
                    index,
                },
            },
        );
        Ok(())
    }

    /// Row a. Finds the cut by walking, since nothing is known of the segments yet.
    fn finish_cut(&self, cut: PendingCut) -> Result<(), OpenError> {
        let segments = self.segments()?;
        let (kept, gone): (Vec<_>, Vec<_>) = segments
            .iter()
            .partition(|segment| !cut.whole && segment.name.base_offset < cut.offset);
        for segment in gone.iter().rev() {
            self.disk
                .remove_file(&segment.path())
                .map_err(|e| self.io(e))?;
        }
        self.disk.sync_dir(self.dir).map_err(|e| self.io(e))?;
        let Some(segment) = kept.last() else {
            return Ok(());
        };
        let file = self
            .disk
            .open(&segment.path(), OpenMode::Write)
            .map_err(|e| self.io(e))?;
        let mut pos = 0;
        let mut offset = segment.name.base_offset;
        let mut window = Window::new(file.as_ref());
        while offset < cut.offset {
            let bytes = window
                .get(pos, imprint_proto::batch::HEADER_LEN, 16 << 10)
                .map_err(|e| self.io(e))?;
            let header = imprint_proto::batch::BatchHeader::decode_checked(bytes)
                .and_then(|header| header.verify_chain(offset, 0).map(|()| header))
                .map_err(|e| {
                    let path = segment.path();
                    let found = e.to_string();
                    let range = BadRange {
                        path,
                        from_byte: pos,
                        from_offset: offset,
                        to_offset: cut.offset,
                        found,
                    };
                    OpenError::Corrupt(range)
                })?;
            pos += header.batch_length;
            offset = header.next_offset().unwrap_or(u64::MAX);
        }
        file.set_len(pos)
            .and_then(|()| file.sync_all())
            .map_err(|e| self.io(e))
    }
}

/// `quarantine/` of the data directory that holds `groups/<id>`.
fn quarantine_dir(dir: &Path) -> io::Result<PathBuf> {
    Ok(disk::parent(disk::parent(dir)?)?.join("quarantine"))
}

/// The changes of term that control entries, segment names and the purged position tell of.
fn terms(shape: &Shape) -> Vec<TermStart> {
    let controls = shape.controls.iter();
    let mut all: Vec<_> = controls
        .map(|(i, c)| TermStart {
            term: c.term,
            index: *i,
            offset: c.offset,
        })
        .collect();
    all.extend(shape.segments.iter().map(|segment| {
        let SegmentName {
            base_offset: offset,
            first_index: index,
            term,
        } = segment.name;
        TermStart {
            term,
            index,
            offset,
        }
    }));
    all.extend(shape.purged.map(|pos| {
        let behind = shape
            .segments
            .iter()
            .find(|segment| segment.name.first_index > pos.index);
        let offset = behind.map_or(shape.next_offset, |segment| segment.name.base_offset);
        TermStart {
            term: pos.term,
            index: pos.index,
            offset,
        }
    }));
    all.sort_unstable_by_key(|start| (start.index, start.term));
    let mut rising: Vec<TermStart> = Vec::new();
    for start in all {
        if rising.last().is_none_or(|last| last.term < start.term) {
            rising.push(start);
        }
    }
    rising
}
