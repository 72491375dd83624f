//! Disks fill up under a running cluster: one follower's, the leader's, all three. Another process takes every byte that it
//! can get, the reserve too, while segments roll.
//!
//! Each data directory lies on a file system of its own in memory; where this user may not mount one, the tests say so and
//! do nothing.

#![allow(
    clippy::disallowed_methods,
    reason = "this test lives in the real world"
)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use imprint_client::{PollOptions, Position, TrimTopic, v1};
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::load::{Load, batch_of};
use imprint_proto::v1::log_service_client::LogServiceClient;
use imprint_raft::disk::{Disk, RealDisk};
use tonic::{Code, Status};

const TOPIC: &str = "events";
/// What is only asked whether it takes writes; the ledger knows nothing of it.
const PROBED: &str = "probed";
/// Segments that little is written ahead for.
const SMALL: &[(&str, &str)] = &[("segment_bytes", "64KiB")];
/// Room for a few rolls, small enough to fill in a moment.
const DISK_BYTES: u64 = 64 << 20;
/// Bytes that the filler takes at a time.
const PIECE: usize = 64 << 10;

/// The small file systems; gone when dropped, whatever still uses them.
#[derive(Default)]
struct Mounts(Vec<PathBuf>);

impl Mounts {
    fn add(&mut self, dir: &Path) -> Result<(), String> {
        std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={DISK_BYTES}"), "tmpfs"])
            .arg(dir)
            .output()
            .map_err(|e| e.to_string())?;
        if !mounted.status.success() {
            return Err(String::from_utf8_lossy(&mounted.stderr).into_owned());
        }
        self.0.push(dir.to_owned());
        Ok(())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for dir in &self.0 {
            let unmounted = Command::new("umount").arg("-l").arg(dir).status();
            if !unmounted.is_ok_and(|status| status.success()) {
                eprintln!("{} is still mounted", dir.display());
            }
        }
    }
}

/// Takes every byte of a disk but a few, again and again, until it is dropped.
struct Filler {
    leave_bytes: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
}

impl Filler {
    fn start(dir: &Path, leave_bytes: u64) -> Filler {
        let (stop, path) = (Arc::new(AtomicBool::new(false)), dir.join("somebody-elses"));
        let (stopped, file) = (Arc::clone(&stop), path.clone());
        let thread = std::thread::spawn(move || fill(&file, leave_bytes, &stopped));
        Filler {
            leave_bytes,
            stop,
            thread: Some(thread),
            path,
        }
    }

    async fn wait_full(&self) {
        let dir = self.path.parent().expect("in a directory");
        eventually("the disk is full", async || {
            let space = RealDisk.space(dir).expect("a mounted disk");
            space.free_bytes < self.leave_bytes + 2 * PIECE as u64
        })
        .await;
    }
}

fn fill(path: &Path, leave_bytes: u64, stopped: &AtomicBool) {
    let dir = path.parent().expect("in a directory");
    let mut file = File::create(path).expect("made");
    let piece = vec![7; PIECE];
    while !stopped.load(Ordering::Acquire) {
        let free = RealDisk.space(dir).map_or(0, |space| space.free_bytes);
        // A short write takes what is left.
        let filled = free <= leave_bytes || file.write(&piece).is_err();
        if filled {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        drop(std::fs::remove_file(&self.path));
    }
}

/// Three nodes on small disks, or `None` with a word on why not.
async fn start() -> Option<(Cluster, Mounts, v1::Topic)> {
    let probe = tempfile::TempDir::new().expect("a temporary directory");
    if let Err(error) = Mounts::default().add(probe.path()) {
        eprintln!("skipped: no file system can be mounted here: {error}");
        return None;
    }
    let mut mounts = Mounts::default();
    let cluster = Cluster::start_on(|cluster| {
        for node in &cluster.nodes {
            mounts.add(&node.data_dir).expect("the probe was mounted");
        }
    })
    .await;
    let topic = cluster.create_topic(TOPIC, SMALL).await;
    Some((cluster, mounts, topic))
}

async fn disk_state(cluster: &Cluster, id: u64) -> String {
    let Ok(status) = cluster.client().admin().status().await else {
        return String::new();
    };
    let node = status.nodes.into_iter().find(|node| node.node_id == id);
    node.and_then(|node| node.disk)
        .map(|disk| disk.state)
        .unwrap_or_default()
}

async fn wait_state(cluster: &Cluster, id: u64, wanted: &str) {
    eventually(&format!("the disk of node {id} is {wanted}"), async || {
        disk_state(cluster, id).await == wanted
    })
    .await;
}

fn all_run(cluster: &mut Cluster) {
    for id in 1..=3 {
        let log = cluster.log_of(id);
        assert!(cluster.is_running(id), "node {id} ended:\n{log}");
    }
}

/// One send to one node, without a client that tries again.
async fn send_once(cluster: &Cluster, id: u64) -> Result<v1::SendResponse, Status> {
    let address = format!("http://{}", cluster.node(id).client);
    let endpoint = tonic::transport::Endpoint::from_shared(address).expect("an address");
    let channel = endpoint.connect().await.expect("the node listens");
    let request = v1::SendRequest {
        topic: PROBED.into(),
        partition: 0,
        batch: batch_of(b"is there room?").into_bytes(),
        expected_offset: None,
    };
    let sent = LogServiceClient::new(channel).send(request).await;
    sent.map(tonic::Response::into_inner)
}

fn reason(status: &Status) -> String {
    let value = status.metadata().get("imprint-reason");
    let text = value.and_then(|v| v.to_str().ok());
    text.unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_with_a_full_disk_holds_up_nobody_and_comes_back_by_itself() {
    let Some((mut cluster, _mounts, topic)) = start().await else {
        return;
    };
    let load = Load::start(&cluster, TOPIC, 4);
    load.wait_for(50).await;
    let leader = cluster.leader_of(TOPIC).await;
    let follower = leader % 3 + 1;
    let filler = Filler::start(&cluster.node(follower).data_dir, 0);
    filler.wait_full().await;
    wait_state(&cluster, follower, "full").await;
    load.wait_for(500).await;
    all_run(&mut cluster);
    drop(filler);
    wait_state(&cluster, follower, "enough").await;
    load.wait_for(50).await;
    let ledger = load.finish().await;
    all_run(&mut cluster);
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_full_disk_gives_the_lead_away() {
    let Some((mut cluster, _mounts, topic)) = start().await else {
        return;
    };
    let load = Load::start(&cluster, TOPIC, 4);
    load.wait_for(50).await;
    let leader = cluster.leader_of(TOPIC).await;
    let filler = Filler::start(&cluster.node(leader).data_dir, 0);
    filler.wait_full().await;
    eventually("another node leads", async || {
        cluster.leader_of(TOPIC).await != leader
    })
    .await;
    load.wait_for(500).await;
    all_run(&mut cluster);
    drop(filler);
    wait_state(&cluster, leader, "enough").await;
    load.wait_for(50).await;
    let ledger = load.finish().await;
    all_run(&mut cluster);
    hold_audit(&cluster, &topic, &ledger).await;
}

/// Fills all disks and waits until writes are refused with a reason.
async fn fill_all(cluster: &Cluster, leave_bytes: u64) -> Vec<Filler> {
    let dirs = cluster.nodes.iter().map(|node| node.data_dir.clone());
    let fillers: Vec<Filler> = dirs.map(|dir| Filler::start(&dir, leave_bytes)).collect();
    for filler in &fillers {
        filler.wait_full().await;
    }
    let mut refused = None;
    eventually("writes are refused for want of room", async || {
        let answer = send_once(cluster, 1).await;
        refused = answer.err().filter(|status| reason(status) == "DISK_LOW");
        refused.is_some()
    })
    .await;
    let refused = refused.expect("waited for");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("bytes are free"), "{refused}");
    fillers
}

async fn read_first(cluster: &Cluster) {
    let client = cluster.client();
    let read = client.poll(TOPIC, 0, Position::First, PollOptions::default());
    assert!(read.await.expect("reads go on").next_offset > 0);
}

async fn hold_after(mut cluster: Cluster, topic: &v1::Topic, load: Load) {
    for id in 1..=3 {
        wait_state(&cluster, id, "enough").await;
    }
    load.wait_for(200).await;
    let ledger = load.finish().await;
    all_run(&mut cluster);
    hold_audit(&cluster, topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_disks_full_to_the_last_byte_writes_are_refused_and_service_returns() {
    let Some((mut cluster, _mounts, topic)) = start().await else {
        return;
    };
    cluster.create_topic(PROBED, SMALL).await;
    let load = Load::start(&cluster, TOPIC, 4);
    load.wait_for(200).await;
    let fillers = fill_all(&cluster, 0).await;
    read_first(&cluster).await;
    all_run(&mut cluster);
    drop(fillers);
    hold_after(cluster, &topic, load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_the_hard_floor_reads_trims_and_deletes_go_on_and_service_returns() {
    let Some((mut cluster, _mounts, topic)) = start().await else {
        return;
    };
    let old = fill_topic(&cluster, "old").await;
    cluster.create_topic("unwanted", SMALL).await;
    cluster.create_topic(PROBED, SMALL).await;
    let load = Load::start(&cluster, TOPIC, 4);
    load.wait_for(200).await;
    let fillers = fill_all(&cluster, 4 << 20).await;
    read_first(&cluster).await;
    let client = cluster.client();
    let trimmed = client.admin().trim_topic(trim_all(&old)).await;
    let trimmed = trimmed.expect("trims go on");
    assert!(trimmed.iter().all(|p| p.reason.is_empty()), "{trimmed:?}");
    assert!(trimmed[0].start_offset > 0, "{trimmed:?}");
    let deleted = client.admin().delete_topic("unwanted").await;
    deleted.expect("topics can be deleted");
    all_run(&mut cluster);
    drop(fillers);
    hold_after(cluster, &topic, load).await;
}

/// A topic of a few segments.
async fn fill_topic(cluster: &Cluster, name: &str) -> v1::Topic {
    let topic = cluster.create_topic(name, SMALL).await;
    let client = cluster.client();
    let payload = Bytes::from(vec![b'x'; 32 << 10]);
    for _ in 0..16 {
        let batch = batch_of(&payload);
        let sent = client.send(name, 0, &batch, Default::default()).await;
        sent.expect("there is room");
    }
    topic
}

fn trim_all(topic: &v1::Topic) -> TrimTopic {
    TrimTopic {
        topic: topic.name.clone(),
        partitions: Vec::new(),
        before: Position::Last(0),
        dry_run: false,
    }
}
