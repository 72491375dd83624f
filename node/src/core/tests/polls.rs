//! Reading, from any replica.

use super::*;

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

#[tokio::test(start_paused = true)]
async fn many_waiting_polls_leave_room_for_other_calls() {
    let cluster = FakeCluster::start(3).await;
    create(&cluster, 3, "t", 1, 1).await;
    let core = cluster.core(2);
    let polls: Vec<_> = (0..200)
        .map(|_| {
            let core = Arc::clone(&core);
            let waiting = v1::PollRequest {
                max_wait_ms: 20_000,
                ..poll(At::Last(0))
            };
            tokio::spawn(async move { core.poll(waiting, &short(60_000)).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    core.send(send(batch(1)), &context()).await.expect("sent");
    let started = tokio::time::Instant::now();
    for poll in polls {
        let answer = poll.await.expect("task").expect("woken");
        assert_eq!(offsets(answer.batches), [0]);
    }
    assert!(started.elapsed() < Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn what_is_damaged_here_is_served_by_another_replica() {
    let cluster = with_topic().await;
    let core = cluster.core(1);
    core.send(send(batch(4)), &context()).await.expect("sent");
    cluster.group(1).state.lock().damaged = BTreeSet::from([1, 2]);
    let answer = core.poll(poll(At::Offset(0)), &context()).await;
    let answer = answer.expect("node 3 has it");
    assert_eq!(answer.next_offset, 4);
    assert_eq!(answer.served_by.map(|node| node.node_id), Some(3));
    // Asked for by name, the damage is the answer; so it is when nobody has the bytes.
    let by_name = v1::PollRequest {
        at_node: Some(1),
        ..poll(At::Offset(0))
    };
    let failure: Failure = core.poll(by_name, &context()).await.expect_err("damaged");
    assert_eq!(failure.reason, Reason::Corrupt);
    cluster.group(1).state.lock().damaged.insert(3);
    let failure = core.poll(poll(At::Offset(0)), &context()).await;
    assert_eq!(
        failure.expect_err("damaged everywhere").reason,
        Reason::Corrupt
    );
}
