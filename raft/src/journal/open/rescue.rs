//! What can be done for a group whose journal does not open because something that was synced is damaged or missing.
//!
//! A rescue changes nothing by itself. It says what is lacking, hands out what is good of it, and offers three ways out:
//! mending from peers ([`Rescue::mends`]); taking the tail back, when a leader's word allows it ([`Rescue::cut_tail`]); and
//! beginning behind what no peer has any more ([`Rescue::move_start`]). After each of them [`Journal::open`] looks anew.
//!
//! Only what keeps the journal from opening is its business: damage in the middle of the log is marked, and mended while
//! the journal is open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::active::{Verdict, judge};
use super::{OpenError, Opening, end};
use crate::disk::{Io, OpenMode};
use crate::journal::damage::{BadRange, Companion, DamageBook, DamageKind, is_lost};
use crate::journal::files::bad_range;
use crate::journal::mend::{Ending, Mend, MendError, Plan, RepairBatch, read_batch};
use crate::journal::places::Places;
use crate::journal::quarantine::{Quarantine, Reason};
use crate::journal::segment::{Segment, SegmentName};
use crate::journal::shape::Shape;
use crate::journal::walk::Walked;
use crate::journal::{JournalConfig, LogPos, RollSettings};
use crate::statelog::{Control, ControlKind, GroupState, PendingCut, Record, StateLog};

/// Why a rescue could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    /// The offset is not inside of what is certain here.
    #[error("offset {offset} is not in {from}..{to}, which is what is certain here")]
    NotCertain {
        /// What was asked for.
        offset: u64,
        /// First certain offset around it.
        from: u64,
        /// Offset after the last certain one.
        to: u64,
    },
    /// The cut would take back what Raft was told to be gone already.
    #[error("a cut at offset {offset} would go below the purged entry {purged}")]
    Purged {
        /// What was asked for.
        offset: u64,
        /// The purged position.
        purged: LogPos,
    },
    /// The files contradict each other.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The disk.
    #[error("rescuing a group")]
    Io(#[from] io::Error),
}

/// Where a log begins anew, from a leader's snapshot.
#[derive(Debug, Clone)]
pub struct StartCut {
    /// The last entry below.
    pub upto: LogPos,
    /// The first offset behind it.
    pub next_offset: u64,
    /// The membership in force.
    pub membership: Option<(LogPos, Bytes)>,
    /// The roll settings in force, if an entry made them.
    pub settings: Option<(LogPos, RollSettings)>,
}

/// A range that has to be there before the journal opens.
struct Gap {
    name: Option<SegmentName>,
    ending: Ending,
    range: BadRange,
}

/// Where a read for a peer stands.
#[derive(Clone, Copy)]
struct Cursor {
    segment_base: u64,
    byte: u64,
    offset: u64,
    /// The index that the batch here may have at least.
    index: u64,
    stamp: u64,
}

/// See the module's text.
pub struct Rescue {
    io: Io,
    dir: Arc<Path>,
    state: Arc<StateLog>,
    group: u64,
    kept: GroupState,
    marks: DamageBook,
    segments: Vec<Arc<Segment>>,
    gaps: Vec<Gap>,
    places: Places,
    cursor: Mutex<Option<Cursor>>,
}

impl std::fmt::Debug for Rescue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rescue")
            .field("group", &self.group)
            .field("gaps", &self.gaps.len())
            .finish_non_exhaustive()
    }
}

impl Rescue {
    /// Looks at a group whose journal did not open. Blocks.
    pub fn open(io: Io, dir: PathBuf, state: Arc<StateLog>, group: u64) -> Result<Self, OpenError> {
        let kept = state.group(group).unwrap_or_default();
        let mut rescue = Self {
            io,
            dir: dir.into(),
            state,
            group,
            kept,
            marks: DamageBook::default(),
            segments: Vec::new(),
            gaps: Vec::new(),
            places: Places::default(),
            cursor: Mutex::default(),
        };
        let segments = rescue.opening().segments()?;
        rescue.opening().load_marks(&segments)?;
        rescue.places = rescue.places_of(&segments);
        rescue.gaps = rescue.find_gaps(&segments)?;
        rescue.segments = segments;
        Ok(rescue)
    }

    fn opening(&self) -> Opening<'_> {
        Opening {
            disk: self.io.disk.as_ref(),
            dir: &self.dir,
            group: self.group,
            kept: &self.kept,
            clean: None,
            damage: &self.marks,
        }
    }

    fn places_of(&self, segments: &[Arc<Segment>]) -> Places {
        let shape = Shape {
            controls: self.kept.controls.clone(),
            purged: self.kept.purged,
            next_offset: self.kept.must_have(),
            segments: segments.iter().cloned().collect(),
            ..Shape::new(JournalConfig::default().initial_roll())
        };
        Places {
            terms: end::terms(&shape),
            controls: shape.controls,
        }
    }

    /// The same looks as opening takes, noting what it refuses.
    fn find_gaps(&self, segments: &[Arc<Segment>]) -> Result<Vec<Gap>, OpenError> {
        let opening = self.opening();
        let cut = self.kept.cut;
        if cut.is_some_and(|cut| cut.whole) {
            return Ok(Vec::new());
        }
        let behind =
            |segment: &Arc<Segment>| cut.is_none_or(|c| segment.name.base_offset < c.offset);
        let segments: Vec<Arc<Segment>> = segments.iter().filter(|s| behind(s)).cloned().collect();
        let must_have = cut.map_or_else(|| opening.must_have(&segments), |cut| cut.offset);
        let log_end = if cut.is_some() {
            Ending::Cut
        } else {
            Ending::Log
        };
        let start = self.kept.start_offset;
        let mut gaps = Vec::new();
        let Some(first) = segments.first().map(|segment| segment.name) else {
            if must_have > start.max(self.empty_end()) {
                gaps.push(self.gap_without_file(start, must_have, log_end));
            }
            return Ok(gaps);
        };
        if first.base_offset > start {
            let ending = Ending::Segment {
                first_index: first.first_index,
            };
            gaps.push(self.gap_without_file(start, first.base_offset, ending));
        }
        let (mut must_have, mut ending) = (must_have, log_end);
        for (n, segment) in segments.iter().enumerate().rev() {
            let walked = self.walk(segment)?;
            if judge(&walked, must_have) == Verdict::Corrupt {
                gaps.push(Gap {
                    name: Some(segment.name),
                    ending,
                    range: bad_range(segment, &walked, must_have),
                });
                break;
            }
            if walked.last.is_some() {
                break;
            }
            if n > 0 {
                must_have = must_have.max(segment.name.base_offset);
                ending = Ending::Segment {
                    first_index: segment.name.first_index,
                };
            }
        }
        Ok(gaps)
    }

    /// Where a log without segments ends.
    fn empty_end(&self) -> u64 {
        match self.kept.start_offset == self.kept.empty_end {
            true => self.kept.empty_end,
            false => self.kept.start_offset,
        }
    }

    fn walk(&self, segment: &Segment) -> Result<Walked, OpenError> {
        let nothing = Walked {
            next_offset: segment.name.base_offset,
            ..Walked::default()
        };
        let opened = self.io.disk.open(&segment.path(), OpenMode::Read);
        match opened {
            Ok(file) => match self.opening().walk_active(segment, file.as_ref()) {
                Ok((walked, _)) => Ok(walked),
                Err(OpenError::Io { source, .. }) if is_lost(&source) => Ok(nothing),
                Err(error) => Err(error),
            },
            Err(error) if is_lost(&error) => Ok(nothing),
            Err(error) => Err(self.opening().io(error)),
        }
    }

    fn gap_without_file(&self, from: u64, to: u64, ending: Ending) -> Gap {
        Gap {
            name: None,
            ending,
            range: BadRange {
                path: self.dir.to_path_buf(),
                segment_base: from,
                from_byte: 0,
                to_byte: None,
                from_offset: from,
                to_offset: to,
                kind: DamageKind::Missing,
                found: "segments are missing".to_owned(),
            },
        }
    }

    /// What keeps the journal from opening, and what is marked besides.
    pub fn damage(&self) -> Vec<BadRange> {
        let gaps = self.gaps.iter().map(|gap| gap.range.clone());
        let marked = self.marks.all();
        let others = marked.into_iter().filter(|range| {
            let same = |gap: &Gap| gap.range.holds(range.from_offset);
            !self.gaps.iter().any(same)
        });
        let mut all: Vec<BadRange> = gaps.chain(others).collect();
        all.sort_by_key(|range| range.from_offset);
        all
    }

    /// First kept offset, as the state log has it.
    pub fn start_offset(&self) -> u64 {
        self.kept.start_offset
    }

    /// Offset below which everything was synced here.
    pub fn end_offset(&self) -> u64 {
        self.kept.must_have()
    }

    /// Begins a mend for each gap. Blocks; reads the damaged segments.
    pub fn mends(&self) -> Result<Vec<Mend>, MendError> {
        self.gaps.iter().map(|gap| self.mend(gap)).collect()
    }

    fn mend(&self, gap: &Gap) -> Result<Mend, MendError> {
        let base = gap
            .name
            .map_or(gap.range.from_offset, |name| name.base_offset);
        let first_index = match gap.name {
            Some(name) => Some(name.first_index),
            None => self.first_index_of_log(base),
        };
        let marks = self.marks.of_segment(base);
        let plan = Plan {
            disk: Arc::clone(&self.io.disk),
            dir: Arc::clone(&self.dir),
            group: self.group,
            name: gap.name,
            base,
            may_begin_below: gap.name.is_none() && base > 0,
            first_index,
            end: gap.range.to_offset,
            ending: gap.ending,
            places: self.places.clone(),
            trusted: marks.iter().all(|range| range.kind != DamageKind::Foreign),
        };
        Mend::begin(plan, None)
    }

    /// The index of the first batch, if the log's very first entry is still known.
    fn first_index_of_log(&self, base: u64) -> Option<u64> {
        let first = self.kept.controls.iter().next();
        let known = base == 0 && self.kept.purged.is_none();
        first
            .filter(|(_, control)| known && control.offset == 0)
            .map(|(index, _)| *index)
    }

    /// Whole batches from the one that holds `from_offset` on, for a peer: at least one if there is one, as many as
    /// `max_bytes` allow. Only of pieces whose indexes are certain. Blocks.
    pub fn read(&self, from_offset: u64, max_bytes: u64) -> Result<Vec<RepairBatch>, RescueError> {
        let mut out: Vec<RepairBatch> = Vec::new();
        let (mut at, mut left) = (from_offset, max_bytes);
        while let Some(segment) = self.segment_of(at) {
            let before = out.len();
            self.read_segment(segment, at, &mut left, &mut out)?;
            let Some(last) = out.last().filter(|_| out.len() > before && left > 0) else {
                break;
            };
            at = last.batch.next_offset();
        }
        if out.is_empty() {
            let from = self
                .segment_of(from_offset)
                .map_or(from_offset, |s| s.name.base_offset);
            let to = self.cursor.lock().map_or(from, |cursor| cursor.offset);
            return Err(RescueError::NotCertain {
                offset: from_offset,
                from,
                to,
            });
        }
        Ok(out)
    }

    fn segment_of(&self, offset: u64) -> Option<&Arc<Segment>> {
        let behind = self
            .segments
            .partition_point(|segment| segment.name.base_offset <= offset);
        self.segments.get(behind.checked_sub(1)?)
    }

    fn begin_of(segment: &Segment) -> Cursor {
        Cursor {
            segment_base: segment.name.base_offset,
            byte: 0,
            offset: segment.name.base_offset,
            index: segment.name.first_index,
            stamp: 0,
        }
    }

    /// Walks with the full check from the last place known on, and takes what lies at or behind `from`.
    fn read_segment(
        &self,
        segment: &Segment,
        from: u64,
        left: &mut u64,
        out: &mut Vec<RepairBatch>,
    ) -> Result<(), RescueError> {
        let known = *self.cursor.lock();
        let known =
            known.filter(|c| c.segment_base == segment.name.base_offset && c.offset <= from);
        let mut cursor = known.unwrap_or_else(|| Self::begin_of(segment));
        let file = match self.io.disk.open(&segment.path(), OpenMode::Read) {
            Ok(file) => file,
            Err(error) if is_lost(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        loop {
            *self.cursor.lock() = Some(cursor);
            let batch = match read_batch(file.as_ref(), cursor.byte, self.group) {
                Ok(Ok(batch)) => batch,
                Ok(Err(_)) => return Ok(()),
                Err(error) if is_lost(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let follows = batch.verify_chain(cursor.offset, cursor.stamp).is_ok();
            let marked = self.marks.at(cursor.offset).is_some();
            let place = self.places.of(cursor.index, cursor.offset);
            let Ok(pos) = place
                .map_err(drop)
                .and_then(|pos| match follows && !marked {
                    true => Ok(pos),
                    false => Err(()),
                })
            else {
                return Ok(());
            };
            if batch.next_offset() > from {
                if !out.is_empty() && batch.len() > *left {
                    *left = 0;
                    return Ok(());
                }
                *left = left.saturating_sub(batch.len());
                out.push(RepairBatch {
                    pos,
                    segment_base: segment.name.base_offset,
                    batch: batch.clone(),
                });
            }
            cursor.byte += batch.len();
            cursor.offset = batch.next_offset();
            cursor.index = pos.index + 1;
            cursor.stamp = batch.base_timestamp();
        }
    }

    /// Drops everything from an offset on, which has to be the end of a certain batch. Only when a leader's word allows it:
    /// what was acknowledged may be among it. The bytes are set aside. Blocks.
    pub fn cut_tail(self, offset: u64) -> Result<(), RescueError> {
        let first = self.segments.first();
        let mut index = first.map_or(0, |segment| segment.name.first_index);
        let mut byte = 0;
        if first.is_none_or(|segment| segment.name.base_offset < offset) {
            let end = self.certain_end(offset)?;
            (index, byte) = (end.index, end.byte);
        }
        // Control entries that stand right at the cut stay: nothing of them is damaged.
        while self
            .kept
            .controls
            .get(&index)
            .is_some_and(|c| c.offset <= offset)
        {
            index += 1;
        }
        if let Some(purged) = self.kept.purged.filter(|purged| purged.index >= index) {
            return Err(RescueError::Purged { offset, purged });
        }
        self.set_tail_aside(offset, byte)?;
        let cut = PendingCut {
            offset,
            whole: false,
        };
        let group = self.group;
        self.state.append_blocking(vec![Record::CutBegin {
            group,
            from_index: index,
            cut,
            purged: None,
        }])?;
        self.state.note_synced(group, offset);
        self.opening().finish_cut(cut)?;
        self.state
            .append_blocking(vec![Record::CutDone { group }])?;
        Ok(())
    }

    /// The place right behind the certain batch that ends at an offset.
    fn certain_end(&self, offset: u64) -> Result<Cursor, RescueError> {
        let last = offset.saturating_sub(1);
        let nowhere = |from, to| RescueError::NotCertain { offset, from, to };
        let segment = self
            .segment_of(last)
            .ok_or_else(|| nowhere(offset, offset))?;
        *self.cursor.lock() = None;
        let mut out = Vec::new();
        self.read_segment(segment, last, &mut 0, &mut out)?;
        let reached = *self.cursor.lock();
        let reached = reached.unwrap_or_else(|| Self::begin_of(segment));
        match out.first() {
            Some(placed) if placed.batch.next_offset() == offset => Ok(Cursor {
                index: placed.pos.index + 1,
                offset,
                ..reached
            }),
            _ => Err(nowhere(segment.name.base_offset, reached.offset)),
        }
    }

    fn set_tail_aside(&self, offset: u64, byte: u64) -> io::Result<()> {
        let disk = self.io.disk.as_ref();
        let quarantine = Quarantine::of(disk, &self.dir, self.group)?;
        for segment in &self.segments {
            let holds = self.segment_of(offset.saturating_sub(1));
            let cut_here = holds.is_some_and(|holds| Arc::ptr_eq(holds, segment));
            let from = match (segment.name.base_offset >= offset, cut_here) {
                (true, _) => 0,
                (false, true) => byte,
                (false, false) => continue,
            };
            let path = segment.path();
            let file = match disk.open(&path, OpenMode::Read) {
                Ok(file) => file,
                Err(error) if is_lost(&error) => continue,
                Err(error) => return Err(error),
            };
            let len = file.len()?;
            if from < len {
                quarantine.copy(Reason::CutByLeader, &path, file.as_ref(), from..len)?;
            }
        }
        Ok(())
    }

    /// Begins behind a leader's cut, when no peer has what is missing any more because all begin above it. What is here is
    /// set aside. Blocks.
    pub fn move_start(self, cut: StartCut) -> Result<(), RescueError> {
        let group = self.group;
        let whole = PendingCut {
            offset: cut.next_offset,
            whole: true,
        };
        let mut records = vec![Record::CutBegin {
            group,
            from_index: 0,
            cut: whole,
            purged: Some(cut.upto),
        }];
        let membership = cut
            .membership
            .map(|(pos, bytes)| (pos, ControlKind::Membership(bytes)));
        let settings = cut
            .settings
            .map(|(pos, settings)| (pos, ControlKind::Settings(settings)));
        let controls = membership.into_iter().chain(settings);
        records.extend(controls.map(|(pos, kind)| Record::Control {
            group,
            index: pos.index,
            control: Control {
                term: pos.term,
                offset: cut.next_offset,
                kind,
            },
        }));
        self.state.append_blocking(records)?;
        self.state.note_synced(group, cut.next_offset);
        let disk = self.io.disk.as_ref();
        let quarantine = Quarantine::of(disk, &self.dir, group)?;
        for segment in self.segments.iter().rev() {
            let path = segment.path();
            Companion::remove_all(disk, &path)?;
            quarantine.take(Reason::BelowStart, &path)?;
        }
        self.opening().finish_cut(whole)?;
        self.state
            .append_blocking(vec![Record::CutDone { group }])?;
        Ok(())
    }
}
