//! Rot in what was synced: never served, never a shorter history, and mended from the peers by itself.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use imprint_client::{Code, PollOptions, Position, v1};
use imprint_cluster_tests::cluster::{Cluster, PATIENCE, eventually};
use imprint_cluster_tests::disk::{self, SegmentFile};
use imprint_cluster_tests::hold::{hold_audit, same_files};
use imprint_cluster_tests::ledger::Ledger;
use imprint_cluster_tests::load::{Load, Pace, payloads_in};
use imprint_cluster_tests::tamper;

use super::{TOPIC, start};

const NODES: [u64; 3] = [1, 2, 3];
/// Sealed segments that a test can damage.
const SEALED: usize = 3;

/// A cluster at rest with a few sealed segments that are the same everywhere.
async fn filled() -> (Cluster, v1::Topic, Ledger) {
    let (cluster, topic) = start().await;
    let pace = Pace {
        payload_bytes: 500,
        ..Pace::default()
    };
    let load = Load::start_paced(&cluster, TOPIC, 4, pace);
    let group = topic.partitions[0].partition_id;
    eventually("segments are sealed", async || {
        let found = disk::segments(&cluster.node(1).data_dir, group);
        found.is_ok_and(|segments| segments.len() > SEALED)
    })
    .await;
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
    (cluster, topic, ledger)
}

fn segments(cluster: &Cluster, node: u64, topic: &v1::Topic) -> Vec<SegmentFile> {
    let group = topic.partitions[0].partition_id;
    let found = disk::segments(&cluster.node(node).data_dir, group);
    found.unwrap_or_else(|problem| panic!("{problem}"))
}

/// Reads everything through the cluster, and what the node itself gives out: right, or an honest refusal.
async fn nothing_wrong_is_served(cluster: &Cluster, ledger: &Ledger, node: Option<u64>) {
    let client = cluster.client();
    let end = ledger
        .by_offset()
        .keys()
        .next_back()
        .map_or(0, |last| last + 1);
    let options = PollOptions {
        at_node: node,
        linearizable: node.is_none(),
        ..PollOptions::default()
    };
    let deadline = Instant::now() + PATIENCE;
    let mut next = 0;
    while next < end {
        let reply = client.poll(TOPIC, 0, Position::Offset(next), options).await;
        let reply = match (reply, node) {
            (Ok(reply), _) => reply,
            (Err(error), Some(_)) => {
                let honest = [Code::DataLoss, Code::Unavailable, Code::DeadlineExceeded];
                let code = error.code();
                assert!(honest.contains(&code), "at {next}: {error}");
                return;
            }
            // Leadership may be moving, or a replica is being mended.
            (Err(error), None) if error.is_transient() && Instant::now() < deadline => continue,
            (Err(error), None) => panic!("at {next}: {error}"),
        };
        if reply.batches.is_empty() {
            assert!(
                node.is_some(),
                "the log ends at {next}, {end} were acknowledged"
            );
            return;
        }
        for payload in payloads_in(reply.batches) {
            if let Some(text) = ledger.by_offset().get(&next) {
                assert_eq!(payload, text.as_bytes(), "at {next}");
            }
            next += 1;
        }
    }
}

/// Waits until no replica tells of damage and the files are the same on all nodes again, then holds everything to the audit.
async fn mended(cluster: &Cluster, topic: &v1::Topic, ledger: &Ledger) {
    let admin = cluster.client().admin();
    eventually("no replica is damaged", async || {
        let described = admin.describe_partitions(TOPIC).await.unwrap_or_default();
        let mut replicas = described.iter().flat_map(|partition| &partition.replicas);
        !described.is_empty()
            && replicas.all(|replica| replica.reachable && replica.damaged.is_empty())
    })
    .await;
    same_files(cluster, topic).await;
    hold_audit(cluster, topic, ledger).await;
}

async fn bring_back(cluster: &mut Cluster, node: u64) {
    cluster.start_node(node);
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bits_on_one_replica_are_never_served_and_mended() {
    let (mut cluster, topic, ledger) = filled().await;
    let victim = cluster.follower_of(TOPIC).await;
    cluster.kill(victim);
    let before = segments(&cluster, victim, &topic);
    let (active, sealed) = before.split_last().expect("segments");
    for (segment, percent) in sealed.iter().zip([30, 60, 99]) {
        tamper::flip_bit(&segment.path, segment.end() * percent / 100);
    }
    tamper::flip_bit(&active.path, active.end() / 2);
    let mark = cluster.log_mark(victim);
    bring_back(&mut cluster, victim).await;
    nothing_wrong_is_served(&cluster, &ledger, Some(victim)).await;
    // Leadership can only go to the damaged node or to the one other.
    for other in NODES.into_iter().filter(|node| *node != victim) {
        assert_eq!(cluster.stop(other), Some(0));
        nothing_wrong_is_served(&cluster, &ledger, None).await;
        nothing_wrong_is_served(&cluster, &ledger, Some(victim)).await;
        bring_back(&mut cluster, other).await;
    }
    mended(&cluster, &topic, &ledger).await;
    let said = cluster.log_since(victim, mark);
    for segment in before {
        assert!(
            said.contains(&segment.name),
            "{} is not named:\n{said}",
            segment.name
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_three_replicas_damaged_in_different_places_mend_each_other() {
    let (mut cluster, topic, ledger) = filled().await;
    cluster.kill_all();
    for (node, n) in NODES.into_iter().zip(0..) {
        let segment = &segments(&cluster, node, &topic)[n];
        tamper::flip_bit(&segment.path, segment.end() / 2);
    }
    NODES.iter().for_each(|id| cluster.start_node(*id));
    cluster.wait_ready().await;
    for node in NODES {
        nothing_wrong_is_served(&cluster, &ledger, Some(node)).await;
    }
    mended(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_synced_and_is_gone_comes_back_from_the_peers() {
    let (mut cluster, topic, ledger) = filled().await;
    let victim = cluster.follower_of(TOPIC).await;
    for loss in ["a cut active segment", "a missing segment", "every segment"] {
        eprintln!("{loss}");
        cluster.kill(victim);
        let found = segments(&cluster, victim, &topic);
        let active = found.last().expect("segments");
        match loss {
            "a cut active segment" => tamper::set_len(&active.path, active.end() / 3),
            "a missing segment" => fs::remove_file(&found[1].path).expect("it is there"),
            _ => {
                fs::remove_dir_all(active.path.parent().expect("a directory")).expect("it is there")
            }
        }
        bring_back(&mut cluster, victim).await;
        nothing_wrong_is_served(&cluster, &ledger, Some(victim)).await;
        mended(&cluster, &topic, &ledger).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_cannot_be_read_is_neither_absence_nor_a_shorter_log() {
    let (mut cluster, topic, ledger) = filled().await;
    let victim = cluster.follower_of(TOPIC).await;
    cluster.kill(victim);
    // No permission does not bind root; a directory in the file's place can't be read by anybody.
    let path = segments(&cluster, victim, &topic)[1].path.clone();
    let aside = cluster.dir().join("aside");
    fs::rename(&path, &aside).expect("it is there");
    fs::create_dir(&path).expect("the name is free");
    cluster.start_node(victim);
    cluster.wait_ready().await;
    nothing_wrong_is_served(&cluster, &ledger, Some(victim)).await;
    nothing_wrong_is_served(&cluster, &ledger, None).await;
    cluster.kill(victim);
    if path.is_dir() {
        fs::remove_dir(&path).expect("nothing was put into it");
        fs::rename(&aside, &path).expect("the name is free");
    }
    bring_back(&mut cluster, victim).await;
    mended(&cluster, &topic, &ledger).await;
}

/// Files of a group beside its segments that say what is known about them.
fn beside(cluster: &Cluster, node: u64, topic: &v1::Topic, ending: &str) -> Vec<PathBuf> {
    let group = topic.partitions[0].partition_id;
    let dir = cluster
        .node(node)
        .data_dir
        .join(format!("groups/{group:020}"));
    let mut files = tamper::files_below(&dir);
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digest_files_are_made_anew_whatever_happens_to_them() {
    let (mut cluster, topic, ledger) = filled().await;
    let victim = cluster.follower_of(TOPIC).await;
    for harm in tamper::Harm::ALL {
        eventually("digests are written", async || {
            !beside(&cluster, victim, &topic, ".seg.digest").is_empty()
        })
        .await;
        cluster.kill(victim);
        for file in beside(&cluster, victim, &topic, ".seg.digest") {
            harm.strike(&file);
        }
        bring_back(&mut cluster, victim).await;
        mended(&cluster, &topic, &ledger).await;
    }
}
