//! The whole audit of a cluster of real processes: what the nodes give out, what stands in their files,
//! what they say of each other, and what they logged.

use std::path::PathBuf;
use std::time::Duration;

use imprint_client::v1;

use crate::audit::{AuditError, Audited, Ledger, audit};
use crate::cluster::{Cluster, eventually};
use crate::disk::{self, SegmentFile};

/// Time for the servers to read all they compare.
const VERIFY_WAIT: Duration = Duration::from_secs(60);

/// Holds the cluster to all of it. Waits for nodes that lag; panics at the first broken promise.
pub async fn hold_audit(cluster: &Cluster, topic: &v1::Topic, ledger: &Ledger) {
    let audited = served(cluster, topic, ledger).await;
    eprintln!("audit: {audited}");
    let segments = same_files(cluster, topic).await;
    let stored: Vec<u8> = segments.into_iter().flat_map(|s| s.batches).collect();
    // A trim may have gone into the middle of the first segment.
    let same = match ledger.may_be_trimmed() {
        true => stored.ends_with(&audited.bytes),
        false => stored == audited.bytes,
    };
    assert!(
        same,
        "{} bytes stand in the files, {} are given out",
        stored.len(),
        audited.bytes.len()
    );
    verify_equal(cluster, &topic.name).await;
    no_panics(cluster);
}

async fn served(cluster: &Cluster, topic: &v1::Topic, ledger: &Ledger) -> Audited {
    let client = cluster.client();
    let nodes: Vec<u64> = cluster.nodes.iter().map(|node| node.id).collect();
    let mut audited = None;
    let mut last = String::new();
    eventually("the audit holds on every node", async || {
        match audit(&client, &topic.name, &nodes, ledger).await {
            Ok(result) => audited = Some(result),
            Err(AuditError::Broken(problem)) => panic!("{problem}"),
            Err(AuditError::Behind(problem)) if problem == last => {}
            Err(AuditError::Behind(problem)) => {
                eprintln!("not yet: {problem}");
                last = problem;
            }
        }
        audited.is_some()
    })
    .await;
    audited.expect("waited for")
}

/// Waits until the segment files of partition 0 are the same on all nodes; gives the first node's.
pub async fn same_files(cluster: &Cluster, topic: &v1::Topic) -> Vec<SegmentFile> {
    let data_dir = |node: &crate::cluster::NodeProcess| node.data_dir.clone();
    let dirs: Vec<PathBuf> = cluster.nodes.iter().map(data_dir).collect();
    let group = topic.partitions[0].partition_id;
    let mut segments = Vec::new();
    let mut last = String::new();
    // A file that is being written may be read half-way, so one look proves nothing.
    eventually("the segment files agree", async || {
        match disk::compare(&dirs, group) {
            Ok(found) => segments = found,
            Err(problem) if problem == last => {}
            Err(problem) => {
                eprintln!("not yet: {problem}");
                last = problem;
            }
        }
        !segments.is_empty()
    })
    .await;
    segments
}

/// The cluster's own comparison, over every byte that was committed.
pub async fn verify_equal(cluster: &Cluster, topic: &str) {
    let admin = cluster.client().admin();
    let partitions = admin.verify(topic, VERIFY_WAIT).await;
    let partitions = partitions.unwrap_or_else(|e| panic!("verify {topic}: {e}"));
    assert!(!partitions.is_empty(), "verify of {topic} compared nothing");
    for partition in partitions {
        let digests: Vec<&str> = partition.replicas.iter().map(|r| &*r.digest).collect();
        let same = digests.windows(2).all(|pair| pair[0] == pair[1]);
        assert!(
            partition.equal && same && digests.len() == cluster.nodes.len(),
            "{partition:?}"
        );
    }
}

fn no_panics(cluster: &Cluster) {
    for node in &cluster.nodes {
        let log = cluster.log_of(node.id);
        assert!(!log.contains("panicked"), "node {}:\n{log}", node.id);
    }
}
