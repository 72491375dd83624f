//! What a group promises, seen from its users.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use imprint_proto::envelope;
use imprint_proto::ids::NodeId;
use openraft::entry::RaftEntry;
use openraft::raft::AppendEntriesRequest;

use super::super::codec::{
    AppendMessage, EntryWire, LogIdWire, VoteWire, append_request, encode_append,
};
use super::super::types::{AppRecord, CommittedLeaderId, Entry, LogId, Vote};
use super::super::{GroupsConfig, OpenGroupError, ProposeError};
use super::cluster::{TestCluster, batch, deadline, leader};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_holds_the_same_bytes() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(5).await;
    let leading = leader(&replicas);

    for n in 0..50u64 {
        let proposed = leading
            .propose(
                batch(5, format!("message {n}").as_bytes()),
                None,
                deadline(),
            )
            .await
            .expect("a majority is up");
        assert_eq!(proposed.base_offset, n);
        assert!(
            leading.commit_offset() > n,
            "acknowledged means visible here"
        );
    }

    let mut all = Vec::new();
    for group in replicas.values() {
        assert!(group.wait_commit_above(49, deadline()).await);
        let read = group
            .journal()
            .read_bytes(0, 50, u64::MAX)
            .expect("readable");
        assert_eq!(read.next_offset, 50);
        all.push(read.batches.concat());
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_proposals_share_the_log_without_gaps() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(5).await;
    let leading = leader(&replicas);
    let proposals = (0..500u32).map(|n| {
        let leading = leading.clone();
        tokio::spawn(async move {
            leading
                .propose(batch(5, &n.to_le_bytes()), None, deadline())
                .await
        })
    });
    let mut offsets: Vec<u64> = join_all(proposals)
        .await
        .into_iter()
        .map(|r| r.expect("no panic").expect("committed").base_offset)
        .collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..500).collect::<Vec<u64>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_expected_offset_is_refused_and_leaves_nothing() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(5).await;
    let leading = leader(&replicas);
    leading
        .propose(batch(5, b"first"), Some(0), deadline())
        .await
        .expect("0 is next");
    let refused = leading
        .propose(batch(5, b"second"), Some(7), deadline())
        .await;
    assert!(
        matches!(
            refused,
            Err(ProposeError::OffsetMismatch {
                expected: 7,
                next: 1
            })
        ),
        "{refused:?}"
    );
    let next = leading
        .propose(batch(5, b"third"), Some(1), deadline())
        .await
        .expect("1 is next");
    assert_eq!(next.base_offset, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_names_the_leader_and_appends_nothing() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(5).await;
    let leading = leader(&replicas);
    let follower = replicas
        .values()
        .find(|g| !g.is_leader())
        .expect("two follow");
    let end = follower.journal().next_offset();
    let error = follower
        .propose(batch(5, b"x"), None, deadline())
        .await
        .expect_err("it follows");
    assert!(
        matches!(error, ProposeError::NotLeader { leader } if leader == leading.leader()),
        "{error:?}"
    );
    assert_eq!(follower.journal().next_offset(), end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_on_request() {
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(5).await;
    let (target, _) = replicas
        .iter()
        .find(|(_, g)| !g.is_leader())
        .expect("two follow");
    assert!(leader(&replicas).transfer_leader(NodeId(*target)).await);
    let mut metrics = replicas[target].raft().metrics();
    tokio::time::timeout(Duration::from_secs(20), async {
        while !replicas[target].is_leader() {
            use openraft::async_runtime::watch::WatchReceiver;
            metrics.changed().await.expect("the replica lives");
        }
    })
    .await
    .expect("the target leads soon");
    replicas[target]
        .propose(batch(5, b"after the move"), None, deadline())
        .await
        .expect("the new leader accepts");
}

/// openraft's default answers for a peer that wasn't asked, and says yes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pre_vote_is_answered_by_the_peer_itself() {
    use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
    let cluster = TestCluster::start(3, GroupsConfig::default()).await;
    let replicas = cluster.open_group(5).await;
    let leading = leader(&replicas);
    leading
        .propose(batch(5, b"something to be behind of"), None, deadline())
        .await
        .expect("all nodes are up");
    let mut networks = super::super::network::GroupNetwork {
        group: 5,
        peers: std::sync::Arc::clone(&cluster.nodes[&1].peers),
    };
    let target = super::super::ReplicaNode {
        node_id: 2,
        address: String::new(),
    };
    let mut network = networks.new_client(102, &target).await;
    let request = openraft::raft::VoteRequest::new(Vote::new(99, 101), None);
    let option = RPCOption::new(Duration::from_secs(5));
    let answer = network
        .pre_vote(request, option)
        .await
        .expect("the peer is up");
    assert!(!answer.vote_granted, "an empty log must not win: {answer}");
    assert!(
        replicas[&2].epoch() < 99,
        "a pre-vote must not raise the term"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeping_group_takes_the_next_write() {
    let config = GroupsConfig {
        quiesce_after: Duration::from_millis(1),
        ..GroupsConfig::default()
    };
    let cluster = TestCluster::start(3, config).await;
    let replicas = cluster.open_group(5).await;
    tokio::time::timeout(Duration::from_secs(20), async {
        while !replicas.values().all(|group| group.is_asleep()) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("an idle group falls asleep everywhere");
    let epoch = leader(&replicas).epoch();
    // Longer than a lease: the write has to renew it, not to elect anybody.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let proposed = leader(&replicas)
        .propose(batch(5, b"good morning"), None, deadline())
        .await
        .expect("the lease is renewed");
    assert_eq!(proposed.epoch, epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_id_is_never_given_to_another_disk() {
    let cluster = TestCluster::start(1, GroupsConfig::default()).await;
    let replicas = cluster.open_group(5).await;
    let groups = &cluster.nodes[&1].groups;
    drop(replicas);
    groups.shutdown().await;
    let error = groups
        .open_group(cluster.foreign_spec(5))
        .await
        .expect_err("the files are replica 101's");
    assert!(matches!(
        error,
        OpenGroupError::ForeignReplica {
            found: 101,
            expected: 999,
            ..
        }
    ));
}

#[test]
fn append_entries_written_in_parts_equals_the_envelope() {
    let big = vec![7u8; 5000];
    let stamped = |payload: &[u8], offset| {
        batch(9, payload)
            .stamp(offset, 10)
            .map_err(|_| ())
            .expect("no overflow")
    };
    let batches = [stamped(b"small", 0), stamped(&big, 1)];
    let id = |index| LogId::new(CommittedLeaderId { term: 3 }, index);
    let mut entries = vec![Entry::new_blank(id(4))];
    for (n, batch) in batches.iter().enumerate() {
        let record = AppRecord::Stamped(batch.clone());
        entries.push(Entry::new_normal(id(5 + n as u64), record));
    }
    entries.push(Entry::new_normal(
        id(7),
        AppRecord::Void(Bytes::from_static(b"why")),
    ));
    let request = AppendEntriesRequest {
        vote: Vote::new_committed(3, 101),
        prev_log_id: Some(id(3)),
        leader_commit: None,
        entries,
    };
    let parts = encode_append(9, 102, &request).expect("all stamped");
    assert!(parts.len() > 2, "a large blob is shared, not copied");

    let wire = |index, kind, body: Bytes| EntryWire {
        term: 3,
        index,
        kind,
        body,
    };
    let message = AppendMessage {
        group: 9,
        replica: 102,
        vote: VoteWire {
            term: 3,
            candidate: 101,
            committed: true,
        },
        prev: Some(LogIdWire { term: 3, index: 3 }),
        commit: None,
        entries: vec![
            wire(4, 0, Bytes::new()),
            wire(5, 1, batches[0].to_contiguous()),
            wire(6, 1, batches[1].to_contiguous()),
            wire(7, 4, Bytes::from_static(b"why")),
        ],
    };
    let whole: Bytes = parts.concat().into();
    assert_eq!(whole, envelope::encode(&message));

    let back = append_request(envelope::decode(whole).expect("decodes")).expect("checks");
    assert_eq!(back.entries.len(), 4);
    let EntryPayloadBatch(bytes) = stamped_bytes(&back.entries[2]);
    assert_eq!(bytes, batches[1].to_contiguous());
}

struct EntryPayloadBatch(Bytes);

fn stamped_bytes(entry: &Entry) -> EntryPayloadBatch {
    match &entry.payload {
        openraft::EntryPayload::Normal(AppRecord::Stamped(batch)) => {
            EntryPayloadBatch(batch.to_contiguous())
        }
        other => panic!("expected a batch, found {other:?}"),
    }
}

#[test]
fn an_unstamped_batch_cannot_be_encoded() {
    let record = AppRecord::Admitted {
        batch: batch(9, b"x"),
        expected_offset: None,
    };
    let id = LogId::new(CommittedLeaderId { term: 1 }, 1);
    let request = AppendEntriesRequest {
        vote: Vote::new_committed(1, 101),
        prev_log_id: None,
        leader_commit: None,
        entries: vec![Entry::new_normal(id, record)],
    };
    assert!(encode_append(9, 102, &request).is_err());
}

#[test]
fn entries_that_do_not_follow_one_another_are_refused() {
    let read = |prev: Option<u64>, indexes: &[u64]| {
        let blank = |index: &u64| EntryWire {
            term: 3,
            index: *index,
            kind: 0,
            body: Bytes::new(),
        };
        let message = AppendMessage {
            group: 9,
            replica: 102,
            vote: VoteWire {
                term: 3,
                candidate: 101,
                committed: true,
            },
            prev: prev.map(|index| LogIdWire { term: 3, index }),
            commit: None,
            entries: indexes.iter().map(blank).collect(),
        };
        append_request(message).map(|request| request.entries.len())
    };
    assert_eq!(read(None, &[0, 1]).expect("from the start"), 2);
    assert_eq!(read(Some(6), &[7, 8, 9]).expect("in order"), 3);
    assert_eq!(read(Some(u64::MAX - 1), &[]).expect("a heartbeat"), 0);
    for (prev, indexes) in [
        (None, &[1][..]),
        (Some(6), &[6]),
        (Some(6), &[8]),
        (Some(6), &[7, 9]),
        (Some(6), &[7, 7]),
        (Some(u64::MAX), &[]),
        (Some(u64::MAX - 1), &[u64::MAX]),
    ] {
        assert!(read(prev, indexes).is_err(), "{prev:?} {indexes:?}");
    }
}
