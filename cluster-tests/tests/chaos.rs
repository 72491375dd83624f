//! Nodes are killed, paused and cut off while producers write; afterwards the audit must hold.
//!
//! `CLUSTER_TESTS_ROUNDS` sets the rounds of the kill tests (default 3; 20 for acceptance). `CLUSTER_TESTS_STRICT`
//! also holds them to the promised times, which only a release build on an idle machine can keep.

#![allow(
    clippy::disallowed_methods,
    reason = "this test lives in the real world"
)]

use std::time::{Duration, Instant};

use imprint_client::v1;
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::load::Load;

const TOPIC: &str = "events";
const NODES: [u64; 3] = [1, 2, 3];
/// Writes resume within this after the leader's death, where times are held to.
const RESUME_WITHIN: Duration = Duration::from_secs(3);
/// And within this on any machine, however busy.
const RESUME_AT_LAST: Duration = Duration::from_secs(10);

fn rounds() -> u64 {
    let rounds = std::env::var("CLUSTER_TESTS_ROUNDS").ok();
    rounds.map_or(3, |text| {
        text.parse().expect("CLUSTER_TESTS_ROUNDS is a number")
    })
}

fn strict() -> bool {
    std::env::var_os("CLUSTER_TESTS_STRICT").is_some()
}

async fn start() -> (Cluster, v1::Topic) {
    let cluster = Cluster::start().await;
    let topic = cluster
        .create_topic(TOPIC, &[("segment_bytes", "64KiB")])
        .await;
    (cluster, topic)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_loses_nothing_and_comes_back_identical() {
    let (mut cluster, topic) = start().await;
    let load = Load::start(&cluster, TOPIC, 4);
    let mut gaps = Vec::new();
    for round in 1..=rounds() {
        load.wait_for(50).await;
        let leader = cluster.leader_of(TOPIC).await;
        let killed_at = Instant::now();
        cluster.kill(leader);
        load.wait_for(50).await;
        let gap = load.longest_gap_since(killed_at);
        eprintln!("round {round}: node {leader} killed, {gap:?} without an acknowledgement");
        gaps.push(gap);
        cluster.start_node(leader);
        cluster.wait_ready().await;
    }
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
    gaps.sort();
    eprintln!(
        "gaps: median {:?}, worst {:?}",
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1]
    );
    let bound = if strict() {
        RESUME_WITHIN
    } else {
        RESUME_AT_LAST
    };
    assert!(gaps.iter().all(|gap| *gap < bound), "{bound:?}: {gaps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_killed_at_once_lose_nothing() {
    let (mut cluster, topic) = start().await;
    let load = Load::start(&cluster, TOPIC, 4);
    for round in 1..=rounds() {
        load.wait_for(50).await;
        cluster.kill_all();
        NODES.iter().for_each(|id| cluster.start_node(*id));
        cluster.wait_ready().await;
        load.wait_for(20).await;
        eprintln!("round {round}: all killed and back");
    }
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_cut_off_is_replaced_and_follows_after_healing() {
    let (cluster, topic) = start().await;
    let load = Load::start(&cluster, TOPIC, 4);
    load.wait_for(50).await;
    let leader = cluster.leader_of(TOPIC).await;
    cluster.links.isolate(leader);
    load.wait_for(50).await;
    cluster.links.heal();
    load.wait_for(50).await;
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_leader_is_replaced_and_follows_when_it_wakes() {
    let (cluster, topic) = start().await;
    let load = Load::start(&cluster, TOPIC, 4);
    load.wait_for(50).await;
    let leader = cluster.leader_of(TOPIC).await;
    cluster.pause(leader);
    load.wait_for(50).await;
    cluster.resume(leader);
    load.wait_for(50).await;
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stops_in_good_order_and_needs_nothing_that_can_be_rebuilt() {
    let (mut cluster, topic) = start().await;
    let load = Load::start(&cluster, TOPIC, 2);
    for id in NODES {
        load.wait_for(20).await;
        assert_eq!(
            cluster.stop(id),
            Some(0),
            "node {id}:\n{}",
            cluster.log_of(id)
        );
        let meta = cluster.node(id).data_dir.join("meta");
        std::fs::remove_dir_all(&meta).expect("a stopped node has a meta directory");
        load.wait_for(20).await;
        cluster.start_node(id);
        cluster.wait_ready().await;
    }
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_data_directory_is_not_taken_for_the_old_node() {
    let (mut cluster, _topic) = start().await;
    cluster.kill(3);
    std::fs::remove_dir_all(&cluster.node(3).data_dir).expect("a killed node's directory");
    cluster.start_node(3);
    eventually("the node refuses to run", async || !cluster.is_running(3)).await;
    let log = cluster.log_of(3);
    assert!(log.contains("storage id"), "{log}");
}
