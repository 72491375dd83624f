//! Segments go while everything else goes on: retention under load with deaths in the middle of it, and
//! trims on request with a death right behind each.

use std::time::Duration;

use imprint_client::{ClientError, Code, PollOptions, Position, TrimTopic};
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::load::{Load, Pace};
use imprint_cluster_tests::readers::Readers;

use super::{TOPIC, rounds};

const NODES: [u64; 3] = [1, 2, 3];

async fn poll_at(cluster: &Cluster, node: Option<u64>, offset: u64) -> Result<u64, ClientError> {
    let options = PollOptions {
        at_node: node,
        ..PollOptions::default()
    };
    let position = Position::Offset(offset);
    let reply = cluster.client().poll(TOPIC, 0, position, options).await?;
    Ok(reply.next_offset)
}

/// Start and end, as one node has them.
async fn range_at(cluster: &Cluster, node: u64) -> Option<(u64, u64)> {
    let offsets = cluster
        .client()
        .offsets(TOPIC, &[0], Some(node))
        .await
        .ok()?;
    let first = offsets.first()?;
    Some((first.start_offset, first.commit_offset))
}

async fn wait_for_start_above(cluster: &Cluster, node: u64, start: u64) -> u64 {
    let mut found = 0;
    eventually("retention moves the start", async || {
        found = range_at(cluster, node).await.map_or(0, |(start, _)| start);
        found > start
    })
    .await;
    found
}

/// What is below the start is refused with what there is, by every node.
async fn below_the_start_is_out_of_range(cluster: &Cluster) {
    for node in NODES {
        let error = poll_at(cluster, Some(node), 0).await.expect_err("trimmed");
        assert_eq!(error.code(), Code::OutOfRange, "node {node}: {error}");
        let (start, end) = error.offsets().expect("it says what there is");
        assert!(0 < start && start <= end, "node {node}: {start}..{end}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_under_load_with_deaths_in_the_middle_of_it() {
    let settings = [("IMPRINT_STORAGE_RETENTION_CHECK", "100ms")];
    let mut cluster = Cluster::start_with(&settings).await;
    let topic = cluster
        .create_topic(TOPIC, &[("segment_bytes", "64KiB"), ("retention_ms", "1s")])
        .await;
    let pace = Pace {
        payload_bytes: 1000,
        ..Pace::default()
    };
    let load = Load::start_paced(&cluster, TOPIC, 4, pace);
    let readers = Readers::start(&cluster, TOPIC, 4);
    let mut start = 0;
    for round in 1..=rounds() {
        let follower = cluster.follower_of(TOPIC).await;
        cluster.pause(follower);
        load.wait_for(300).await;
        cluster.resume(follower);
        let leader = cluster.leader_of(TOPIC).await;
        start = wait_for_start_above(&cluster, leader, start).await;
        // Segments are going at this moment.
        let victim = if round % 2 == 0 { leader } else { follower };
        cluster.kill(victim);
        load.wait_for(100).await;
        cluster.start_node(victim);
        cluster.wait_ready().await;
        cluster.wait_serves(TOPIC, victim).await;
        eprintln!("round {round}: node {victim} killed at start {start}");
    }
    for node in NODES {
        wait_for_start_above(&cluster, node, start).await;
    }
    below_the_start_is_out_of_range(&cluster).await;
    let mut ledger = load.finish().await;
    ledger.allow_trims();
    let seen = readers.finish(&ledger).await;
    let seen = seen.unwrap_or_else(|problem| panic!("{problem}"));
    eprintln!("{seen:?}");
    assert!(seen.read > 0, "{seen:?}");
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_that_expired_is_out_of_range_and_the_edges_are_exact() {
    let settings = [("IMPRINT_STORAGE_RETENTION_CHECK", "100ms")];
    let cluster = Cluster::start_with(&settings).await;
    cluster
        .create_topic(TOPIC, &[("retention_ms", "1s"), ("segment_ms", "1s")])
        .await;
    let load = Load::start(&cluster, TOPIC, 8);
    load.wait_for(1500).await;
    load.finish().await;
    // The old segment is sealed by a message that comes later, so a trickle has to follow.
    let pace = Pace {
        pause: Duration::from_millis(100),
        ..Pace::default()
    };
    let load = Load::start_paced(&cluster, TOPIC, 1, pace);
    for node in NODES {
        wait_for_start_above(&cluster, node, 1400).await;
    }
    load.finish().await;
    let leader = cluster.leader_of(TOPIC).await;
    let (start, end) = settled_range(&cluster, leader).await;
    for (offset, expected) in [
        (0, Err(Code::OutOfRange)),
        (start - 1, Err(Code::OutOfRange)),
        (start, Ok(())),
        (end - 1, Ok(())),
        (end, Ok(())),
        (end + 1, Err(Code::OutOfRange)),
    ] {
        let reply = poll_at(&cluster, Some(leader), offset).await;
        let found = reply.as_ref().map(drop).map_err(ClientError::code);
        assert_eq!(found, expected, "{offset} in {start}..{end}: {reply:?}");
        if let Err(error) = reply {
            assert_eq!(error.offsets(), Some((start, end)), "{offset}: {error}");
        }
    }
}

/// The range once retention has nothing more to do.
async fn settled_range(cluster: &Cluster, node: u64) -> (u64, u64) {
    eventually("retention has nothing to do", async || {
        let partitions = cluster.client().admin().describe_partitions(TOPIC).await;
        let next = partitions.map(|partitions| partitions[0].next_deletion.clone());
        next.is_ok_and(|next| next.is_none_or(|next| next.up_to_offset == 0))
    })
    .await;
    range_at(cluster, node).await.expect("it serves")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_killed_right_behind_each_trim_boot_every_time() {
    let mut cluster = Cluster::start().await;
    let topic = cluster
        .create_topic(TOPIC, &[("segment_bytes", "64KiB")])
        .await;
    let load = Load::start(&cluster, TOPIC, 4);
    for round in 1..=rounds() {
        load.wait_for(400).await;
        let trim = TrimTopic {
            topic: TOPIC.into(),
            partitions: Vec::new(),
            before: Position::Last(100),
            dry_run: false,
        };
        let trimmed = cluster.client().admin().trim_topic(trim).await;
        let trimmed = trimmed.expect("the cluster is up").remove(0);
        assert_eq!(trimmed.reason, "", "{trimmed:?}");
        cluster.kill_all();
        NODES.iter().for_each(|id| cluster.start_node(*id));
        cluster.wait_ready().await;
        for node in NODES {
            wait_for_start_above(&cluster, node, trimmed.start_offset - 1).await;
        }
        eprintln!("round {round}: back with start {}", trimmed.start_offset);
    }
    let mut ledger = load.finish().await;
    ledger.allow_trims();
    hold_audit(&cluster, &topic, &ledger).await;
}
