//! The last resort: the end of a group's log is given up, because no replica has the good bytes any more.
//!
//! It is only offered for the whole end of a log, from its first damaged offset on: a log has no holes. What is given up is set
//! aside, the cut is recorded in the state log as any other cut is, and carried out by the journal's own recovery.

use std::io;
use std::path::{Path, PathBuf};

use super::super::check::{GROUPS, Place, Report, STATE, Verdict, kept_state};
use super::super::segment::{Piece, SegmentReader};
use super::recover;
use crate::disk::{Disk, Io, OpenMode};
use crate::journal::damage::Companion;
use crate::journal::places::index_of;
use crate::journal::quarantine::{Quarantine, Reason};
use crate::journal::{OpenError, SegmentName};
use crate::statelog::{GroupState, PendingCut, Presence, Record, StateLog, StateLogError};

/// What would be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The group.
    pub group: u64,
    /// First offset that is lost.
    pub from_offset: u64,
    /// First offset that never was.
    pub to_offset: u64,
    /// Raft index of the first entry that is lost.
    pub from_index: u64,
    /// Where the log is cut: the segment and its byte. None if it becomes empty.
    pub cut: Option<(SegmentName, u64)>,
    /// Segments that go as a whole.
    pub segments: Vec<SegmentName>,
}

/// Why an end can't be given up.
#[derive(Debug, thiserror::Error)]
pub enum GiveUpError {
    /// Nothing is damaged there.
    #[error("group {0} is not damaged: there is nothing to give up")]
    NotDamaged(u64),
    /// The state log knows nothing of it, or can't be read.
    #[error("the state log says nothing of group {0}")]
    Unknown(u64),
    /// The damage is at the front of the log.
    #[error(
        "group {group} lacks its first offsets, {from}..{to}: cutting its end would give up all of it"
    )]
    AtFront {
        /// The group.
        group: u64,
        /// First missing offset.
        from: u64,
        /// First offset that is there.
        to: u64,
    },
    /// Other offsets were named than would be lost.
    #[error(
        "giving up the end of group {group} loses offsets {from}..{to}, not {said_from}..{said_to}; say \
         --lose-offsets {from}..{to} if that is meant"
    )]
    OtherOffsets {
        /// The group.
        group: u64,
        /// First offset that would be lost.
        from: u64,
        /// First offset that never was.
        to: u64,
        /// What was said.
        said_from: u64,
        /// What was said.
        said_to: u64,
    },
    /// The state log.
    #[error(transparent)]
    State(#[from] StateLogError),
    /// The journal does not open afterwards.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The disk.
    #[error("{}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// What giving up a group's damaged end would lose. Changes nothing.
pub fn loss(
    disk: &dyn Disk,
    place: &Place,
    report: &Report,
    group: u64,
) -> Result<Loss, GiveUpError> {
    let dir = group_dir(&place.data, group);
    let wrap = |source| GiveUpError::Io {
        path: dir.clone(),
        source,
    };
    let state = kept_state(disk, &place.data).map_err(wrap)?;
    let kept = state.as_ref().and_then(|state| state.groups.get(&group));
    let kept = kept.ok_or(GiveUpError::Unknown(group))?;
    let damaged = report.of(Verdict::Damaged);
    let damaged = damaged.filter(|item| item.group == Some(group));
    let ranges = damaged.filter_map(|item| item.range);
    let from_offset = ranges.filter_map(|range| range.from_offset).min();
    let from_offset = from_offset.ok_or(GiveUpError::NotDamaged(group))?;
    let mut segments = segments_in(disk, &dir).map_err(wrap)?;
    if let Some(first) = segments.first()
        && (from_offset < first.base_offset || from_offset < kept.start_offset)
    {
        return Err(GiveUpError::AtFront {
            group,
            from: from_offset,
            to: first.base_offset,
        });
    }
    let to_offset = end_of(disk, &dir, group, segments.last())
        .map_err(wrap)?
        .max(kept.must_have());
    let behind = segments.partition_point(|name| name.base_offset < from_offset);
    let gone = segments.split_off(behind);
    let kept_place = match segments.last() {
        Some(last) => cut_place(disk, &dir, group, last, from_offset, kept).map_err(wrap)?,
        None => None,
    };
    let from_index = match kept_place {
        Some((_, last_index)) => {
            index_of(&kept.controls, last_index + 1, from_offset).unwrap_or(last_index + 1)
        }
        None => gone.first().map_or(0, |name| name.first_index),
    };
    Ok(Loss {
        group,
        from_offset,
        to_offset,
        from_index,
        cut: segments.last().copied().zip(kept_place.map(|(pos, _)| pos)),
        segments: gone,
    })
}

fn group_dir(data: &Path, group: u64) -> PathBuf {
    data.join(GROUPS).join(format!("{group:020}"))
}

fn segments_in(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<SegmentName>> {
    let names = disk.list(dir)?;
    let mut segments: Vec<_> = names
        .iter()
        .filter_map(|name| SegmentName::parse(name))
        .collect();
    segments.sort_unstable();
    Ok(segments)
}

/// The offset after the last good batch of the last segment.
fn end_of(disk: &dyn Disk, dir: &Path, group: u64, last: Option<&SegmentName>) -> io::Result<u64> {
    let Some(last) = last else { return Ok(0) };
    let file = disk.open(&dir.join(last.file_name()), OpenMode::Read)?;
    let mut reader = SegmentReader::new(file.as_ref(), Some(*last), Some(group))?;
    let mut end = last.base_offset;
    while let Some(piece) = reader.next_piece()? {
        if let Piece::Batch { batch, .. } = piece {
            end = batch.next_offset();
        }
    }
    Ok(end)
}

/// The byte at which a segment is cut so that it ends at `offset`, and the index of the batch before.
fn cut_place(
    disk: &dyn Disk,
    dir: &Path,
    group: u64,
    name: &SegmentName,
    offset: u64,
    kept: &GroupState,
) -> io::Result<Option<(u64, u64)>> {
    let file = disk.open(&dir.join(name.file_name()), OpenMode::Read)?;
    let mut reader = SegmentReader::new(file.as_ref(), Some(*name), Some(group))?;
    let (mut next, mut place) = (name.first_index, None);
    while let Some(Piece::Batch { pos, batch }) = reader.next_piece()? {
        if batch.next_offset() > offset {
            break;
        }
        let index =
            index_of(&kept.controls, next, batch.base_offset()).map_err(io::Error::other)?;
        next = index + 1;
        place = Some((pos + batch.len(), index));
    }
    Ok(place)
}

/// Gives up what `loss` says. The caller holds the directory's lock and has asked.
pub fn give_up(
    io: &Io,
    place: &Place,
    loss: &Loss,
    said: std::ops::Range<u64>,
) -> Result<(), GiveUpError> {
    if (said.start, said.end) != (loss.from_offset, loss.to_offset) {
        return Err(GiveUpError::OtherOffsets {
            group: loss.group,
            from: loss.from_offset,
            to: loss.to_offset,
            said_from: said.start,
            said_to: said.end,
        });
    }
    let dir = group_dir(&place.data, loss.group);
    let wrap = |source| GiveUpError::Io {
        path: dir.clone(),
        source,
    };
    let state_dir = place.data.join(STATE);
    let state = StateLog::open_with(io.clone(), &state_dir, Presence::MustExist)?;
    set_aside(io.disk.as_ref(), &dir, loss).map_err(wrap)?;
    let begin = Record::CutBegin {
        group: loss.group,
        from_index: loss.from_index,
        cut: PendingCut {
            offset: loss.from_offset,
            whole: false,
        },
        purged: None,
    };
    state.append_blocking(vec![begin]).map_err(wrap)?;
    recover(io, &place.data, state, loss.group).map_err(Into::into)
}

fn set_aside(disk: &dyn Disk, dir: &Path, loss: &Loss) -> io::Result<()> {
    let quarantine = Quarantine::of(disk, dir, loss.group)?;
    for name in loss.segments.iter().rev() {
        let path = dir.join(name.file_name());
        quarantine.take(Reason::GivenUp, &path)?;
        Companion::remove_all(disk, &path)?;
    }
    if let Some((name, pos)) = loss.cut {
        let path = dir.join(name.file_name());
        let file = disk.open(&path, OpenMode::Read)?;
        let len = file.len()?;
        if pos < len {
            quarantine.copy(Reason::GivenUp, &path, file.as_ref(), pos..len)?;
        }
        Companion::remove_all(disk, &path)?;
    }
    disk.sync_dir(dir)
}
