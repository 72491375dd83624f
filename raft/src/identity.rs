//! Who this node is: one small checksummed file, and the lock on the data directory.
//!
//! The file names the cluster (once it has joined one), the node, the storage it was made with, and an incarnation that
//! rises, synced, with every start. Peers refuse an older incarnation and another storage of the same node, so neither a
//! copied directory nor an emptied one can act as a node that acknowledged something. A file that can't be read is damage,
//! never a new node: nothing is written until an operator decides.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use imprint_proto::envelope::{self, EnvelopeError};
use imprint_proto::ids::{NodeId, StorageId};

use crate::disk::{self, DirLock, Disk};
use crate::seams::Entropy;

/// Name of the file in the data directory.
pub const FILE_NAME: &str = "identity";
/// Name of the lock file in the data directory.
pub const LOCK_NAME: &str = "lock";

imprint_proto::envelope! {
    /// What the file holds.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Identity: version 1, compat 0 {
        /// The cluster it belongs to; none before it has joined one.
        cluster_id: Option<[u8; 16]>,
        /// The node.
        node_id: NodeId,
        /// Made up when the directory was first used; goes with the data.
        storage_id: StorageId,
        /// Starts of this node, this one included.
        incarnation: u64,
    }
}

/// Why the identity can't be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file is there but not readable as what it should be.
    #[error("{}: the identity file is damaged; restore it, or empty the data directory and rejoin as a new node", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: EnvelopeError,
    },
    /// The directory belongs to another node.
    #[error("{}: belongs to node {found}, this is node {expected}", path.display())]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: NodeId,
        /// Who asks.
        expected: NodeId,
    },
    /// The node belongs to another cluster already.
    #[error("{}: belongs to another cluster", path.display())]
    OtherCluster {
        /// The file.
        path: PathBuf,
    },
    /// Another process uses the directory.
    #[error("{}: another process uses this data directory{holder}", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
        /// Its process id as far as it is known, in words.
        holder: String,
    },
    /// The disk.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// Locks a data directory for this process, making it if need be. Held until dropped.
pub fn lock(disk: &dyn Disk, data: &Path) -> Result<Box<dyn DirLock>, IdentityError> {
    let path = data.join(LOCK_NAME);
    let wrap = |source| IdentityError::Io {
        path: path.clone(),
        source,
    };
    disk.create_dir_all(data).map_err(wrap)?;
    disk.lock(&path)
        .map_err(|source| refused(disk, path, source))
}

/// As [`lock`], for who only looks: writes nothing. The lock file has to be there.
pub fn lock_to_read(disk: &dyn Disk, data: &Path) -> Result<Box<dyn DirLock>, IdentityError> {
    let path = data.join(LOCK_NAME);
    disk.lock_to_read(&path)
        .map_err(|source| refused(disk, path, source))
}

fn refused(disk: &dyn Disk, path: PathBuf, source: io::Error) -> IdentityError {
    match source.kind() {
        io::ErrorKind::WouldBlock => IdentityError::InUse {
            holder: holder(disk, &path),
            path,
        },
        _ => IdentityError::Io { path, source },
    }
}

/// The process id that the holder of a lock left in the file.
fn holder(disk: &dyn Disk, path: &Path) -> String {
    let text = disk::read_file(disk, path).unwrap_or_default();
    let id = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.parse::<u32>().ok());
    id.map_or_else(String::new, |id| format!(": process {id}"))
}

/// Reads the identity; `None` if there is none yet.
pub fn load(disk: &dyn Disk, data: &Path) -> Result<Option<Identity>, IdentityError> {
    let path = data.join(FILE_NAME);
    let wrap = |source| IdentityError::Io {
        path: path.clone(),
        source,
    };
    if !disk.exists(&path).map_err(wrap)? {
        return Ok(None);
    }
    let bytes = Bytes::from(disk::read_file(disk, &path).map_err(wrap)?);
    let damaged = |source| IdentityError::Damaged {
        path: path.clone(),
        source,
    };
    envelope::decode_checked(bytes).map(Some).map_err(damaged)
}

/// Writes the identity; a crash leaves the old or the new one.
pub fn store(disk: &dyn Disk, data: &Path, identity: &Identity) -> Result<(), IdentityError> {
    let path = data.join(FILE_NAME);
    let bytes = envelope::encode_checked(identity);
    disk::replace_file(disk, &path, &[&bytes]).map_err(|source| IdentityError::Io { path, source })
}

/// Begins a run of `node_id`: makes its identity if there is none, and raises its incarnation, synced. The caller holds the
/// directory's lock.
pub fn begin_run(
    disk: &dyn Disk,
    data: &Path,
    node_id: NodeId,
    entropy: &dyn Entropy,
) -> Result<Identity, IdentityError> {
    let path = data.join(FILE_NAME);
    disk.create_dir_all(data)
        .map_err(|source| IdentityError::Io {
            path: path.clone(),
            source,
        })?;
    let mut identity = load(disk, data)?.unwrap_or_else(|| {
        let mut storage_id = [0; 16];
        entropy.fill(&mut storage_id);
        Identity {
            cluster_id: None,
            node_id,
            storage_id: StorageId(storage_id),
            incarnation: 0,
        }
    });
    if identity.node_id != node_id {
        return Err(IdentityError::OtherNode {
            path,
            found: identity.node_id,
            expected: node_id,
        });
    }
    identity.incarnation += 1;
    store(disk, data, &identity)?;
    Ok(identity)
}

/// Notes that the node has joined a cluster. A second cluster is refused.
pub fn join_cluster(
    disk: &dyn Disk,
    data: &Path,
    identity: &mut Identity,
    cluster_id: [u8; 16],
) -> Result<(), IdentityError> {
    match identity.cluster_id {
        Some(known) if known == cluster_id => Ok(()),
        Some(_) => Err(IdentityError::OtherCluster {
            path: data.join(FILE_NAME),
        }),
        None => {
            let joined = Identity {
                cluster_id: Some(cluster_id),
                ..identity.clone()
            };
            store(disk, data, &joined)?;
            *identity = joined;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::{Loss, SimDisk};

    #[derive(Debug)]
    struct Sevens;

    impl Entropy for Sevens {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(7);
        }
    }

    fn data() -> &'static Path {
        Path::new("/data")
    }

    #[test]
    fn each_start_raises_the_incarnation_for_good() {
        let disk = SimDisk::new();
        let first = begin_run(&disk, data(), NodeId(3), &Sevens).unwrap();
        assert_eq!(
            (first.incarnation, first.storage_id),
            (1, StorageId([7; 16]))
        );
        disk.crash(1, Loss::DropAll);
        let mut second = begin_run(&disk, data(), NodeId(3), &Sevens).unwrap();
        assert_eq!(second.incarnation, 2);
        join_cluster(&disk, data(), &mut second, [1; 16]).unwrap();
        disk.crash(1, Loss::DropAll);
        assert_eq!(load(&disk, data()).unwrap(), Some(second.clone()));
        assert!(matches!(
            join_cluster(&disk, data(), &mut second, [2; 16]),
            Err(IdentityError::OtherCluster { .. })
        ));
    }

    #[test]
    fn a_damaged_file_is_refused_and_left_as_it_is() {
        let disk = SimDisk::new();
        begin_run(&disk, data(), NodeId(3), &Sevens).unwrap();
        let path = data().join(FILE_NAME);
        disk.rot(&path, 12).unwrap();
        let bytes = disk.contents(&path).unwrap();
        assert!(matches!(
            begin_run(&disk, data(), NodeId(3), &Sevens),
            Err(IdentityError::Damaged { .. })
        ));
        assert_eq!(disk.contents(&path).unwrap(), bytes);
    }

    #[test]
    fn another_node_and_another_process_are_refused() {
        let disk = SimDisk::new();
        begin_run(&disk, data(), NodeId(3), &Sevens).unwrap();
        assert!(matches!(
            begin_run(&disk, data(), NodeId(4), &Sevens),
            Err(IdentityError::OtherNode { .. })
        ));
        let held = lock(&disk, data()).unwrap();
        assert!(matches!(
            lock(&disk, data()),
            Err(IdentityError::InUse { .. })
        ));
        drop(held);
        lock(&disk, data()).unwrap();
    }

    #[test]
    fn the_real_lock_excludes_a_second_holder() {
        let dir = tempfile::tempdir().unwrap();
        let disk = crate::disk::RealDisk;
        let held = lock(&disk, dir.path()).unwrap();
        let refused = lock(&disk, dir.path()).unwrap_err();
        assert!(matches!(refused, IdentityError::InUse { .. }));
        let own_id = format!("process {}", std::process::id());
        assert!(refused.to_string().ends_with(&own_id), "{refused}");
        drop(held);
        lock(&disk, dir.path()).unwrap();
    }
}
