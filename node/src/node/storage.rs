//! The data directory: locked, identified, and with its state log open.
//!
//! A directory that has anything of a node but no identity is refused: whoever lost that file may
//! have lost others, and a node that votes under an old id with a new disk can undo what was
//! acknowledged. A new directory gets its state log before its identity, so that one with an
//! identity always has both.

use super::{OpenMeta, Seams};
use crate::config::{HostPort, NodeConfig, StorageConfig};
use crate::room::{Floors, FloorsError, monitor::keep_reserve};
use imprint_proto::ids::NodeId;
use imprint_raft::{
    disk::{DirLock, Io, is_no_space, offloaded},
    identity::{self, Identity, IdentityError},
    journal::set_aside_unknown_groups,
    meta::{MetaError, MetaStore},
    seams::Entropy,
    statelog::{Presence, StateLog, StateLogError},
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why the data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "{}: there is data but no identity file; restore it, or give this node an empty directory \
         and a new node id",
        path.display()
    )]
    IdentityLost { path: PathBuf },
    #[error(transparent)]
    StateLog(#[from] StateLogError),
    #[error("the meta store, which may be deleted, can't be opened: {0:?}")]
    Meta(#[from] MetaError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Floors(#[from] FloorsError),
}

/// An open data directory.
pub(super) struct Storage {
    pub identity: Identity,
    pub state: Arc<StateLog>,
    /// What can be rebuilt.
    pub meta: Arc<dyn MetaStore>,
    /// Of the disk that the directory is on.
    pub floors: Floors,
    /// Held as long as the node lives.
    _lock: Box<dyn DirLock>,
}

impl Storage {
    pub async fn open(config: &NodeConfig, seams: &Seams) -> Result<Self, StorageError> {
        let (io, entropy) = (seams.io.clone(), Arc::clone(&seams.entropy));
        let (dir, node) = (config.data_dir.clone(), config.node_id);
        let path = dir.clone();
        let open_meta = seams.open_meta;
        let storage = config.storage.clone();
        offloaded(&seams.io, move || {
            open(&io, entropy.as_ref(), open_meta, &dir, node, &storage)
        })
        .await
        .map_err(|source| StorageError::Io { path, source })?
    }

    /// Writes down what only lazily becomes durable.
    pub async fn close(self) {
        self.state.flush_lazy();
    }
}

fn open(
    io: &Io,
    entropy: &dyn Entropy,
    open_meta: OpenMeta,
    dir: &Path,
    node: NodeId,
    config: &StorageConfig,
) -> Result<Storage, StorageError> {
    let disk = io.disk.as_ref();
    let lock = identity::lock(disk, dir)?;
    let floors = floors(io, dir, config)?;
    let known = identity::load(disk, dir)?;
    let has_data = disk
        .exists(&dir.join("groups"))
        .map_err(|source| StorageError::Io {
            path: dir.to_owned(),
            source,
        })?;
    if known.is_none() && has_data {
        return Err(StorageError::IdentityLost {
            path: dir.to_owned(),
        });
    }
    let presence = match known {
        Some(_) => Presence::MustExist,
        None => Presence::MayBeNew,
    };
    let state = StateLog::open_with(io.clone(), &dir.join("state"), presence)?;
    set_aside_unknown_groups(io, dir, &state).map_err(|source| StorageError::Io {
        path: dir.join("groups"),
        source,
    })?;
    let identity = begin_run(io, dir, node, entropy)?;
    Ok(Storage {
        identity,
        state,
        meta: open_meta(dir)?,
        floors,
        _lock: lock,
    })
}

/// Notes the new run; on a full disk with the help of the reserve.
fn begin_run(
    io: &Io,
    dir: &Path,
    node: NodeId,
    entropy: &dyn Entropy,
) -> Result<Identity, IdentityError> {
    let disk = io.disk.as_ref();
    match identity::begin_run(disk, dir, node, entropy) {
        Err(IdentityError::Io { source, .. }) if is_no_space(&source) && io.space.hit(disk) => {
            identity::begin_run(disk, dir, node, entropy)
        }
        other => other,
    }
}

/// How much room has to be there, and the reserve; first of all, so that a start on a full disk has the reserve to use.
fn floors(io: &Io, dir: &Path, config: &StorageConfig) -> Result<Floors, StorageError> {
    let space = io.disk.space(dir).map_err(|source| StorageError::Io {
        path: dir.to_owned(),
        source,
    })?;
    let floors = Floors::resolve(config, space.total_bytes)?;
    keep_reserve(io, dir, &floors);
    Ok(floors)
}

/// The same number for the same list of seeds, on every build (FNV-1a).
pub(super) fn hash_of_seeds(seeds: &[HostPort]) -> u64 {
    seeds
        .iter()
        .flat_map(|seed| format!("{seed}\n").into_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}
