//! The services against a cluster in memory.

mod appends;
mod polls;
mod retention;
mod topics;
mod trims;

use super::fake::{FakeCluster, context};
use crate::{
    backend::ProposeError,
    failure::{Failure, Reason},
    forward::CallContext,
};
use bytes::Bytes;
use imprint_proto::{
    batch::{BatchBuilder, Message, StampedBatch, split_batches},
    limits::BatchLimits,
    v1::{self, position::At},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tonic::Code;

pub(super) fn batch(messages: usize) -> Bytes {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    for i in 0..messages {
        let message = Message {
            id: i as u128,
            origin_timestamp_us: 5,
            payload: b"payload",
            headers: &[],
        };
        builder.push(message).expect("fits");
    }
    builder.build().expect("batch").into_bytes()
}

pub(super) fn send(batch: Bytes) -> v1::SendRequest {
    v1::SendRequest {
        topic: "t".into(),
        batch,
        ..v1::SendRequest::default()
    }
}

pub(super) fn poll(at: At) -> v1::PollRequest {
    v1::PollRequest {
        topic: "t".into(),
        position: Some(v1::Position { at: Some(at) }),
        ..v1::PollRequest::default()
    }
}

pub(super) fn short(millis: u64) -> CallContext {
    CallContext::new("default", Duration::from_millis(millis))
}

/// Three nodes, a topic with one partition on all of them, led by node 1.
pub(super) async fn with_topic() -> Arc<FakeCluster> {
    let cluster = FakeCluster::start(3).await;
    create(&cluster, 2, "t", 1, 3).await;
    let leader = cluster.group(1).leader();
    assert_eq!(leader, Some(1));
    cluster
}

pub(super) async fn create(
    cluster: &FakeCluster,
    at: u64,
    name: &str,
    partitions: u32,
    replication: u32,
) {
    let request = v1::CreateTopicRequest {
        name: name.into(),
        partitions,
        replication,
        ..v1::CreateTopicRequest::default()
    };
    let answer = cluster.core(at).create_topic(request, &context()).await;
    let topic = answer.expect("created").topic.expect("topic");
    assert_eq!(topic.partitions.len() as u32, partitions);
}

pub(super) fn offsets(batches: Bytes) -> Vec<u64> {
    split_batches(batches)
        .map(|batch| StampedBatch::from_contiguous(batch.expect("whole")).expect("stamped"))
        .flat_map(|batch| batch.base_offset()..batch.next_offset())
        .collect()
}
