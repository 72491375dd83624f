//! Writes a fixture: the data directories of a three-node cluster as this version leaves them.
//!
//! `make-fixture DIR` makes `DIR/node-1` to `node-3` and `DIR/expected.json`, which has every message by
//! offset. In them: several segments, control entries of several terms, changed settings, a trim and the
//! snapshot that follows it. Node 3 was killed and lacks what came later, the others were stopped in good
//! order. Left out is what is made anew: the meta store, locks, the reserve, and zeros written ahead.

#![allow(clippy::disallowed_methods, reason = "this lives in the real world")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use imprint_client::{Position, TrimTopic};
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::disk;
use imprint_cluster_tests::fixture::{Expected, TOPIC};
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::load::{Load, Pace};
use imprint_cluster_tests::tamper::{copy_dir, set_len};

/// Messages between two events.
const FEW: u64 = 12;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let Some(target) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: make-fixture DIR");
        return ExitCode::from(2);
    };
    if target.exists() {
        eprintln!("{} is there already", target.display());
        return ExitCode::FAILURE;
    }
    make(&target).await;
    ExitCode::SUCCESS
}

async fn make(target: &Path) {
    let mut cluster = Cluster::start().await;
    let topic = cluster.create_topic(TOPIC, &[("segment_ms", "1s")]).await;
    let pace = Pace {
        payload_bytes: 100,
        pause: std::time::Duration::from_millis(100),
    };
    let load = Load::start_paced(&cluster, TOPIC, 1, pace);
    load.wait_for(2 * FEW).await;
    let changed = BTreeMap::from([("segment_bytes".to_owned(), "1MiB".to_owned())]);
    let admin = cluster.client().admin();
    let update = admin.update_topic(TOPIC, changed.into_iter().collect(), Vec::new());
    update.await.expect("a setting that may change");
    load.wait_for(FEW).await;
    // A new term.
    let leader = cluster.leader_of(TOPIC).await;
    cluster.kill(leader);
    load.wait_for(FEW).await;
    cluster.start_node(leader);
    cluster.wait_ready().await;
    cluster.wait_serves(TOPIC, leader).await;
    load.wait_for(FEW).await;
    let trim = TrimTopic {
        topic: TOPIC.into(),
        partitions: Vec::new(),
        before: Position::Offset(2 * FEW),
        dry_run: false,
    };
    admin
        .trim_topic(trim)
        .await
        .expect("below the commit point");
    load.wait_for(FEW).await;
    let group = topic.partitions[0].partition_id;
    eventually(
        "every node has a snapshot and several segments",
        async || {
            cluster.nodes.iter().all(|node| {
                let dir = node.data_dir.join(format!("groups/{group:020}"));
                let segments = disk::segments(&node.data_dir, group);
                dir.join("snapshot").exists() && segments.is_ok_and(|found| found.len() > 2)
            })
        },
    )
    .await;
    cluster.kill(3);
    load.wait_for(FEW).await;
    let mut ledger = load.finish().await;
    ledger.allow_trims();
    // What was sent and not answered would be a message without an offset.
    let expected = Expected::of(&ledger, 2 * FEW);
    for id in [1, 2] {
        assert_eq!(cluster.stop(id), Some(0));
    }
    for node in &cluster.nodes {
        let to = target.join(format!("node-{}", node.id));
        copy_dir(&node.data_dir, &to);
        slim(&to, group);
    }
    expected.write(target);
    // It has to be sound before it becomes what later versions are held to.
    for id in [1, 2, 3] {
        cluster.start_node(id);
    }
    cluster.wait_ready().await;
    hold_audit(&cluster, &topic, &ledger).await;
}

/// Takes out what is made anew.
fn slim(data_dir: &Path, group: u64) {
    for name in ["meta", "quarantine"] {
        let dir = data_dir.join(name);
        if dir.exists() {
            fs::remove_dir_all(dir).expect("a copy of ours");
        }
    }
    for name in ["lock", "reserve"] {
        let _ = fs::remove_file(data_dir.join(name));
    }
    for group in [0, group] {
        for segment in disk::segments(data_dir, group).expect("sound segments") {
            set_len(&segment.path, segment.end());
        }
    }
}
