//! The leader's look at its partitions.

use super::*;
use crate::{backend::RollSettings, retention};

const EVERY: Duration = Duration::from_secs(30);

/// Offsets 0..10 in five segments of one batch, the last one active; every node looks at what it leads.
async fn with_five_segments() -> Arc<FakeCluster> {
    let cluster = with_topic().await;
    for _ in 0..5 {
        let sent = cluster.core(1).send(send(batch(2)), &context()).await;
        sent.expect("sent");
    }
    for node in 1..=3 {
        tokio::spawn(retention::run(cluster.core(node), EVERY));
    }
    // The looks right at the start.
    tokio::time::sleep(Duration::from_millis(10)).await;
    cluster
}

async fn set(cluster: &FakeCluster, settings: &[(&str, String)]) {
    let set = settings.iter().map(|(k, v)| (k.to_string(), v.clone()));
    let request = v1::UpdateTopicRequest {
        name: "t".into(),
        set: set.collect(),
        unset: Vec::new(),
    };
    let updated = cluster.core(2).update_topic(request, &context()).await;
    updated.expect("updated");
    // Well before the next regular look.
    tokio::time::sleep(Duration::from_millis(10)).await;
}

fn segment_bytes(cluster: &FakeCluster) -> u64 {
    cluster.group(1).state.lock().batches[0].len()
}

fn trims(cluster: &FakeCluster) -> Vec<u64> {
    cluster.group(1).state.lock().trims.clone()
}

async fn next_deletion(cluster: &FakeCluster) -> v1::NextDeletion {
    let request = v1::DescribePartitionsRequest { topic: "t".into() };
    let answer = cluster
        .core(3)
        .describe_partitions(request, &context())
        .await;
    let partition = answer.expect("described").partitions.remove(0);
    assert_eq!((partition.commit_offset, partition.end_offset), (10, 10));
    partition.next_deletion.expect("from the leader")
}

#[tokio::test(start_paused = true)]
async fn changed_settings_are_looked_at_right_away() {
    let cluster = with_five_segments().await;
    assert_eq!(next_deletion(&cluster).await.why_not, "retention is off");
    let size = segment_bytes(&cluster);
    set(&cluster, &[("retention_bytes", (2 * size).to_string())]).await;
    assert_eq!(trims(&cluster), [6]);
    let next = next_deletion(&cluster).await;
    assert_eq!((next.up_to_offset, next.bytes), (8, size));
    assert_eq!(next.bytes_missing, Some(size));
    // Nothing new, nothing proposed.
    tokio::time::sleep(3 * EVERY).await;
    assert_eq!(trims(&cluster), [6]);
    let sent = cluster.core(3).send(send(batch(2)), &context()).await;
    sent.expect("sent");
    tokio::time::sleep(EVERY).await;
    assert_eq!(trims(&cluster), [6, 8]);
}

#[tokio::test(start_paused = true)]
async fn what_is_old_goes_once_the_clock_was_watched() {
    let cluster = with_five_segments().await;
    // Everything is stamped in 1970.
    set(&cluster, &[("retention_ms", "1d".to_string())]).await;
    assert!(trims(&cluster).is_empty());
    let next = next_deletion(&cluster).await;
    assert_eq!(next.up_to_offset, 2);
    assert_eq!(next.due_timestamp_us, Some(86_401_000_000));
    tokio::time::sleep(3 * EVERY).await;
    // All but the active segment.
    assert_eq!(trims(&cluster), [8]);
    let next = next_deletion(&cluster).await;
    assert_eq!(next.why_not, "the active segment is never deleted");
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_looks() {
    let cluster = with_five_segments().await;
    cluster.group(1).set_leader(None);
    let size = segment_bytes(&cluster);
    set(&cluster, &[("retention_bytes", size.to_string())]).await;
    tokio::time::sleep(3 * EVERY).await;
    assert!(trims(&cluster).is_empty());
    cluster.group(1).set_leader(Some(3));
    tokio::time::sleep(EVERY).await;
    assert_eq!(trims(&cluster), [8]);
}

#[tokio::test(start_paused = true)]
async fn segments_end_as_the_topic_says() {
    let cluster = with_five_segments().await;
    let roll = || cluster.group(1).state.lock().roll;
    let begun = RollSettings {
        segment_bytes: 1 << 20,
        segment_span_us: None,
    };
    assert_eq!(roll(), Some(begun));
    let change = [
        ("segment_bytes", "64KiB".into()),
        ("segment_ms", "1s".into()),
    ];
    set(&cluster, &change).await;
    let changed = RollSettings {
        segment_bytes: 64 << 10,
        segment_span_us: Some(1_000_000),
    };
    assert_eq!(roll(), Some(changed));
    set(&cluster, &[("segment_ms", "none".into())]).await;
    assert_eq!(roll().expect("roll").segment_span_us, None);
}
