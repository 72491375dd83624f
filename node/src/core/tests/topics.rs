//! Topics, descriptions, text, and stopping.

use super::*;

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
