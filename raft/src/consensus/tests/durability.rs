//! What an acknowledgement stands for, on disks that count syncs and know what a power cut would leave.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Condvar, Mutex};
use tokio::time::Instant;

use super::super::{GroupsConfig, ProposeError};
use super::cluster::{TestCluster, batch, deadline, leader};
use crate::disk::sim::Call;
use crate::disk::{Io, RealOffload, SimDisk};
use crate::seams::SystemClock;

const GROUP: u64 = 5;

fn disks() -> BTreeMap<u64, SimDisk> {
    (1..=3).map(|id| (id, SimDisk::new())).collect()
}

async fn cluster_on(disks: &BTreeMap<u64, SimDisk>) -> TestCluster {
    TestCluster::start_on(3, GroupsConfig::default(), |id| {
        let offload = RealOffload::new(tokio::runtime::Handle::current());
        let disk = Arc::new(disks[&id].clone());
        Io::new(disk, Arc::new(offload), Arc::new(SystemClock))
    })
    .await
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|ext| ext == "seg")
}

/// Whether a power cut now would leave `payload` in a segment of this disk.
fn survives_on(disk: &SimDisk, payload: &[u8]) -> bool {
    disk.files()
        .iter()
        .filter(|path| is_segment(path))
        .filter_map(|path| disk.durable_contents(path).ok())
        .any(|bytes| bytes.windows(payload.len()).any(|part| part == payload))
}

fn segment_syncs(disk: &SimDisk) -> u64 {
    disk.files()
        .iter()
        .filter(|path| is_segment(path))
        .map(|path| disk.syncs(path))
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_acknowledged_would_survive_a_power_cut_on_a_majority() {
    let disks = disks();
    let cluster = cluster_on(&disks).await;
    let replicas = cluster.open_group(GROUP).await;
    let leading = leader(&replicas);
    for n in 0..40 {
        let payload = format!("message number {n:04}, acknowledged");
        leading
            .propose(batch(GROUP, payload.as_bytes()), None, deadline())
            .await
            .expect("all nodes are up");
        let copies = disks
            .values()
            .filter(|d| survives_on(d, payload.as_bytes()));
        let copies = copies.count();
        assert!(
            copies >= 2,
            "acknowledged with {copies} synced copies of {payload:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_lone_acknowledgement_has_its_sync_and_many_share_them() {
    let disks = disks();
    let cluster = cluster_on(&disks).await;
    let replicas = cluster.open_group(GROUP).await;
    let leading = leader(&replicas);
    let total = || disks.values().map(segment_syncs).sum::<u64>();

    let before = total();
    for n in 0..20u64 {
        leading
            .propose(batch(GROUP, &n.to_le_bytes()), None, deadline())
            .await
            .expect("all nodes are up");
    }
    let alone = total() - before;
    assert!(
        alone >= 2 * 20,
        "20 acknowledgements one by one took {alone} syncs on three disks"
    );

    let before = total();
    let together =
        (0..400u64).map(|n| leading.propose(batch(GROUP, &n.to_le_bytes()), None, deadline()));
    for result in join_all(together).await {
        result.expect("all nodes are up");
    }
    let shared = total() - before;
    assert!(
        shared < 400,
        "400 appends at once took {shared} syncs on three disks"
    );
}

/// A door in front of a disk's syncs.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn set_closed(&self, closed: bool) {
        *self.0.0.lock() = closed;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.0.0.lock();
        while *closed {
            self.0.1.wait(&mut closed);
        }
    }

    fn stand_before(&self, disk: &SimDisk) {
        let door = self.clone();
        disk.set_fault(Some(Box::new(move |call, path| {
            if call == Call::Sync && is_segment(path) {
                door.pass();
            }
            None
        })));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_acknowledged_while_only_one_disk_syncs() {
    let disks = disks();
    let cluster = cluster_on(&disks).await;
    let replicas = cluster.open_group(GROUP).await;
    let leading = leader(&replicas);
    leading
        .propose(batch(GROUP, b"warm"), None, deadline())
        .await
        .expect("all nodes are up");

    let door = Door::default();
    let followers = replicas.iter().filter(|(_, g)| !g.is_leader());
    for (id, _) in followers {
        door.stand_before(&disks[id]);
    }
    door.set_closed(true);
    let soon = Instant::now() + Duration::from_millis(500);
    let stuck = leading.propose(batch(GROUP, b"waits"), None, soon).await;
    door.set_closed(false);
    assert!(
        matches!(
            stuck,
            Err(ProposeError::Unknown(_) | ProposeError::NotLeader { .. })
        ),
        "{stuck:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn marks_become_durable_without_a_stop() {
    let disks = disks();
    let cluster = cluster_on(&disks).await;
    let replicas = cluster.open_group(GROUP).await;
    let proposed = leader(&replicas)
        .propose(batch(GROUP, b"marked"), None, deadline())
        .await
        .expect("all nodes are up");
    let end = proposed.last_offset + 1;
    let durable = |node: u64| {
        let kept = cluster.nodes[&node].groups.state.group(GROUP);
        kept.is_some_and(|kept| {
            kept.marks.synced_offset == end
                && kept.marks.committed == replicas[&node].journal().last()
        })
    };
    tokio::time::timeout(Duration::from_secs(20), async {
        while !(1..=3).all(durable) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("synced and committed marks reach the disk by themselves");
}
