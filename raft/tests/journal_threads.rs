//! The journal with real threads and files: an appender, readers and zeros ahead, all at once.

mod journal_support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use imprint_raft::disk::{Io, RealDisk, RealOffload, WarmFiles};
use imprint_raft::journal::{Journal, JournalConfig, StoredEntry, VoteRecord};
use journal_support::*;
use tokio::task::{JoinHandle, spawn_blocking};

async fn open_real(io: Io, path: PathBuf, cfg: JournalConfig) -> Storage {
    spawn_blocking(move || open_in(io, &path, cfg).unwrap())
        .await
        .unwrap()
}

/// Reads ranges of the log all the time: entries in order, offsets dense, never anything torn.
fn reader(journal: Arc<Journal>, stop: Arc<AtomicBool>, seed: u64) -> JoinHandle<u64> {
    spawn_blocking(move || {
        let mut draws = seed;
        let mut reads = 0;
        while !stop.load(Ordering::Relaxed) || reads < 10 {
            draws = draws
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let end = journal.last().map_or(0, |pos| pos.index);
            let from = (draws >> 33) % (end + 1);
            let entries = journal.read(from, from + 20, 5_000).unwrap();
            for (n, entry) in entries.iter().enumerate() {
                assert_eq!(entry.pos().index, from + n as u64);
            }
            let offset = (draws >> 20) % (journal.next_offset() + 1);
            let read = journal.read_stamped(offset, u64::MAX, 5_000).unwrap();
            let mut next = None;
            for batch in &read.batches {
                assert!(next.is_none_or(|next| next == batch.base_offset()));
                next = Some(batch.next_offset());
            }
            reads += 1;
        }
        reads
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_nothing_torn_while_the_log_grows_and_everything_is_there_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let offload = Arc::new(RealOffload::new(tokio::runtime::Handle::current()));
    let io = io_on(Arc::new(RealDisk), offload).with_warm_files(WarmFiles::new(2, 1 << 20));
    let cfg = JournalConfig {
        segment_bytes: 60_000,
        tail_cache_bytes: 5_000,
        max_unsynced_bytes: 20_000,
        zero_step_bytes: 16_384,
        ..JournalConfig::default()
    };
    let storage = open_real(io.clone(), dir.path().to_owned(), cfg).await;
    let journal = Arc::clone(&storage.journal);
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (1..=2)
        .map(|seed| reader(Arc::clone(&journal), Arc::clone(&stop), seed))
        .collect();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut term = 1;
    append(&journal, vec![blank(term, 0)]).unwrap();
    for index in 1_u64..1_500 {
        journal.wait_for_room().await;
        let entry = if index.is_multiple_of(200) {
            let vote = VoteRecord {
                term: term + 1,
                voted_for: Some(1),
                committed: true,
            };
            journal.save_vote(vote).await.unwrap();
            term += 1;
            blank(term, index)
        } else {
            admit(term, index, index)
        };
        let acknowledged = Arc::clone(&acknowledged);
        let done = move |result: std::io::Result<()>| {
            result.unwrap();
            assert_eq!(
                acknowledged.swap(index, Ordering::Relaxed) + 1,
                index,
                "told in order"
            );
        };
        journal.append(vec![entry], Box::new(done)).unwrap();
    }
    journal.drain().await.unwrap();
    assert_eq!(acknowledged.load(Ordering::Relaxed), 1_499);
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() >= 10);
    }
    assert!(journal.segments().len() > 5);
    let next = journal.next_offset();
    let live = Arc::clone(&journal);
    let (entries, digest) = spawn_blocking(move || (read_all(&live), live.digest(next).unwrap()))
        .await
        .unwrap();
    assert_eq!(entries.len(), 1_500);
    let data = |entry: &&StoredEntry| matches!(entry, StoredEntry::Data { .. });
    assert_eq!(entries.iter().filter(data).count(), 1_500 - 8);
    drop((journal, storage));
    let storage = open_real(io, dir.path().to_owned(), cfg).await;
    let reopened = Arc::clone(&storage.journal);
    let found = spawn_blocking(move || (read_all(&reopened), reopened.digest(next).unwrap()))
        .await
        .unwrap();
    assert_eq!(found, (entries, digest));
    assert_eq!(storage.journal.vote().map(|vote| vote.term), Some(term));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_between_appends_leave_what_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let offload = Arc::new(RealOffload::new(tokio::runtime::Handle::current()));
    let io = io_on(Arc::new(RealDisk), offload).with_warm_files(WarmFiles::new(2, 1 << 20));
    let cfg = JournalConfig {
        segment_bytes: 10_000,
        zero_step_bytes: 4_096,
        ..small()
    };
    let storage = open_real(io.clone(), dir.path().to_owned(), cfg).await;
    let journal = Arc::clone(&storage.journal);
    append(&journal, vec![blank(1, 0)]).unwrap();
    let mut next = 1;
    for round in 2..40 {
        let entries = (next..next + 20)
            .map(|index| admit(round - 1, index, index * round))
            .collect();
        append(&journal, entries).unwrap();
        let keep = next + round % 15;
        journal.truncate_after(Some(keep)).await.unwrap();
        append(&journal, vec![blank(round, keep + 1)]).unwrap();
        next = keep + 2;
    }
    journal.drain().await.unwrap();
    let live = Arc::clone(&journal);
    let before = spawn_blocking(move || read_all(&live)).await.unwrap();
    assert_eq!(before.len() as u64, next);
    drop((journal, storage));
    let storage = open_real(io, dir.path().to_owned(), cfg).await;
    let after = spawn_blocking(move || read_all(&storage.journal))
        .await
        .unwrap();
    assert_eq!(after, before);
}
