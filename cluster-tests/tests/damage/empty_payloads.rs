//! Payloads that look like nothing: empty ones and zeros, which a scan for the end must not take for it.

use imprint_client::{PollOptions, Position, SendOptions};
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::load::{batch_of, payloads_in};

use super::TOPIC;

const ZEROS: [usize; 3] = [0, 1, 4096];
const ORDINARY: usize = 10;

async fn payloads_at(cluster: &Cluster, node: u64) -> Option<Vec<Vec<u8>>> {
    let options = PollOptions {
        at_node: Some(node),
        max_bytes: 1 << 20,
        ..PollOptions::default()
    };
    let reply = cluster
        .client()
        .poll(TOPIC, 0, Position::First, options)
        .await;
    Some(payloads_in(reply.ok()?.batches))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zeros_and_nothing_come_back_after_a_crash_and_after_a_stop() {
    let mut cluster = Cluster::start().await;
    cluster.create_topic(TOPIC, &[]).await;
    let client = cluster.client();
    let mut sent = Vec::new();
    for len in ZEROS {
        sent.push(vec![0; len]);
        sent.extend((0..ORDINARY).map(|n| format!("{n} after {len} zeros").into_bytes()));
    }
    for payload in &sent {
        let batch = batch_of(payload);
        client
            .send(TOPIC, 0, &batch, SendOptions::default())
            .await
            .expect("stored");
    }
    for crash in [true, false] {
        match crash {
            true => cluster.kill_all(),
            false => [1, 2, 3]
                .iter()
                .for_each(|id| assert_eq!(cluster.stop(*id), Some(0))),
        }
        [1, 2, 3].iter().for_each(|id| cluster.start_node(*id));
        cluster.wait_ready().await;
        for node in [1, 2, 3] {
            eventually("all payloads are back", async || {
                payloads_at(&cluster, node).await.as_ref() == Some(&sent)
            })
            .await;
        }
    }
}
