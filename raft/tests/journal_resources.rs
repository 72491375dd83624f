//! What logs hold open and what a start reads, counted rather than timed.

mod journal_support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imprint_raft::disk::sim::{Call, Loss, SimDisk};
use imprint_raft::disk::{Io, WarmFiles};
use imprint_raft::journal::{Journal, JournalConfig, StateLog, group_dir};
use journal_support::*;
use parking_lot::Mutex;

/// Every batch opens a segment, and none of them stays in the tail.
fn one_batch_each() -> JournalConfig {
    JournalConfig {
        segment_bytes: 1,
        tail_cache_bytes: 1_000,
        zero_step_bytes: 0,
        ..JournalConfig::default()
    }
}

/// What was asked of each file.
type Calls = Arc<Mutex<BTreeMap<(Call, PathBuf), u64>>>;

fn count_calls(disk: &SimDisk) -> Calls {
    let calls: Calls = Arc::default();
    let counted = Arc::clone(&calls);
    disk.set_fault(Some(Box::new(move |call, path: &Path| {
        *counted.lock().entry((call, path.to_owned())).or_default() += 1;
        None
    })));
    calls
}

fn segments_asked(calls: &Calls, wanted: Call) -> Vec<PathBuf> {
    let calls = calls.lock();
    let segments = calls.keys().filter(|(call, path)| {
        *call == wanted && path.extension().is_some_and(|extension| extension == "seg")
    });
    segments.map(|(_, path)| path.clone()).collect()
}

#[test]
fn twenty_thousand_segments_hold_no_more_open_than_the_bound() {
    const SEGMENTS: u64 = 20_000;
    let disk = SimDisk::new();
    let io = sim_io(&disk).with_warm_files(WarmFiles::new(16, 1 << 20));
    let storage = open_in(io.clone(), &data(), one_batch_each()).unwrap();
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..=SEGMENTS {
        append_ok(&storage.journal, vec![admit(1, index, index)]);
        // Two copies of the state log, the active segment, and what is warm.
        assert!(disk.open_files() <= 2 + 1 + 16, "{}", disk.open_files());
    }
    let segments = storage.journal.segments();
    assert_eq!(segments.len() as u64, SEGMENTS);
    let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    assert_eq!(storage.journal.total_bytes(), bytes);
    now(storage.journal.close()).unwrap();
    drop(storage);

    let calls = count_calls(&disk);
    let storage = open_in(io.clone(), &data(), one_batch_each()).unwrap();
    let active = segments.last().unwrap().path.clone();
    assert_eq!(
        segments_asked(&calls, Call::Open),
        std::slice::from_ref(&active)
    );
    assert_eq!(segments_asked(&calls, Call::Read), [active]);
    assert_eq!(
        segments_asked(&calls, Call::Stat).len() as u64,
        SEGMENTS - 1
    );
    assert_eq!(storage.journal.total_bytes(), bytes);
    assert!(disk.open_files() <= 3);
    // Lookups all over it warm no more than the bound.
    for n in (0..SEGMENTS).step_by(97) {
        let offset = segments[usize::try_from(n).unwrap()].base_offset;
        let read = storage.journal.read_stamped(offset, u64::MAX, 1).unwrap();
        assert_eq!(read.batches[0].base_offset(), offset);
    }
    assert!(disk.open_files() <= 2 + 1 + 16, "{}", disk.open_files());
    let (warm, index_bytes) = io.warm.usage();
    assert!(
        warm <= 16 && index_bytes <= 1 << 20,
        "{warm}, {index_bytes}"
    );
}

/// One journal of many: they share state log, disk and what is warm.
fn open_group(io: &Io, state: &Arc<StateLog>, group: u64, cfg: JournalConfig) -> Arc<Journal> {
    let dir = group_dir(&data(), group);
    Journal::open(io.clone(), dir, Arc::clone(state), group, cfg).unwrap()
}

/// Groups 1 to `count`, with twenty segments each.
fn groups_with_segments(io: &Io, count: u64) -> (Arc<StateLog>, Vec<Arc<Journal>>) {
    let state = StateLog::open(io.clone(), &data().join("state")).unwrap();
    let journals: Vec<_> = (1..=count)
        .map(|group| open_group(io, &state, group, one_batch_each()))
        .collect();
    for (n, journal) in journals.iter().enumerate() {
        append_ok(journal, vec![blank(1, 0)]);
        for index in 1..=20 {
            append_ok(journal, vec![admit_for(n as u64 + 1, 1, index, index)]);
        }
    }
    (state, journals)
}

#[test]
fn many_groups_share_one_bound_on_open_files() {
    let disk = SimDisk::new();
    let io = sim_io(&disk).with_warm_files(WarmFiles::new(8, 1 << 20));
    let (_state, journals) = groups_with_segments(&io, 40);
    for journal in &journals {
        assert_eq!(read_all(journal).len(), 21);
        assert!(disk.open_files() <= 2 + 40 + 8, "{}", disk.open_files());
    }
    drop(journals);
    assert_eq!(io.warm.usage(), (0, 0), "what is gone is not warm");
    assert_eq!(disk.open_files(), 2);
}

#[test]
fn bytes_of_indexes_are_bounded_for_all_groups_together() {
    let disk = SimDisk::new();
    // One index has one entry here, so a hundred bytes are three of them.
    let io = sim_io(&disk).with_warm_files(WarmFiles::new(1_000, 100));
    let (_state, journals) = groups_with_segments(&io, 3);
    for journal in &journals {
        assert_eq!(read_all(journal).len(), 21);
        let (warm, bytes) = io.warm.usage();
        assert!(bytes <= 100, "{warm} warm, {bytes} bytes");
    }
}

#[test]
fn a_trimmed_segment_that_was_warm_is_closed() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, one_batch_each());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..=20 {
        append_ok(&storage.journal, vec![admit(1, index, index)]);
    }
    read_all(&storage.journal);
    assert!(disk.open_files() > 15);
    now(storage.journal.trim(storage.journal.next_offset())).unwrap();
    now(storage.journal.purge(at(1, 20))).unwrap();
    assert_eq!(disk.open_files(), 3, "their space is free at once");
}

#[test]
fn a_start_after_a_kill_reads_active_segments_and_nothing_else() {
    for loss in [Loss::KeepAll, Loss::DropAll] {
        let disk = SimDisk::new();
        let (state, journals) = groups_with_segments(&sim_io(&disk), 5);
        let active: Vec<PathBuf> = journals
            .iter()
            .map(|journal| journal.segments().pop().unwrap().path)
            .collect();
        drop((state, journals));
        disk.crash(1, loss);
        let calls = count_calls(&disk);
        let io = sim_io(&disk);
        let state = StateLog::open(io.clone(), &data().join("state")).unwrap();
        let journals: Vec<_> = (1..=5)
            .map(|group| open_group(&io, &state, group, one_batch_each()))
            .collect();
        assert_eq!(segments_asked(&calls, Call::Read), active, "{loss:?}");
        assert_eq!(segments_asked(&calls, Call::Open), active, "{loss:?}");
        assert!(
            journals
                .iter()
                .all(|journal| journal.segments().len() == 20)
        );
    }
}
