//! A follower dies in the middle of a write: what it had got of the next batches, cut at every kind of
//! place, stands behind what it had synced.

use std::path::Path;

use imprint_cluster_tests::cluster::Cluster;
use imprint_cluster_tests::disk::{self, SegmentFile};
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::load::Load;
use imprint_cluster_tests::tamper;

use super::TOPIC;

/// Fixed part of a batch of one message before its payload.
const BEFORE_PAYLOAD: usize = 256 + 48;
const PAGE: usize = 4096;

/// How the write was torn.
#[derive(Debug, Clone, Copy)]
enum Tear {
    /// The last bytes of a batch are missing.
    Short(usize),
    /// Only the first bytes of a batch are there.
    First(usize),
    HalfPayload,
    /// The file ends with its last whole page.
    ToPage,
    /// The last page came back as zeros.
    LastPageZero,
    /// A page of zeros stands behind everything.
    ZerosAppended,
}

const TEARS: [Tear; 10] = [
    Tear::Short(1),
    Tear::Short(4),
    Tear::Short(8),
    Tear::First(255),
    Tear::First(256),
    Tear::First(257),
    Tear::HalfPayload,
    Tear::ToPage,
    Tear::LastPageZero,
    Tear::ZerosAppended,
];

impl Tear {
    /// What stands behind the end at `at`, given what the leader has there.
    fn torn(self, at: usize, next: &[u8], batch_len: usize) -> Vec<u8> {
        let mut torn = match self {
            Tear::Short(missing) => next[..batch_len - missing].to_vec(),
            Tear::First(len) => next[..len].to_vec(),
            Tear::HalfPayload => next[..(BEFORE_PAYLOAD + batch_len) / 2].to_vec(),
            Tear::ToPage => next[..(at + next.len()) / PAGE * PAGE - at].to_vec(),
            Tear::LastPageZero => next.to_vec(),
            Tear::ZerosAppended => vec![0; PAGE],
        };
        if let Tear::LastPageZero = self {
            let from = torn.len() - PAGE;
            torn[from..].fill(0);
        }
        torn
    }
}

/// Bytes that recovery has to set aside: what is behind the last whole batch, without zeros at the end.
fn expected_cut(torn: &[u8], batch_lens: &[usize]) -> usize {
    let end = torn.iter().rposition(|b| *b != 0).map_or(0, |n| n + 1);
    let mut whole = 0;
    for len in batch_lens {
        if whole + len > end {
            break;
        }
        whole += len;
    }
    end - whole
}

fn quarantined(data_dir: &Path) -> u64 {
    let dir = data_dir.join("quarantine");
    if !dir.exists() {
        return 0;
    }
    let files = tamper::files_below(&dir);
    let segments = files
        .iter()
        .filter(|path| path.to_string_lossy().contains(".seg"));
    segments.map(|f| f.metadata().expect("a file").len()).sum()
}

/// Writes until the leader has two pages more than `behind` in the same segment; gives them.
async fn what_is_missing(
    cluster: &Cluster,
    load: &Load,
    group: u64,
    leader: u64,
    behind: &SegmentFile,
) -> SegmentFile {
    loop {
        load.wait_for(5).await;
        let all = disk::segments(&cluster.node(leader).data_dir, group).unwrap_or_default();
        let same = all.into_iter().find(|segment| segment.name == behind.name);
        if let Some(ahead) = same
            && ahead.batches.len() >= behind.batches.len() + 2 * PAGE
        {
            assert!(ahead.batches.starts_with(&behind.batches));
            return ahead;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_tail_is_cut_to_the_last_whole_batch_and_kept_aside() {
    let mut cluster = Cluster::start().await;
    let topic = cluster.create_topic(TOPIC, &[]).await;
    let group = topic.partitions[0].partition_id;
    let load = Load::start(&cluster, TOPIC, 2);
    load.wait_for(20).await;
    for tear in TEARS {
        let leader = cluster.leader_of(TOPIC).await;
        let victim = cluster.follower_of(TOPIC).await;
        cluster.kill(victim);
        let data_dir = cluster.node(victim).data_dir.clone();
        let tail = disk::active(&data_dir, group);
        let ahead = what_is_missing(&cluster, &load, group, leader, &tail).await;
        let at = tail.batches.len();
        let next = &ahead.batches[at..at + 2 * PAGE];
        let starts: Vec<u64> = ahead
            .starts()
            .into_iter()
            .filter(|s| *s >= tail.end())
            .collect();
        let lens: Vec<usize> = starts
            .windows(2)
            .map(|w| usize::try_from(w[1] - w[0]).expect("small"))
            .collect();
        let torn = tear.torn(at, next, lens[0]);
        tamper::set_len(&tail.path, tail.end());
        tamper::write_at(&tail.path, tail.end(), &torn);

        let (aside, mark) = (quarantined(&data_dir), cluster.log_mark(victim));
        cluster.start_node(victim);
        cluster.wait_ready().await;
        cluster.wait_serves(TOPIC, victim).await;
        let cut = expected_cut(&torn, &lens);
        let said = cluster.log_since(victim, mark);
        let kept = usize::try_from(quarantined(&data_dir) - aside).expect("small");
        assert_eq!(kept, cut, "{tear:?} of {} bytes:\n{said}", torn.len());
        assert_eq!(said.contains("torn tail"), cut > 0, "{tear:?}:\n{said}");
    }
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}
