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

fn batch(messages: usize) -> Bytes {
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

fn send(batch: Bytes) -> v1::SendRequest {
    v1::SendRequest {
        topic: "t".into(),
        batch,
        ..v1::SendRequest::default()
    }
}

fn poll(at: At) -> v1::PollRequest {
    v1::PollRequest {
        topic: "t".into(),
        position: Some(v1::Position { at: Some(at) }),
        ..v1::PollRequest::default()
    }
}

fn short(millis: u64) -> CallContext {
    CallContext::new("default", Duration::from_millis(millis))
}

/// Three nodes, a topic with one partition on all of them, led by node 1.
async fn with_topic() -> Arc<FakeCluster> {
    let cluster = FakeCluster::start(3).await;
    create(&cluster, 2, "t", 1, 3).await;
    let leader = cluster.group(1).leader();
    assert_eq!(leader, Some(1));
    cluster
}

async fn create(cluster: &FakeCluster, at: u64, name: &str, partitions: u32, replication: u32) {
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

fn offsets(batches: Bytes) -> Vec<u64> {
    split_batches(batches)
        .map(|batch| StampedBatch::from_contiguous(batch.expect("whole")).expect("stamped"))
        .flat_map(|batch| batch.base_offset()..batch.next_offset())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn any_node_takes_a_batch_and_serves_it() {
    let cluster = with_topic().await;
    for (node, expected) in [(1, 0), (2, 2), (3, 4)] {
        let sent = cluster
            .core(node)
            .send(send(batch(2)), &context())
            .await
            .expect("sent");
        assert_eq!(
            (sent.base_offset, sent.last_offset),
            (expected, expected + 1)
        );
        assert_eq!(sent.durability, v1::Durability::MajoritySynced as i32);
        let by = sent.served_by.expect("served by");
        assert_eq!((by.node_id, by.address.as_str()), (1, "n1:7460"));
    }
    let mut answers = Vec::new();
    for node in 1..=3 {
        let answer = cluster
            .core(node)
            .poll(poll(At::Offset(1)), &context())
            .await;
        let answer = answer.expect("polled");
        assert_eq!(offsets(answer.batches.clone()), [0, 1, 2, 3, 4, 5]);
        assert_eq!((answer.position_offset, answer.next_offset), (1, 6));
        assert_eq!(answer.served_by.as_ref().map(|by| by.node_id), Some(node));
        answers.push(answer.batches);
    }
    assert!(answers.iter().all(|batches| *batches == answers[0]));
}

#[tokio::test(start_paused = true)]
async fn hints_use_the_callers_listener_through_a_forward() {
    let cluster = with_topic().await;
    let context = CallContext::new("host", Duration::from_secs(5));
    let sent = cluster
        .core(3)
        .send(send(batch(1)), &context)
        .await
        .expect("sent");
    assert_eq!(sent.served_by.expect("served by").address, "localhost:7460");
}

#[tokio::test(start_paused = true)]
async fn a_partition_hosted_elsewhere_is_reached() {
    let cluster = FakeCluster::start(3).await;
    create(&cluster, 3, "t", 1, 1).await;
    let sent = cluster
        .core(3)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    assert_eq!(sent.served_by.expect("served by").node_id, 1);
    let answer = cluster
        .core(2)
        .poll(poll(At::First(true)), &context())
        .await
        .expect("polled");
    assert_eq!(offsets(answer.batches), [0]);
    let at = v1::PollRequest {
        at_node: Some(2),
        ..poll(At::First(true))
    };
    let refused = cluster
        .core(1)
        .poll(at, &context())
        .await
        .expect_err("no replica");
    assert_eq!(refused.reason, Reason::NotAReplica);
}

#[tokio::test(start_paused = true)]
async fn unknown_names_are_not_found() {
    let cluster = with_topic().await;
    let core = cluster.core(2);
    let request = v1::SendRequest {
        topic: "u".into(),
        ..send(batch(1))
    };
    let failure = core.send(request, &context()).await.expect_err("no topic");
    assert_eq!(failure.reason, Reason::TopicNotFound);
    assert_eq!(failure.reason.code(), Code::NotFound);
    let request = v1::SendRequest {
        partition: 1,
        ..send(batch(1))
    };
    let failure = core
        .send(request, &context())
        .await
        .expect_err("no partition");
    assert_eq!(failure.reason, Reason::PartitionNotFound);
}

#[tokio::test(start_paused = true)]
async fn bad_batches_are_named() {
    let cluster = with_topic().await;
    let good = batch(2);
    let mut flipped = good.to_vec();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    let stamped = {
        let limits = BatchLimits::default();
        let admitted = imprint_proto::batch::AdmittedBatch::admit(good.clone(), 1, &limits);
        admitted
            .expect("good")
            .stamp(5, 6)
            .expect("room")
            .to_contiguous()
    };
    let huge = Bytes::from(vec![0; BatchLimits::default().max_batch_bytes as usize + 1]);
    for node in [1, 2] {
        for (bytes, reason) in [
            (Bytes::new(), Reason::BatchMalformed),
            (good.slice(..good.len() - 1), Reason::BatchMalformed),
            (flipped.clone().into(), Reason::BatchChecksum),
            (stamped.clone(), Reason::BatchStamped),
            (huge.clone(), Reason::BatchTooLarge),
        ] {
            let failure = cluster.core(node).send(send(bytes), &context()).await;
            let failure = failure.expect_err("refused");
            assert_eq!(failure.reason, reason, "{failure}");
            assert_eq!(failure.reason.code(), Code::InvalidArgument);
            assert_eq!(failure.field.map(|field| field.0).as_deref(), Some("batch"));
        }
    }
    assert_eq!(cluster.core(1).append_bytes_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_expected_offset_is_compared() {
    let cluster = with_topic().await;
    let expecting = |offset| v1::SendRequest {
        expected_offset: Some(offset),
        ..send(batch(3))
    };
    let core = cluster.core(2);
    core.send(expecting(0), &context())
        .await
        .expect("as expected");
    let failure = core
        .send(expecting(0), &context())
        .await
        .expect_err("taken");
    assert_eq!(failure.reason, Reason::OffsetMismatch);
    assert!(failure.facts.contains(&("next-offset".into(), "3".into())));
}

#[tokio::test(start_paused = true)]
async fn a_moved_leader_is_followed() {
    let cluster = with_topic().await;
    cluster.group(1).set_leader(Some(3));
    let sent = cluster
        .core(2)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    assert_eq!(sent.served_by.expect("served by").node_id, 3);
}

#[tokio::test(start_paused = true)]
async fn an_election_is_waited_for() {
    let cluster = with_topic().await;
    cluster.group(1).set_leader(None);
    let group = cluster.group(1);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        group.set_leader(Some(2));
    });
    let sent = cluster
        .core(3)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    assert_eq!(sent.base_offset, 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_the_deadline_ends_in_no_leader() {
    let cluster = with_topic().await;
    cluster.group(1).set_leader(None);
    let failure = cluster.core(2).send(send(batch(1)), &short(500)).await;
    let failure = failure.expect_err("no leader");
    assert_eq!(failure.reason, Reason::NoLeader);
    assert_eq!(failure.reason.code(), Code::Unavailable);
    assert!(failure.retry_after.is_some());
    assert!(cluster.group(1).state.lock().batches.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_never_tried_again() {
    let cluster = with_topic().await;
    for deadline in [false, true] {
        let detail = "stopped".to_string();
        let error = ProposeError::Unknown { detail, deadline };
        cluster.group(1).state.lock().fail_next = Some(error);
        let failure = cluster.core(2).send(send(batch(1)), &context()).await;
        let failure = failure.expect_err("unknown");
        assert_eq!(failure.reason.name(), "OUTCOME_UNKNOWN");
        let code = if deadline {
            Code::DeadlineExceeded
        } else {
            Code::Unavailable
        };
        assert_eq!(failure.reason.code(), code);
        assert_eq!(failure.retry_after, None);
    }
    cluster.lose_answers_of.lock().insert(1);
    let failure = cluster
        .core(2)
        .send(send(batch(1)), &context())
        .await
        .expect_err("lost");
    assert_eq!(failure.reason.name(), "OUTCOME_UNKNOWN");
    assert_eq!(cluster.group(1).state.lock().batches.len(), 1, "sent once");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_leader_was_sent_nothing() {
    let cluster = with_topic().await;
    cluster.down.lock().insert(1);
    let failure = cluster
        .core(2)
        .send(send(batch(1)), &short(300))
        .await
        .expect_err("down");
    assert_eq!(failure.reason, Reason::PeerUnreachable);
    assert!(cluster.group(1).state.lock().batches.is_empty());
}

#[tokio::test(start_paused = true)]
async fn positions_are_resolved() {
    let cluster = with_topic().await;
    let core = cluster.core(1);
    for _ in 0..5 {
        core.send(send(batch(2)), &context()).await.expect("sent");
    }
    for (at, expected) in [
        (At::First(true), 0),
        (At::Offset(7), 7),
        (At::Last(0), 10),
        (At::Last(3), 7),
        (At::Last(99), 0),
        (At::TimestampUs(0), 0),
        (At::TimestampUs(1_000_004), 4),
        (At::TimestampUs(u64::MAX), 10),
    ] {
        let answer = core.poll(poll(at), &context()).await.expect("polled");
        assert_eq!(answer.position_offset, expected, "{at:?}");
    }
    let request = v1::PollRequest {
        position: None,
        ..poll(At::First(true))
    };
    assert_eq!(
        core.poll(request, &context())
            .await
            .expect("polled")
            .position_offset,
        0
    );
}

#[tokio::test(start_paused = true)]
async fn past_the_end_is_out_of_range_from_every_replica() {
    let cluster = with_topic().await;
    cluster
        .core(1)
        .send(send(batch(4)), &context())
        .await
        .expect("sent");
    for node in 1..=3 {
        let failure = cluster
            .core(node)
            .poll(poll(At::Offset(5)), &context())
            .await;
        let failure: Failure = failure.expect_err("past the end");
        assert_eq!(failure.reason, Reason::OffsetOutOfRange);
        assert_eq!(failure.range, Some((0, 4)));
        let at_end = cluster
            .core(node)
            .poll(poll(At::Offset(4)), &context())
            .await;
        assert!(at_end.expect("the end is fine").batches.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_lagging_replica_shows_only_what_it_knows_to_be_committed() {
    let cluster = with_topic().await;
    cluster
        .core(1)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    cluster.group(1).state.lock().lagging.insert(2);
    cluster
        .core(1)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    let core = cluster.core(2);
    let answer = core
        .poll(poll(At::First(true)), &context())
        .await
        .expect("polled");
    assert_eq!(offsets(answer.batches), [0]);
    assert_eq!(answer.commit_offset, 1);
    let ahead = core
        .poll(poll(At::Offset(2)), &context())
        .await
        .expect("not out of range");
    assert!(ahead.batches.is_empty());
    assert_eq!(ahead.next_offset, 2);
    let linearizable = v1::PollRequest {
        linearizable: true,
        ..poll(At::First(true))
    };
    let failure = core
        .poll(linearizable.clone(), &short(300))
        .await
        .expect_err("behind");
    assert_eq!(failure.reason, Reason::NotConfirmed);
    let group = cluster.group(1);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        group.heal();
    });
    let answer = core
        .poll(linearizable, &context())
        .await
        .expect("caught up");
    assert_eq!(offsets(answer.batches), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_long_poll_wakes_or_ends_empty_in_time() {
    let cluster = with_topic().await;
    let waiting = v1::PollRequest {
        max_wait_ms: 2000,
        ..poll(At::Offset(0))
    };
    let started = tokio::time::Instant::now();
    let answer = cluster
        .core(3)
        .poll(waiting.clone(), &short(60_000))
        .await
        .expect("empty");
    assert!(answer.batches.is_empty());
    assert_eq!(started.elapsed(), Duration::from_secs(2));
    let started = tokio::time::Instant::now();
    cluster
        .core(3)
        .poll(waiting.clone(), &short(500))
        .await
        .expect("before its deadline");
    assert!(started.elapsed() < Duration::from_millis(500));
    let core = cluster.core(3);
    let poll = tokio::spawn(async move { core.poll(waiting, &context()).await });
    tokio::time::sleep(Duration::from_millis(700)).await;
    cluster
        .core(2)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    let started = tokio::time::Instant::now();
    let answer = poll.await.expect("task").expect("woken");
    assert_eq!(offsets(answer.batches), [0]);
    assert!(started.elapsed() < Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn a_poll_waits_for_enough_bytes() {
    let cluster = with_topic().await;
    let one = batch(1).len() as u32;
    cluster
        .core(1)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    let request = v1::PollRequest {
        min_bytes: 2 * one,
        max_wait_ms: 3000,
        ..poll(At::Offset(0))
    };
    let core = cluster.core(1);
    let again = request.clone();
    let poll = tokio::spawn(async move { core.poll(request, &context()).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!poll.is_finished());
    cluster
        .core(1)
        .send(send(batch(1)), &context())
        .await
        .expect("sent");
    assert_eq!(
        offsets(poll.await.expect("task").expect("enough").batches),
        [0, 1]
    );
    let request = v1::PollRequest {
        min_bytes: 9 * one,
        ..again
    };
    let answer = cluster
        .core(1)
        .poll(request, &context())
        .await
        .expect("time is up");
    assert_eq!(offsets(answer.batches), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn max_bytes_still_gives_one_whole_batch() {
    let cluster = with_topic().await;
    for _ in 0..3 {
        cluster
            .core(1)
            .send(send(batch(2)), &context())
            .await
            .expect("sent");
    }
    let request = v1::PollRequest {
        max_bytes: 1,
        ..poll(At::Offset(3))
    };
    let answer = cluster
        .core(1)
        .poll(request, &context())
        .await
        .expect("polled");
    assert_eq!(offsets(answer.batches), [2, 3]);
    assert_eq!(answer.next_offset, 4);
}

#[tokio::test(start_paused = true)]
async fn topics_are_created_listed_and_deleted() {
    let cluster = FakeCluster::start(3).await;
    for name in ["c", "a", "b"] {
        create(&cluster, 2, name, 2, 0).await;
    }
    let core = cluster.core(3);
    let mut names = Vec::new();
    let mut request = v1::ListTopicsRequest {
        page_size: 2,
        ..Default::default()
    };
    loop {
        let page = core
            .list_topics(request.clone(), &context())
            .await
            .expect("page");
        names.extend(page.topics.into_iter().map(|topic| topic.name));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(names, ["a", "b", "c"]);
    let again = v1::CreateTopicRequest {
        name: "a".into(),
        partitions: 1,
        ..Default::default()
    };
    let failure = core
        .create_topic(again, &context())
        .await
        .expect_err("exists");
    assert_eq!(failure.reason, Reason::TopicExists);
    let delete = v1::DeleteTopicRequest { name: "a".into() };
    core.delete_topic(delete.clone(), &context())
        .await
        .expect("deleted");
    let failure = core
        .delete_topic(delete, &context())
        .await
        .expect_err("gone");
    assert_eq!(failure.reason, Reason::TopicNotFound);
    let bad = v1::CreateTopicRequest {
        name: "x/y".into(),
        partitions: 1,
        ..Default::default()
    };
    let failure = core
        .create_topic(bad, &context())
        .await
        .expect_err("bad name");
    assert_eq!(failure.field.expect("field").0, "name");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cluster.nodes[0].core_groups(), BTreeSet::from([1, 2, 5, 6]));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_not_make_a_created_topic_an_error() {
    let cluster = FakeCluster::start(3).await;
    cluster.lose_answers_of.lock().insert(1);
    let healing = Arc::clone(&cluster);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        healing.lose_answers_of.lock().clear();
    });
    create(&cluster, 2, "t", 1, 3).await;
}

#[tokio::test(start_paused = true)]
async fn replicas_are_described_and_compared() {
    let cluster = with_topic().await;
    cluster
        .core(1)
        .send(send(batch(3)), &context())
        .await
        .expect("sent");
    let request = v1::DescribePartitionsRequest { topic: "t".into() };
    let described = cluster
        .core(2)
        .describe_partitions(request.clone(), &context())
        .await;
    let partition = described.expect("described").partitions.remove(0);
    assert_eq!((partition.partition_id, partition.leader_node), (1, 1));
    assert!(
        partition
            .replicas
            .iter()
            .all(|r| r.reachable && r.commit_offset == 3)
    );
    let all = v1::VerifyRequest::default();
    let verified = cluster
        .core(3)
        .verify(all.clone(), &context())
        .await
        .expect("verified");
    assert!(verified.partitions[0].equal, "{:?}", verified.partitions[0]);
    assert_eq!(verified.partitions[0].compared_to_offset, 3);
    cluster.down.lock().insert(2);
    let verified = cluster
        .core(3)
        .verify(all, &context())
        .await
        .expect("answered");
    assert!(!verified.partitions[0].equal);
    assert!(verified.partitions[0].problem.contains("node 2"));
    let described = cluster
        .core(1)
        .describe_partitions(request, &context())
        .await;
    let replicas = described.expect("described").partitions.remove(0).replicas;
    assert_eq!(replicas.iter().filter(|r| r.reachable).count(), 2);
    let status = cluster.core(1).status("default");
    assert!(!status.ready);
    assert_eq!(status.not_ready_reason, "no sign of life from node 2");
}

#[tokio::test(start_paused = true)]
async fn text_goes_the_same_way() {
    let cluster = with_topic().await;
    let message = |text: &str| v1::TextMessage {
        text: text.into(),
        headers: [("k".to_string(), text.to_string())].into(),
    };
    let request = v1::SendTextRequest {
        topic: "t".into(),
        partition: 0,
        messages: vec![message("one"), message("two"), message("three")],
    };
    cluster
        .core(2)
        .send_text(request, &context())
        .await
        .expect("sent");
    let request = v1::PollTextRequest {
        topic: "t".into(),
        position: Some(v1::Position {
            at: Some(At::Offset(1)),
        }),
        max_messages: 1,
        ..Default::default()
    };
    let answer = cluster
        .core(3)
        .poll_text(request, &context())
        .await
        .expect("polled");
    assert_eq!(answer.next_offset, 2);
    let record = &answer.records[0];
    assert_eq!(
        (record.offset, record.text.as_str(), record.binary),
        (1, "two", false)
    );
    assert_eq!(record.headers["k"], "two");
    let empty = v1::SendTextRequest {
        topic: "t".into(),
        ..Default::default()
    };
    let failure = cluster
        .core(2)
        .send_text(empty, &context())
        .await
        .expect_err("no messages");
    assert_eq!(failure.reason, Reason::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_node_refuses_writes_and_wakes_polls() {
    let cluster = with_topic().await;
    let core = cluster.core(2);
    let waiting = v1::PollRequest {
        max_wait_ms: 9000,
        ..poll(At::Offset(0))
    };
    let polling = Arc::clone(&core);
    let poll = tokio::spawn(async move { polling.poll(waiting, &short(60_000)).await });
    tokio::task::yield_now().await;
    core.stop_taking_calls();
    assert!(poll.await.expect("task").expect("empty").batches.is_empty());
    let failure = core
        .send(send(batch(1)), &context())
        .await
        .expect_err("stopping");
    assert_eq!(failure.reason, Reason::ShuttingDown);
    assert!(core.readiness().is_err());
}
