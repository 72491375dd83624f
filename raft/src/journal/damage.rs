//! What a journal knows to be damaged: marks in memory, and a file beside each segment that has some.
//!
//! # What does a mark do?
//!
//! Reads inside a marked range fail at once and name it; reads around it go on. A mark is made by whoever finds damage (a
//! reader, a lookup, a check) through [`Journal::judged`] or [`Journal::mark`], never elsewhere, and goes when the segment
//! was mended, or when a full check finds it good. Marks outlive a restart as `NAME.seg.damaged`. Losing that file costs
//! only the time until the damage is found again.
//!
//! Ranges are kept by offset: what is damaged is asked of a peer in that form. Bytes are noted as far as they are known.
//!
//! It must not know who repairs what, or when.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use imprint_proto::envelope;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::config::ReadError;
use super::segment::{Segment, SegmentName};
use super::{Journal, survey};
use crate::disk::{self, Cooling, Disk};

/// In which way a range is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// The bytes are not a valid batch in its place.
    Bytes,
    /// Valid batches, but not those that were sealed: an older copy, or another log's. Nothing of the segment is trusted.
    Foreign,
    /// The file, or its end, is not there.
    Missing,
    /// The disk does not give it back.
    Unreadable,
}

impl DamageKind {
    fn number(self) -> u8 {
        match self {
            Self::Bytes => 1,
            Self::Foreign => 2,
            Self::Missing => 3,
            Self::Unreadable => 4,
        }
    }

    fn from_number(number: u8) -> Self {
        match number {
            2 => Self::Foreign,
            3 => Self::Missing,
            4 => Self::Unreadable,
            _ => Self::Bytes,
        }
    }
}

/// A range of a segment that is not what it was when it was synced. Kept in this form so that it can be asked of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRange {
    /// The segment's file; the group's directory if whole segments are missing.
    pub path: PathBuf,
    /// First offset of the segment; of what is missing if there is none.
    pub segment_base: u64,
    /// First bad byte.
    pub from_byte: u64,
    /// First good byte behind, if there is one and it was found.
    pub to_byte: Option<u64>,
    /// First offset that is not readable.
    pub from_offset: u64,
    /// First offset behind that need not be fetched: at least up to here everything was synced.
    pub to_offset: u64,
    /// In which way it is bad.
    pub kind: DamageKind,
    /// What was found there.
    pub found: String,
}

impl BadRange {
    /// Whether an offset lies in it.
    pub fn holds(&self, offset: u64) -> bool {
        (self.from_offset..self.to_offset).contains(&offset)
    }
}

imprint_proto::envelope! {
    /// One range in a mark file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct RangeRecord: version 1, compat 0 {
        from_byte: u64,
        to_byte: Option<u64>,
        from_offset: u64,
        to_offset: u64,
        kind: u8,
        found: String,
    }
}

imprint_proto::envelope! {
    /// A mark file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct DamageRecord: version 1, compat 0 {
        group: u64,
        ranges: Vec<RangeRecord>,
    }
}

impl RangeRecord {
    /// In which way the range is bad.
    pub fn kind(&self) -> DamageKind {
        DamageKind::from_number(self.kind)
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Foreign => "foreign",
            Self::Missing => "missing",
            Self::Unreadable => "unreadable",
        })
    }
}

/// A file beside a segment that says something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Companion {
    /// What the segment held when it was sealed.
    Digest,
    /// Its marks.
    Damaged,
    /// A segment that is being put together.
    Mend,
    /// Anything of these that was being written.
    Unfinished,
}

impl Companion {
    /// From a file name; `None` if it belongs to no segment.
    pub fn parse(name: &str) -> Option<(SegmentName, Self)> {
        let (name, unfinished) = match name.strip_suffix(".new") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let (segment, suffix) = name.rsplit_once('.')?;
        let kind = match suffix {
            "digest" => Self::Digest,
            "damaged" => Self::Damaged,
            "mend" => Self::Mend,
            _ => return None,
        };
        let segment = SegmentName::parse(segment)?;
        Some((segment, if unfinished { Self::Unfinished } else { kind }))
    }

    /// The file beside a segment's.
    pub fn path(self, segment: &Path) -> PathBuf {
        let suffix = match self {
            Self::Digest => ".digest",
            Self::Damaged => ".damaged",
            Self::Mend => ".mend",
            Self::Unfinished => ".new",
        };
        let mut path = segment.as_os_str().to_owned();
        path.push(suffix);
        PathBuf::from(path)
    }

    /// Removes it if it is there. The caller syncs the directory.
    pub fn remove(self, disk: &dyn Disk, segment: &Path) -> io::Result<()> {
        let path = self.path(segment);
        if disk.exists(&path)? {
            disk.remove_file(&path)?;
        }
        Ok(())
    }

    /// Removes what says something about a segment that goes. The caller syncs the directory.
    pub fn remove_all(disk: &dyn Disk, segment: &Path) -> io::Result<()> {
        Self::Digest.remove(disk, segment)?;
        Self::Damaged.remove(disk, segment)
    }
}

/// All marks of a journal, by the base offset of their segment.
#[derive(Debug)]
pub(super) struct DamageBook {
    marks: Mutex<BTreeMap<u64, Vec<BadRange>>>,
    /// Whether there are any: reads ask this first.
    any: AtomicBool,
    changes: watch::Sender<u64>,
    /// One mark file is written at a time.
    writing: Mutex<()>,
}

impl Default for DamageBook {
    fn default() -> Self {
        Self {
            marks: Mutex::default(),
            any: AtomicBool::new(false),
            changes: watch::Sender::new(0),
            writing: Mutex::default(),
        }
    }
}

impl DamageBook {
    /// All ranges, in order.
    pub fn all(&self) -> Vec<BadRange> {
        self.marks.lock().values().flatten().cloned().collect()
    }

    /// The ranges of one segment, in order.
    pub fn of_segment(&self, base_offset: u64) -> Vec<BadRange> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.marks
            .lock()
            .get(&base_offset)
            .cloned()
            .unwrap_or_default()
    }

    /// The range that holds an offset.
    pub fn at(&self, offset: u64) -> Option<BadRange> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let marks = self.marks.lock();
        marks
            .values()
            .flatten()
            .find(|range| range.holds(offset))
            .cloned()
    }

    /// The offset at which the next range at or behind `offset` begins.
    pub fn next_from(&self, offset: u64) -> u64 {
        if !self.any.load(Ordering::Acquire) {
            return u64::MAX;
        }
        let marks = self.marks.lock();
        let starts = marks.values().flatten();
        let behind =
            starts.filter(|range| range.to_offset > offset && range.from_offset < range.to_offset);
        behind
            .map(|range| range.from_offset)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// The base of the next segment above `base_offset` that has marks; it may be missing.
    pub fn next_base(&self, base_offset: u64) -> u64 {
        if !self.any.load(Ordering::Acquire) {
            return u64::MAX;
        }
        let marks = self.marks.lock();
        let behind = (
            std::ops::Bound::Excluded(base_offset),
            std::ops::Bound::Unbounded,
        );
        let next = marks.range(behind).next();
        next.map_or(u64::MAX, |(base, _)| *base)
    }

    /// The last place in a segment at or before `offset` that follows on a range: offset and byte.
    pub fn resume_before(&self, base_offset: u64, offset: u64) -> Option<(u64, u64)> {
        let ranges = self.of_segment(base_offset);
        let mut resumed = ranges
            .iter()
            .filter(|range| range.to_offset <= offset)
            .filter_map(|range| Some((range.to_offset, range.to_byte?)));
        resumed.next_back()
    }

    /// Replaces the ranges of one segment. Says whether anything changed.
    pub fn set(&self, base_offset: u64, ranges: Vec<BadRange>) -> bool {
        {
            let mut marks = self.marks.lock();
            let before = if ranges.is_empty() {
                marks.remove(&base_offset)
            } else {
                marks.insert(base_offset, ranges.clone())
            };
            self.any.store(!marks.is_empty(), Ordering::Release);
            if before.unwrap_or_default() == ranges {
                return false;
            }
        }
        self.changes.send_modify(|count| *count += 1);
        true
    }

    /// Forgets everything from an offset on, and what began before ends there.
    pub fn cut(&self, offset: u64) -> Vec<u64> {
        let bases: Vec<u64> = self.marks.lock().keys().copied().collect();
        let mut changed = Vec::new();
        for base in bases {
            let mut ranges = self.of_segment(base);
            ranges.retain(|range| base < offset && range.from_offset < offset);
            for range in &mut ranges {
                range.to_offset = range.to_offset.min(offset);
            }
            if self.set(base, ranges) {
                changed.push(base);
            }
        }
        changed
    }

    /// Reads a mark file. One that can't be read marks the whole segment: a check tells what is true of it.
    pub fn load(disk: &dyn Disk, segment: &Path, name: SegmentName, group: u64) -> Vec<BadRange> {
        let path = Companion::Damaged.path(segment);
        let range = |record: RangeRecord| BadRange {
            path: segment.to_owned(),
            segment_base: name.base_offset,
            from_byte: record.from_byte,
            to_byte: record.to_byte,
            from_offset: record.from_offset,
            to_offset: record.to_offset,
            kind: DamageKind::from_number(record.kind),
            found: record.found,
        };
        let read = disk::read_file(disk, &path).map_err(|e| e.to_string());
        let decoded = read.and_then(|bytes| {
            envelope::decode_checked::<DamageRecord>(bytes.into()).map_err(|e| e.to_string())
        });
        match decoded {
            Ok(record) if record.group == group => record.ranges.into_iter().map(range).collect(),
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::warn!(path = %path.display(), error, "a mark of damage can't be read: the whole segment is taken as damaged");
                vec![range(RangeRecord {
                    from_byte: 0,
                    to_byte: None,
                    from_offset: name.base_offset,
                    to_offset: u64::MAX,
                    kind: DamageKind::Bytes.number(),
                    found: format!("its mark of damage can't be read: {error}"),
                })]
            }
        }
    }

    /// Writes a segment's mark file as the book has it now, or removes it.
    pub fn save(
        &self,
        disk: &dyn Disk,
        segment: &Path,
        base_offset: u64,
        group: u64,
    ) -> io::Result<()> {
        let _one = self.writing.lock();
        let ranges = self.of_segment(base_offset);
        let path = Companion::Damaged.path(segment);
        if ranges.is_empty() {
            if disk.exists(&path)? {
                disk.remove_file(&path)?;
                disk.sync_dir(disk::parent(&path)?)?;
            }
            return Ok(());
        }
        let ranges = ranges.into_iter().map(|range| RangeRecord {
            from_byte: range.from_byte,
            to_byte: range.to_byte,
            from_offset: range.from_offset,
            to_offset: range.to_offset,
            kind: range.kind.number(),
            found: range.found,
        });
        let record = DamageRecord {
            group,
            ranges: ranges.collect(),
        };
        disk::replace_file(disk, &path, &[&envelope::encode_checked(&record)])
    }
}

/// Whether an error says that the medium or the file is bad, not that the process lacks something for the moment.
pub(super) fn is_lost(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    const EBADMSG: i32 = 74;
    const EUCLEAN: i32 = 117;
    let by_number = matches!(error.raw_os_error(), Some(EIO | EBADMSG | EUCLEAN));
    let by_kind = matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotFound
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
    );
    by_number || by_kind
}

/// What an error says about a segment's file.
pub(super) fn lost_range(segment: &Segment, end_offset: u64, error: &io::Error) -> BadRange {
    let kind = if error.kind() == io::ErrorKind::NotFound {
        DamageKind::Missing
    } else {
        DamageKind::Unreadable
    };
    BadRange {
        path: segment.path(),
        segment_base: segment.name.base_offset,
        from_byte: 0,
        to_byte: None,
        from_offset: segment.name.base_offset,
        to_offset: end_offset,
        kind,
        found: error.to_string(),
    }
}

impl Journal {
    /// All ranges known to be damaged, in order.
    pub fn damage(&self) -> Vec<BadRange> {
        self.damage.all()
    }

    /// Whether any range is.
    pub fn is_damaged(&self) -> bool {
        self.damage.any.load(Ordering::Acquire)
    }

    /// Changes with every change of [`Journal::damage`].
    pub fn watch_damage(&self) -> watch::Receiver<u64> {
        self.damage.changes.subscribe()
    }

    /// Where a segment ends: at the next one, also if that is known to be missing.
    pub(super) fn sealed_end(&self, segment: &Segment) -> u64 {
        let end = self.inner.lock().shape.end_of(segment);
        end.min(self.damage.next_base(segment.name.base_offset))
    }

    /// What follows from a failed access to a segment: damage is marked, and the error names the mark. An error that a cut or
    /// a trim explains is passed on as it is; `cuts` is the count from before the access.
    pub(super) fn judged<T>(
        &self,
        segment: &Arc<Segment>,
        cuts: u64,
        result: Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let end_offset = {
            let inner = self.inner.lock();
            let shape = &inner.shape;
            let there = shape.segments.iter().any(|s| Arc::ptr_eq(s, segment));
            if shape.cuts != cuts || !there {
                return Err(error);
            }
            inner.disk_end(segment)
        };
        let range = match error {
            ReadError::Corrupt(range) => range,
            ReadError::Io(error) if is_lost(&error) => lost_range(segment, end_offset, &error),
            other => return Err(other),
        };
        Err(ReadError::Corrupt(self.mark(segment, end_offset, range)))
    }

    /// Marks what a survey of the segment finds; nothing if it is good by now. Returns the mark that covers the
    /// range's begin; another one if what is damaged is something else that led astray, and the caller may try again.
    pub(super) fn mark(
        &self,
        segment: &Arc<Segment>,
        end_offset: u64,
        range: BadRange,
    ) -> BadRange {
        let covering = |ranges: &[BadRange]| {
            ranges
                .iter()
                .find(|known| known.holds(range.from_offset))
                .cloned()
        };
        // Found before, by somebody else or in another segment.
        if let Some(known) = self.damage.at(range.from_offset) {
            return known;
        }
        let ranges = self.survey_bad(segment, end_offset);
        if ranges.is_empty() {
            // Read through a file that was replaced meanwhile, or a mood of the disk: the next access looks anew.
            tracing::warn!(path = %range.path.display(), found = range.found, "a read failed, but its segment is good");
            segment.cool_down();
            return range;
        }
        tracing::error!(
            group = self.group, path = %range.path.display(), from_offset = range.from_offset,
            to_offset = range.to_offset, from_byte = range.from_byte, found = range.found,
            "damaged: the range is not served until it is repaired from a peer"
        );
        let covered = covering(&ranges).or_else(|| ranges.first().cloned());
        let covered = covered.unwrap_or(range);
        self.set_marks(segment, ranges);
        covered
    }

    /// Replaces a segment's marks, in memory and beside it. A mark that can't be written stays in memory.
    pub(super) fn set_marks(&self, segment: &Segment, ranges: Vec<BadRange>) {
        let base = segment.name.base_offset;
        if self.damage.set(base, ranges) {
            self.save_marks(&segment.path(), base);
        }
    }

    /// Writes a segment's mark file as the marks are now.
    pub(super) fn save_marks(&self, path: &Path, base: u64) {
        let disk = self.io.disk.as_ref();
        if let Err(error) = self.damage.save(disk, path, base, self.group) {
            tracing::warn!(path = %path.display(), %error, "a mark of damage can't be written");
        }
    }

    fn survey_bad(&self, segment: &Arc<Segment>, end_offset: u64) -> Vec<BadRange> {
        let opened = self
            .io
            .disk
            .open(&segment.path(), crate::disk::OpenMode::Read);
        let file = match opened {
            Ok(file) => file,
            Err(error) if is_lost(&error) => return vec![lost_range(segment, end_offset, &error)],
            Err(_) => return Vec::new(),
        };
        let order = survey::Order {
            path: &segment.path(),
            group: self.group,
            base_offset: segment.name.base_offset,
            end_offset,
            sealed: segment.with(|body| body.sealed),
        };
        match survey::survey(file.as_ref(), &order, &mut |_| true) {
            Ok(surveyed) => surveyed.bad().cloned().collect(),
            Err(error) => {
                tracing::warn!(path = %segment.path().display(), %error, "a damaged segment can't be surveyed");
                Vec::new()
            }
        }
    }
}
