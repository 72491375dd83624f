//! Changed settings and trimmed partitions.

use super::*;

fn update(set: &[(&str, &str)], unset: &[&str]) -> v1::UpdateTopicRequest {
    let set = set.iter().map(|(k, v)| (k.to_string(), v.to_string()));
    v1::UpdateTopicRequest {
        name: "t".into(),
        set: set.collect(),
        unset: unset.iter().map(ToString::to_string).collect(),
    }
}

fn trim(before: At) -> v1::TrimPartitionRequest {
    v1::TrimPartitionRequest {
        topic: "t".into(),
        before: Some(v1::Position { at: Some(before) }),
        ..v1::TrimPartitionRequest::default()
    }
}

async fn trim_at(
    cluster: &FakeCluster,
    node: u64,
    request: v1::TrimPartitionRequest,
) -> Result<v1::TrimPartitionResponse, Failure> {
    let context = context();
    cluster.core(node).trim_partition(request, &context).await
}

/// Offsets 0..10 in five batches.
async fn with_ten() -> Arc<FakeCluster> {
    let cluster = with_topic().await;
    for _ in 0..5 {
        let sent = cluster.core(1).send(send(batch(2)), &context()).await;
        sent.expect("sent");
    }
    cluster
}

#[tokio::test(start_paused = true)]
async fn settings_change_through_any_node() {
    let cluster = with_topic().await;
    let core = cluster.core(3);
    let first = core
        .update_topic(update(&[("retention_ms", "7d")], &[]), &context())
        .await;
    let settings = first.expect("updated").topic.expect("topic").settings;
    assert_eq!(settings["retention_ms"], "604800000");
    assert_eq!(settings["segment_bytes"], "1048576");
    assert_eq!(settings["segment_ms"], "none");
    let request = v1::GetTopicRequest { name: "t".into() };
    let seen = core.get_topic(request, &context()).await.expect("topic");
    assert_eq!(seen.topic.expect("topic").settings, settings);
    let change = update(
        &[("segment_bytes", "2MiB"), ("retention_bytes", "1GiB")],
        &["retention_ms"],
    );
    let second = core.update_topic(change, &context()).await;
    let settings = second.expect("updated").topic.expect("topic").settings;
    assert_eq!(settings.get("retention_ms"), None);
    assert_eq!(settings["segment_bytes"], "2097152");
    let change = update(&[], &["segment_bytes"]);
    let third = core.update_topic(change, &context()).await;
    let settings = third.expect("updated").topic.expect("topic").settings;
    assert_eq!(settings["segment_bytes"], "1048576");
    assert_eq!(settings["retention_bytes"], "1073741824");
}

#[tokio::test(start_paused = true)]
async fn a_bad_change_names_its_field_and_changes_nothing() {
    let cluster = with_topic().await;
    for (change, field) in [
        (update(&[("colour", "red")], &[]), "set.colour"),
        (
            update(&[("retention_ms", "1d"), ("segment_ms", "5ms")], &[]),
            "set.segment_ms",
        ),
        (update(&[("retention_ms", "1d")], &["colour"]), "unset"),
        (
            update(&[("retention_ms", "1d")], &["retention_ms"]),
            "unset",
        ),
        (update(&[], &[]), "set"),
    ] {
        let refused = cluster.core(2).update_topic(change, &context()).await;
        let failure = refused.expect_err("refused");
        assert_eq!(failure.reason, Reason::InvalidArgument);
        assert_eq!(failure.field.expect("field").0, field);
    }
    let settings = &cluster.core(1).controller().topics["t"].settings;
    assert!(!settings.contains_key("retention_ms"));
    let missing = v1::UpdateTopicRequest {
        name: "u".into(),
        ..update(&[("retention_ms", "1d")], &[])
    };
    let failure = cluster.core(2).update_topic(missing, &context()).await;
    assert_eq!(failure.expect_err("no topic").reason, Reason::TopicNotFound);
}

#[tokio::test(start_paused = true)]
async fn a_trim_moves_the_start_up_and_never_down() {
    let cluster = with_ten().await;
    for (node, before, start, previous) in [
        (1, 0, 0, 0),
        (2, 1, 1, 0),
        (3, 5, 5, 1),
        (3, 3, 5, 5),
        (1, 5, 5, 5),
        (2, 9, 9, 5),
        (2, 10, 10, 9),
    ] {
        let answer = trim_at(&cluster, node, trim(At::Offset(before))).await;
        let answer = answer.expect("trimmed");
        assert_eq!(
            (answer.start_offset, answer.previous_start_offset),
            (start, previous)
        );
        assert_eq!(answer.end_offset, 10);
    }
    // What changes nothing is not proposed.
    assert_eq!(cluster.group(1).state.lock().trims, [1, 5, 9, 10]);
    let above = trim_at(&cluster, 3, trim(At::Offset(11))).await;
    let failure = above.expect_err("above the commit point");
    assert_eq!(failure.reason, Reason::OffsetOutOfRange);
    assert_eq!(failure.range, Some((10, 10)));
    let sent = cluster.core(2).send(send(batch(1)), &context()).await;
    assert_eq!(sent.expect("sent").base_offset, 10);
    for node in 1..=3 {
        let core = cluster.core(node);
        let below = core.poll(poll(At::Offset(9)), &context()).await;
        assert_eq!(below.expect_err("below").range, Some((10, 11)));
        let first = core.poll(poll(At::First(true)), &context()).await;
        assert_eq!(offsets(first.expect("polled").batches), [10]);
    }
}

#[tokio::test(start_paused = true)]
async fn times_and_counts_become_offsets_and_a_dry_run_changes_nothing() {
    let cluster = with_ten().await;
    for (before, start) in [
        (At::Last(0), 10),
        (At::Last(4), 6),
        (At::TimestampUs(1_000_004), 4),
        (At::TimestampUs(u64::MAX), 10),
        (At::First(true), 0),
    ] {
        let request = v1::TrimPartitionRequest {
            dry_run: true,
            ..trim(before)
        };
        let answer = trim_at(&cluster, 2, request).await;
        assert_eq!(answer.expect("answered").start_offset, start, "{before:?}");
    }
    assert_eq!(cluster.group(1).state.lock().start, 0);
    let unsaid = v1::TrimPartitionRequest {
        before: None,
        ..trim(At::Offset(0))
    };
    let failure = trim_at(&cluster, 2, unsaid).await;
    assert_eq!(
        failure.expect_err("unsaid").field.expect("field").0,
        "before"
    );
}

#[tokio::test(start_paused = true)]
async fn partitions_of_a_topic_are_trimmed_each_by_itself() {
    let cluster = FakeCluster::start(3).await;
    create(&cluster, 1, "t", 2, 1).await;
    let sent = cluster.core(1).send(send(batch(3)), &context()).await;
    sent.expect("sent");
    let request = v1::TrimTopicRequest {
        topic: "t".into(),
        before: Some(v1::Position {
            at: Some(At::Offset(3)),
        }),
        ..v1::TrimTopicRequest::default()
    };
    let answer = cluster
        .core(3)
        .trim_topic(request.clone(), &context())
        .await;
    let partitions = answer.expect("answered").partitions;
    assert_eq!(
        (partitions[0].start_offset, partitions[0].reason.as_str()),
        (3, "")
    );
    assert_eq!(partitions[1].reason, "OFFSET_OUT_OF_RANGE");
    assert_eq!(partitions[1].end_offset, 0);
    let named = v1::TrimTopicRequest {
        partitions: vec![2],
        ..request
    };
    let failure = cluster.core(3).trim_topic(named, &context()).await;
    assert_eq!(
        failure.expect_err("no partition").reason,
        Reason::PartitionNotFound
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_asked_for_again() {
    let cluster = with_ten().await;
    cluster.lose_answers_of.lock().insert(1);
    let healing = Arc::clone(&cluster);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        healing.lose_answers_of.lock().clear();
    });
    let answer = trim_at(&cluster, 2, trim(At::Offset(4))).await;
    assert_eq!(answer.expect("trimmed").start_offset, 4);
}
