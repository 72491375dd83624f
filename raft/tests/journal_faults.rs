//! The writer: what shares a sync, what is synced before what, what a failure does, what stays bounded.

mod journal_support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imprint_raft::disk::sim::{Call, Loss, SimDisk};
use imprint_raft::disk::{Disk, WarmFiles};
use imprint_raft::journal::{AppendError, Journal, JournalConfig, VoteRecord};
use journal_support::history::{History, Op};
use journal_support::*;
use parking_lot::Mutex;

fn manual(disk: &SimDisk, cfg: JournalConfig) -> (ManualOffload, Storage) {
    let offload = ManualOffload::default();
    let io = io_on(Arc::new(disk.clone()), Arc::new(offload.clone()));
    (offload, open_in(io, &data(), cfg).unwrap())
}

fn is_pending(outcome: &Outcome) -> bool {
    outcome.lock().is_none()
}

fn is_synced(outcome: &Outcome) -> bool {
    matches!(*outcome.lock(), Some(Ok(())))
}

/// No zeros ahead: each sync of the segment is then one of a group.
fn no_zeros() -> JournalConfig {
    JournalConfig {
        zero_step_bytes: 0,
        ..JournalConfig::default()
    }
}

#[test]
fn appends_that_arrive_during_a_sync_share_the_next() {
    let disk = SimDisk::new();
    let (offload, storage) = manual(&disk, no_zeros());
    let journal = &storage.journal;
    append(journal, vec![blank(1, 0), admit(1, 1, 1)]).unwrap();
    offload.run_all();
    let segment = journal.segments()[0].path.clone();
    let before = disk.syncs(&segment);
    let outcomes: Vec<_> = (2..30)
        .map(|index| append(journal, vec![admit(1, index, index)]).unwrap())
        .collect();
    assert!(outcomes.iter().all(is_pending));
    assert_eq!(
        journal.read(29, 30, 0).unwrap().len(),
        1,
        "readable before it is written"
    );
    assert!(journal.synced_offset() < journal.next_offset());
    offload.run_all();
    assert!(outcomes.iter().all(is_synced));
    assert_eq!(disk.syncs(&segment), before + 1);
    assert_eq!(journal.synced_offset(), journal.next_offset());
    assert_eq!(
        (journal.synced(), journal.unsynced_bytes()),
        (journal.last(), 0)
    );
}

#[test]
fn a_sync_group_is_bounded_in_bytes() {
    let disk = SimDisk::new();
    let cfg = JournalConfig {
        sync_group_bytes: 2_000,
        ..no_zeros()
    };
    let (offload, storage) = manual(&disk, cfg);
    append(&storage.journal, vec![blank(1, 0), admit(1, 1, 1)]).unwrap();
    offload.run_all();
    let segment = storage.journal.segments()[0].path.clone();
    let before = disk.syncs(&segment);
    let entries = (2..12).map(|index| admit(1, index, 2)).collect();
    append(&storage.journal, entries).unwrap();
    offload.run_all();
    assert!(disk.syncs(&segment) >= before + 3);
}

/// Every change of the disk, in order.
fn changes(disk: &SimDisk) -> Arc<Mutex<Vec<(Call, PathBuf)>>> {
    let seen: Arc<Mutex<Vec<(Call, PathBuf)>>> = Arc::default();
    let sink = Arc::clone(&seen);
    disk.set_fault(Some(Box::new(move |call, path| {
        sink.lock().push((call, path.to_owned()));
        None
    })));
    seen
}

fn kind(path: &Path) -> &'static str {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.as_ref() {
        "a.log" => "state",
        name if name.ends_with(".seg") => "segment",
        _ => "other",
    }
}

#[test]
fn data_control_entries_and_votes_are_synced_in_order() {
    let disk = SimDisk::new();
    let (offload, storage) = manual(&disk, no_zeros());
    append(&storage.journal, vec![blank(1, 0), admit(1, 1, 1)]).unwrap();
    offload.run_all();
    let seen = changes(&disk);
    append(
        &storage.journal,
        vec![admit(1, 2, 1), blank(2, 3), admit(2, 4, 1)],
    )
    .unwrap();
    let journal = Arc::clone(&storage.journal);
    let vote = VoteRecord {
        term: 3,
        voted_for: None,
        committed: false,
    };
    let mut voted = std::pin::pin!(async move { journal.save_vote(vote).await });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(voted.as_mut().poll(&mut context).is_pending());
    append(&storage.journal, vec![admit(2, 5, 1)]).unwrap();
    offload.run_all();
    assert!(voted.as_mut().poll(&mut context).is_ready());
    let writes = [Call::Write, Call::Sync];
    let order: Vec<_> = seen
        .lock()
        .iter()
        .filter(|(call, path)| writes.contains(call) && kind(path) != "other")
        .map(|(call, path)| (*call, kind(path)))
        .collect();
    let (segment, state) = (
        [(Call::Write, "segment"), (Call::Sync, "segment")],
        [(Call::Write, "state"), (Call::Sync, "state")],
    );
    assert_eq!(order, [segment, state, segment, state, segment].concat());
}

#[test]
fn a_new_segments_name_is_synced_before_its_first_batch_and_after_the_old_one() {
    let disk = SimDisk::new();
    let storage = open_sim(
        &disk,
        JournalConfig {
            segment_bytes: 500,
            ..no_zeros()
        },
    );
    append_ok(&storage.journal, vec![blank(1, 0), admit(1, 1, 1)]);
    let seen = changes(&disk);
    append_ok(&storage.journal, vec![admit(1, 2, 1)]);
    let calls: Vec<_> = seen
        .lock()
        .iter()
        .map(|(call, _)| *call)
        .filter(|call| !matches!(call, Call::Read | Call::Open))
        .collect();
    assert_eq!(
        calls,
        [
            Call::Sync,
            Call::Create,
            Call::SyncDir,
            // The old one's digest: in the background, which is here and now with inline jobs.
            Call::Create,
            Call::Write,
            Call::Sync,
            Call::Rename,
            Call::SyncDir,
            Call::Write,
            Call::Sync
        ]
    );
}

#[test]
fn a_failed_sync_fails_what_is_pending_and_what_comes_and_is_reported_once() {
    for failing in [Call::Write, Call::Sync, Call::Create, Call::SyncDir] {
        let disk = SimDisk::new();
        let reasons: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = Arc::clone(&reasons);
        let offload = ManualOffload::default();
        let io = io_on(Arc::new(disk.clone()), Arc::new(offload.clone()))
            .with_fatal_hook(Arc::new(move |reason| sink.lock().push(reason.to_owned())));
        let cfg = JournalConfig {
            segment_bytes: 1_000,
            ..no_zeros()
        };
        let journal = open_in(io, &data(), cfg).unwrap().journal;
        append(&journal, vec![blank(1, 0), admit(1, 1, 1)]).unwrap();
        offload.run_all();
        let synced = journal.synced();
        disk.set_fault(Some(Box::new(move |call, path| {
            let here = path.starts_with(data().join("groups"));
            (call == failing && here).then(|| std::io::Error::other("bad sector"))
        })));
        let outcomes: Vec<_> = (2..6)
            .map(|index| append(&journal, vec![admit(1, index, 1)]).unwrap())
            .collect();
        offload.run_all();
        disk.set_fault(None);
        let failed = outcomes
            .iter()
            .filter(|outcome| matches!(*outcome.lock(), Some(Err(_))))
            .count();
        assert!(failed > 0, "{failing:?}");
        assert!(outcomes.iter().all(|outcome| !is_pending(outcome)));
        assert!(matches!(
            append(&journal, vec![admit(1, 6, 1)]),
            Err(AppendError::Failed(_))
        ));
        assert!(
            now(journal.save_vote(VoteRecord {
                term: 9,
                voted_for: None,
                committed: false
            }))
            .is_err()
        );
        assert!(now(journal.truncate_after(Some(1))).is_err());
        assert!(journal.synced() >= synced);
        let reasons = reasons.lock();
        let [reason] = reasons.as_slice() else {
            panic!("{reasons:?}")
        };
        assert!(reason.contains("bad sector"), "{reason}");
    }
}

#[test]
fn a_failed_state_log_fails_the_journal() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, small());
    append_ok(&storage.journal, vec![blank(1, 0), admit(1, 1, 1)]);
    disk.set_fault(Some(Box::new(|call, path| {
        (call == Call::Sync && kind(path) == "state").then(|| std::io::Error::other("bad sector"))
    })));
    let outcome = append(&storage.journal, vec![blank(2, 2)]).unwrap();
    assert!(matches!(*outcome.lock(), Some(Err(_))));
    assert!(append(&storage.journal, vec![admit(2, 3, 1)]).is_err());
}

#[test]
fn a_callback_may_append() {
    fn chain(journal: &Arc<Journal>, index: u64) {
        let next = Arc::clone(journal);
        let done = move |result: std::io::Result<()>| {
            result.unwrap();
            if index < 50 {
                chain(&next, index + 1);
            }
        };
        let entry = if index.is_multiple_of(7) {
            blank(1, index)
        } else {
            admit(1, index, index)
        };
        journal.append(vec![entry], Box::new(done)).unwrap();
    }
    let disk = SimDisk::new();
    let journal = open_sim(&disk, small()).journal;
    chain(&journal, 0);
    assert_eq!(
        (journal.last(), journal.synced()),
        (Some(at(1, 50)), Some(at(1, 50)))
    );
}

#[test]
fn an_append_waits_for_room() {
    let disk = SimDisk::new();
    let (offload, storage) = manual(
        &disk,
        JournalConfig {
            max_unsynced_bytes: 1_000,
            ..small()
        },
    );
    append(
        &storage.journal,
        vec![blank(1, 0), admit(1, 1, 2), admit(1, 2, 2)],
    )
    .unwrap();
    let mut room = std::pin::pin!(storage.journal.wait_for_room());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(room.as_mut().poll(&mut context).is_pending());
    offload.run_all();
    assert!(room.as_mut().poll(&mut context).is_ready());
}

#[test]
fn zeros_lie_ahead_of_small_appends_and_are_cut_when_the_segment_is_sealed() {
    let disk = SimDisk::new();
    let cfg = JournalConfig {
        segment_bytes: 20_000,
        zero_step_bytes: 4_096,
        ..JournalConfig::default()
    };
    let journal = open_sim(&disk, cfg).journal;
    append_ok(&journal, vec![blank(1, 0), admit(1, 1, 1)]);
    let first = journal.segments()[0].path.clone();
    for index in 2..30 {
        let len = disk.contents(&first).unwrap().len();
        let end = journal.total_bytes();
        assert!(
            len as u64 >= end + 2_048,
            "{len} bytes in the file, {end} of batches"
        );
        append_ok(&journal, vec![admit(1, index, 1)]);
        assert!(disk.contents(&first).unwrap().len() >= len);
    }
    append_ok(&journal, (30..80).map(|index| admit(1, index, 1)).collect());
    let sealed = journal.segments()[0].clone();
    assert!(sealed.sealed);
    assert_eq!(disk.contents(&first).unwrap().len() as u64, sealed.bytes);
}

#[test]
fn files_and_memory_stay_bounded_however_long_the_log() {
    let disk = SimDisk::new();
    let io = sim_io(&disk).with_warm_files(WarmFiles::new(2, 1 << 20));
    let storage = open_in(io, &data(), small()).unwrap();
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..200 {
        append_ok(&storage.journal, vec![admit(1, index, index)]);
        assert!(
            disk.open_files() <= 5,
            "two of the state log, the active, two warm"
        );
    }
    assert!(storage.journal.segments().len() > 20);
    assert_eq!(read_all(&storage.journal).len(), 200);
    assert!(disk.open_files() <= 5);
    assert!(
        storage.journal.read_cached(1, 2, 0).is_none(),
        "not in memory any more"
    );
    assert!(storage.journal.read_cached(199, 200, 0).is_some());
    drop(storage);
    let _storage = open_sim(&disk, small());
    assert!(
        disk.open_files() <= 3,
        "a sealed segment is opened when it is read"
    );
}

#[test]
fn a_dropped_group_leaves_nothing() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, small());
    append_ok(&storage.journal, vec![blank(1, 0), admit(1, 1, 1)]);
    now(storage.journal.drop_group()).unwrap();
    assert!(!disk.exists(storage.journal.dir()).unwrap());
    assert!(matches!(
        append(&storage.journal, vec![admit(1, 2, 1)]),
        Err(AppendError::Closed)
    ));
    drop(storage);
    disk.crash(0, Loss::DropAll);
    let storage = open_sim(&disk, small());
    assert_eq!(
        (storage.journal.last(), storage.journal.next_offset()),
        (None, 0)
    );
}

/// The model has to notice a disk whose syncs do nothing.
#[test]
fn a_disk_that_lies_is_noticed() {
    let lost = catch_unwind(AssertUnwindSafe(|| {
        let mut history = History::new(small());
        history.open().unwrap();
        history.run(&[Op::Elected(3), Op::Flush]);
        history.disk.ignore_syncs(true);
        history.run(&[Op::Data(5), Op::Vote]);
        history.crash(1, Loss::DropAll);
    }));
    assert!(lost.is_err());
}
