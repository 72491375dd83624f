//! The journal as its callers see it, on the simulated disk and on real files.

mod journal_support;

use std::sync::Arc;

use imprint_raft::disk::{RealDisk, RealOffload, SimDisk};
use imprint_raft::journal::{ControlKind, StoredEntry, VoteRecord};
use journal_support::*;

#[test]
fn appended_entries_are_read_back_from_memory_and_after_reopening_from_disk() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, small());
    let journal = &storage.journal;
    append_ok(journal, vec![blank(1, 0)]);
    for index in 1..40 {
        append_ok(journal, vec![admit(1, index, index)]);
    }
    append_ok(journal, vec![blank(2, 40), admit(2, 41, 41)]);
    let before = read_all(journal);
    assert_eq!(before.len(), 42);
    assert_eq!(journal.last(), Some(at(2, 41)));
    assert!(journal.segments().len() > 3);
    let (next, digest) = (
        journal.next_offset(),
        journal.digest(journal.next_offset()).unwrap(),
    );
    disk.crash(1, imprint_raft::disk::sim::Loss::DropAll);
    let storage = open_sim(&disk, small());
    assert_eq!(read_all(&storage.journal), before);
    assert_eq!(storage.journal.next_offset(), next);
    assert_eq!(storage.journal.digest(next).unwrap(), digest);
    assert_eq!(storage.journal.last(), Some(at(2, 41)));
    append_ok(&storage.journal, vec![admit(2, 42, 42)]);
}

#[test]
fn an_unexpected_offset_becomes_a_void_entry() {
    let disk = SimDisk::new();
    let journal = open_sim(&disk, small()).journal;
    append_ok(&journal, vec![blank(1, 0), admit(1, 1, 3)]);
    let entry = imprint_raft::journal::NewEntry::Admit {
        pos: at(1, 2),
        batch: batch(9, 1, 10),
        expected_offset: Some(9),
    };
    append_ok(&journal, vec![entry]);
    let entries = journal.read(2, 3, 0).unwrap();
    let [
        StoredEntry::Control {
            kind: ControlKind::Void(bytes),
            ..
        },
    ] = entries.as_slice()
    else {
        panic!("{entries:?}")
    };
    let outcome = imprint_raft::journal::VoidOutcome::decode(bytes.clone()).unwrap();
    assert_eq!(
        outcome,
        imprint_raft::journal::VoidOutcome::OffsetMismatch {
            expected: 9,
            next: 1
        }
    );
}

#[test]
fn truncation_rolls_offsets_back_and_survives_a_crash() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, small());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..30 {
        append_ok(&storage.journal, vec![admit(1, index, index)]);
    }
    let kept: Vec<_> = read_all(&storage.journal).into_iter().take(11).collect();
    let end = storage.journal.offset_after(10).unwrap().unwrap();
    now(storage.journal.truncate_after(Some(10))).unwrap();
    assert_eq!(storage.journal.next_offset(), end);
    assert_eq!(read_all(&storage.journal), kept);
    append_ok(&storage.journal, vec![blank(2, 11), admit(2, 12, 12)]);
    let all = read_all(&storage.journal);
    disk.crash(1, imprint_raft::disk::sim::Loss::DropAll);
    let storage = open_sim(&disk, small());
    assert_eq!(read_all(&storage.journal), all);
}

#[test]
fn votes_and_purged_positions_are_kept() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, small());
    let vote = VoteRecord {
        term: 3,
        voted_for: Some(2),
        committed: false,
    };
    now(storage.journal.save_vote(vote)).unwrap();
    now(storage.journal.purge(at(2, 9))).unwrap();
    assert_eq!(storage.journal.last(), Some(at(2, 9)));
    append_ok(&storage.journal, vec![blank(3, 10), admit(3, 11, 1)]);
    disk.crash(1, imprint_raft::disk::sim::Loss::DropAll);
    let storage = open_sim(&disk, small());
    assert_eq!(storage.journal.vote(), Some(vote));
    assert_eq!(storage.journal.purged(), Some(at(2, 9)));
    assert_eq!(storage.journal.last(), Some(at(3, 11)));
    assert_eq!(read_all(&storage.journal).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_files_hold_what_was_appended() {
    let dir = tempfile::tempdir().unwrap();
    let offload = Arc::new(RealOffload::new(tokio::runtime::Handle::current()));
    let io = io_on(Arc::new(RealDisk), offload);
    let path = dir.path().to_owned();
    let opened = {
        let io = io.clone();
        let path = path.clone();
        tokio::task::spawn_blocking(move || open_in(io, &path, small()).unwrap())
            .await
            .unwrap()
    };
    append(&opened.journal, vec![blank(1, 0)]).unwrap();
    for index in 1..100 {
        append(&opened.journal, vec![admit(1, index, index)]).unwrap();
    }
    opened.journal.drain().await.unwrap();
    let next = opened.journal.next_offset();
    assert_eq!(opened.journal.synced_offset(), next);
    let before = read_all(&opened.journal);
    opened.journal.close().await.unwrap();
    drop(opened);
    let opened = tokio::task::spawn_blocking(move || open_in(io, &path, small()).unwrap())
        .await
        .unwrap();
    assert_eq!(read_all(&opened.journal), before);
}
