//! Directories of groups that the state log knows nothing of.
//!
//! Without votes and control entries a directory of segments is no log: nobody may open it, vote with it or serve from it.
//! It may still be somebody's only copy, so it isn't deleted either. It is set aside at start, before any replica opens.
//! What leaves one behind: a crash between forgetting a replica and removing its files, or a hand that copied it here.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Io;
use crate::quarantine::Quarantine;
use crate::statelog::StateLog;

/// The directory of a group's segments.
pub fn group_dir(data: &Path, group: u64) -> PathBuf {
    data.join("groups").join(format!("{group:020}"))
}

/// Moves directories of unknown groups to `quarantine/`; says where they are now. Blocks.
pub fn set_aside_unknown_groups(
    io: &Io,
    data: &Path,
    state: &StateLog,
) -> io::Result<Vec<PathBuf>> {
    let (disk, groups) = (io.disk.as_ref(), data.join("groups"));
    if !disk.exists(&groups)? {
        return Ok(Vec::new());
    }
    let quarantine = Quarantine::new(disk, data, io.clock.now_micros());
    let known: BTreeSet<u64> = state.groups().into_iter().collect();
    let mut moved = Vec::new();
    for name in disk.list(&groups)? {
        let group = name.parse().ok().filter(|_| name.len() == 20);
        let Some(group) = group.filter(|group| !known.contains(group)) else {
            continue;
        };
        let from = group_dir(data, group);
        let aside = quarantine.set_aside(&from, &format!("group-{name}-unknown-to-state-log"))?;
        tracing::warn!(
            group, from = %from.display(), to = %aside.display(),
            "the state log knows nothing of this group: its directory is set aside"
        );
        moved.push(aside);
    }
    Ok(moved)
}
