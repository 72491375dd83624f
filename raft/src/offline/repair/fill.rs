//! Filling damage from a copy of another replica's data directory.
//!
//! # When are another replica's bytes the right ones?
//!
//! Segments end at the same places on every replica, and a name says offset, index and term of the first batch. So the other
//! directory's segment of the same name is taken as a whole, if all of this holds:
//!
//! * every batch in it passes the full check, follows on, and is of this group;
//! * its indexes agree with this directory's control entries, and both directories know the same control entries (index, term
//!   and offset) within it: then each batch has the index and term that this log expects, and by Raft's log matching it is the
//!   same entry;
//! * it reaches the offset at which the next segment begins, and gives that the index that its name says, or, as the last
//!   segment, it reaches what was synced here;
//! * it is what this directory's digest of the segment says; or, if there is no digest, whatever is still good here is in it
//!   byte for byte.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::super::check::{GROUPS, kept_state};
use super::super::segment::{Piece, SegmentReader};
use crate::disk::{self, Disk, DiskFile, OpenMode};
use crate::journal::SegmentName;
use crate::journal::damage::Companion;
use crate::journal::digest::SealedDigest;
use crate::journal::places::index_of;
use crate::journal::quarantine::{Quarantine, Reason};
use crate::statelog::{Control, GroupState, NodeState};

/// Bytes copied at a time.
const COPY: usize = 1 << 20;

/// Why a segment can't be taken from another directory.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No state log that can be read.
    #[error("{}: no readable state log, so nothing tells which terms its entries have", .0.display())]
    NoState(PathBuf),
    /// It knows nothing of the group, or this directory doesn't.
    #[error("{}: its state log knows nothing of group {group}", path.display())]
    NoGroup {
        /// The directory.
        path: PathBuf,
        /// The group.
        group: u64,
    },
    /// It has no such segment.
    #[error("{}: not there", .0.display())]
    NoSegment(PathBuf),
    /// It has one that is not what belongs here.
    #[error("{}: {found}", path.display())]
    Other {
        /// The segment.
        path: PathBuf,
        /// Why not.
        found: String,
    },
    /// The disk.
    #[error("{}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// A copy of another replica's data directory.
#[derive(Debug)]
pub struct Source {
    data: PathBuf,
    state: NodeState,
}

/// What a segment here has to become.
struct Wanted<'a> {
    group: u64,
    name: SegmentName,
    kept: &'a GroupState,
    /// The next segment.
    next: Option<SegmentName>,
    /// The damaged file.
    own: PathBuf,
}

impl Source {
    /// Reads the other directory's state log.
    pub fn open(disk: &dyn Disk, data: &Path) -> Result<Self, SourceError> {
        let state = kept_state(disk, data).map_err(|source| SourceError::Io {
            path: data.to_owned(),
            source,
        })?;
        match state {
            Some(state) => Ok(Self {
                data: data.to_owned(),
                state,
            }),
            None => Err(SourceError::NoState(data.to_owned())),
        }
    }

    /// Takes all segments that begin within a gap.
    pub(super) fn fill_gap(
        &self,
        disk: &dyn Disk,
        data: &Path,
        group: u64,
        gap: std::ops::Range<u64>,
    ) -> Result<(), SourceError> {
        let dir = self.data.join(GROUPS).join(format!("{group:020}"));
        let names = segments_in(disk, &dir).map_err(|source| SourceError::Io {
            path: dir.clone(),
            source,
        })?;
        let within: Vec<_> = names
            .iter()
            .filter(|name| gap.contains(&name.base_offset))
            .collect();
        if within.is_empty() {
            return Err(SourceError::NoSegment(
                dir.join(format!("{:020}-*.seg", gap.start)),
            ));
        }
        // From the last one on: each then has its follower in place.
        for name in within.into_iter().rev() {
            self.fill(disk, data, group, name)?;
        }
        Ok(())
    }

    /// Replaces a segment of `data` by this directory's, once it is known to be what belongs there.
    pub(super) fn fill(
        &self,
        disk: &dyn Disk,
        data: &Path,
        group: u64,
        name: &SegmentName,
    ) -> Result<(), SourceError> {
        let wrap = |path: &Path, source| SourceError::Io {
            path: path.to_owned(),
            source,
        };
        let no_group = |path: &Path| SourceError::NoGroup {
            path: path.to_owned(),
            group,
        };
        let own_state = kept_state(disk, data).map_err(|e| wrap(data, e))?;
        let kept = own_state
            .as_ref()
            .and_then(|state| state.groups.get(&group));
        let kept = kept.ok_or_else(|| no_group(data))?;
        let theirs = self.state.groups.get(&group);
        let theirs = theirs.ok_or_else(|| no_group(&self.data))?;
        let in_group = Path::new(GROUPS).join(format!("{group:020}"));
        let dir = data.join(&in_group);
        let wanted = Wanted {
            group,
            name: *name,
            kept,
            next: self.next_of(disk, &dir, &in_group, name)?,
            own: dir.join(name.file_name()),
        };
        let path = self.data.join(&in_group).join(name.file_name());
        if !disk.exists(&path).map_err(|e| wrap(&path, e))? {
            return Err(SourceError::NoSegment(path));
        }
        let file = disk
            .open(&path, OpenMode::Read)
            .map_err(|e| wrap(&path, e))?;
        let other = |found: String| SourceError::Other {
            path: path.clone(),
            found,
        };
        let taken = wanted
            .examine(file.as_ref(), theirs)
            .map_err(|e| wrap(&path, e))?
            .map_err(other)?;
        wanted
            .matches_own(disk, file.as_ref(), taken)
            .map_err(|e| wrap(&wanted.own, e))?
            .map_err(other)?;
        wanted
            .replace(disk, &dir, file.as_ref(), taken)
            .map_err(|e| wrap(&wanted.own, e))
    }

    /// The segment that comes after `name`: this directory's, unless one in between is missing here.
    fn next_of(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        in_group: &Path,
        name: &SegmentName,
    ) -> Result<Option<SegmentName>, SourceError> {
        let behind = |dir: &Path| {
            let names = segments_in(disk, dir).map_err(|source| SourceError::Io {
                path: dir.to_owned(),
                source,
            })?;
            Ok(names
                .into_iter()
                .find(|other| other.base_offset > name.base_offset))
        };
        let Some(own) = behind(dir)? else {
            return Ok(None);
        };
        let theirs = behind(&self.data.join(in_group))?;
        Ok(Some(theirs.map_or(own, |theirs| own.min(theirs))))
    }
}

/// The segments in a directory, in order.
fn segments_in(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<SegmentName>> {
    let names = disk.list(dir)?;
    let mut segments: Vec<_> = names
        .iter()
        .filter_map(|name| SegmentName::parse(name))
        .collect();
    segments.sort_unstable();
    Ok(segments)
}

/// Index, term and offset of the control entries behind `from` and below `offset`.
fn entries(controls: &BTreeMap<u64, Control>, from: u64, offset: u64) -> Vec<(u64, u64, u64)> {
    let within = controls.range(from..);
    within
        .map(|(index, control)| (*index, control.term, control.offset))
        .filter(|(_, _, at)| *at < offset)
        .collect()
}

impl Wanted<'_> {
    /// Reads the other segment; bytes of it that are taken, or why it is not the one.
    fn examine(&self, file: &dyn DiskFile, theirs: &GroupState) -> io::Result<Result<u64, String>> {
        let mut reader = SegmentReader::new(file, Some(self.name), Some(self.group))?;
        let (mut bytes, mut offset) = (0, self.name.base_offset);
        let mut index = self.name.first_index;
        while self.next.is_none_or(|next| offset < next.base_offset) {
            let Some(Piece::Batch { pos, batch }) = reader.next_piece()? else {
                break;
            };
            match index_of(&self.kept.controls, index, batch.base_offset()) {
                Ok(at) => index = at + 1,
                // Beyond what this log knows of terms nothing is taken.
                Err(_) if self.enough(offset) => break,
                Err(found) => return Ok(Err(found)),
            }
            (bytes, offset) = (pos + batch.len(), batch.next_offset());
        }
        if !self.enough(offset) {
            let needed = self
                .next
                .map_or(self.kept.must_have(), |next| next.base_offset);
            return Ok(Err(format!(
                "good up to offset {offset}, needed up to {needed}"
            )));
        }
        if let Some(next) = self.next {
            let first = index_of(&self.kept.controls, index, offset);
            if first != Ok(next.first_index) {
                return Ok(Err(format!(
                    "{} does not follow on it by the control entries here",
                    next.file_name()
                )));
            }
        }
        let from = self.name.first_index;
        let own = entries(&self.kept.controls, from, offset);
        if own != entries(&theirs.controls, from, offset) {
            return Ok(Err(
                "the two state logs know different control entries within it".to_owned(),
            ));
        }
        Ok(Ok(bytes))
    }

    /// Whether a segment that ends at `offset` is all that is needed.
    fn enough(&self, offset: u64) -> bool {
        match self.next {
            Some(next) => offset == next.base_offset,
            None => offset >= self.kept.must_have(),
        }
    }

    /// Whether all that is good here is in the other file too, and the digest agrees.
    fn matches_own(
        &self,
        disk: &dyn Disk,
        other: &dyn DiskFile,
        taken: u64,
    ) -> io::Result<Result<(), String>> {
        if self.next.is_some() {
            let stored = SealedDigest::read_any(disk, &self.own)?;
            let of_this = stored.filter(|digest| {
                (digest.group, digest.base_offset) == (self.group, self.name.base_offset)
            });
            if let Some(stored) = of_this {
                let hash = hash(other, taken)?;
                if (stored.bytes, stored.xxh3) != (taken, hash) {
                    return Ok(Err("not what the digest here says".to_owned()));
                }
                // It is what was sealed here, whatever stands here now.
                return Ok(Ok(()));
            }
        }
        if !disk.exists(&self.own)? {
            return Ok(Ok(()));
        }
        let Ok(own) = disk.open(&self.own, OpenMode::Read) else {
            return Ok(Ok(()));
        };
        let mut reader = SegmentReader::new(own.as_ref(), Some(self.name), Some(self.group))?;
        let mut theirs = Vec::new();
        while let Some(piece) = reader.next_piece()? {
            let Piece::Batch { pos, batch } = piece else {
                continue;
            };
            let is_ours = self
                .next
                .is_none_or(|next| batch.next_offset() <= next.base_offset);
            if pos + batch.len() > taken || !is_ours {
                continue;
            }
            let bytes = batch.to_contiguous();
            theirs.resize(bytes.len(), 0);
            other.read_at(&mut theirs, pos)?;
            if theirs != bytes {
                return Ok(Err(format!(
                    "differs at byte {pos}, offset {}, from what is good here",
                    batch.base_offset()
                )));
            }
        }
        Ok(Ok(()))
    }

    /// Puts the good bytes in place. Until the rename the damaged file is as it was.
    fn replace(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        other: &dyn DiskFile,
        taken: u64,
    ) -> io::Result<()> {
        let aside = Companion::Mend.path(&self.own);
        let new = disk.open(&aside, OpenMode::Truncate)?;
        copy(other, new.as_ref(), taken)?;
        new.sync_all()?;
        if disk.exists(&self.own)? {
            let own = disk.open(&self.own, OpenMode::Read)?;
            let len = own.len()?;
            Quarantine::of(disk, dir, self.group)?.copy(
                Reason::Damaged,
                &self.own,
                own.as_ref(),
                0..len,
            )?;
        }
        disk.rename(&aside, &self.own)?;
        Companion::Damaged.remove(disk, &self.own)?;
        disk.sync_dir(dir)
    }
}

fn copy(from: &dyn DiskFile, to: &dyn DiskFile, len: u64) -> io::Result<()> {
    in_parts(from, len, |bytes, at| to.write_all_at(&[bytes], at))
}

fn hash(file: &dyn DiskFile, len: u64) -> io::Result<u64> {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    in_parts(file, len, |bytes, _| {
        hash.update(bytes);
        Ok(())
    })?;
    Ok(hash.digest())
}

fn in_parts(
    file: &dyn DiskFile,
    len: u64,
    mut each: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut buf = vec![0; COPY];
    let mut at = 0;
    while at < len {
        let part = usize::try_from(len - at).unwrap_or(COPY).min(COPY);
        disk::read_exact_at(file, &mut buf[..part], at)?;
        each(&buf[..part], at)?;
        at += part as u64;
    }
    Ok(())
}
