//! What stored data costs when a node starts, and what a replica that was away costs the others.
//!
//! `bench-storage restart --gib 10 --segment-mib 10` fills one replica with that much, then stops and kills its node in turn and
//! prints how long each start takes until the replica serves, and how many bytes the process had read by then.
//! `bench-storage catch-up --mib 1024` prints the latency of sixteen producers with all replicas up, and again while one that
//! missed that much catches up. Figures are for the binary that `CLUSTER_TESTS_BIN` names; both need the room under `TMPDIR`.

#![allow(
    clippy::disallowed_methods,
    reason = "figures of the real world need its clock"
)]

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use imprint_client::{NewTopic, PollOptions, Position};
use imprint_cluster_tests::cluster::{Cluster, binary};
use serde_json::Value;

const TOPIC: &str = "stored";
/// Longest wait for a start or a catch-up.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long the producers run for one figure.
const SECONDS: &str = "10";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, usual: u64| {
        let at = args.iter().position(|arg| arg == name);
        at.map_or(Some(usual), |at| args.get(at + 1)?.parse().ok())
    };
    match args.first().map(String::as_str) {
        Some("restart") => match (number("--gib", 10), number("--segment-mib", 10)) {
            (Some(gib), Some(mib)) => restart(gib, mib).await,
            _ => return usage(),
        },
        Some("catch-up") => match number("--mib", 1024) {
            Some(mib) => catch_up(mib).await,
            None => return usage(),
        },
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: bench-storage restart [--gib N] [--segment-mib N] | catch-up [--mib N]");
    ExitCode::from(2)
}

async fn create(cluster: &Cluster, replication: u32, segment_bytes: &str) {
    let new = NewTopic {
        name: TOPIC.into(),
        partitions: 1,
        replication,
        settings: [("segment_bytes".to_owned(), segment_bytes.to_owned())].into(),
    };
    let created = cluster.client().admin().create_topic(new).await;
    created.expect("a fresh name");
}

/// Messages of 1 KiB in batches of 1,000 until the topic has so many bytes.
async fn fill(cluster: &Cluster, bytes: u64) {
    let began = Instant::now();
    let goal = end(cluster).await + bytes / 1024;
    while end(cluster).await < goal {
        bench(
            cluster,
            &["--topic", TOPIC, "--batch", "1000", "--in-flight", "4"],
        );
    }
    println!(
        "filled {bytes} bytes in {:.0} s",
        began.elapsed().as_secs_f64()
    );
}

async fn end(cluster: &Cluster) -> u64 {
    let partitions = cluster.client().admin().describe_partitions(TOPIC).await;
    partitions.expect("the topic is there")[0].end_offset
}

fn bench(cluster: &Cluster, args: &[&str]) -> Value {
    let fixed = ["bench", "produce", "--output", "json"];
    let out = cluster.imprint_ok(&[&fixed, args].concat());
    serde_json::from_slice(&out).expect("JSON")
}

async fn restart(gib: u64, segment_mib: u64) {
    let mut cluster = Cluster::start().await;
    create(&cluster, 1, &format!("{segment_mib}MiB")).await;
    let node = cluster.leader_of(TOPIC).await;
    fill(&cluster, gib << 30).await;
    let segments = walk(&cluster.node(node).data_dir);
    println!("{} segments, {} bytes", segments.0, segments.1);
    for round in 1..=3 {
        cluster.stop(node);
        report(&mut cluster, node, &format!("clean stop {round}")).await;
        cluster.kill(node);
        report(&mut cluster, node, &format!("kill -9 {round}")).await;
        cluster.kill(node);
        drop_page_cache();
        report(&mut cluster, node, &format!("kill -9, cold cache {round}")).await;
    }
}

/// Segment files and their bytes on disk.
fn walk(dir: &std::path::Path) -> (u64, u64) {
    let mut found = (0, 0);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            let (files, bytes) = walk(&path);
            found = (found.0 + files, found.1 + bytes);
        } else if path.extension().is_some_and(|extension| extension == "seg") {
            let bytes = entry.metadata().map_or(0, |meta| meta.len());
            found = (found.0 + 1, found.1 + bytes);
        }
    }
    found
}

/// Only root may; the figure says nothing about a cold disk otherwise.
fn drop_page_cache() {
    let done = Command::new("sync").status().is_ok()
        && std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok();
    if !done {
        println!("the page cache could not be dropped: the next figure is a warm one");
    }
}

async fn report(cluster: &mut Cluster, node: u64, what: &str) {
    let began = Instant::now();
    cluster.start_node(node);
    let open = until(async || has_answered(cluster, node).await).await;
    let serves = began + open;
    let io = std::fs::read_to_string(format!("/proc/{}/io", cluster.pid(node)));
    let io = io.unwrap_or_default();
    let field = |name: &str| {
        let line = io.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse::<u64>().ok())
    };
    println!(
        "{what}: serves after {:.0} ms; read {} bytes by then, {} of them from the disk",
        (serves - began).as_secs_f64() * 1e3,
        field("rchar:").unwrap_or(0),
        field("read_bytes:").unwrap_or(0),
    );
}

/// Whether the node answers a poll for the first message that it stores.
async fn has_answered(cluster: &Cluster, node: u64) -> bool {
    let options = PollOptions {
        at_node: Some(node),
        ..PollOptions::default()
    };
    let client = cluster.client();
    let reply = client.poll(TOPIC, 0, Position::First, options).await;
    reply.is_ok_and(|reply| !reply.batches.is_empty())
}

async fn until(mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "not in {PATIENCE:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    began.elapsed()
}

async fn catch_up(mib: u64) {
    let mut cluster = Cluster::start().await;
    create(&cluster, 3, "64MiB").await;
    let away = cluster.follower_of(TOPIC).await;
    let load = ["--producers", "16", "--seconds", SECONDS];
    for round in 1..=3 {
        println!("round {round}, all up: {}", bench(&cluster, &load));
        cluster.stop(away);
        let first = end(&cluster).await;
        fill(&cluster, mib << 20).await;
        let last = end(&cluster).await - 1;
        let under_way = Command::new(binary())
            .args(["bench", "produce", "--output", "json"])
            .args(load)
            .env("IMPRINT_SERVER", cluster.servers().join(","))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        cluster.start_node(away);
        let took = until(async || has_reached(&cluster, away, last).await).await;
        let output = under_way.wait_with_output().expect("it ends");
        let figures: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        println!("round {round}, while node {away} catches up: {figures}");
        let missed = (last + 1 - first) / 1024;
        println!(
            "round {round}: {missed} MiB caught up in {:.1} s from its start, {:.0} MiB/s",
            took.as_secs_f64(),
            missed as f64 / took.as_secs_f64()
        );
    }
}

async fn has_reached(cluster: &Cluster, node: u64, offset: u64) -> bool {
    let options = PollOptions {
        at_node: Some(node),
        ..PollOptions::default()
    };
    let client = cluster.client();
    let reply = client
        .poll(TOPIC, 0, Position::Offset(offset), options)
        .await;
    reply.is_ok_and(|reply| !reply.batches.is_empty())
}
