//! Power cuts of single nodes and of all, with writes going on: what was acknowledged is in every log at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::{Group, GroupsConfig};
use super::cluster::{TestCluster, batch, deadline};
use crate::disk::sim::Loss;
use crate::disk::{Io, RealOffload, SimDisk};
use crate::seams::SystemClock;

const GROUP: u64 = 5;
const NODES: [u64; 3] = [1, 2, 3];

/// Nodes whose un-synced bytes can be taken away, and what was acknowledged.
struct World {
    disks: BTreeMap<u64, SimDisk>,
    cluster: TestCluster,
    /// Offset and payload.
    acknowledged: Arc<Mutex<BTreeMap<u64, Vec<u8>>>>,
    written: u64,
}

fn io_on(disk: &SimDisk) -> Io {
    let offload = RealOffload::new(tokio::runtime::Handle::current());
    Io::new(
        Arc::new(disk.clone()),
        Arc::new(offload),
        Arc::new(SystemClock),
    )
}

impl World {
    async fn start() -> World {
        let disks: BTreeMap<u64, SimDisk> = NODES.iter().map(|id| (*id, SimDisk::new())).collect();
        let io = |id| io_on(&disks[&id]);
        let cluster = TestCluster::start_on(3, GroupsConfig::default(), io).await;
        cluster.open_group(GROUP).await;
        World {
            disks,
            cluster,
            acknowledged: Arc::default(),
            written: 0,
        }
    }

    fn replica(&self, node: u64) -> Option<Arc<Group>> {
        self.cluster.nodes.get(&node)?.groups.get(GROUP)
    }

    async fn leader(&self) -> (u64, Arc<Group>) {
        let until = deadline();
        loop {
            for node in NODES {
                if let Some(group) = self.replica(node).filter(|group| group.is_leader()) {
                    return (node, group);
                }
            }
            assert!(Instant::now() < until, "no replica leads");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Writes until `count` batches were acknowledged; what fails in between may be there or not.
    async fn write(&mut self, count: usize) {
        let until = deadline();
        let mut done = 0;
        while done < count {
            assert!(Instant::now() < until, "writes do not resume");
            let (_, group) = self.leader().await;
            self.written += 1;
            let payload = format!("message {}", self.written).into_bytes();
            let patience = Instant::now() + Duration::from_secs(3);
            if let Ok(proposed) = group.propose(batch(GROUP, &payload), None, patience).await {
                self.acknowledged
                    .lock()
                    .insert(proposed.base_offset, payload);
                done += 1;
            }
        }
    }

    /// Ends a node; what it had not synced is lost.
    async fn cut_power(&mut self, node: u64, seed: u64) {
        self.cluster.kill(node).await;
        self.disks[&node].crash(seed, Loss::DropAll);
    }

    async fn restart(&mut self, node: u64) {
        let io = io_on(&self.disks[&node]);
        self.cluster.revive(node, io).await;
        let spec = self.cluster.spec(GROUP, node);
        let groups = &self.cluster.nodes[&node].groups;
        groups.open_group(spec).await.expect("its log survived");
    }

    /// Every replica has everything acknowledged, at its offset.
    async fn audit(&self) {
        let (_, leading) = self.leader().await;
        leading.linearize(deadline()).await.expect("a majority");
        let end = leading.commit_offset();
        let acknowledged = self.acknowledged.lock().clone();
        for node in NODES {
            let group = self.replica(node).expect("all are up");
            assert!(
                group.wait_commit_above(end - 1, deadline()).await,
                "node {node} lags"
            );
            let journal = Arc::clone(group.journal());
            let read = move || journal.read_stamped(0, end, u64::MAX);
            let read = tokio::task::spawn_blocking(read)
                .await
                .expect("no panic")
                .expect("readable");
            let stored: BTreeMap<u64, Vec<u8>> = read
                .batches
                .iter()
                .map(|batch| {
                    let frame = batch.frames().next().expect("one message");
                    (batch.base_offset(), frame.payload.to_vec())
                })
                .collect();
            for (offset, payload) in &acknowledged {
                assert_eq!(
                    stored.get(offset),
                    Some(payload),
                    "offset {offset} on node {node}"
                );
            }
        }
    }
}

/// A follower that lost its un-synced bytes and one that slept must not elect over what they and the leader had acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_loses_power_another_one_sleeps_then_the_leader_goes() {
    let mut world = World::start().await;
    for round in 0..6u64 {
        world.write(10).await;
        let (a, _) = world.leader().await;
        let others: Vec<u64> = NODES.into_iter().filter(|node| *node != a).collect();
        let (b, c) = (others[0], others[1]);
        world.cluster.kill(c).await;
        world.write(5).await;
        world.cut_power(b, round).await;
        world.restart(b).await;
        world.restart(c).await;
        if round % 2 == 0 {
            world.write(3).await;
        }
        world.cut_power(a, round).await;
        world.write(20).await;
        world.restart(a).await;
        world.audit().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_lose_power_together_right_after_acknowledgements() {
    let mut world = World::start().await;
    for round in 0..6u64 {
        world
            .write(1 + usize::try_from(round % 3).unwrap_or(0))
            .await;
        for node in NODES {
            world.cut_power(node, round).await;
        }
        for node in NODES {
            world.restart(node).await;
        }
        world.write(1).await;
        world.audit().await;
    }
}
