//! Lookups by index, offset and time; epochs; trims and cuts; what is held open; what is on the disk.

mod journal_support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use imprint_proto::batch::{AdmittedBatch, StampedBatch, split_batches};
use imprint_proto::limits::BatchLimits;
use imprint_raft::disk::sim::{Loss, SimDisk};
use imprint_raft::disk::{Disk, InlineOffload, Io, RealDisk};
use imprint_raft::journal::{
    AppendError, ControlKind, Journal, JournalConfig, NewEntry, ReadError, StateLog, StoredEntry,
    VoidOutcome,
};
use journal_support::*;

/// Two terms of batches in many segments: blank 0, data 1..=20, blank 21, data 22..=40.
fn two_terms(disk: &SimDisk) -> Storage {
    let storage = open_sim(disk, small());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..=20 {
        append_ok(&storage.journal, vec![admit(1, index, index)]);
    }
    append_ok(&storage.journal, vec![blank(3, 21)]);
    for index in 22..=40 {
        append_ok(&storage.journal, vec![admit(3, index, index)]);
    }
    storage
}

fn batches(journal: &Journal) -> Vec<(u64, StampedBatch)> {
    let entries = read_all(journal).into_iter();
    entries
        .filter_map(|entry| match entry {
            StoredEntry::Data { pos, batch } => Some((pos.index, batch)),
            StoredEntry::Control { .. } => None,
        })
        .collect()
}

#[test]
fn every_range_of_entries_is_read_as_it_was_appended() {
    let disk = SimDisk::new();
    let storage = two_terms(&disk);
    let all = read_all(&storage.journal);
    drop(storage);
    let journal = open_sim(&disk, small()).journal;
    for from in 0..=41 {
        for to in [from, from + 1, from + 5, 100] {
            let expected = &all[from.min(41)..to.clamp(from.min(41), 41)];
            let found = journal.read(from as u64, to as u64, u64::MAX).unwrap();
            assert_eq!(found, expected, "{from}..{to}");
        }
        let one = journal.read(from as u64, u64::MAX, 0).unwrap();
        assert_eq!(
            one,
            all[from.min(41)..(from + 1).min(41)],
            "at least one from {from}"
        );
    }
    let bounded = journal.read(1, u64::MAX, 2_000).unwrap();
    let bytes: u64 = bounded
        .iter()
        .map(|entry| match entry {
            StoredEntry::Data { batch, .. } => batch.len(),
            StoredEntry::Control { .. } => 64,
        })
        .sum();
    assert!(bytes <= 2_000 && bounded.len() > 1);
}

#[test]
fn every_offset_is_found_and_below_the_bound_only() {
    let disk = SimDisk::new();
    let storage = two_terms(&disk);
    let all = batches(&storage.journal);
    let end = storage.journal.next_offset();
    for journal in [
        Arc::clone(&storage.journal),
        open_sim(&disk, small()).journal,
    ] {
        for offset in 0..end {
            let (_, holder) = all
                .iter()
                .find(|(_, batch)| offset < batch.next_offset())
                .unwrap();
            let read = journal.read_bytes(offset, end, 0).unwrap();
            assert_eq!(read.batches, [holder.to_contiguous()]);
            assert_eq!(read.next_offset, holder.next_offset());
            let inside = journal
                .read_bytes(offset, holder.next_offset() - 1, u64::MAX)
                .unwrap();
            assert!(
                inside
                    .batches
                    .iter()
                    .all(|bytes| *bytes != holder.to_contiguous())
            );
        }
        let whole = journal.read_bytes(0, end, u64::MAX).unwrap();
        let concatenated: Vec<u8> = whole.batches.concat();
        assert_eq!(split_batches(concatenated.into()).count(), all.len());
        let at_end = journal.read_bytes(end, end, 100).unwrap();
        assert_eq!((at_end.batches.len(), at_end.next_offset), (0, end));
        assert!(matches!(
            journal.read_bytes(end + 1, end, 100),
            Err(ReadError::AboveEnd { .. })
        ));
    }
}

#[test]
fn epochs_tell_where_terms_begin() {
    let disk = SimDisk::new();
    let storage = two_terms(&disk);
    let change = storage.journal.offset_after(21).unwrap().unwrap();
    for journal in [
        Arc::clone(&storage.journal),
        open_sim(&disk, small()).journal,
    ] {
        let end = journal.next_offset();
        assert_eq!(
            journal.read_stamped(0, end, u64::MAX).unwrap().epochs,
            [(1, 0), (3, change)]
        );
        assert_eq!(journal.read_stamped(0, end, 0).unwrap().epochs, [(1, 0)]);
        assert_eq!(
            journal.read_stamped(change, end, 0).unwrap().epochs,
            [(3, change)]
        );
        assert_eq!(
            journal.read_stamped(end - 1, end, 0).unwrap().epochs,
            [(3, change)]
        );
        assert_eq!(journal.term_at(20), Some(1));
        assert_eq!(journal.term_at(21), Some(3));
        assert_eq!(journal.term_at(41), None);
    }
}

#[test]
fn times_are_found_in_memory_and_on_disk() {
    let disk = SimDisk::new();
    let storage = two_terms(&disk);
    let all = batches(&storage.journal);
    let end = storage.journal.next_offset();
    for journal in [
        Arc::clone(&storage.journal),
        open_sim(&disk, small()).journal,
    ] {
        assert_eq!(journal.offset_for_time(0).unwrap(), 0);
        for (_, batch) in &all {
            assert_eq!(
                journal.offset_for_time(batch.base_timestamp()).unwrap(),
                batch.base_offset()
            );
            assert_eq!(
                journal.offset_for_time(batch.base_timestamp() + 1).unwrap(),
                batch.next_offset()
            );
        }
        assert_eq!(journal.offset_for_time(u64::MAX).unwrap(), end);
    }
}

#[test]
fn stamps_never_go_back_though_the_clock_does() {
    let disk = SimDisk::new();
    let clock = Arc::new(TestClock::default());
    let io = Io::new(
        Arc::new(disk.clone()),
        Arc::new(InlineOffload),
        Arc::clone(&clock) as _,
    );
    let journal = open_in(io, &data(), small()).unwrap().journal;
    append_ok(&journal, vec![blank(1, 0), admit(1, 1, 1)]);
    clock.0.store(10, Ordering::Relaxed);
    append_ok(&journal, vec![admit(1, 2, 1)]);
    let stamps: Vec<_> = batches(&journal)
        .iter()
        .map(|(_, batch)| batch.base_timestamp())
        .collect();
    assert_eq!(stamps[0], stamps[1]);
}

#[test]
fn an_offset_that_would_wrap_becomes_a_void_entry() {
    let disk = SimDisk::new();
    let journal = open_sim(&disk, small()).journal;
    now(journal.install_cut(cut(at(1, 5), u64::MAX - 1, 0, None))).unwrap();
    let entry = NewEntry::Admit {
        pos: at(1, 6),
        batch: batch(1, 3, 1),
        expected_offset: None,
    };
    append_ok(&journal, vec![entry]);
    let entries = journal.read(6, 7, 0).unwrap();
    let [
        StoredEntry::Control {
            kind: ControlKind::Void(bytes),
            ..
        },
    ] = entries.as_slice()
    else {
        panic!("{entries:?}")
    };
    let outcome = VoidOutcome::OffsetOverflow {
        next: u64::MAX - 1,
        message_count: 3,
    };
    assert_eq!(VoidOutcome::decode(bytes.clone()).unwrap(), outcome);
}

#[test]
fn what_does_not_follow_on_is_refused_whole() {
    let disk = SimDisk::new();
    let journal = open_sim(&disk, small()).journal;
    append_ok(&journal, vec![blank(2, 0), admit(2, 1, 1)]);
    let refused = |entries| append(&journal, entries).unwrap_err();
    assert!(matches!(
        refused(vec![blank(2, 3)]),
        AppendError::NotNext { .. }
    ));
    assert!(matches!(
        refused(vec![blank(1, 2)]),
        AppendError::NotNext { .. }
    ));
    assert!(matches!(
        refused(vec![admit(3, 2, 1)]),
        AppendError::TermNotBegun { .. }
    ));
    let stamped = |offset, stamp| batch(1, 1, 1).stamp(offset, stamp).unwrap();
    let data = |batch| NewEntry::Data {
        pos: at(2, 2),
        batch,
    };
    let next = journal.next_offset();
    assert!(matches!(
        refused(vec![data(stamped(next + 1, u64::MAX))]),
        AppendError::Batch { .. }
    ));
    assert!(matches!(
        refused(vec![data(stamped(next, 1))]),
        AppendError::Batch { .. }
    ));
    assert!(matches!(
        refused(vec![admit(2, 2, 1), blank(2, 2)]),
        AppendError::NotNext { .. }
    ));
    assert_eq!(
        (journal.last(), journal.next_offset()),
        (Some(at(2, 1)), next)
    );
}

#[test]
fn a_follower_writes_the_same_files_as_its_leader() {
    let (leader_disk, follower_disk) = (SimDisk::new(), SimDisk::new());
    let leader = two_terms(&leader_disk).journal;
    let follower = open_sim(&follower_disk, small()).journal;
    for entry in read_all(&leader) {
        let entry = match entry {
            StoredEntry::Control { pos, kind } => NewEntry::Control { pos, kind },
            StoredEntry::Data { pos, batch } => NewEntry::Data { pos, batch },
        };
        append_ok(&follower, vec![entry]);
    }
    for segment in leader.segments().iter().filter(|segment| segment.sealed) {
        let bytes = leader_disk.contents(&segment.path).unwrap();
        assert_eq!(
            bytes.len() as u64,
            segment.bytes,
            "a sealed segment is cut to its end"
        );
        assert!(bytes == follower_disk.contents(&segment.path).unwrap());
    }
    let end = leader.next_offset();
    assert_eq!(leader.segments(), follower.segments());
    assert_eq!(leader.digest(end).unwrap(), follower.digest(end).unwrap());
}

#[test]
fn a_segment_rolls_by_stamped_time_too() {
    let disk = SimDisk::new();
    let clock = Arc::new(TestClock::default());
    let io = Io::new(
        Arc::new(disk.clone()),
        Arc::new(InlineOffload),
        Arc::clone(&clock) as _,
    );
    let cfg = JournalConfig {
        segment_span_us: Some(1_000),
        ..JournalConfig::default()
    };
    let journal = open_in(io, &data(), cfg).unwrap().journal;
    append_ok(&journal, vec![blank(1, 0), admit(1, 1, 1), admit(1, 2, 1)]);
    clock.0.fetch_add(1_000, Ordering::Relaxed);
    append_ok(&journal, vec![admit(1, 3, 1)]);
    assert_eq!(journal.segments().len(), 2);
}

#[test]
fn trimming_takes_whole_segments_that_are_purged_and_moves_the_start() {
    let disk = SimDisk::new();
    let storage = two_terms(&disk);
    append_ok(&storage.journal, vec![membership(3, 41, b"members")]);
    let segments = storage.journal.segments();
    let start = segments[4].base_offset + 1;
    now(storage.journal.trim(start)).unwrap();
    assert_eq!(
        storage.journal.segments().len(),
        segments.len(),
        "Raft may still read them"
    );
    now(storage.journal.purge(at(3, 41))).unwrap();
    assert_eq!(storage.journal.segments()[0], segments[4]);
    assert!(!disk.exists(&segments[3].path).unwrap());
    assert!(matches!(
        storage.journal.read_bytes(start - 1, 99, 0),
        Err(ReadError::BelowStart { .. })
    ));
    let read = storage.journal.read_bytes(start, 99, 0).unwrap();
    drop(storage);
    disk.crash(0, Loss::DropAll);
    let storage = open_sim(&disk, small());
    assert_eq!(storage.journal.start_offset(), start);
    assert_eq!(
        storage.journal.read_bytes(start, 99, 0).unwrap().batches,
        read.batches
    );
    assert_eq!(
        storage.journal.last_membership(u64::MAX).unwrap().0,
        at(3, 41)
    );
    now(storage.journal.trim(u64::MAX)).unwrap();
    let kept = storage.journal.segments();
    assert_eq!(kept.len(), 1, "the active segment stays");
    assert_eq!(
        storage.journal.start_offset(),
        storage.journal.next_offset()
    );
}

#[test]
fn a_snapshots_cut_empties_a_log_that_is_behind_and_only_purges_one_that_is_not() {
    let disk = SimDisk::new();
    let storage = two_terms(&disk);
    let (end, before) = (storage.journal.next_offset(), storage.journal.segments());
    now(storage.journal.install_cut(cut(at(3, 30), 1, 0, None))).unwrap();
    assert_eq!(storage.journal.purged(), Some(at(3, 30)));
    assert_eq!(
        (storage.journal.next_offset(), storage.journal.segments()),
        (end, before)
    );
    let members = Some((at(4, 50), bytes::Bytes::from_static(b"members")));
    now(storage
        .journal
        .install_cut(cut(at(4, 60), 500, 77, members)))
    .unwrap();
    assert!(storage.journal.segments().is_empty());
    append_ok(&storage.journal, vec![admit(4, 61, 2)]);
    drop(storage);
    disk.crash(0, Loss::DropAll);
    let journal = open_sim(&disk, small()).journal;
    assert_eq!(
        (journal.start_offset(), journal.last()),
        (500, Some(at(4, 61)))
    );
    assert_eq!(
        journal.last_membership(60).unwrap(),
        (at(4, 50), bytes::Bytes::from_static(b"members"))
    );
    assert_eq!(read_all(&journal).len(), 1);
    assert_eq!(
        journal.read_stamped(500, 999, 0).unwrap().epochs,
        [(4, 500)]
    );
}

#[test]
fn rot_in_a_sealed_segment_is_an_error_for_every_reader() {
    let disk = SimDisk::new();
    let storage = two_terms(&disk);
    let segment = storage.journal.segments()[1].clone();
    disk.rot(&segment.path, 300).unwrap();
    let offset = segment.base_offset;
    let error = storage.journal.read_bytes(offset, 99, 0).unwrap_err();
    assert!(
        matches!(&error, ReadError::Corrupt(range) if range.path == segment.path && range.from_byte == 0)
    );
    let before = storage.journal.read_bytes(0, offset, u64::MAX).unwrap();
    assert_eq!(before.next_offset, offset, "other segments are read");
    assert!(storage.journal.read(0, u64::MAX, u64::MAX).is_err());
    disk.rot(&segment.path, 300).unwrap();
    disk.rewrite(&segment.path, |bytes| bytes.truncate(bytes.len() - 1))
        .unwrap();
    let storage = open_sim(&disk, small());
    assert!(matches!(
        storage.journal.read_bytes(offset, 99, 0),
        Err(ReadError::Corrupt(_))
    ));
}

#[test]
fn a_log_of_many_small_batches_finds_its_way_by_the_sparse_index() {
    let disk = SimDisk::new();
    let cfg = JournalConfig {
        tail_cache_bytes: 0,
        segment_bytes: 300_000,
        ..small()
    };
    let storage = open_sim(&disk, cfg);
    append_ok(&storage.journal, vec![blank(1, 0)]);
    append_ok(
        &storage.journal,
        (1..=1_500).map(|index| admit(1, index, index)).collect(),
    );
    append_ok(&storage.journal, vec![blank(2, 1_501), admit(2, 1_502, 1)]);
    for journal in [Arc::clone(&storage.journal), open_sim(&disk, cfg).journal] {
        for index in (1..=1_500).step_by(97) {
            let entries = journal.read(index, index + 1, 0).unwrap();
            let [StoredEntry::Data { pos, batch }] = entries.as_slice() else {
                panic!("{entries:?}")
            };
            assert_eq!(
                (pos.index, batch.frames().next().unwrap().id >> 32),
                (index, u128::from(index))
            );
            let read = journal
                .read_stamped(batch.next_offset() - 1, u64::MAX, 0)
                .unwrap();
            assert_eq!(&read.batches[0], batch);
            assert_eq!(
                journal.offset_after(index - 1).unwrap(),
                Some(batch.base_offset())
            );
        }
    }
}

fn vector(name: &str) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/vectors/batch");
    std::fs::read(dir.join(name)).unwrap()
}

/// Appends a producer's vector so that it gets the stamps of its stamped vector, on real files.
#[test]
fn the_bytes_in_the_segment_file_are_the_stamped_vector() {
    for (name, group, offset) in [
        ("one_message", 3, 41),
        ("three_messages_user_headers", 7, 1_000),
        ("empty_payload", 0, 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let stamped = vector(&format!("{name}_stamped.bin"));
        let header = imprint_proto::batch::BatchHeader::decode(&stamped).unwrap();
        assert_eq!((header.partition_id, header.base_offset), (group, offset));
        let clock = TestClock::default();
        clock.0.store(header.base_timestamp, Ordering::Relaxed);
        let io = Io::new(Arc::new(RealDisk), Arc::new(InlineOffload), Arc::new(clock));
        let state = StateLog::open(io.clone(), &dir.path().join("state")).unwrap();
        let path = dir.path().join("groups").join(format!("{group:020}"));
        let journal = Journal::open(io, path, state, group, JournalConfig::default()).unwrap();
        now(journal.install_cut(cut(at(1, 9), offset, 0, None))).unwrap();
        let bytes = vector(&format!("{name}_producer.bin")).into();
        let batch = AdmittedBatch::admit(bytes, group, &BatchLimits::default()).unwrap();
        append_ok(
            &journal,
            vec![NewEntry::Admit {
                pos: at(1, 10),
                batch,
                expected_offset: Some(offset),
            }],
        );
        let segment = &journal.segments()[0];
        let file = std::fs::read(&segment.path).unwrap();
        assert_eq!(file[..stamped.len()], stamped, "{name}");
        assert!(file[stamped.len()..].iter().all(|byte| *byte == 0));
        assert_eq!(
            journal.read_bytes(offset, u64::MAX, 0).unwrap().batches,
            [stamped]
        );
    }
}
