//! Everything that must be refused: with the right code and reason, and with nothing in the log.

use bytes::Bytes;
use imprint_client::{PollOptions, Position};
use imprint_cluster_tests::cluster::Cluster;
use imprint_cluster_tests::load::batch_of;
use imprint_proto::v1;
use imprint_proto::v1::log_service_client::LogServiceClient;
use tonic::{Code, Status};

const TOPIC: &str = "refusals";

fn negative_vectors() -> Vec<(String, Bytes)> {
    let dir = format!(
        "{}/../proto/tests/vectors/batch",
        env!("CARGO_MANIFEST_DIR")
    );
    let entries = std::fs::read_dir(&dir).expect("the vectors are in the repository");
    let mut vectors: Vec<(String, Bytes)> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter_map(|path| {
            let name = path.file_name()?.to_string_lossy().into_owned();
            let bytes = name
                .starts_with("neg_")
                .then(|| std::fs::read(&path).ok())??;
            Some((name, bytes.into()))
        })
        .collect();
    vectors.sort();
    vectors
}

fn reason(status: &Status) -> String {
    let value = status.metadata().get("imprint-reason");
    value
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}

fn send(topic: &str, batch: Bytes) -> v1::SendRequest {
    v1::SendRequest {
        topic: topic.into(),
        partition: 0,
        batch,
        expected_offset: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_named_and_leaves_nothing() {
    let mut cluster = Cluster::start().await;
    cluster.create_topic(TOPIC, &[]).await;
    let address = format!("http://{}", cluster.nodes[0].client);
    let channel = tonic::transport::Endpoint::from_shared(address).expect("an address");
    let channel = channel.connect().await.expect("the node listens");
    let mut log = LogServiceClient::new(channel).max_encoding_message_size(usize::MAX);

    let vectors = negative_vectors();
    assert!(vectors.len() >= 13, "{} negative vectors", vectors.len());
    for (name, batch) in vectors {
        let status = log.send(send(TOPIC, batch)).await.expect_err(&name);
        assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status}");
        assert!(!reason(&status).is_empty(), "{name}: {status}");
    }

    let good = batch_of(b"good").into_bytes();
    let unknown = log
        .send(send("nowhere", good.clone()))
        .await
        .expect_err("unknown topic");
    assert_eq!(
        (unknown.code(), reason(&unknown).as_str()),
        (Code::NotFound, "TOPIC_NOT_FOUND")
    );

    let mut no_partition = send(TOPIC, good.clone());
    no_partition.partition = 9;
    let status = log.send(no_partition).await.expect_err("unknown partition");
    assert_eq!(status.code(), Code::NotFound, "{status}");

    let limits = cluster.client().admin().limits().await.expect("limits");
    let too_large = vec![7; usize::try_from(limits.max_batch_bytes).expect("fits") + 1];
    let status = log
        .send(send(TOPIC, too_large.into()))
        .await
        .expect_err("too large");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "BATCH_TOO_LARGE")
    );

    let past_end = v1::PollRequest {
        topic: TOPIC.into(),
        position: Some(v1::Position {
            at: Some(v1::position::At::Offset(5)),
        }),
        ..Default::default()
    };
    let status = log.poll(past_end).await.expect_err("past the end");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::OutOfRange, "OFFSET_OUT_OF_RANGE")
    );
    let end = status.metadata().get("imprint-end-offset");
    assert_eq!(end.and_then(|v| v.to_str().ok()), Some("0"));

    let offsets = cluster
        .client()
        .offsets(TOPIC, &[0], None)
        .await
        .expect("offsets");
    assert_eq!(offsets[0].end_offset, 0, "something refused is in the log");
    let reply = log
        .send(send(TOPIC, good))
        .await
        .expect("the node still serves");
    assert_eq!(reply.into_inner().base_offset, 0);

    cluster.kill(3);
    let options = PollOptions {
        at_node: Some(3),
        ..PollOptions::default()
    };
    let error = cluster
        .client()
        .poll(TOPIC, 0, Position::First, options)
        .await;
    assert!(error.is_err(), "a node that is down answered");
    let still = cluster
        .client()
        .poll(TOPIC, 0, Position::First, PollOptions::default())
        .await;
    assert_eq!(still.expect("two of three serve").next_offset, 1);
}
