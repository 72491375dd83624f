//! A disk without room: nothing is acknowledged, nothing fails, nothing is lost, and all goes on when there is room again.

mod journal_support;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use imprint_raft::disk::sim::{Call, Loss, SimDisk};
use imprint_raft::disk::{Disk, InlineOffload, Io, OpenMode};
use imprint_raft::journal::{JournalConfig, VoteRecord};
use journal_support::*;

/// What has no room.
type Fits = fn(Call, &Path) -> bool;

fn segment_write(call: Call, path: &Path) -> bool {
    call == Call::Write && path.extension().is_some_and(|ext| ext == "seg")
}

fn new_segment(call: Call, path: &Path) -> bool {
    call == Call::Create && path.extension().is_some_and(|ext| ext == "seg")
}

fn state_write(call: Call, path: &Path) -> bool {
    call == Call::Write && path.extension().is_some_and(|ext| ext == "log")
}

fn one_copy(call: Call, path: &Path) -> bool {
    call == Call::Write && path.ends_with("b.log")
}

fn fill(disk: &SimDisk, full: Fits) {
    disk.set_fault(Some(Box::new(move |call, path| {
        full(call, path).then(|| io::ErrorKind::StorageFull.into())
    })));
}

/// A node's storage on a disk that somebody watches; counts failures that would end the process.
fn attended(disk: &SimDisk, cfg: JournalConfig) -> (Storage, Arc<AtomicU64>) {
    let fatal = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&fatal);
    let hook = Arc::new(move |_: &str| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let io: Io = io_on(Arc::new(disk.clone()), Arc::new(InlineOffload)).with_fatal_hook(hook);
    io.space.attend();
    let storage = open_in(io, &data(), cfg).expect("an empty disk");
    append_ok(&storage.journal, vec![blank(1, 0), admit(1, 1, 1)]);
    (storage, fatal)
}

/// Appends while there is no room: nobody is told until there is, then everybody that it is synced.
fn waits_and_goes_on(full: Fits) {
    let disk = SimDisk::new();
    let (storage, fatal) = attended(&disk, small());
    let (journal, space) = (&storage.journal, &storage.io.space);
    fill(&disk, full);
    let outcomes: Vec<_> = (2..40)
        .map(|index| {
            let entry = if index % 7 == 0 {
                membership(1, index, b"members")
            } else {
                admit(1, index, index)
            };
            append(journal, vec![entry]).expect("appends are taken")
        })
        .collect();
    let waiting = outcomes.iter().filter(|o| o.lock().is_none()).count();
    assert!(waiting > 0, "all of it found room");
    assert!(space.is_full() && space.waiting() > 0);
    space.retry();
    let still = outcomes.iter().filter(|o| o.lock().is_none()).count();
    assert_eq!(still, waiting, "told although there is still no room");

    disk.set_fault(None);
    space.retry();
    let synced = |o: &Outcome| matches!(*o.lock(), Some(Ok(())));
    assert!(outcomes.iter().all(synced), "not all are synced");
    assert_eq!((space.waiting(), fatal.load(Ordering::Relaxed)), (0, 0));
    let before = read_all(journal);
    assert_eq!(before.len(), 40);
    disk.crash(1, Loss::DropAll);
    let again = open_sim(&disk, small());
    assert_eq!(read_all(&again.journal), before, "after a power cut");
}

#[test]
fn a_write_without_room_is_done_when_there_is_some() {
    waits_and_goes_on(segment_write);
}

#[test]
fn a_roll_without_room_is_done_when_there_is_some() {
    waits_and_goes_on(new_segment);
}

#[test]
fn control_entries_without_room_are_synced_when_there_is_some() {
    waits_and_goes_on(state_write);
}

#[test]
fn a_full_disk_under_one_copy_of_the_state_log_holds_up_both() {
    waits_and_goes_on(one_copy);
}

#[test]
fn a_vote_waits_for_room_and_is_synced_then() {
    let disk = SimDisk::new();
    let (storage, _) = attended(&disk, small());
    fill(&disk, state_write);
    let vote = VoteRecord {
        term: 9,
        voted_for: Some(3),
        committed: false,
    };
    let saved = storage.journal.save_vote(vote);
    let mut saved = std::pin::pin!(saved);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(saved.as_mut().poll(&mut context).is_pending());
    disk.set_fault(None);
    storage.io.space.retry();
    assert!(saved.as_mut().poll(&mut context).is_ready());
    disk.crash(2, Loss::DropAll);
    let again = open_sim(&disk, small());
    assert_eq!(again.journal.vote(), Some(vote));
}

#[test]
fn the_reserve_lets_a_write_through_at_once() {
    let disk = SimDisk::new();
    let (storage, fatal) = attended(&disk, small());
    let reserve = data().join("reserve");
    disk.open(&reserve, OpenMode::CreateNew).expect("made");
    storage.io.space.set_reserve(reserve.clone());
    let there = disk.clone();
    let path = reserve.clone();
    let full = Arc::new(AtomicU64::new(1));
    let is_full = Arc::clone(&full);
    disk.set_fault(Some(Box::new(move |call, at| {
        if call == Call::Remove && at == path {
            is_full.store(0, Ordering::Relaxed);
        }
        let full = is_full.load(Ordering::Relaxed) == 1;
        (full && segment_write(call, at)).then(|| io::ErrorKind::StorageFull.into())
    })));
    append_ok(&storage.journal, vec![admit(1, 2, 2)]);
    assert!(!there.exists(&reserve).expect("a live disk"));
    assert!(storage.io.space.is_full(), "the node has to know");
    assert_eq!(fatal.load(Ordering::Relaxed), 0);
}

#[test]
fn a_log_that_stops_waiting_fails_what_is_pending_and_the_process_goes_on() {
    let disk = SimDisk::new();
    let (storage, fatal) = attended(&disk, small());
    fill(&disk, segment_write);
    let pending = append(&storage.journal, vec![admit(1, 2, 2)]).expect("taken");
    assert!(pending.lock().is_none());
    storage.journal.stop_waiting();
    assert!(matches!(*pending.lock(), Some(Err(_))), "it was told");
    assert!(append(&storage.journal, vec![admit(1, 3, 3)]).is_err());
    now(storage.journal.drop_group()).expect("a log without room can be dropped");
    assert!(!disk.exists(&group_dir(&data())).expect("a live disk"));
    assert_eq!(fatal.load(Ordering::Relaxed), 0);
}

#[test]
fn a_closed_gate_ends_every_wait() {
    let disk = SimDisk::new();
    let (storage, fatal) = attended(&disk, small());
    fill(&disk, |call, path| {
        segment_write(call, path) || state_write(call, path)
    });
    let pending = append(&storage.journal, vec![admit(1, 2, 2)]).expect("taken");
    storage.io.space.close();
    assert!(matches!(*pending.lock(), Some(Err(_))), "it was told");
    let vote = VoteRecord {
        term: 9,
        voted_for: None,
        committed: false,
    };
    assert!(now(storage.journal.save_vote(vote)).is_err());
    assert_eq!(fatal.load(Ordering::Relaxed), 0);
}

#[test]
fn a_sync_that_finds_no_space_is_final() {
    let disk = SimDisk::new();
    let (storage, fatal) = attended(&disk, small());
    fill(&disk, |call, path| {
        call == Call::Sync && path.extension().is_some_and(|ext| ext == "seg")
    });
    let failed = append(&storage.journal, vec![admit(1, 2, 2)]).expect("taken");
    assert!(matches!(*failed.lock(), Some(Err(_))));
    assert_eq!(
        (storage.io.space.waiting(), fatal.load(Ordering::Relaxed)),
        (0, 1)
    );
}

#[test]
fn a_rewriting_of_the_state_log_without_room_changes_nothing() {
    let disk = SimDisk::new();
    let (storage, fatal) = attended(&disk, small());
    fill(&disk, |call, path| {
        call == Call::Write && path.to_string_lossy().ends_with("b.log.new")
    });
    static LONG: [u8; 60_000] = [7; 60_000];
    for index in 2..40 {
        append_ok(&storage.journal, vec![membership(1, index, &LONG)]);
    }
    assert!(
        storage.state.len_bytes() > 2 << 20,
        "it was to be rewritten"
    );
    assert_eq!(fatal.load(Ordering::Relaxed), 0);
    let before = read_all(&storage.journal);
    disk.crash(3, Loss::DropAll);
    let again = open_sim(&disk, small());
    assert_eq!(read_all(&again.journal), before);
}

#[test]
fn a_failed_sync_of_zeros_ahead_is_final_too() {
    let disk = SimDisk::new();
    let (storage, fatal) = attended(&disk, JournalConfig::default());
    let syncs = Arc::new(AtomicU64::new(0));
    let path = storage.journal.segments()[0].path.clone();
    disk.set_fault(Some(Box::new(move |call, at| {
        let second = call == Call::Sync && at == path && syncs.fetch_add(1, Ordering::Relaxed) == 1;
        second.then(|| io::Error::other("the medium"))
    })));
    let mut index = 2;
    while fatal.load(Ordering::Relaxed) == 0 && index < 100_000 {
        if append(&storage.journal, vec![admit(1, index, index)]).is_err() {
            break;
        }
        index += 1;
    }
    assert_eq!(fatal.load(Ordering::Relaxed), 1);
    assert!(append(&storage.journal, vec![admit(1, index, 1)]).is_err());
}
