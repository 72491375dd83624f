//! Sending, wherever the leader is.

use super::*;
use crate::forward::{ForwardReply, encode_request, ops::Op};
use crate::room::NodeRoom;
use imprint_proto::ids::NodeId;
use imprint_raft::disk::SpaceLevel;

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
async fn a_forwarded_call_whose_time_is_up_is_dropped_before_anything() {
    let cluster = with_topic().await;
    let body = Bytes::from(prost::Message::encode_to_vec(&send(batch(1))));
    let expired = encode_request(Op::Send, &short(0), body.clone());
    let answer = cluster.core(1).handle_forwarded(expired.concat().into());
    let answer = ForwardReply::decode(answer.await.concat().into()).expect("an answer");
    let failure = answer.0.expect_err("too late");
    assert_eq!(failure.reason, Reason::DeadlineExceeded);
    // Nothing of it is in the log: the next one gets the first offset.
    let in_time = encode_request(Op::Send, &short(1000), body);
    let answer = cluster.core(1).handle_forwarded(in_time.concat().into());
    let answer = ForwardReply::decode(answer.await.concat().into()).expect("an answer");
    let sent: v1::SendResponse =
        prost::Message::decode(answer.0.expect("sent")).expect("a response");
    assert_eq!(sent.base_offset, 0);
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

/// Notes that a node's disk is as short as that, on every node.
fn set_room(cluster: &FakeCluster, node: u64, level: SpaceLevel) {
    let room = NodeRoom {
        level,
        free_bytes: 7,
        total_bytes: 1000,
        soft_bytes: 100,
        slow: false,
    };
    for id in 1..=3 {
        let board = &cluster.core(id).parts.room;
        if id == node {
            board.set_own(room);
        } else {
            board.heard(NodeId(node), room);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_is_refused_by_every_node_where_too_few_disks_have_room() {
    let cluster = with_topic().await;
    set_room(&cluster, 2, SpaceLevel::Low);
    let sent = cluster.core(3).send(send(batch(1)), &short(2000)).await;
    sent.expect("two of three have room");
    set_room(&cluster, 3, SpaceLevel::Full);
    for node in 1..=3 {
        let sent = cluster.core(node).send(send(batch(1)), &short(2000)).await;
        let failure = sent.expect_err("one of three has room");
        assert_eq!(failure.reason, Reason::DiskLow);
        assert_eq!(failure.reason.code(), Code::ResourceExhausted);
        assert!(
            failure
                .retry_after
                .is_some_and(|after| after >= Duration::from_secs(1))
        );
        let fact = |name: &str| {
            failure
                .facts
                .iter()
                .find(|(key, _)| key == name)
                .map(|f| f.1.clone())
        };
        assert_eq!(fact("node").as_deref(), Some("3"), "the shortest is named");
        assert_eq!(fact("floor-bytes").as_deref(), Some("100"));
    }
    set_room(&cluster, 3, SpaceLevel::Enough);
    let sent = cluster.core(1).send(send(batch(1)), &short(2000)).await;
    sent.expect("room again");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_alone_is_short_is_asked_again_until_another_leads() {
    let cluster = with_topic().await;
    set_room(&cluster, 1, SpaceLevel::Low);
    let core = cluster.core(1);
    let sending = tokio::spawn(async move { core.send(send(batch(1)), &short(5000)).await });
    tokio::task::yield_now().await;
    cluster.group(1).set_leader(Some(2));
    let answer = sending.await.expect("no panic").expect("node 2 has room");
    assert_eq!(answer.served_by.expect("named").node_id, 2);
}
