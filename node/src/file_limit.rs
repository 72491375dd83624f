//! The limit of open files: raised as far as this process may, and held against what the node needs before it touches its data.
//!
//! A node keeps one file open per replica, the segment that it appends to, and a fixed number of sealed segments that were read
//! lately; the rest are connections. Running out of them in the middle of work fails appends, so a node that could not even open
//! what it has refuses to start, and one that could run out under full load says so.

use std::path::Path;

use imprint_raft::disk::{DEFAULT_WARM_FILES, Disk};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Listeners, pipes, the meta store, both copies of the state log, and files that are open for a moment.
const OWN: u64 = 64;
/// Connections with which a node can still be run: a few clients and two per peer.
const FEWEST_CONNECTIONS: u64 = 32;

/// What a node needs, in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    pub replicas: u64,
    pub connections: u64,
}

impl Need {
    /// By what the data directory holds now; none of it has to be there.
    pub fn of(disk: &dyn Disk, data: &Path, connections: usize) -> Self {
        let groups = disk.list(&data.join("groups"));
        Self {
            replicas: groups.map_or(0, |names| names.len() as u64),
            connections: connections as u64,
        }
    }

    /// Without these the node can't open its logs.
    fn least(&self) -> u64 {
        OWN + FEWEST_CONNECTIONS + self.replicas
    }

    /// With these it never runs out.
    fn full(&self) -> u64 {
        OWN + DEFAULT_WARM_FILES as u64 + self.connections + self.replicas
    }
}

/// Fewer files may be open than the node has to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "at most {limit} files may be open, and {least} are needed: {replicas} for as many replicas, {rest} for the rest; raise the \
     limit (`ulimit -n`, LimitNOFILE= of a service, `ulimits` of a container) to {full} or more"
)]
pub struct TooFew {
    pub limit: u64,
    pub least: u64,
    pub replicas: u64,
    pub rest: u64,
    pub full: u64,
}

/// How many files this process may open, after raising the soft limit to the hard one. `None`: no limit.
pub fn raise() -> Option<u64> {
    let found = getrlimit(Resource::Nofile);
    if found.current == found.maximum {
        return found.current;
    }
    let wanted = Rlimit {
        current: found.maximum,
        maximum: found.maximum,
    };
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => found.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files can't be raised");
            found.current
        }
    }
}

/// Holds a limit against the need: an error below the least, a warning in the log below what full load may take.
pub fn check(limit: Option<u64>, need: Need) -> Result<(), TooFew> {
    let Some(limit) = limit else { return Ok(()) };
    let (least, full) = (need.least(), need.full());
    if limit < least {
        return Err(TooFew {
            limit,
            least,
            replicas: need.replicas,
            rest: least - need.replicas,
            full,
        });
    }
    if limit < full {
        tracing::warn!(
            limit,
            needed_under_full_load = full,
            replicas = need.replicas,
            connections = need.connections,
            "few files may be open: raise the limit (`ulimit -n`, LimitNOFILE=, `ulimits`)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use imprint_raft::disk::sim::SimDisk;

    use super::*;

    #[test]
    fn the_limit_is_held_against_what_there_is() {
        let need = Need {
            replicas: 500,
            connections: 1000,
        };
        assert_eq!(check(None, need), Ok(()));
        assert_eq!(check(Some(596), need), Ok(()));
        let refused = check(Some(595), need).unwrap_err();
        assert_eq!((refused.least, refused.rest), (596, 96));
        let text = refused.to_string();
        assert!(
            text.contains("at most 595") && text.contains("to 1692"),
            "{text}"
        );
    }

    #[test]
    fn what_a_directory_holds_counts() {
        let (disk, data) = (SimDisk::new(), Path::new("/data"));
        assert_eq!(Need::of(&disk, data, 7).replicas, 0);
        for group in 0..3 {
            let dir = data.join(format!("groups/{group:020}"));
            disk.create_dir_all(&dir).unwrap();
        }
        assert_eq!(Need::of(&disk, data, 7).replicas, 3);
    }

    #[test]
    fn the_soft_limit_is_raised() {
        assert_eq!(raise(), getrlimit(Resource::Nofile).current);
    }
}
