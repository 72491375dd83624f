//! Snapshot files of one group: the newest and the one before it.
//!
//! A snapshot tells where the log may be cut and what is known there; a group with a state beside the log adds that state.
//! The log is purged up to the older of the two files only (a group of data has nothing in the file that its log doesn't tell,
//! so there it is the newest), so a damaged newest file costs a longer replay and nothing else.
//!
//! Invariants:
//! * A file is written aside, synced and renamed; what a crash leaves is the old or the new one.
//! * A file that doesn't check is never deleted, and never a reason to delete something else: it is set aside in `quarantine/`
//!   when a good one takes its place.
//! * A good newest file becomes the older one; a damaged one never does.
//!
//! It must not know openraft's engine, or what a state means.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::envelope;
use openraft::storage::{Snapshot, SnapshotMeta};
use parking_lot::Mutex;

use super::codec::{LogIdWire, log_id_opt, wire_opt};
use super::types::{
    LogId, StoredMembership, TypeConfig, decode_membership, encode_membership, log_pos,
};
use crate::disk::{Disk, parent, read_file, replace_file};
use crate::journal::{Cut, LogPos, RollSettings, StartCut};
use crate::quarantine::Quarantine;

pub(crate) type SnapshotOf = openraft::alias::SnapshotOf<TypeConfig, Bytes>;
pub(crate) type SnapshotMetaOf = openraft::alias::SnapshotMetaOf<TypeConfig>;

imprint_proto::envelope! {
    /// A snapshot file: the cut, the membership at the cut, and a [`SnapshotBody`].
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SnapshotRecord: version 0, compat 0 {
        last: Option<LogIdWire>,
        membership_at: Option<LogIdWire>,
        membership: Bytes,
        state: Bytes,
    }
}

imprint_proto::envelope! {
    /// What openraft carries as a snapshot's data.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct SnapshotBody: version 0, compat 0 {
        next_offset: u64,
        last_stamp_us: u64,
        settings_at: Option<LogIdWire>,
        settings: Bytes,
        machine: Bytes,
    }
}

/// Why the bytes of a snapshot are not understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error("it does not check: {0}")]
    Envelope(#[from] envelope::EnvelopeError),
    #[error("{0}")]
    Membership(#[from] super::types::MembershipError),
    #[error("it does not say where the log is cut")]
    NoPlace,
    #[error("it holds a state, and a log alone was asked for")]
    HasState,
    #[error("{0}")]
    Unreadable(#[from] io::Error),
}

/// A snapshot that was understood, but for the machine's state.
#[derive(Debug, Clone)]
pub(crate) struct Snap {
    pub(crate) last: LogId,
    pub(crate) membership: StoredMembership,
    pub(crate) next_offset: u64,
    pub(crate) last_stamp_us: u64,
    pub(crate) settings: Option<(LogPos, RollSettings)>,
    pub(crate) machine: Bytes,
}

impl Snap {
    /// From what openraft hands over.
    pub(crate) fn received(meta: &SnapshotMetaOf, body: Bytes) -> Result<Self, SnapshotError> {
        let body: SnapshotBody = envelope::decode(body)?;
        let settings = match body.settings_at {
            Some(at) => Some((log_pos(&at.log_id()), RollSettings::decode(body.settings)?)),
            None => None,
        };
        // The log goes on behind it, so the last index of all is no place either.
        let last = meta.last_log_id.filter(|last| last.index < u64::MAX);
        Ok(Snap {
            last: last.ok_or(SnapshotError::NoPlace)?,
            membership: meta.last_membership.clone(),
            next_offset: body.next_offset,
            last_stamp_us: body.last_stamp_us,
            settings,
            machine: body.machine,
        })
    }

    pub(crate) fn from_file(bytes: Bytes) -> Result<Self, SnapshotError> {
        let record: SnapshotRecord = envelope::decode_checked(bytes)?;
        let membership = decode_membership(record.membership)?;
        let meta = SnapshotMeta {
            last_log_id: log_id_opt(record.last),
            last_membership: StoredMembership::new(log_id_opt(record.membership_at), membership),
        };
        Self::received(&meta, record.state)
    }

    /// Of a log of data: what its journal says.
    pub(crate) fn of_cut(cut: Cut) -> Result<Self, SnapshotError> {
        let membership = match cut.membership {
            Some((pos, bytes)) => {
                StoredMembership::new(Some(super::types::log_id(pos)), decode_membership(bytes)?)
            }
            None => StoredMembership::default(),
        };
        Ok(Snap {
            last: super::types::log_id(cut.upto),
            membership,
            next_offset: cut.next_offset,
            last_stamp_us: cut.last_stamp_us,
            settings: cut.settings,
            machine: Bytes::new(),
        })
    }

    /// What the journal has to do to begin here.
    pub(crate) fn cut(&self) -> Cut {
        let membership = self.membership.log_id().as_ref().map(|at| {
            let bytes = encode_membership(self.membership.membership());
            (log_pos(at), bytes)
        });
        Cut {
            upto: log_pos(&self.last),
            next_offset: self.next_offset,
            last_stamp_us: self.last_stamp_us,
            membership,
            settings: self.settings,
        }
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            pos: log_pos(&self.last),
            next_offset: self.next_offset,
        }
    }

    fn body(&self) -> Bytes {
        let settings_at = self.settings.map(|(at, _)| LogIdWire {
            term: at.term,
            index: at.index,
        });
        envelope::encode(&SnapshotBody {
            next_offset: self.next_offset,
            last_stamp_us: self.last_stamp_us,
            settings_at,
            settings: self
                .settings
                .map_or_else(Bytes::new, |(_, settings)| settings.encode()),
            machine: self.machine.clone(),
        })
    }

    pub(crate) fn file_bytes(&self) -> Bytes {
        envelope::encode_checked(&SnapshotRecord {
            last: Some(LogIdWire::from(&self.last)),
            membership_at: wire_opt(self.membership.log_id().as_ref()),
            membership: encode_membership(self.membership.membership()),
            state: self.body(),
        })
    }

    pub(crate) fn into_openraft(self) -> SnapshotOf {
        Snapshot {
            snapshot: self.body(),
            meta: SnapshotMeta {
                last_log_id: Some(self.last),
                last_membership: self.membership,
            },
        }
    }
}

/// A snapshot's bytes, as in its file.
pub(crate) fn encode_snapshot(snapshot: &SnapshotOf) -> Bytes {
    let meta = &snapshot.meta;
    envelope::encode_checked(&SnapshotRecord {
        last: wire_opt(meta.last_log_id.as_ref()),
        membership_at: wire_opt(meta.last_membership.log_id().as_ref()),
        membership: encode_membership(meta.last_membership.membership()),
        state: snapshot.snapshot.clone(),
    })
}

/// Where a log of data may begin anew, from a leader's snapshot. A state is not to be had this way.
pub(crate) fn start_cut(snapshot: Bytes) -> Result<StartCut, SnapshotError> {
    let snap = Snap::from_file(snapshot)?;
    if !snap.machine.is_empty() {
        return Err(SnapshotError::HasState);
    }
    let cut = snap.cut();
    Ok(StartCut {
        upto: cut.upto,
        next_offset: cut.next_offset,
        membership: cut.membership,
        settings: cut.settings,
    })
}

/// Where a snapshot cuts the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pos: LogPos,
    pub(crate) next_offset: u64,
}

/// A file that can't be used.
#[derive(Debug)]
pub(crate) struct Damaged {
    pub(crate) path: PathBuf,
    pub(crate) reason: SnapshotError,
}

/// What is in the directory: good snapshots, the newest first, and files that can't be used.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) good: Vec<(PathBuf, Snap)>,
    pub(crate) damaged: Vec<Damaged>,
}

/// The newest snapshot of a group, in its directory.
pub(crate) const NEWEST: &str = "snapshot";
const BEFORE: &str = "snapshot.before";

/// The two files. All calls but [`SnapshotFiles::newest`] and [`SnapshotFiles::before`] block.
#[derive(Debug)]
pub(crate) struct SnapshotFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    group: u64,
    kept: Mutex<Kept>,
}

/// What is known to be good on the disk.
#[derive(Debug, Default)]
struct Kept {
    newest: Option<Place>,
    before: Option<Place>,
    /// The replica has stopped: its files may have another owner.
    closed: bool,
}

impl Kept {
    fn check_open(&self) -> io::Result<()> {
        match self.closed {
            true => Err(io::Error::other("the replica has stopped")),
            false => Ok(()),
        }
    }
}

impl SnapshotFiles {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: &Path, group: u64) -> Self {
        SnapshotFiles {
            disk,
            dir: dir.to_owned(),
            group,
            kept: Mutex::default(),
        }
    }

    /// Where the newest good file cuts the log.
    pub(crate) fn newest(&self) -> Option<Place> {
        self.kept.lock().newest
    }

    /// Where the older good file cuts the log.
    pub(crate) fn before(&self) -> Option<Place> {
        self.kept.lock().before
    }

    /// Reads both files and remembers which are good.
    pub(crate) fn find(&self) -> io::Result<Found> {
        let mut kept = self.kept.lock();
        let mut found = Found::default();
        for (name, place) in [(NEWEST, 0), (BEFORE, 1)] {
            let path = self.dir.join(name);
            let good = match self.read(&path)? {
                None => None,
                Some(Ok(snap)) => {
                    let at = snap.place();
                    found.good.push((path, snap));
                    Some(at)
                }
                Some(Err(reason)) => {
                    let file = path.display();
                    tracing::error!(group = self.group, %file, %reason, "a snapshot can't be used");
                    found.damaged.push(Damaged { path, reason });
                    None
                }
            };
            match place {
                0 => kept.newest = good,
                _ => kept.before = good,
            }
        }
        Ok(found)
    }

    /// `None` if there is no such file.
    fn read(&self, path: &Path) -> io::Result<Option<Result<Snap, SnapshotError>>> {
        if !self.disk.exists(path)? {
            return Ok(None);
        }
        let bytes = read_file(&*self.disk, path).map_err(SnapshotError::from);
        Ok(Some(bytes.and_then(|bytes| Snap::from_file(bytes.into()))))
    }

    /// Makes this the newest one; what was newest becomes the older one. Nothing is done if there is a newer one already.
    pub(crate) fn write(&self, snap: &Snap) -> io::Result<()> {
        let mut kept = self.kept.lock();
        kept.check_open()?;
        let at = snap.place();
        if kept.newest.is_some_and(|newest| newest.pos >= at.pos) {
            return Ok(());
        }
        let (newest, before) = (self.dir.join(NEWEST), self.dir.join(BEFORE));
        if kept.newest.is_some() {
            if kept.before.is_none() {
                self.set_aside(&before, BEFORE)?;
            }
            self.disk.rename(&newest, &before)?;
            kept.before = kept.newest.take();
        } else {
            self.set_aside(&newest, NEWEST)?;
        }
        replace_file(&*self.disk, &newest, &[&snap.file_bytes()])?;
        kept.newest = Some(at);
        Ok(())
    }

    /// Waits for a write that is under way; later ones are refused.
    pub(crate) fn close(&self) {
        self.kept.lock().closed = true;
    }

    /// Makes this the older one too: for a log that begins at it, no older one is of use.
    pub(crate) fn write_before(&self, snap: &Snap) -> io::Result<()> {
        let mut kept = self.kept.lock();
        kept.check_open()?;
        let before = self.dir.join(BEFORE);
        if kept.before.is_none() {
            self.set_aside(&before, BEFORE)?;
        }
        replace_file(&*self.disk, &before, &[&snap.file_bytes()])?;
        kept.before = Some(snap.place());
        Ok(())
    }

    /// Moves a file that can't be used out of the way, if there is one.
    fn set_aside(&self, path: &Path, name: &str) -> io::Result<()> {
        if !self.disk.exists(path)? {
            return Ok(());
        }
        let data = parent(parent(&self.dir)?)?;
        let what = format!("group-{:020}-{name}", self.group);
        let to = Quarantine::undated(&*self.disk, data).set_aside(path, &what)?;
        tracing::warn!(group = self.group, to = %to.display(), "a damaged snapshot is set aside");
        Ok(())
    }
}
