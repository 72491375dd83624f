//! A follower that is far behind, with batches as large as they may be: it always makes progress, and
//! dies at any point of it without harm.

use imprint_client::SendOptions;
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::hold::{same_files, verify_equal};
use imprint_cluster_tests::load::batch_of;
use imprint_cluster_tests::tamper::noise;

use super::TOPIC;

/// So many batches of the largest kind are missing.
const BATCHES: u64 = 16;
/// Deaths during the transfer, at these parts of it in percent.
const DEATHS: [u64; 5] = [0, 10, 50, 90, 99];

async fn end_at(cluster: &Cluster, node: u64) -> u64 {
    let offsets = cluster.client().offsets(TOPIC, &[0], Some(node)).await;
    offsets.map_or(0, |partitions| {
        partitions.first().map_or(0, |p| p.end_offset)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_far_behind_catches_up_whenever_it_dies_meanwhile() {
    let mut cluster = Cluster::start().await;
    let topic = cluster
        .create_topic(TOPIC, &[("segment_bytes", "16MiB")])
        .await;
    let client = cluster.client();
    let limits = client.admin().limits().await.expect("limits");
    let len = usize::try_from(limits.max_batch_bytes).expect("small") - 256 - 48;
    cluster.leader_of(TOPIC).await;
    let victim = cluster.follower_of(TOPIC).await;
    cluster.kill(victim);
    for n in 0..BATCHES {
        let mut payload = noise(len);
        payload[..8].copy_from_slice(&n.to_le_bytes());
        let batch = batch_of(&payload);
        let sent = client.send(TOPIC, 0, &batch, SendOptions::default()).await;
        sent.expect("two of three are up");
    }
    for percent in DEATHS {
        cluster.start_node(victim);
        let goal = BATCHES * percent / 100;
        eventually("the transfer goes on", async || {
            end_at(&cluster, victim).await >= goal
        })
        .await;
        eprintln!("killed at {} of {BATCHES}", end_at(&cluster, victim).await);
        cluster.kill(victim);
    }
    cluster.start_node(victim);
    cluster.wait_ready().await;
    eventually("all is there", async || {
        end_at(&cluster, victim).await == BATCHES
    })
    .await;
    same_files(&cluster, &topic).await;
    verify_equal(&cluster, TOPIC).await;
}
