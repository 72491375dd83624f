//! Opening a state log: making a new one, choosing between copies, mending, cutting a torn tail.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::record::{self, Record};
use super::scan::{self, Scan, ScanError};
use super::state::NodeState;
use super::{Files, Inner, StateLog};
use crate::disk::{self, Disk, Io, OpenMode};
use crate::quarantine::Quarantine;

pub(crate) const COPIES: [&str; 2] = ["a.log", "b.log"];

/// Why a state log can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum StateLogError {
    /// Both copies are damaged in what was synced, or can't be understood. Without them this node may not vote.
    #[error(
        "{}: the state log can't be trusted, and with it this node's votes; restore a.log or b.log, or give this node an \
         empty directory and a new node id", dir.display()
    )]
    Damaged {
        /// The directory of the copies.
        dir: PathBuf,
        /// What was found.
        source: ScanError,
    },
    /// There is none, but the caller knows that there has been one.
    #[error(
        "{}: the state log is missing, and with it this node's votes; restore a.log or b.log, or give this node an empty \
         directory and a new node id", dir.display()
    )]
    Missing {
        /// The directory of the copies.
        dir: PathBuf,
    },
    /// The disk.
    #[error("{}: state log", dir.display())]
    Io {
        /// The directory of the copies.
        dir: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// Whether there may be no state log yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A new one is made if there is none.
    MayBeNew,
    /// The node ran before: a missing one is damage.
    MustExist,
}

impl StateLog {
    /// Opens the state log in `dir`, or makes one. Blocks.
    pub fn open(io: Io, dir: &Path) -> Result<Arc<Self>, StateLogError> {
        Self::open_with(io, dir, Presence::MayBeNew)
    }

    /// As [`StateLog::open`], with a say on whether it may be missing. Blocks.
    pub fn open_with(io: Io, dir: &Path, presence: Presence) -> Result<Arc<Self>, StateLogError> {
        let disk = Arc::clone(&io.disk);
        let wrap = |source| StateLogError::Io {
            dir: dir.to_owned(),
            source,
        };
        disk.create_dir_all(dir).map_err(wrap)?;
        let copies = read_copies(disk.as_ref(), dir).map_err(wrap)?;
        if copies == [None, None] {
            if presence == Presence::MustExist {
                return Err(StateLogError::Missing {
                    dir: dir.to_owned(),
                });
            }
            let files = write_copies(disk.as_ref(), dir, 1, &NodeState::default()).map_err(wrap)?;
            return Ok(Self::assemble(
                io,
                dir,
                files,
                NodeState::default(),
                BTreeMap::new(),
            ));
        }
        let scan =
            scan::scan(&same_generation(&copies)).map_err(|source| StateLogError::Damaged {
                dir: dir.to_owned(),
                source,
            })?;
        let mut state = NodeState::default();
        scan.records.iter().for_each(|record| state.apply(record));
        let data = disk::parent(dir).map_err(wrap)?;
        let quarantine = Quarantine::new(disk.as_ref(), data, io.clock.now_micros());
        let files = mend(disk.as_ref(), &quarantine, dir, &copies, &scan).map_err(wrap)?;
        let stops = state
            .groups
            .iter()
            .filter_map(|(group, kept)| kept.clean.map(|stop| (*group, stop)));
        let clean: BTreeMap<_, _> = stops.collect();
        let log = Self::assemble(io, dir, files, state, clean);
        if !log.clean.lock().is_empty() {
            log.append_blocking(vec![Record::Opened]).map_err(wrap)?;
        }
        Ok(log)
    }

    fn assemble(
        io: Io,
        dir: &Path,
        files: Files,
        state: NodeState,
        clean: BTreeMap<u64, super::CleanStop>,
    ) -> Arc<Self> {
        let inner = Inner {
            queue: Vec::new(),
            marks: state
                .groups
                .iter()
                .map(|(group, kept)| (*group, kept.marks))
                .collect(),
            unflushed: BTreeSet::new(),
            dropped: BTreeSet::new(),
            lazy_wanted: false,
            running: false,
            failed: None,
            files,
        };
        let (inner, state, clean) = (Mutex::new(inner), Mutex::new(state), Mutex::new(clean));
        Arc::new(Self {
            io,
            dir: dir.to_owned(),
            inner,
            state,
            clean,
        })
    }
}

/// The copies as they are and what a start would make of them. Nothing is changed.
pub(crate) struct Examined {
    /// `a.log` and `b.log`, where they are there.
    pub copies: [Option<Bytes>; 2],
    /// The records, or why there are none.
    pub scan: Result<Scan, ScanError>,
}

/// Looks at the state log in `dir`.
pub(crate) fn examine(disk: &dyn Disk, dir: &Path) -> io::Result<Examined> {
    let copies = read_copies(disk, dir)?;
    let scan = scan::scan(&same_generation(&copies));
    Ok(Examined { copies, scan })
}

/// Makes both copies hold the good bytes, as a start would.
pub(crate) fn mend_copies(disk: &dyn Disk, dir: &Path) -> Result<(), StateLogError> {
    let wrap = |source| StateLogError::Io {
        dir: dir.to_owned(),
        source,
    };
    let Examined { copies, scan } = examine(disk, dir).map_err(wrap)?;
    let scan = scan.map_err(|source| StateLogError::Damaged {
        dir: dir.to_owned(),
        source,
    })?;
    let data = disk::parent(dir).map_err(wrap)?;
    let quarantine = Quarantine::undated(disk, data);
    mend(disk, &quarantine, dir, &copies, &scan)
        .map(drop)
        .map_err(wrap)
}

fn read_copies(disk: &dyn Disk, dir: &Path) -> io::Result<[Option<Bytes>; 2]> {
    let read = |name: &str| -> io::Result<Option<Bytes>> {
        let path = dir.join(name);
        Ok(if disk.exists(&path)? {
            Some(disk::read_file(disk, &path)?.into())
        } else {
            None
        })
    };
    Ok([read(COPIES[0])?, read(COPIES[1])?])
}

/// The copies to read: if they come from different rewritings, only the later one.
fn same_generation(copies: &[Option<Bytes>; 2]) -> [Bytes; 2] {
    let generations = copies
        .each_ref()
        .map(|copy| copy.as_ref().and_then(scan::generation));
    let mut used = copies
        .each_ref()
        .map(|copy| copy.clone().unwrap_or_default());
    match generations {
        [Some(a), Some(b)] if a > b => used[1] = Bytes::new(),
        [Some(a), Some(b)] if a < b => used[0] = Bytes::new(),
        _ => {}
    }
    used
}

/// Makes both copies hold exactly the good bytes. What differs is kept in `quarantine/` beside the directory.
fn mend(
    disk: &dyn Disk,
    quarantine: &Quarantine<'_>,
    dir: &Path,
    copies: &[Option<Bytes>; 2],
    scan: &Scan,
) -> io::Result<Files> {
    for (name, copy) in COPIES.iter().zip(copies) {
        if copy.as_ref() == Some(&scan.good) {
            continue;
        }
        let older = copy
            .as_ref()
            .and_then(scan::generation)
            .is_some_and(|found| found != scan.generation);
        if let Some(bad) = copy.as_ref().filter(|_| !older) {
            tracing::warn!(
                copy = name,
                len = bad.len(),
                good = scan.good.len(),
                "mending a copy of the state log"
            );
            let aside = quarantine.place(&format!("state-{name}"))?;
            disk::replace_file(disk, &aside, &[bad])?;
        }
        disk::replace_file(disk, &dir.join(name), &[&scan.good])?;
    }
    open_files(disk, dir, scan.generation, scan.good.len() as u64, 0)
}

fn open_files(
    disk: &dyn Disk,
    dir: &Path,
    generation: u64,
    len: u64,
    compacted_len: u64,
) -> io::Result<Files> {
    let a = disk.open(&dir.join(COPIES[0]), OpenMode::Write)?;
    let b = disk.open(&dir.join(COPIES[1]), OpenMode::Write)?;
    Ok(Files {
        copies: [a, b],
        generation,
        len,
        compacted_len,
    })
}

/// Writes both copies anew. Both are written aside before the first takes its place: without room for both, nothing has
/// changed and the old files are still the log. One whole copy exists at any time.
pub(super) fn write_copies(
    disk: &dyn Disk,
    dir: &Path,
    generation: u64,
    state: &NodeState,
) -> io::Result<Files> {
    let mut bytes = BytesMut::new();
    record::encode_into(&Record::Head { generation }, &mut bytes);
    state
        .records()
        .for_each(|record| record::encode_into(&record, &mut bytes));
    let written = COPIES.iter().try_for_each(|name| {
        let file = disk.open(&aside(dir, name), OpenMode::Truncate)?;
        file.write_all_at(&[&bytes], 0)?;
        file.sync_all()
    });
    if let Err(error) = written {
        for name in COPIES {
            // What is left there is written over by the next rewriting.
            let _ = disk.remove_file(&aside(dir, name));
        }
        return Err(error);
    }
    for name in COPIES {
        let renamed = disk.rename(&aside(dir, name), &dir.join(name));
        // From here on there is no way back: this is no lack of room that may pass.
        renamed.map_err(|error| io::Error::other(error.to_string()))?;
        disk.sync_dir(dir)?;
    }
    let len = bytes.len() as u64;
    open_files(disk, dir, generation, len, len)
}

fn aside(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.new"))
}
