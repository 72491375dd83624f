//! Trims and retention, through the command line and from every replica.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use imprint_client::{Code, PollOptions, Position, v1};
use imprint_cluster_tests::cluster::{Cluster, NodeProcess, eventually};
use imprint_cluster_tests::disk;
use serde_json::Value;

const TOPIC: &str = "kept";

fn produce(cluster: &Cluster, from: usize, count: usize) {
    let lines: String = (from..from + count)
        .map(|n| format!("line {n}\n"))
        .collect();
    let file = cluster.dir().join("lines");
    std::fs::write(&file, lines).expect("written");
    let file = file.to_str().expect("a path in UTF-8");
    cluster.imprint_ok(&["produce", TOPIC, "--file", file, "--batch", "500"]);
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn trim(cluster: &Cluster, before: &str) -> Output {
    let args = [
        "topic", "trim", TOPIC, "--before", before, "--yes", "-o", "json",
    ];
    cluster.imprint(&args)
}

/// Start and end after a trim that has to succeed.
fn trimmed(cluster: &Cluster, before: &str) -> (u64, u64) {
    let output = trim(cluster, before);
    assert!(output.status.success(), "{before}: {}", stderr(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |name: &str| value[0][name].as_u64().expect("a number");
    (number("start_offset"), number("end_offset"))
}

/// What a node's replica answers at an offset: its first record's offset, or the range that it names.
async fn read_at(
    cluster: &Cluster,
    node: u64,
    offset: u64,
) -> Result<v1::PollResponse, (u64, u64)> {
    let options = PollOptions {
        at_node: Some(node),
        ..PollOptions::default()
    };
    let polled = cluster
        .client()
        .poll(TOPIC, 0, Position::Offset(offset), options)
        .await;
    polled.map_err(|error| {
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
        error.offsets().expect("start and end")
    })
}

/// Waits until every replica begins there, then checks what each says around it.
async fn begins_everywhere(cluster: &Cluster, start: u64, end: u64) {
    for node in 1..=3 {
        eventually("the replica begins there", async || {
            let offsets = cluster.client().offsets(TOPIC, &[0], Some(node)).await;
            offsets.is_ok_and(|o| (o[0].start_offset, o[0].commit_offset) == (start, end))
        })
        .await;
        if start > 0 {
            assert_eq!(read_at(cluster, node, start - 1).await, Err((start, end)));
            assert_eq!(read_at(cluster, node, 0).await, Err((start, end)));
        }
        let first = read_at(cluster, node, start)
            .await
            .expect("the start is there");
        assert_eq!(first.batches.is_empty(), start == end);
        let last = read_at(cluster, node, end)
            .await
            .expect("the end can be waited at");
        assert!(last.batches.is_empty());
        // Only the leader knows that it isn't this replica that lags; right after a restart there is none.
        eventually("above the end is out of range", async || {
            read_at(cluster, node, end + 1).await == Err((start, end))
        })
        .await;
    }
}

async fn group_of(cluster: &Cluster) -> u64 {
    let topic = cluster
        .client()
        .admin()
        .get_topic(TOPIC)
        .await
        .expect("topic");
    topic.partitions[0].partition_id
}

/// The segment files are the same on all nodes, once all have done what they were to do.
async fn same_files(cluster: &Cluster) -> Vec<disk::SegmentFile> {
    let group = group_of(cluster).await;
    let dirs: Vec<PathBuf> = cluster.nodes.iter().map(|n| n.data_dir.clone()).collect();
    let mut found = Err(String::new());
    eventually("the files are the same", async || {
        found = disk::compare(&dirs, group);
        found.is_ok()
    })
    .await;
    found.expect("the same")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trim_moves_the_start_and_nothing_else() {
    let mut cluster = Cluster::start().await;
    cluster.create_topic(TOPIC, &[]).await;
    assert_eq!(trimmed(&cluster, "0"), (0, 0));
    assert_eq!(trimmed(&cluster, "end"), (0, 0));
    produce(&cluster, 0, 10);
    assert_eq!(trimmed(&cluster, "0"), (0, 10));
    for (before, start) in [
        ("1", 1),
        ("5", 5),
        ("3", 5),
        ("5", 5),
        ("9", 9),
        ("10", 10),
        ("10", 10),
    ] {
        assert_eq!(trimmed(&cluster, before), (start, 10), "{before}");
        begins_everywhere(&cluster, start, 10).await;
    }
    let output = trim(&cluster, "11");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("OFFSET_OUT_OF_RANGE"),
        "{}",
        stderr(&output)
    );
    let asked = cluster.imprint(&["topic", "trim", TOPIC, "--before", "end"]);
    assert_eq!(
        asked.status.code(),
        Some(2),
        "only --yes says so: {}",
        stderr(&asked)
    );

    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.start_node(id);
    }
    cluster.wait_ready().await;
    begins_everywhere(&cluster, 10, 10).await;
    produce(&cluster, 10, 1);
    begins_everywhere(&cluster, 10, 11).await;
    let read = cluster.imprint_ok(&["consume", TOPIC, "--exit-at-end"]);
    assert_eq!(String::from_utf8_lossy(&read), "line 10\n");
    cluster.imprint_ok(&["verify", TOPIC]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_learns_what_it_missed() {
    let cluster = Cluster::start().await;
    cluster.create_topic(TOPIC, &[]).await;
    produce(&cluster, 0, 10);
    assert_eq!(trimmed(&cluster, "7"), (7, 10));
    begins_everywhere(&cluster, 7, 10).await;
    let consume =
        |more: &[&str]| cluster.imprint(&[&["consume", TOPIC, "--exit-at-end"], more].concat());
    let output = consume(&["--from", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "line 7\nline 8\nline 9\n"
    );
    assert!(
        stderr(&output).contains("5 offsets were skipped"),
        "{}",
        stderr(&output)
    );
    let output = consume(&["--from", "2", "--on-trimmed", "end"]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{}",
        stderr(&output)
    );
    assert!(
        stderr(&output).contains("8 offsets were skipped"),
        "{}",
        stderr(&output)
    );
    let output = consume(&["--from", "2", "--on-trimmed", "fail"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("7..10"), "{}", stderr(&output));
    for from in ["11", "1000"] {
        let output = consume(&["--from", from]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("7..10"), "{}", stderr(&output));
    }
    let output = consume(&["--from", "10"]);
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
}

async fn offsets(cluster: &Cluster) -> v1::PartitionOffsets {
    let mut offsets = cluster
        .client()
        .offsets(TOPIC, &[0], None)
        .await
        .expect("led");
    offsets.remove(0)
}

/// The start, once retention has moved it above `start` and finds nothing more to do.
async fn settled_above(cluster: &Cluster, start: u64) -> u64 {
    let mut settled = 0;
    eventually("retention has done its work", async || {
        let described = cluster.client().admin().describe_partitions(TOPIC).await;
        let Some(partition) = described.ok().and_then(|mut all| all.pop()) else {
            return false;
        };
        settled = partition.start_offset;
        let next = partition.next_deletion.unwrap_or_default();
        settled > start && !next.why_not.is_empty()
    })
    .await;
    settled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_by_time_keeps_what_is_new() {
    let cluster = Cluster::start_with(&[("IMPRINT_STORAGE_RETENTION_CHECK", "100ms")]).await;
    let settings = [("retention_ms", "1s"), ("segment_ms", "1s")];
    cluster.create_topic(TOPIC, &settings).await;
    produce(&cluster, 0, 1500);
    // The active segment stays, however old it is.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(offsets(&cluster).await.start_offset, 0);
    produce(&cluster, 1500, 1500);
    eventually("the first burst goes", async || {
        offsets(&cluster).await.start_offset >= 1500
    })
    .await;
    let log = offsets(&cluster).await;
    assert_eq!((log.start_offset, log.end_offset), (1500, 3000));
    begins_everywhere(&cluster, 1500, 3000).await;
    let described = cluster.imprint_ok(&["topic", "describe", TOPIC, "-o", "json"]);
    let described: Value = serde_json::from_slice(&described).expect("JSON");
    let partition = &described["partitions"][0];
    assert_eq!(partition["start_offset"], 1500);
    assert_eq!(
        partition["next_deletion"]["why_not"],
        "the active segment is never deleted"
    );
    let group = group_of(&cluster).await;
    eventually("the first burst's file is gone everywhere", async || {
        let files = |node: &NodeProcess| disk::segments(&node.data_dir, group);
        let first = |node| {
            files(node)
                .is_ok_and(|f| f.len() == 1 && f[0].name.starts_with("00000000000000001500-"))
        };
        cluster.nodes.iter().all(first)
    })
    .await;
    same_files(&cluster).await;
    cluster.imprint_ok(&["verify", TOPIC]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_change_leave_replicas_identical() {
    let mut cluster = Cluster::start_with(&[("IMPRINT_STORAGE_RETENTION_CHECK", "100ms")]).await;
    cluster
        .create_topic(TOPIC, &[("segment_bytes", "1MiB")])
        .await;
    let many = |from| produce(&cluster, from, 5000);
    many(0);
    for (n, change) in [
        "segment_bytes=64KiB",
        "segment_bytes=128KiB",
        "segment_ms=100ms",
    ]
    .iter()
    .enumerate()
    {
        cluster.imprint_ok(&["topic", "alter", TOPIC, "--set", change]);
        let from = (n + 1) * 5000;
        many(from);
    }
    cluster.imprint_ok(&["topic", "alter", TOPIC, "--unset", "segment_ms"]);
    begins_everywhere(&cluster, 0, 20_000).await;
    cluster.imprint_ok(&["verify", TOPIC]);
    let files = same_files(&cluster).await;
    assert!(files.len() > 4, "{} segments", files.len());
    cluster.imprint_ok(&["topic", "alter", TOPIC, "--set", "retention_bytes=256KiB"]);
    let start = settled_above(&cluster, 0).await;
    begins_everywhere(&cluster, start, 20_000).await;
    cluster.imprint_ok(&["verify", TOPIC]);
    same_files(&cluster).await;
    let read = cluster.imprint_ok(&["consume", TOPIC, "--exit-at-end"]);
    let expected: String = (start..20_000).map(|n| format!("line {n}\n")).collect();
    assert!(read == expected.as_bytes(), "what is kept is read whole");

    // What was changed is in force after a restart too: no node falls back to what the topic began with.
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.start_node(id);
    }
    cluster.wait_ready().await;
    produce(&cluster, 20_000, 5000);
    let start = settled_above(&cluster, start).await;
    begins_everywhere(&cluster, start, 25_000).await;
    let files = same_files(&cluster).await;
    let largest = files.iter().map(|file| file.batches.len()).max();
    assert!(
        largest.is_some_and(|bytes| bytes <= 128 << 10),
        "{largest:?}"
    );
}
