//! A cluster of real nodes in one process, over gRPC and HTTP.

#![allow(
    clippy::disallowed_methods,
    reason = "this test lives in the real world"
)]

use bytes::Bytes;
use imprint_node::dev::{DevCluster, Ports, configs, ports};
use imprint_proto::{
    batch::{BatchBuilder, Message, StampedBatch, split_batches},
    limits::BatchLimits,
    v1::{
        self, admin_service_client::AdminServiceClient, log_service_client::LogServiceClient,
        position::At,
    },
};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, transport::Channel};

async fn start(data: &Path, ports: &[Ports]) -> DevCluster {
    DevCluster::start(configs(data, ports))
        .await
        .expect("ready")
}

async fn channel(ports: Ports) -> Channel {
    let url = format!("http://127.0.0.1:{}", ports.client);
    Channel::from_shared(url)
        .expect("url")
        .connect()
        .await
        .expect("connected")
}

async fn log(ports: Ports) -> LogServiceClient<Channel> {
    LogServiceClient::new(channel(ports).await).max_decoding_message_size(64 << 20)
}

async fn admin(ports: Ports) -> AdminServiceClient<Channel> {
    AdminServiceClient::new(channel(ports).await)
}

fn batch(payload: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    let message = Message {
        id: 1,
        origin_timestamp_us: 1,
        payload,
        headers: &[],
    };
    builder.push(message).expect("fits");
    builder.build().expect("batch").into_bytes()
}

fn send(partition: u32, batch: Bytes) -> v1::SendRequest {
    v1::SendRequest {
        topic: "orders".into(),
        partition,
        batch,
        expected_offset: None,
    }
}

fn poll(partition: u32, at: At) -> v1::PollRequest {
    v1::PollRequest {
        topic: "orders".into(),
        partition,
        position: Some(v1::Position { at: Some(at) }),
        max_wait_ms: 2000,
        ..v1::PollRequest::default()
    }
}

async fn create(ports: Ports, partitions: u32) {
    let request = v1::CreateTopicRequest {
        name: "orders".into(),
        partitions,
        ..v1::CreateTopicRequest::default()
    };
    admin(ports)
        .await
        .create_topic(request)
        .await
        .expect("created");
}

async fn page(port: u16, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("connected");
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_takes_every_node_serves_also_after_a_restart() {
    let data = tempfile::tempdir().expect("dir");
    let ports = ports(3, true).expect("ports");
    let cluster = start(data.path(), &ports).await;
    create(ports[1], 2).await;
    for (i, node) in ports.iter().enumerate() {
        for partition in 0..2 {
            let request = send(partition, batch(format!("message {i}").as_bytes()));
            let sent = log(*node)
                .await
                .send(request)
                .await
                .expect("sent")
                .into_inner();
            assert_eq!(sent.base_offset, i as u64);
        }
    }
    same_everywhere(&ports, 3).await;
    calls_between_nodes_are_on_the_pages(&ports).await;
    let verified = admin(ports[0])
        .await
        .verify(v1::VerifyRequest::default())
        .await;
    let verified = verified.expect("verified").into_inner().partitions;
    assert!(
        verified.len() == 2 && verified.iter().all(|p| p.equal),
        "{verified:?}"
    );
    cluster.shutdown().await;
    let cluster = start(data.path(), &ports).await;
    same_everywhere(&ports, 3).await;
    let sent = log(ports[0])
        .await
        .send(send(0, batch(b"more")))
        .await
        .expect("sent");
    assert_eq!(sent.into_inner().base_offset, 3);
    cluster.shutdown().await;
}

/// Whoever leads, some node has replicated to another one, and every node has pinged.
async fn calls_between_nodes_are_on_the_pages(ports: &[Ports]) {
    let mut pages = String::new();
    for node in ports {
        let page = page(node.http, "/metrics").await;
        assert!(page.contains("imprint_rpc_served_total{method=\"ping\"} "));
        pages.push_str(&page);
    }
    for line in [
        "method=\"append_entries\",phase=\"dispatch\"} ",
        "method=\"append_entries\",phase=\"reply\"} ",
        "imprint_rpc_served_seconds_total{method=\"append_entries\"} ",
        "imprint_rpc_pool_bytes{peer=\"2\",class=\"bulk\"} ",
    ] {
        assert!(pages.contains(line), "{line} is not in\n{pages}");
    }
}

async fn same_everywhere(ports: &[Ports], messages: u64) {
    for partition in 0..2 {
        let mut answers = Vec::new();
        for node in ports {
            let request = v1::PollRequest {
                linearizable: true,
                ..poll(partition, At::First(true))
            };
            let answer = log(*node)
                .await
                .poll(request)
                .await
                .expect("polled")
                .into_inner();
            let count: u64 = split_batches(answer.batches.clone())
                .map(|b| StampedBatch::verify_unbound(b.expect("whole")).expect("intact"))
                .map(|b| u64::from(b.message_count()))
                .sum();
            assert_eq!(count, messages);
            answers.push(answer.batches);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_say_what_a_client_needs() {
    let data = tempfile::tempdir().expect("dir");
    let ports = ports(1, true).expect("ports");
    let cluster = start(data.path(), &ports).await;
    let mut client = log(ports[0]).await;
    let reason = |status: &tonic::Status| {
        let reason = status.metadata().get("imprint-reason").expect("reason");
        reason.to_str().expect("text").to_string()
    };
    let status = client
        .send(send(0, batch(b"x")))
        .await
        .expect_err("no topic");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::NotFound, "TOPIC_NOT_FOUND")
    );
    assert!(!status.details().is_empty());
    create(ports[0], 1).await;
    client.send(send(0, batch(b"x"))).await.expect("sent");
    let status = client
        .poll(poll(0, At::Offset(7)))
        .await
        .expect_err("past the end");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::OutOfRange, "OFFSET_OUT_OF_RANGE")
    );
    assert_eq!(
        status.metadata().get("imprint-end-offset").expect("end"),
        "1"
    );
    let status = client
        .send(send(0, Bytes::from_static(b"short")))
        .await
        .expect_err("malformed");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "BATCH_MALFORMED")
    );
    let huge = Bytes::from(vec![0; 5 << 20]);
    let status = client.send(send(0, huge)).await.expect_err("too large");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "BATCH_TOO_LARGE")
    );
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_and_health_follow_the_node() {
    let data = tempfile::tempdir().expect("dir");
    let ports = ports(1, true).expect("ports");
    let cluster = start(data.path(), &ports).await;
    create(ports[0], 1).await;
    log(ports[0])
        .await
        .send(send(0, batch(b"x")))
        .await
        .expect("sent");
    assert!(
        page(ports[0].http, "/livez")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        page(ports[0].http, "/readyz")
            .await
            .starts_with("HTTP/1.1 200")
    );
    let trim = v1::TrimPartitionRequest {
        topic: "orders".into(),
        before: Some(v1::Position {
            at: Some(At::Last(0)),
        }),
        ..v1::TrimPartitionRequest::default()
    };
    let trimmed = admin(ports[0]).await.trim_partition(trim).await;
    assert_eq!(trimmed.expect("trimmed").into_inner().start_offset, 1);
    let metrics = page(ports[0].http, "/metrics").await;
    for line in [
        "imprint_appends_total 1",
        "imprint_partition_commit_offset{topic=\"orders\",partition=\"0\"} 1",
        "imprint_partition_leader{topic=\"orders\",partition=\"0\"} 1",
        "imprint_partition_start_offset{topic=\"orders\",partition=\"0\"} 1",
        "imprint_partition_segments{topic=\"orders\",partition=\"0\"} 1",
        "imprint_trims_total{cause=\"request\"} 1",
        "imprint_ready 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel(ports[0]).await);
    let request = tonic_health::pb::HealthCheckRequest {
        service: "imprint.v1.LogService".into(),
    };
    let answer = health.check(request).await.expect("health").into_inner();
    assert_eq!(answer.status, 1, "serving");
    let status = admin(ports[0])
        .await
        .get_status(v1::GetStatusRequest {})
        .await;
    let status = status.expect("status").into_inner();
    assert!(status.ready, "{}", status.not_ready_reason);
    assert_eq!(
        (status.topics, status.partitions, status.controller_leader),
        (1, 1, 1)
    );
    assert_eq!(
        status.nodes[0].client_address,
        format!("127.0.0.1:{}", ports[0].client)
    );
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_serves_when_a_node_is_gone() {
    let data = tempfile::tempdir().expect("dir");
    let ports = ports(3, true).expect("ports");
    let mut cluster = start(data.path(), &ports).await;
    create(ports[0], 3).await;
    let gone = cluster.nodes.remove(0);
    gone.shutdown().await;
    for partition in 0..3 {
        let sent = log(ports[2]).await.send(send(partition, batch(b"x"))).await;
        assert_eq!(sent.expect("sent").into_inner().base_offset, 0);
    }
    cluster.shutdown().await;
}
