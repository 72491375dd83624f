//! Looking at a whole data directory, or at one group of it, and saying of each thing what it is worth.
//!
//! # What do the verdicts mean?
//!
//! * *ok*: as it should be.
//! * *note*: nothing is lost and nothing is in the way, but somebody should know.
//! * *mends*: a crash or one bad copy left it so; the next start puts it right by itself, and so does a repair.
//! * *damaged*: something that was synced is not there any more. It has to come from another replica.
//!
//! What a start would do is decided by the same rules as in `journal/open`, from the same records; here nothing is changed.
//! Each item may carry a [`Fix`]: what a repair does about it.

mod beside;
mod group;
mod look;
mod root;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::disk::Disk;
use crate::identity::{self, IdentityError};
use crate::journal::SegmentName;
use crate::journal::digest::SealedDigest;
use crate::statelog::NodeState;

/// What an item is worth; see the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Put right by the next start.
    Mends,
    /// Something synced is lost here.
    Damaged,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Mends => "mends",
            Self::Damaged => "damaged",
        })
    }
}

/// A damaged or torn range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub from_byte: u64,
    /// First byte behind, if it is known.
    pub to_byte: Option<u64>,
    /// First offset.
    pub from_offset: Option<u64>,
    /// First offset behind, if it is known.
    pub to_offset: Option<u64>,
}

/// What a repair does about an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Writes both copies of the state log with the good records.
    MendStateLog,
    /// Does what the next start would do with this group: finishes cuts, cuts torn tails, removes what was trimmed.
    Recover(u64),
    /// Removes a file that says nothing true, or was never finished.
    Remove(PathBuf),
    /// Writes a digest anew.
    Digest(Box<NewDigest>),
    /// Moves a file or directory to `quarantine/`.
    SetAside(PathBuf),
    /// Fetches a range of a group from a copy of another replica's directory.
    Fill {
        /// The group.
        group: u64,
        /// The segment.
        segment: SegmentName,
    },
    /// As `Fill`, for segments that are missing and whose names are not known.
    FillGap {
        /// The group.
        group: u64,
        /// First missing offset.
        from_offset: u64,
        /// First offset that is there again.
        to_offset: u64,
    },
}

/// A digest to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDigest {
    pub(crate) segment: PathBuf,
    pub(crate) digest: SealedDigest,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What kind of thing it is.
    pub area: &'static str,
    /// The group that it belongs to.
    pub group: Option<u64>,
    /// The file or directory.
    pub path: PathBuf,
    /// What it is worth.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// Where in the file.
    pub range: Option<Range>,
    /// What to do about it.
    pub todo: Option<&'static str>,
    /// What a repair does about it.
    pub fix: Option<Fix>,
}

impl Item {
    pub(crate) fn new(
        area: &'static str,
        group: Option<u64>,
        path: &Path,
        verdict: Verdict,
        found: impl Into<String>,
    ) -> Self {
        Self {
            area,
            group,
            path: path.to_owned(),
            verdict,
            found: found.into(),
            range: None,
            todo: None,
            fix: None,
        }
    }

    fn at(mut self, range: Range) -> Self {
        self.range = Some(range);
        self
    }

    fn todo(mut self, what: &'static str) -> Self {
        self.todo = Some(what);
        self
    }

    fn fix(mut self, fix: Fix) -> Self {
        self.fix = Some(fix);
        self
    }
}

/// Everything that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order in which it was looked at.
    pub items: Vec<Item>,
}

impl Report {
    /// The items of one verdict.
    pub fn of(&self, verdict: Verdict) -> impl Iterator<Item = &Item> {
        self.items
            .iter()
            .filter(move |item| item.verdict == verdict)
    }

    /// Whether anything is damaged.
    pub fn is_damaged(&self) -> bool {
        self.of(Verdict::Damaged).next().is_some()
    }
}

/// How to look, and what only the caller can tell.
pub struct Options<'a> {
    /// Headers and names only.
    pub quick: bool,
    /// What a formation record says, or what is wrong with it.
    pub formation: &'a dyn Fn(Bytes) -> Result<String, String>,
    /// Whether a meta store opens; asked of the directory itself, must not change it. `None` if it can't be told.
    pub meta: &'a dyn Fn(&Path) -> Option<Result<(), String>>,
    /// Told the bytes of segments that were read since the last call.
    pub progress: &'a dyn Fn(u64),
}

/// Why a directory can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It is not there.
    #[error("{}: no such directory", .0.display())]
    NotThere(PathBuf),
    /// It is neither a data directory nor one group's.
    #[error(
        "{}: not a data directory (which has `identity`, `state` or `groups` in it), nor a group's (named with 20 digits)",
        .0.display()
    )]
    NotOurs(PathBuf),
    /// A running node has it.
    #[error(transparent)]
    Lock(#[from] IdentityError),
    /// The disk.
    #[error("{}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// Which directory was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The data directory; for a group's directory on its own, the directory above.
    pub data: PathBuf,
    /// The group's directory, if that was named.
    pub group: Option<(u64, PathBuf)>,
}

/// Names in a data directory.
pub(crate) const GROUPS: &str = "groups";
pub(crate) const STATE: &str = "state";
pub(crate) const QUARANTINE: &str = "quarantine";
pub(crate) const FORMATION: &str = "formation";
pub(crate) const SUSPECT: &str = "suspect";
/// Takes up room that is given back when the disk is full.
pub(crate) const RESERVE: &str = "reserve";

/// What kind of directory `dir` is.
pub fn locate(disk: &dyn Disk, dir: &Path) -> Result<Place, CheckError> {
    let wrap = |source| CheckError::Io {
        path: dir.to_owned(),
        source,
    };
    if !disk.exists(dir).map_err(wrap)? {
        return Err(CheckError::NotThere(dir.to_owned()));
    }
    let group = dir.file_name().and_then(|name| group_id(name.to_str()?));
    if let Some(group) = group {
        let data = dir.parent().and_then(Path::parent).unwrap_or(dir);
        return Ok(Place {
            data: data.to_owned(),
            group: Some((group, dir.to_owned())),
        });
    }
    for name in [identity::FILE_NAME, STATE, GROUPS] {
        if disk.exists(&dir.join(name)).map_err(wrap)? {
            return Ok(Place {
                data: dir.to_owned(),
                group: None,
            });
        }
    }
    Err(CheckError::NotOurs(dir.to_owned()))
}

/// Locks the data directory against a running node. A directory without a lock file was never a node's own, and is left
/// without one.
pub fn lock(
    disk: &dyn Disk,
    place: &Place,
) -> Result<Option<Box<dyn crate::disk::DirLock>>, CheckError> {
    let path = place.data.join(identity::LOCK_NAME);
    let there = disk.exists(&path).map_err(|source| CheckError::Io {
        path: path.clone(),
        source,
    })?;
    match there {
        true => Ok(Some(identity::lock_to_read(disk, &place.data)?)),
        false => Ok(None),
    }
}

/// The group that a directory's name says.
pub(crate) fn group_id(name: &str) -> Option<u64> {
    let digits = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok()).flatten()
}

/// A look at a directory under way.
pub(crate) struct Checker<'a> {
    pub disk: &'a dyn Disk,
    pub data: &'a Path,
    pub options: &'a Options<'a>,
    pub items: Vec<Item>,
}

/// Looks at everything in a place. Writes nothing.
pub fn check(disk: &dyn Disk, place: &Place, options: &Options<'_>) -> Result<Report, CheckError> {
    let mut checker = Checker {
        disk,
        data: &place.data,
        options,
        items: Vec::new(),
    };
    match &place.group {
        None => checker.everything(),
        Some((group, dir)) => checker.one_group(*group, dir),
    }
    .map_err(|(path, source)| CheckError::Io { path, source })?;
    Ok(Report {
        items: checker.items,
    })
}

/// An error of the disk and where it was.
pub(crate) type Failed = (PathBuf, io::Error);

/// What the state log keeps, if it can be read.
pub(crate) fn kept_state(disk: &dyn Disk, data: &Path) -> io::Result<Option<NodeState>> {
    let examined = crate::statelog::open::examine(disk, &data.join(STATE))?;
    Ok(examined.scan.ok().map(|scan| {
        let mut state = NodeState::default();
        scan.records.iter().for_each(|record| state.apply(record));
        state
    }))
}
