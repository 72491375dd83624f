//! Groups with a state beside the log: their logs stay short, and the state survives.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use imprint_proto::batch::StampedBatch;
use imprint_proto::ids::NodeId;

use super::super::{GroupsConfig, Machine, OpenGroupError, ProposeError};
use super::cluster::{TestCluster, batch, deadline, leader};
use super::snapshots::Digest;

const GROUP: u64 = 5;

fn often() -> GroupsConfig {
    GroupsConfig {
        snapshot_after_entries: 200,
        ..GroupsConfig::default()
    }
}

fn digest(_node: u64) -> Box<dyn Machine> {
    Box::new(Digest::default())
}

/// Applies slowly on node 3.
struct Slow(Digest);

impl Machine for Slow {
    fn fresh(&self) -> Box<dyn Machine> {
        Box::new(Slow(Digest::default()))
    }

    fn apply(&mut self, batch: &StampedBatch) -> Bytes {
        std::thread::sleep(Duration::from_micros(300));
        self.0.apply(batch)
    }

    fn snapshot(&self) -> Bytes {
        self.0.snapshot()
    }

    fn restore(&mut self, snapshot: Bytes) -> Result<(), String> {
        self.0.restore(snapshot)
    }
}

fn slow_on_three(node: u64) -> Box<dyn Machine> {
    match node {
        3 => Box::new(Slow(Digest::default())),
        _ => Box::new(Digest::default()),
    }
}

type Replicas = std::collections::BTreeMap<u64, std::sync::Arc<super::super::Group>>;

/// Writes commands, many at a time, and gives the state after them, which the last reply tells. A machine that is short of
/// processor time changes leaders now and then: what was surely not appended goes to the next one.
async fn write(replicas: &Replicas, count: u64) -> Digest {
    let mut last = (0, Bytes::new());
    for _ in 0..count / 50 {
        let some = (0..50_u64).map(|n| write_one(replicas, n));
        for told in join_all(some).await {
            last = last.max(told);
        }
    }
    let mut state = Digest::default();
    state.restore(last.1).expect("its own");
    state
}

async fn write_one(replicas: &Replicas, n: u64) -> (u64, Bytes) {
    let end = deadline();
    loop {
        let Some(leading) = replicas.values().find(|group| group.is_leader()) else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let proposed = leading.propose(batch(GROUP, &n.to_le_bytes()), None, end);
        match proposed.await {
            Ok(proposed) => return (proposed.last_offset, proposed.reply),
            Err(ProposeError::NotLeader { .. }) if tokio::time::Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Appended by a leader that was deposed: in the log or not, and another one is as good.
            Err(ProposeError::Unknown(_)) if long() => {}
            Err(error) => panic!("a majority is up: {error}"),
        }
    }
}

/// Whether this is the long run, which may see an outcome that is not known.
fn long() -> bool {
    std::env::var_os("SNAPSHOT_SECONDS").is_some()
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_a_state_does_not_grow_and_a_restart_finds_the_state() {
    let mut cluster = TestCluster::start(1, often()).await;
    let replicas = cluster.open_group_with(GROUP, digest).await;
    let end = 5_000;
    write(&replicas, end).await;
    let group = leader(&replicas);
    until("all but the last snapshots' log is purged", || {
        let purged = group.journal().purged().map_or(0, |pos| pos.index);
        let last = group.journal().last().map_or(0, |pos| pos.index);
        last - purged < 4 * 200 + 500
    })
    .await;
    assert!(group.journal().start_offset() > end - 4 * 200 - 500);
    let trimmed = group.trim(1, deadline()).await;
    assert!(
        matches!(trimmed, Err(ProposeError::Refused(_))),
        "{trimmed:?}"
    );

    drop((group, replicas));
    cluster.stop(1).await;
    cluster.start_node(1).await;
    let replicas = cluster.open_group_with(GROUP, digest).await;
    assert_eq!(write(&replicas, 50).await.count, end + 50);
}

/// One round; for as long as `SNAPSHOT_SECONDS` says if it is set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_and_purges_under_load_with_a_slow_replica() {
    let seconds =
        std::env::var("SNAPSHOT_SECONDS").map_or(0, |text| text.parse().expect("seconds"));
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    let cluster = TestCluster::start(3, often()).await;
    let replicas = cluster.open_group_with(GROUP, slow_on_three).await;
    let mut written = 0;
    loop {
        load_with_one_away(&cluster, &replicas, &mut written).await;
        if tokio::time::Instant::now() >= end {
            break;
        }
    }
}

async fn load_with_one_away(cluster: &TestCluster, replicas: &Replicas, written: &mut u64) {
    write(replicas, 2_000).await;
    // Also with the slow one away, and back behind the cut.
    let away = if replicas[&3].is_leader() { 2 } else { 3 };
    cluster.cut_off(away);
    write(&replicas_but(replicas, away), 2_000).await;
    cluster.heal(away);
    let state = write(replicas, 500).await;
    check_count(written, 4_500, &state);
    until("every replica has applied everything", || {
        let mut applied = replicas.values().map(|group| group.commit_offset());
        let first = applied.next().expect("three replicas");
        first >= *written && (long() || first == *written) && applied.all(|other| other == first)
    })
    .await;
    // Each replica purges when its own snapshots are written.
    until("every replica has purged", || {
        let mut logs = replicas.values().map(|group| group.journal());
        logs.all(|journal| journal.start_offset() > *written - 2_500)
    })
    .await;
    // The state is the same everywhere: whoever leads answers from its own.
    let (node, next) = replicas
        .iter()
        .find(|(_, group)| !group.is_leader())
        .expect("at most one leads");
    while !next.is_leader() {
        match replicas.values().find(|group| group.is_leader()) {
            Some(leading) => drop(leading.transfer_leader(NodeId(*node)).await),
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    let state = write(replicas, 50).await;
    check_count(written, 50, &state);
}

/// Everything that was written is counted in the state, and nothing else.
fn check_count(written: &mut u64, more: u64, state: &Digest) {
    *written += more;
    if long() {
        assert!(state.count >= *written, "{} of {written}", state.count);
        *written = state.count;
    }
    assert_eq!(state.count, *written);
}

fn replicas_but(replicas: &Replicas, away: u64) -> Replicas {
    let others = replicas.iter().filter(|(id, _)| **id != away);
    others.map(|(id, group)| (*id, group.clone())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_can_not_be_had_is_refused_by_the_file_s_name() {
    let mut cluster = TestCluster::start(1, often()).await;
    let replicas = cluster.open_group_with(GROUP, digest).await;
    write(&replicas, 1_500).await;
    let group = leader(&replicas);
    until("something is purged", || group.journal().purged().is_some()).await;
    let dir = group.journal().dir().to_owned();
    drop((group, replicas));
    cluster.stop(1).await;
    let names = ["snapshot", "snapshot.before"].map(|name| dir.join(name));
    for name in &names {
        std::fs::write(name, b"").expect("a file of ours");
    }
    cluster.start_node(1).await;
    let refused = cluster.open_replica(GROUP, 1, digest).await;
    let error = refused.expect_err("no state can be had");
    assert!(matches!(error, OpenGroupError::Snapshot { .. }), "{error}");
    assert!(
        error.to_string().contains(&names[0].display().to_string()),
        "{error}"
    );
    assert!(names.iter().all(|name| name.exists()));
}
