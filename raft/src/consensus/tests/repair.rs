//! Damage and its repair: real replicas, disks that can rot.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::super::{Group, GroupsConfig, OpenGroupError};
use super::cluster::{TestCluster, batch, deadline, leader};
use crate::disk::{Io, RealOffload, SimDisk};
use crate::journal::{Journal, ReadError};
use crate::seams::SystemClock;

const GROUP: u64 = 5;

struct Fixture {
    disks: BTreeMap<u64, SimDisk>,
    cluster: TestCluster,
}

fn io_on(disk: &SimDisk) -> Io {
    let offload = RealOffload::new(tokio::runtime::Handle::current());
    Io::new(
        Arc::new(disk.clone()),
        Arc::new(offload),
        Arc::new(SystemClock),
    )
}

impl Fixture {
    async fn start() -> Fixture {
        let disks: BTreeMap<u64, SimDisk> = (1..=3).map(|id| (id, SimDisk::new())).collect();
        let io = |id| io_on(&disks[&id]);
        // Reads have to reach the disk.
        let config = GroupsConfig {
            tail_cache_bytes: 128 << 10,
            ..GroupsConfig::default()
        };
        let cluster = TestCluster::start_on(3, config, io).await;
        Fixture { disks, cluster }
    }

    /// The segment files of a node's replica, in order.
    fn segments(&self, node: u64) -> Vec<PathBuf> {
        let files = self.disks[&node].files();
        let of_group = format!("{GROUP:020}");
        let is_ours = |path: &PathBuf| {
            path.extension().is_some_and(|ext| ext == "seg")
                && path.parent().is_some_and(|dir| dir.ends_with(&of_group))
        };
        files.into_iter().filter(is_ours).collect()
    }

    fn contents(&self, node: u64, nth: usize) -> Vec<u8> {
        self.disks[&node]
            .contents(&self.segments(node)[nth])
            .expect("it is there")
    }

    fn rot(&self, node: u64, nth: usize, pos: u64) {
        self.disks[&node]
            .rot(&self.segments(node)[nth], pos)
            .expect("it is there");
    }
}

/// Fills three segments and a bit.
async fn write(leading: &Arc<Group>) {
    for n in 0..56u8 {
        let payload = vec![n; 64 << 10];
        leading
            .propose(batch(GROUP, &payload), None, deadline())
            .await
            .expect("all nodes are up");
    }
}

/// Until every replica shows all that the leader has.
async fn caught_up(replicas: &BTreeMap<u64, Arc<Group>>) {
    let end = leader(replicas).journal().next_offset();
    for group in replicas.values() {
        assert!(
            group.wait_commit_above(end - 1, deadline()).await,
            "a replica lags for ever"
        );
        group.journal().drain().await.expect("a healthy disk");
    }
}

async fn until_whole(journal: &Arc<Journal>) {
    let mut damage = journal.watch_damage();
    let whole = async {
        while journal.is_damaged() {
            damage.changed().await.expect("the journal lives");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), whole)
        .await
        .expect("repaired");
}

async fn check(journal: &Arc<Journal>, base: u64) {
    let journal = Arc::clone(journal);
    let check = move || journal.check_segment(base, &mut |_| true);
    tokio::task::spawn_blocking(check)
        .await
        .expect("no panic")
        .expect("checked");
}

fn follower(replicas: &BTreeMap<u64, Arc<Group>>) -> u64 {
    let found = replicas.iter().find(|(_, group)| !group.is_leader());
    *found.expect("two of them follow").0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flipped_bit_in_a_sealed_segment_is_found_refused_and_repaired() {
    let fixture = Fixture::start().await;
    let replicas = fixture.cluster.open_group(GROUP).await;
    write(&leader(&replicas)).await;
    caught_up(&replicas).await;
    let node = follower(&replicas);
    let journal = Arc::clone(replicas[&node].journal());
    let before = fixture.contents(node, 1);
    let base = journal.segments()[1].base_offset;
    fixture.rot(node, 1, 300_000);
    check(&journal, base).await;
    until_whole(&journal).await;
    assert_eq!(fixture.contents(node, 1), before);
    let group = Arc::clone(&replicas[&node]);
    let read =
        tokio::task::spawn_blocking(move || group.journal().read_stamped(base, base + 3, 1 << 20));
    let read = read.await.expect("no panic").expect("it is repaired");
    assert!(!read.batches.is_empty());
    let fit = async {
        while !replicas[&node].may_lead() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let fit = tokio::time::timeout(Duration::from_secs(20), fit).await;
    fit.expect("fit to lead again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_replicas_damaged_in_three_places_repair_each_other() {
    let fixture = Fixture::start().await;
    let replicas = fixture.cluster.open_group(GROUP).await;
    write(&leader(&replicas)).await;
    caught_up(&replicas).await;
    let before = fixture.contents(1, 0);
    let base = replicas[&1].journal().segments()[0].base_offset;
    for (node, pos) in [(1, 1_000), (2, 400_000), (3, 900_000)] {
        fixture.rot(node, 0, pos);
    }
    for group in replicas.values() {
        check(group.journal(), base).await;
    }
    for (node, group) in &replicas {
        until_whole(group.journal()).await;
        assert!(
            fixture.contents(*node, 0) == before,
            "node {node} has other bytes"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_with_a_hole_hands_over_and_nothing_is_read_over_it() {
    let fixture = Fixture::start().await;
    let replicas = fixture.cluster.open_group(GROUP).await;
    let leading = leader(&replicas);
    write(&leading).await;
    caught_up(&replicas).await;
    // The same place everywhere: nobody can repair it.
    let base = leading.journal().segments()[0].base_offset;
    let node = *replicas
        .iter()
        .find(|(_, group)| group.is_leader())
        .expect("one leads")
        .0;
    for other in 1..=3 {
        fixture.rot(other, 0, 1_000);
    }
    check(leading.journal(), base).await;
    let journal = Arc::clone(leading.journal());
    let read = tokio::task::spawn_blocking(move || journal.read_stamped(base, base + 3, 1 << 20));
    let read = read.await.expect("no panic");
    assert!(
        matches!(read, Err(ReadError::Corrupt(_))),
        "read over a hole"
    );
    let handed_over = async {
        while replicas[&node].is_leader() || replicas.values().all(|group| !group.is_leader()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), handed_over)
        .await
        .expect("another one leads");
    assert!(!replicas[&node].may_lead());
    // Writes go on.
    leader(&replicas)
        .propose(batch(GROUP, b"on"), None, deadline())
        .await
        .expect("a new leader");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_synced_and_is_damaged_keeps_a_group_down_until_it_was_fetched() {
    let mut fixture = Fixture::start().await;
    let replicas = fixture.cluster.open_group(GROUP).await;
    write(&leader(&replicas)).await;
    caught_up(&replicas).await;
    let node = follower(&replicas);
    let last = fixture.segments(node).len() - 1;
    let before = fixture.contents(node, last);
    fixture.cluster.nodes[&node].groups.flush_marks();
    drop(replicas);
    fixture.cluster.kill(node).await;
    fixture.rot(node, last, 2_000);
    let io = io_on(&fixture.disks[&node]);
    fixture.cluster.revive(node, io).await;
    let groups = Arc::clone(&fixture.cluster.nodes[&node].groups);
    let opened = groups.open_group(fixture.cluster.spec(GROUP, node)).await;
    assert!(
        matches!(opened, Err(OpenGroupError::Damaged { .. })),
        "{opened:?}"
    );
    let group = tokio::time::timeout(Duration::from_secs(20), groups.wait_open(GROUP)).await;
    let group = group.expect("repaired and open");
    assert!(groups.down_groups().is_empty());
    let end = group.journal().next_offset();
    assert!(group.wait_commit_above(end - 1, deadline()).await);
    let after = fixture.contents(node, last);
    let len = after.len().min(before.len());
    assert!(after[..len] == before[..len], "other bytes than before");
}
