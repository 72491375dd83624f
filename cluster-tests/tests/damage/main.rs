//! Files are damaged, cut and deleted while a node is down; then it is started and everything is held
//! against what was acknowledged: nothing lost, nothing wrong ever served, never a shorter history.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests live in the real world"
)]

mod empty_payloads;
mod far_behind;
mod repair;
mod retention;
mod small_files;
mod torn_tails;

use imprint_client::v1;
use imprint_cluster_tests::cluster::Cluster;

const TOPIC: &str = "events";

/// Rounds of the tests that go on: `CLUSTER_TESTS_ROUNDS`, default 3.
fn rounds() -> u64 {
    let rounds = std::env::var("CLUSTER_TESTS_ROUNDS").ok();
    rounds.map_or(3, |text| {
        text.parse().expect("CLUSTER_TESTS_ROUNDS is a number")
    })
}

/// A cluster with one topic; segments of 64 KiB, so that some are sealed soon.
async fn start() -> (Cluster, v1::Topic) {
    let cluster = Cluster::start().await;
    let topic = cluster
        .create_topic(TOPIC, &[("segment_bytes", "64KiB")])
        .await;
    (cluster, topic)
}
