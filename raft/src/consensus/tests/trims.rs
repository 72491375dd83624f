//! Trims and settings on replicas of a whole cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::{Group, GroupsConfig, NoMachine, ProposeError};
use super::cluster::{SEGMENT_BYTES, TestCluster, batch, deadline, leader};
use crate::disk::sim::Loss;
use crate::disk::{Io, RealOffload, SimDisk};
use crate::journal::{ReadError, RollSettings};
use crate::seams::SystemClock;

const GROUP: u64 = 5;
type Replicas = BTreeMap<u64, Arc<Group>>;

/// Some 8 KiB a message: eight to a segment.
fn payload(n: u64) -> Vec<u8> {
    let mut bytes = vec![n as u8; 8_000];
    bytes.extend(n.to_le_bytes());
    bytes
}

/// Writes through whoever leads, once each, and gives the offset behind the last.
async fn write(replicas: &Replicas, count: u64) -> u64 {
    let mut end = 0;
    for n in 0..count {
        let proposed = leader(replicas)
            .propose(batch(GROUP, &payload(n)), None, deadline())
            .await
            .expect("a majority is up");
        end = proposed.last_offset + 1;
    }
    end
}

/// Waits, with the time that a test has, until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// Base offsets of a replica's segments.
fn bases(group: &Group) -> Vec<u64> {
    let segments = group.journal().segments();
    segments.iter().map(|s| s.base_offset).collect()
}

fn bytes_from(group: &Group, offset: u64) -> Vec<bytes::Bytes> {
    let read = group.journal().read_bytes(offset, u64::MAX, u64::MAX);
    read.expect("readable").batches
}

async fn until_equal(replicas: &Replicas, start: u64, end: u64) {
    until("all replicas are equal", || {
        replicas.values().all(|group| {
            let journal = group.journal();
            (journal.start_offset(), group.commit_offset()) == (start, end)
                && bases(group) == bases(&leader(replicas))
        })
    })
    .await;
    let expected = bytes_from(&leader(replicas), start);
    for group in replicas.values() {
        assert_eq!(bytes_from(group, start), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trim_takes_whole_segments_on_every_replica() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(GROUP).await;
    let end = write(&replicas, 40).await;
    let leading = leader(&replicas);
    let before = bases(&leading);
    assert!(before.len() > 4, "{before:?}");

    let start = leading.trim(20, deadline()).await.expect("committed");
    assert_eq!(start, 20);
    assert_eq!(
        leading.journal().start_offset(),
        20,
        "answered means done here"
    );
    until_equal(&replicas, 20, end).await;
    let kept: Vec<u64> = before.iter().copied().filter(|b| *b > 20).collect();
    until("segments below are deleted everywhere", || {
        replicas
            .values()
            .all(|group| bases(group)[1..] == kept && bases(group)[0] <= 20)
    })
    .await;
    let files = |group: &Group| {
        let files = std::fs::read_dir(group.journal().dir()).expect("there");
        let names = files.map(|file| file.expect("readable").file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(".seg"))
            .count()
    };
    until("the files of the kept segments are left", || {
        replicas
            .values()
            .all(|group| files(group) == kept.len() + 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trim_never_goes_back_nor_beyond_what_is_committed() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(GROUP).await;
    let leading = leader(&replicas);
    assert_eq!(leading.trim(0, deadline()).await.expect("no-op"), 0);
    let early = leading.trim(1, deadline()).await;
    assert!(
        matches!(
            early,
            Err(ProposeError::TrimAboveCommit {
                upto: 1,
                start: 0,
                commit: 0
            })
        ),
        "{early:?}"
    );
    write(&replicas, 10).await;
    for (upto, start) in [(0, 0), (1, 1), (5, 5), (3, 5), (9, 9), (10, 10), (10, 10)] {
        let trimmed = leading.trim(upto, deadline()).await.expect("committed");
        assert_eq!(trimmed, start, "trim to {upto}");
    }
    for upto in [11, u64::MAX] {
        let refused = leading.trim(upto, deadline()).await;
        let text = refused.expect_err("above the commit point").to_string();
        assert!(text.contains("10..10"), "{text}");
    }
    let follower = replicas.values().find(|g| !g.is_leader()).expect("two");
    let error = follower.trim(3, deadline()).await;
    assert!(
        matches!(error, Err(ProposeError::NotLeader { leader }) if leader == leading.leader()),
        "{error:?}"
    );
    assert_eq!(write(&replicas, 1).await, 11, "the next offset is the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_settings_end_segments_at_the_same_places_everywhere() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(GROUP).await;
    write(&replicas, 20).await;
    let settings = RollSettings {
        segment_bytes: SEGMENT_BYTES / 4,
        segment_span_us: None,
    };
    let leading = leader(&replicas);
    leading
        .change_roll(settings, deadline())
        .await
        .expect("a majority is up");
    assert_eq!(leading.roll_settings(), settings);
    let end = write(&replicas, 20).await;
    until_equal(&replicas, 0, end).await;
    let segments = leading.journal().segments();
    let (large, small): (Vec<_>, Vec<_>) = segments.iter().partition(|s| s.end_offset <= 16);
    assert!(large.iter().all(|s| s.bytes > SEGMENT_BYTES / 2));
    assert!(small[1..].iter().all(|s| s.bytes <= SEGMENT_BYTES / 4));
    for group in replicas.values() {
        assert_eq!(group.roll_settings(), settings);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_behind_the_cut_gets_the_cut_and_then_the_kept_log() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(GROUP).await;
    let end = write(&replicas, 10).await;
    until_equal(&replicas, 0, end).await;
    let (away, lagging) = replicas.iter().find(|(_, g)| !g.is_leader()).expect("two");
    cluster.cut_off(*away);
    let others: Replicas = replicas
        .iter()
        .filter(|(id, _)| *id != away)
        .map(|(id, group)| (*id, Arc::clone(group)))
        .collect();
    let settings = RollSettings {
        segment_bytes: SEGMENT_BYTES / 2,
        segment_span_us: None,
    };
    leader(&others)
        .change_roll(settings, deadline())
        .await
        .expect("two of three are up");
    let end = write(&others, 60).await;
    leader(&others)
        .trim(50, deadline())
        .await
        .expect("two of three are up");
    until("the log that the lagging replica needs is gone", || {
        others.values().all(|g| bases(g)[0] > 10)
    })
    .await;

    cluster.heal(*away);
    until("the lagging replica has caught up", || {
        lagging.commit_offset() == end
    })
    .await;
    let end = write(&replicas, 20).await;
    until_equal(&replicas, 50, end).await;
    assert_eq!(lagging.roll_settings(), settings);
    let names = |group: &Group| -> Vec<_> {
        let segments = group.journal().segments();
        let names = segments
            .iter()
            .map(|s| s.path.file_name().map(ToOwned::to_owned));
        names.collect()
    };
    assert_eq!(names(lagging), names(&leader(&replicas)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tail_is_replicated_without_a_limit() {
    let config = GroupsConfig {
        catch_up_bytes_per_second: 1,
        ..GroupsConfig::default()
    };
    let cluster = TestCluster::start(3, config).await;
    let replicas = cluster.open_group(GROUP).await;
    let end = write(&replicas, 200).await;
    until("every replica has everything", || {
        replicas.values().all(|group| group.commit_offset() == end)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lagging_replica_is_served_from_the_disk_at_the_limit() {
    let config = GroupsConfig {
        catch_up_bytes_per_second: 1 << 20,
        tail_cache_bytes: 16 << 10,
        ..GroupsConfig::default()
    };
    let cluster = TestCluster::start(3, config).await;
    let replicas = cluster.open_group(GROUP).await;
    let (away, lagging) = replicas.iter().find(|(_, g)| !g.is_leader()).expect("two");
    cluster.cut_off(*away);
    let others: Replicas = replicas
        .iter()
        .filter(|(id, _)| *id != away)
        .map(|(id, group)| (*id, Arc::clone(group)))
        .collect();
    // Three reads of 1 MiB: the first is free, each further one waits a second for the one before.
    let end = write(&others, 384).await;
    let healed = tokio::time::Instant::now();
    cluster.heal(*away);
    until("the lagging replica has caught up", || {
        lagging.commit_offset() == end
    })
    .await;
    assert!(
        healed.elapsed() >= Duration::from_millis(1500),
        "{:?}",
        healed.elapsed()
    );
}

/// One node on a disk whose power goes now and then, in the middle of writes and trims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_between_trim_snapshot_and_purge_starts_again() {
    let disk = SimDisk::new();
    let config = GroupsConfig::default();
    // A process that was killed leaves nothing but its disk.
    let io = || {
        let offload = RealOffload::new(tokio::runtime::Handle::current());
        Io::new(
            Arc::new(disk.clone()),
            Arc::new(offload),
            Arc::new(SystemClock),
        )
    };
    let mut cluster = TestCluster::start_on(1, config.clone(), |_| io()).await;
    let (mut acked, mut trimmed) = (0, 0);
    for round in 0..24_u64 {
        let replicas = cluster.open_group(GROUP).await;
        let group = leader(&replicas);
        until("what was acknowledged is committed", || {
            group.commit_offset() >= acked
        })
        .await;
        assert!(group.journal().start_offset() >= trimmed);
        // A trim may be applied again meanwhile.
        let read_to = loop {
            let start = group.journal().start_offset();
            match group.journal().read_stamped(start, u64::MAX, u64::MAX) {
                Err(ReadError::BelowStart { .. }) => {}
                read => break read.expect("readable").next_offset,
            }
        };
        assert!(read_to >= acked, "round {round}");

        // The power goes somewhere in the keeper's work after one of the trims, later each round.
        for n in 0..16 {
            let soon = tokio::time::Instant::now() + Duration::from_secs(5);
            match group.propose(batch(GROUP, &payload(n)), None, soon).await {
                Ok(proposed) => acked = proposed.last_offset + 1,
                Err(_) => break,
            }
        }
        disk.power_off_at(disk.changes() + 4 + round);
        let soon = tokio::time::Instant::now() + Duration::from_secs(1);
        if let Ok(start) = group.trim(acked.saturating_sub(4), soon).await {
            trimmed = start;
        }
        // Writes go on until the power is gone.
        let soon = || tokio::time::Instant::now() + Duration::from_secs(1);
        while let Ok(proposed) = group.propose(batch(GROUP, b"more"), None, soon()).await {
            acked = proposed.last_offset + 1;
        }
        drop((group, replicas));
        cluster.stop(1).await;
        disk.crash(
            round,
            if round % 2 == 0 {
                Loss::DropAll
            } else {
                Loss::KeepSome
            },
        );
        cluster.restart(1, config.clone(), io()).await;
    }
    assert!(trimmed > 0 && acked > 100, "{trimmed} {acked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stop_left_undone_is_done_at_the_next_start() {
    let mut cluster = TestCluster::start(1, GroupsConfig::default()).await;
    let replicas = cluster.open_group(GROUP).await;
    write(&replicas, 40).await;
    let group = leader(&replicas);
    // As if the node had stopped right behind the trim: neither snapshot nor purge.
    group.journal().trim(30).await.expect("the disk is fine");
    let before = bases(&group);
    drop((group, replicas));
    cluster.stop(1).await;
    cluster.start_node(1).await;
    let group = cluster
        .open_replica(GROUP, 1, |_| Box::new(NoMachine))
        .await
        .expect("it opens");
    until("segments below the start are deleted", || {
        bases(&group).len() < before.len() && bases(&group).get(1) > Some(&30)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_opens_without_a_look_into_sealed_segments() {
    let mut cluster = TestCluster::start(1, GroupsConfig::default()).await;
    let replicas = cluster.open_group(GROUP).await;
    write(&replicas, 40).await;
    // Then the log begins with a batch, whose term openraft asks for.
    let trimmed = leader(&replicas).trim(10, deadline()).await;
    trimmed.expect("committed");
    until("the log begins with a sealed segment", || {
        leader(&replicas).journal().purged().is_some()
    })
    .await;
    let sealed: Vec<_> = leader(&replicas)
        .journal()
        .segments()
        .into_iter()
        .filter(|segment| segment.sealed)
        .collect();
    assert!(sealed.len() > 2);
    drop(replicas);
    cluster.stop(1).await;
    for segment in &sealed {
        let mut bytes = std::fs::read(&segment.path).expect("a segment");
        // In the first batch's header, where its term would be looked up.
        bytes[20] ^= 1;
        std::fs::write(&segment.path, bytes).expect("a file of ours");
    }
    cluster.start_node(1).await;
    let group = cluster
        .open_replica(GROUP, 1, |_| Box::new(NoMachine))
        .await
        .expect("it opens");
    assert_eq!(group.commit_offset(), 40);
}
