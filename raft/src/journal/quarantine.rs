//! Bytes that are set aside: `quarantine/` of the data directory, one file for each piece, under a name that says which group
//! and segment it comes from, where it lay and why it was taken out. Nothing here is ever read again by the log.
//!
//! A piece is durable before the place that it came from is changed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::walk::Window;
use crate::disk::{self, Disk, DiskFile, OpenMode};

/// Why bytes were set aside; part of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Behind the good end of a log whose last write was never acknowledged.
    TornTail,
    /// Not what was synced; the good bytes came from a peer.
    Damaged,
    /// Whole batches, but of another time or another log.
    Foreign,
    /// Behind a cut that was begun.
    CutBegun,
    /// A leader's word took the tail back.
    CutByLeader,
    /// Every peer begins behind it.
    BelowStart,
    /// An operator's word: no replica has the good bytes any more.
    GivenUp,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TornTail => "torn-tail",
            Self::Damaged => "damaged",
            Self::Foreign => "foreign",
            Self::CutBegun => "cut-begun",
            Self::CutByLeader => "cut-by-leader",
            Self::BelowStart => "below-start",
            Self::GivenUp => "given-up",
        })
    }
}

/// The place where one group's bytes are set aside.
pub(crate) struct Quarantine<'a> {
    disk: &'a dyn Disk,
    dir: PathBuf,
    group: u64,
}

/// Bytes copied at a time.
const COPY: usize = 256 << 10;

impl<'a> Quarantine<'a> {
    /// Of the data directory that holds `groups/<id>`, which is `group_dir`.
    pub fn of(disk: &'a dyn Disk, group_dir: &Path, group: u64) -> io::Result<Self> {
        let dir = disk::parent(disk::parent(group_dir)?)?.join("quarantine");
        Ok(Self { disk, dir, group })
    }

    /// A name that is not taken yet.
    fn next_path(&self, reason: Reason, segment: &Path, from: u64) -> io::Result<PathBuf> {
        self.disk.create_dir_all(&self.dir)?;
        let taken = self.disk.list(&self.dir)?;
        let numbers = taken.iter().filter_map(|name| name.split('-').next());
        let last = numbers.filter_map(|n| n.parse::<u64>().ok()).max();
        let number = last.map_or(0, |last| last.saturating_add(1));
        let name = segment.file_name().unwrap_or_default().to_string_lossy();
        let group = self.group;
        Ok(self.dir.join(format!(
            "{number:06}-group-{group:020}-{reason}-{name}-at-{from}"
        )))
    }

    /// Copies a range of a segment's file. What the medium does not give back any more is left as zeros.
    pub fn copy(
        &self,
        reason: Reason,
        segment: &Path,
        file: &dyn DiskFile,
        range: std::ops::Range<u64>,
    ) -> io::Result<()> {
        let path = self.next_path(reason, segment, range.start)?;
        let aside = self.disk.open(&path, OpenMode::CreateNew)?;
        let mut window = Window::new(file);
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from((range.end - at).min(COPY as u64)).unwrap_or(COPY);
            match window.get(at, len, len) {
                Ok(bytes) => aside.write_all_at(&[bytes], at - range.start)?,
                Err(error) => {
                    tracing::warn!(path = %segment.display(), at, %error, "can't be read, not even to set it aside");
                }
            }
            at += len as u64;
        }
        aside.sync_all()?;
        self.disk.sync_dir(&self.dir)
    }

    /// Moves a whole segment file here. The caller syncs the directory that it came from.
    pub fn take(&self, reason: Reason, segment: &Path) -> io::Result<()> {
        let path = self.next_path(reason, segment, 0)?;
        self.disk.rename(segment, &path)?;
        self.disk.sync_dir(&self.dir)
    }
}
