//! A batch built by hand, over raw gRPC: what comes back is the golden stamped batch, and so is what
//! stands in the segment files.

use bytes::Bytes;
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::disk;
use imprint_proto::v1;
use imprint_proto::v1::log_service_client::LogServiceClient;
use xxhash_rust::xxh3::xxh3_64;

fn vector(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../proto/tests/vectors/batch/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The layout, once more, from its description alone: partition id, base offset and base timestamp at
/// 0, 8 and 16; the checksum at 40 covers bytes 0..40 and 48..52 of the header and each frame's first
/// eight bytes.
fn stamp(producer: &[u8], partition_id: u64, base_offset: u64, base_timestamp: u64) -> Vec<u8> {
    let mut batch = producer.to_vec();
    batch[0..8].copy_from_slice(&partition_id.to_le_bytes());
    batch[8..16].copy_from_slice(&base_offset.to_le_bytes());
    batch[16..24].copy_from_slice(&base_timestamp.to_le_bytes());
    let mut covered = batch[0..40].to_vec();
    covered.extend_from_slice(&batch[48..52]);
    let mut at = 256;
    while at < batch.len() {
        covered.extend_from_slice(&batch[at..at + 8]);
        let length = |pos: usize| {
            let bytes: [u8; 4] = batch[pos..pos + 4].try_into().expect("four bytes");
            u32::from_le_bytes(bytes) as usize
        };
        at += 48 + length(at + 32) + length(at + 36);
    }
    let checksum = xxh3_64(&covered);
    batch[40..48].copy_from_slice(&checksum.to_le_bytes());
    batch
}

#[test]
fn the_test_stamps_as_the_golden_vectors_do() {
    for name in [
        "one_message",
        "three_messages_user_headers",
        "empty_payload",
    ] {
        let producer = vector(&format!("{name}_producer.bin"));
        let golden = vector(&format!("{name}_stamped.bin"));
        let field = |at: usize| u64::from_le_bytes(golden[at..at + 8].try_into().expect("eight"));
        assert_eq!(
            stamp(&producer, field(0), field(8), field(16)),
            golden,
            "{name}"
        );
    }
}

async fn connect(address: &str) -> LogServiceClient<tonic::transport::Channel> {
    LogServiceClient::connect(format!("http://{address}"))
        .await
        .expect("the node listens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golden_batches_come_back_from_each_node_and_stand_in_the_segments() {
    let cluster = Cluster::start().await;
    let topic = cluster.create_topic("golden", &[]).await;
    let partition_id = topic.partitions[0].partition_id;
    let mut log = connect(&cluster.nodes[1].client).await;

    let mut expected = Vec::new();
    for name in [
        "one_message",
        "three_messages_user_headers",
        "empty_payload",
    ] {
        let producer = vector(&format!("{name}_producer.bin"));
        let request = v1::SendRequest {
            topic: "golden".into(),
            partition: 0,
            batch: Bytes::from(producer.clone()),
            expected_offset: None,
        };
        let reply = log
            .send(request)
            .await
            .expect("a golden batch is admitted")
            .into_inner();
        expected.extend(stamp(
            &producer,
            partition_id,
            reply.base_offset,
            reply.base_timestamp_us,
        ));
    }

    for node in &cluster.nodes {
        let mut log = connect(&node.client).await;
        let request = v1::PollRequest {
            topic: "golden".into(),
            at_node: Some(node.id),
            ..Default::default()
        };
        eventually("the node serves everything", async || {
            let reply = log.poll(request.clone()).await;
            reply.is_ok_and(|reply| reply.into_inner().batches == expected)
        })
        .await;
        let segments = disk::segments(&node.data_dir, partition_id).expect("sound segments");
        let stored: Vec<u8> = segments.iter().flat_map(|s| s.batches.clone()).collect();
        assert_eq!(stored, expected, "node {}", node.id);
    }
}
