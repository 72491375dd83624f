//! Replicas whose disk failed, and replicas without room, on disks that fail when told to.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::super::fitness::Unfit;
use super::super::{Group, GroupsConfig, ProposeError};
use super::cluster::{TestCluster, batch, deadline, leader};
use crate::disk::sim::{Call, Loss};
use crate::disk::{Disk, Io, RealOffload, SimDisk, SpaceLevel};
use crate::seams::SystemClock;

const GROUP: u64 = 5;

fn io_on(disk: &SimDisk) -> Io {
    let offload = RealOffload::new(tokio::runtime::Handle::current());
    Io::new(
        Arc::new(disk.clone()),
        Arc::new(offload),
        Arc::new(SystemClock),
    )
}

fn disks() -> BTreeMap<u64, SimDisk> {
    (1..=3).map(|id| (id, SimDisk::new())).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn break_syncs(disk: &SimDisk) {
    disk.set_fault(Some(Box::new(|call, path: &Path| {
        let segment = path.extension().is_some_and(|ext| ext == "seg");
        (call == Call::Sync && segment).then(|| io::Error::other("the medium"))
    })));
}

fn has_marker(disk: &SimDisk) -> bool {
    let mut files = disk.files().into_iter();
    files.any(|path| path.ends_with("suspect"))
}

async fn write(replicas: &BTreeMap<u64, Arc<Group>>, text: &[u8]) {
    leader(replicas)
        .propose(batch(GROUP, text), None, deadline())
        .await
        .expect("a majority is up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_whose_sync_failed_neither_leads_nor_votes_until_a_leader_brought_it_on() {
    let disks = disks();
    let config = GroupsConfig::default();
    let mut cluster = TestCluster::start_on(3, config.clone(), |id| io_on(&disks[&id])).await;
    let mut replicas = cluster.open_group(GROUP).await;
    write(&replicas, b"before").await;
    let follower = *replicas
        .iter()
        .find(|(_, group)| !group.is_leader())
        .expect("two of three follow")
        .0;
    let failed = cluster.nodes[&follower].groups.io.clone();
    break_syncs(&disks[&follower]);
    write(&replicas, b"its sync fails there").await;
    until("the failure is noticed", || failed.has_failed()).await;
    until("the marker is written", || has_marker(&disks[&follower])).await;
    cluster.stop(follower).await;
    disks[&follower].set_fault(None);
    disks[&follower].crash(1, Loss::DropAll);

    // Nobody is there to bring it on.
    let others: Vec<u64> = (1..=3).filter(|id| *id != follower).collect();
    for id in &others {
        cluster.stop(*id).await;
    }
    cluster
        .restart(follower, config.clone(), io_on(&disks[&follower]))
        .await;
    let suspect = cluster.open_on(follower, GROUP).await;
    assert!(suspect.is_unfit(Unfit::Suspect) && !suspect.may_lead());
    let term = suspect.journal().vote().map_or(0, |vote| vote.term);
    tokio::time::sleep(config.election_timeout_max * 2).await;
    assert_eq!(suspect.epoch(), term, "it campaigned");

    // One healthy replica is no majority without its vote.
    cluster
        .restart(others[0], config.clone(), io_on(&disks[&others[0]]))
        .await;
    let healthy = cluster.open_on(others[0], GROUP).await;
    tokio::time::sleep(config.election_timeout_max * 3).await;
    assert!(!healthy.is_leader(), "it got a suspect's vote");

    cluster
        .restart(others[1], config.clone(), io_on(&disks[&others[1]]))
        .await;
    let second = cluster.open_on(others[1], GROUP).await;
    replicas.insert(follower, Arc::clone(&suspect));
    replicas.insert(others[0], healthy);
    replicas.insert(others[1], second);
    until("the healthy ones elect one of them", || {
        replicas.values().any(|group| group.is_leader())
    })
    .await;
    write(&replicas, b"after").await;
    until("it is trusted again", || suspect.may_lead()).await;
    until("the marker is gone", || !has_marker(&disks[&follower])).await;
    let end = leader(&replicas).commit_offset();
    until("it has everything", || suspect.commit_offset() == end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn when_most_are_suspect_the_longest_log_among_them_may_lead() {
    let disks = disks();
    let config = GroupsConfig::default();
    let mut cluster = TestCluster::start_on(3, config.clone(), |id| io_on(&disks[&id])).await;
    let mut replicas = cluster.open_group(GROUP).await;
    write(&replicas, b"acknowledged").await;
    for id in 1..=3 {
        cluster.nodes[&id]
            .groups
            .mark_suspect(None, "a test says so");
        cluster.stop(id).await;
    }
    for id in 1..=3 {
        disks[&id].crash(id, Loss::KeepAll);
        cluster
            .restart(id, config.clone(), io_on(&disks[&id]))
            .await;
        replicas.insert(id, cluster.open_on(id, GROUP).await);
    }
    until("one of them leads", || {
        replicas.values().any(|group| group.is_leader())
    })
    .await;
    write(&replicas, b"goes on").await;
    until("no marker is left", || !disks.values().any(has_marker)).await;
    assert_eq!(leader(&replicas).commit_offset(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_marker_that_cannot_be_read_makes_every_group_suspect() {
    let disk = SimDisk::new();
    let config = GroupsConfig::default();
    let mut cluster = TestCluster::start_on(1, config.clone(), |_| io_on(&disk)).await;
    let mut replicas = cluster.open_group(GROUP).await;
    write(&replicas, b"before").await;
    cluster.nodes[&1]
        .groups
        .mark_suspect(None, "a test says so");
    cluster.stop(1).await;
    disk.crash(1, Loss::KeepAll);
    let marker = disk
        .files()
        .into_iter()
        .find(|path| path.ends_with("suspect"));
    let marker = marker.expect("it was written");
    disk.rewrite(&marker, |bytes| bytes.truncate(7))
        .expect("there");
    cluster.restart(1, config, io_on(&disk)).await;
    replicas.insert(1, cluster.open_on(1, GROUP).await);
    assert!(disk.exists(&marker).expect("a live disk"));
    // Alone it is most of its group.
    until("it leads again", || replicas[&1].is_leader()).await;
    until("the marker is gone", || !has_marker(&disk)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_without_room_takes_no_data_and_catches_up_when_there_is_some() {
    let disks = disks();
    let cluster = TestCluster::start_on(3, GroupsConfig::default(), |id| io_on(&disks[&id])).await;
    let replicas = cluster.open_group(GROUP).await;
    write(&replicas, b"everywhere").await;
    let follower = *replicas
        .iter()
        .find(|(_, group)| !group.is_leader())
        .expect("two of three follow")
        .0;
    let end = |id: &u64| replicas[id].journal().next_offset();
    until("all have it", || replicas.keys().all(|id| end(id) == 1)).await;
    let space = Arc::clone(&cluster.nodes[&follower].groups.io.space);
    space.set_level(SpaceLevel::Full);
    let term = leader(&replicas).epoch();
    for _ in 0..20 {
        write(&replicas, b"not there").await;
    }
    assert_eq!(end(&follower), 1);
    assert_eq!(leader(&replicas).epoch(), term, "it disturbed the leader");
    space.set_level(SpaceLevel::Enough);
    until("it caught up", || end(&follower) == 21).await;

    let leading = leader(&replicas);
    let node = *replicas
        .iter()
        .find(|(_, group)| group.is_leader())
        .expect("it led")
        .0;
    let space = Arc::clone(&cluster.nodes[&node].groups.io.space);
    space.set_level(SpaceLevel::Full);
    let refused = leading.propose(batch(GROUP, b"no"), None, deadline()).await;
    assert!(matches!(refused, Err(ProposeError::NoRoom)), "{refused:?}");
    leading
        .linearize(deadline())
        .await
        .expect("a leader without room is heard");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_room_anywhere_a_new_leader_finds_its_followers_and_control_entries_go_on() {
    let disks = disks();
    let cluster = TestCluster::start_on(3, GroupsConfig::default(), |id| io_on(&disks[&id])).await;
    let replicas = cluster.open_group(GROUP).await;
    for _ in 0..20 {
        write(&replicas, b"everywhere").await;
    }
    let all_have = || replicas.values().all(|g| g.journal().next_offset() == 20);
    until("all have it", all_have).await;
    for node in cluster.nodes.values() {
        node.groups.io.space.set_level(SpaceLevel::Full);
    }
    let other = *replicas
        .iter()
        .find(|(_, group)| !group.is_leader())
        .expect("two of three follow")
        .0;
    leader(&replicas)
        .transfer_leader(imprint_proto::ids::NodeId(other))
        .await;
    until("the other one leads", || replicas[&other].is_leader()).await;
    let start = replicas[&other].trim(10, deadline()).await;
    assert_eq!(start.expect("trims go on"), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_without_room_waits_and_its_group_goes_on() {
    let disks = disks();
    let cluster = TestCluster::start_on(3, GroupsConfig::default(), |id| io_on(&disks[&id])).await;
    let replicas = cluster.open_group(GROUP).await;
    for node in cluster.nodes.values() {
        node.groups.io.space.attend();
    }
    let is_snapshot = |path: &Path| path.to_string_lossy().contains("snapshot");
    for disk in disks.values() {
        disk.set_fault(Some(Box::new(move |call, path: &Path| {
            let full = call == Call::Write && is_snapshot(path);
            full.then(|| io::ErrorKind::StorageFull.into())
        })));
    }
    for _ in 0..40 {
        write(&replicas, &[7; 64 << 10]).await;
    }
    let start = leader(&replicas).trim(39, deadline()).await;
    start.expect("all nodes are up");
    let waiting = || {
        let mut nodes = cluster.nodes.values();
        nodes.all(|node| node.groups.io.space.waiting() > 0)
    };
    until("every replica's snapshot waits", waiting).await;
    for node in cluster.nodes.values() {
        assert!(!node.groups.io.has_failed());
        // As somebody does who sees room: data may go on, the snapshot finds none yet.
        node.groups.io.space.set_level(SpaceLevel::Enough);
    }
    write(&replicas, b"goes on").await;
    for (id, disk) in &disks {
        disk.set_fault(None);
        cluster.nodes[id].groups.io.space.retry();
    }
    let written = |disk: &SimDisk| disk.files().iter().any(|path| is_snapshot(path));
    until("the snapshots are written", || disks.values().all(written)).await;
    write(&replicas, b"and on").await;
}
