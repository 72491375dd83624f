//! Watches this node's disk: how much room there is, and whether syncs return in time.
//!
//! Each second, and at once after a write has found no space: the level, the reserve file, and another try for logs that
//! wait for room. A node whose disk is short hands leadership to replicas with room; one whose sync has been under way for
//! too long does so once, until the disk has been quick again.
//!
//! A disk that holds all threads holds this too. That is no harm for the room (nothing is written then), nor for leadership
//! (heartbeats stop); the time after which the process gives up is watched by a thread of its own, in `serve`.

use super::{Floors, RoomBoard, Verdict};
use crate::{
    backend::Replica,
    config::{format_duration, format_size},
    core::{CONTROLLER, Core},
    node::offloaded,
};
use imprint_proto::ids::NodeId;
use imprint_raft::disk::{Io, OpenMode, SpaceLevel};
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How often the room is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a write that found no space the next look is this soon, so that many of them make one look.
const LOOK_SOON: Duration = Duration::from_millis(20);
/// How often syncs under way are looked at.
const SYNCS_EVERY: Duration = Duration::from_millis(100);

/// Name of the reserve file in the data directory.
pub(crate) const RESERVE: &str = "reserve";

/// Tells the gate of a reserve that is there, and makes one where there is room. Blocks.
pub(crate) fn keep_reserve(io: &Io, dir: &Path, floors: &Floors) {
    let path = dir.join(RESERVE);
    match made_reserve(io, &path, floors) {
        Ok(true) => io.space.set_reserve(path),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the reserve could not be made");
            // What there is of it only takes up room.
            let _ = io.disk.remove_file(&path);
        }
    }
}

fn made_reserve(io: &Io, path: &Path, floors: &Floors) -> io::Result<bool> {
    let disk = io.disk.as_ref();
    if disk.exists(path)? {
        let len = disk.open(path, OpenMode::Read)?.len()?;
        if len == floors.reserve_bytes && len > 0 {
            return Ok(true);
        }
        disk.remove_file(path)?;
    }
    let free = disk.space(imprint_raft::disk::parent(path)?)?.free_bytes;
    if !floors.has_room_for_reserve(free) {
        return Ok(false);
    }
    let file = disk.open(path, OpenMode::Truncate)?;
    file.allocate(floors.reserve_bytes)?;
    file.sync_all()?;
    Ok(true)
}

/// See the module's text.
pub(crate) struct Monitor {
    pub io: Io,
    pub dir: PathBuf,
    pub floors: Floors,
    pub core: Arc<Core>,
    pub slow_sync: Duration,
}

impl Monitor {
    /// Watches until it is dropped.
    pub async fn run(self) {
        self.io.space.attend();
        let monitor = Arc::new(self);
        let syncs = Arc::clone(&monitor);
        tokio::join!(monitor.watch_room(), syncs.watch_syncs());
    }

    fn board(&self) -> &RoomBoard {
        &self.core.parts.room
    }

    async fn watch_room(&self) {
        loop {
            if let Err(error) = self.look().await {
                tracing::warn!(%error, "the room on the disk can't be asked for");
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.io.space.news() => tokio::time::sleep(LOOK_SOON).await,
            }
        }
    }

    async fn look(&self) -> io::Result<()> {
        let (disk, dir) = (Arc::clone(&self.io.disk), self.dir.clone());
        let space = offloaded(&self.io, move || disk.space(&dir)).await??;
        let before = self.board().own().level;
        let now = self.io.space.level().max(before);
        let level = self.floors.next_level(now, space.free_bytes);
        self.io.space.set_level(level);
        self.board().found(level, space, &self.floors);
        if level != before {
            self.tell(before, level, space.free_bytes);
        }
        if self.io.space.waiting() > 0 {
            self.io.space.retry();
        }
        self.board().set_level(self.io.space.level());
        self.board().set_waiting(self.io.space.waiting());
        if !self.io.space.has_reserve() && self.floors.has_room_for_reserve(space.free_bytes) {
            let (io, dir, floors) = (self.io.clone(), self.dir.clone(), self.floors);
            offloaded(&self.io, move || keep_reserve(&io, &dir, &floors)).await?;
        }
        if level != SpaceLevel::Enough {
            self.hand_over_short().await;
        }
        Ok(())
    }

    fn tell(&self, before: SpaceLevel, level: SpaceLevel, free_bytes: u64) {
        let (before, now) = (before.name(), level.name());
        let soft = format_size(self.floors.soft_bytes);
        let hard = format_size(self.floors.hard_bytes);
        match level {
            SpaceLevel::Enough => {
                tracing::info!(before, now, free_bytes, %soft, %hard, "room on the disk again");
            }
            _ => tracing::warn!(before, now, free_bytes, %soft, %hard, "the disk is short of room"),
        }
    }

    fn led_here(&self) -> Vec<Arc<dyn Replica>> {
        let replicas = &self.core.parts.replicas;
        let mut groups = replicas.open_groups();
        groups.push(CONTROLLER);
        let open = groups.into_iter().filter_map(|group| replicas.get(group));
        open.filter(|replica| replica.is_leader()).collect()
    }

    /// Gives away what should be led elsewhere because only a minority, this node with it, is short.
    async fn hand_over_short(&self) {
        for replica in self.led_here() {
            let nodes = replica.voter_nodes();
            if self.core.judge_room(&nodes) == Verdict::HandOver {
                self.hand_over(replica.as_ref(), &nodes).await;
            }
        }
    }

    /// Asks a living replica with room and a quick disk to take over.
    async fn hand_over(&self, replica: &dyn Replica, nodes: &[NodeId]) {
        let own = self.core.node_id();
        let fit = |node: &&NodeId| {
            let room = self.board().of(own, **node);
            let usable = room.level == SpaceLevel::Enough && !room.slow;
            **node != own && usable && self.core.is_alive(**node)
        };
        if let Some(node) = nodes.iter().find(fit) {
            replica.step_down_to(*node).await;
        }
    }

    async fn watch_syncs(&self) {
        let mut slow = false;
        loop {
            tokio::time::sleep(SYNCS_EVERY).await;
            let late = self
                .io
                .watch
                .oldest()
                .filter(|o| o.pending >= self.slow_sync);
            match late {
                Some(late) if !slow => {
                    slow = true;
                    let (path, what) = (late.path.display().to_string(), late.what);
                    let limit = format_duration(self.slow_sync);
                    tracing::warn!(%path, what, pending = ?late.pending, %limit, "the disk is slow: leadership is handed over");
                    self.board().set_slow(true);
                    self.core.metrics().slow_disk();
                    for replica in self.led_here() {
                        let nodes = replica.voter_nodes();
                        self.hand_over(replica.as_ref(), &nodes).await;
                    }
                }
                None if slow => {
                    slow = false;
                    self.board().set_slow(false);
                    tracing::info!("the disk answers in time again");
                }
                _ => {}
            }
        }
    }
}

/// Whether a call of the disk has been under way for longer than `limit`: what a person should read then.
pub(crate) fn stuck(io: &Io, limit: Duration) -> Option<String> {
    let oldest = io.watch.oldest().filter(|o| o.pending >= limit)?;
    let (path, what) = (oldest.path.display(), oldest.what);
    let (pending, limit) = (oldest.pending.as_secs(), format_duration(limit));
    Some(format!(
        "{path}: {what} has not returned for {pending} s (limit {limit}): the disk is stuck"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use imprint_raft::{
        disk::{Disk, InlineOffload, SimDisk, Space},
        seams::SystemClock,
    };

    fn io(disk: &SimDisk) -> Io {
        let dir = Path::new("/data");
        disk.create_dir_all(dir).expect("made");
        Io::new(
            Arc::new(disk.clone()),
            Arc::new(InlineOffload),
            Arc::new(SystemClock),
        )
    }

    fn set_free(disk: &SimDisk, free_bytes: u64) {
        disk.set_space(Space {
            free_bytes,
            total_bytes: 10_000,
        });
    }

    #[test]
    fn the_reserve_is_made_only_where_it_does_not_make_the_disk_short() {
        let (disk, dir) = (SimDisk::new(), Path::new("/data"));
        let io = io(&disk);
        let floors = Floors {
            soft_bytes: 1000,
            hard_bytes: 500,
            reserve_bytes: 300,
        };
        set_free(&disk, 1399);
        keep_reserve(&io, dir, &floors);
        assert!(!io.space.has_reserve());
        set_free(&disk, 1400);
        keep_reserve(&io, dir, &floors);
        assert!(io.space.has_reserve());
        assert!(disk.exists(&dir.join(RESERVE)).expect("a live disk"));
        assert_eq!(disk.syncs(&dir.join(RESERVE)), 1);
        keep_reserve(&io, dir, &floors);
        assert_eq!(disk.syncs(&dir.join(RESERVE)), 1, "one that is there stays");
    }
}
