//! The state log: group commit, marks, damage to one or both copies, torn tails, rewriting.

mod journal_support;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use imprint_raft::disk::sim::{Call, Loss, SimDisk};
use imprint_raft::disk::{Disk, Io};
use imprint_raft::statelog::{
    Control, ControlKind, LogPos, NodeState, Presence, Record, StateLog, StateLogError, VoteRecord,
};
use journal_support::*;
use parking_lot::Mutex;
use proptest::prelude::*;

fn dir() -> PathBuf {
    data().join("state")
}

fn copy(name: &str) -> PathBuf {
    dir().join(name)
}

fn open(disk: &SimDisk) -> Result<Arc<StateLog>, StateLogError> {
    StateLog::open(sim_io(disk), &dir())
}

fn vote(group: u64, term: u64) -> Record {
    let vote = VoteRecord {
        term,
        voted_for: Some(1),
        committed: false,
    };
    Record::Vote { group, vote }
}

fn control(group: u64, index: u64, len: usize) -> Record {
    let kind = ControlKind::Membership(vec![7; len].into());
    Record::Control {
        group,
        index,
        control: Control {
            term: 1,
            offset: index,
            kind,
        },
    }
}

fn term(log: &StateLog, group: u64) -> u64 {
    log.group(group)
        .and_then(|state| state.vote)
        .map_or(0, |vote| vote.term)
}

/// A log of five votes of one group, each synced by itself.
fn five_votes(disk: &SimDisk) -> Arc<StateLog> {
    let log = open(disk).unwrap();
    for term in 1..=5 {
        log.append_blocking(vec![vote(1, term)]).unwrap();
    }
    log
}

#[test]
fn what_was_synced_is_there_after_a_power_cut() {
    let disk = SimDisk::new();
    drop(five_votes(&disk));
    disk.crash(0, Loss::DropAll);
    assert_eq!(term(&open(&disk).unwrap(), 1), 5);
}

#[test]
fn appends_that_arrive_during_a_sync_share_the_next() {
    let disk = SimDisk::new();
    let offload = ManualOffload::default();
    let log = StateLog::open(
        io_on(Arc::new(disk.clone()), Arc::new(offload.clone())),
        &dir(),
    )
    .unwrap();
    let before = disk.syncs(&copy("a.log"));
    let told = Arc::new(AtomicU32::new(0));
    for n in 1..=10 {
        let told = Arc::clone(&told);
        let done = move |result: std::io::Result<()>| {
            result.unwrap();
            told.fetch_add(1, Ordering::Relaxed);
        };
        log.append(vec![vote(n, n)], Box::new(done));
    }
    assert_eq!(told.load(Ordering::Relaxed), 0);
    offload.run_all();
    assert_eq!(told.load(Ordering::Relaxed), 10);
    assert_eq!(disk.syncs(&copy("a.log")), before + 1);
    assert_eq!(
        disk.contents(&copy("a.log")).unwrap(),
        disk.contents(&copy("b.log")).unwrap()
    );
}

#[test]
fn marks_wait_for_the_next_sync_or_for_the_flush() {
    let disk = SimDisk::new();
    let log = five_votes(&disk);
    let syncs = || disk.syncs(&copy("a.log"));
    let before = syncs();
    log.flush_lazy();
    log.note_synced(1, 10);
    log.note_committed(1, LogPos { term: 5, index: 3 });
    log.note_synced(1, 20);
    assert_eq!(syncs(), before);
    log.flush_lazy();
    log.flush_lazy();
    assert_eq!(syncs(), before + 1);
    log.note_synced(1, 30);
    log.append_blocking(vec![vote(2, 1)]).unwrap();
    assert_eq!(syncs(), before + 2);
    log.note_synced(1, 40);
    drop(log);
    disk.crash(0, Loss::DropAll);
    let marks = open(&disk).unwrap().group(1).unwrap().marks;
    assert_eq!(
        (marks.synced_offset, marks.committed),
        (30, Some(LogPos { term: 5, index: 3 }))
    );
}

#[test]
fn late_marks_do_not_bring_a_dropped_group_back() {
    let disk = SimDisk::new();
    let log = five_votes(&disk);
    log.note_synced(1, 10);
    log.append_blocking(vec![Record::Dropped { group: 1 }])
        .unwrap();
    log.note_committed(1, LogPos { term: 1, index: 1 });
    log.flush_lazy();
    log.append_blocking(vec![vote(2, 1)]).unwrap();
    assert_eq!(log.groups(), [2]);
    drop(log);
    assert_eq!(open(&disk).unwrap().groups(), [2]);
}

#[test]
fn damage_anywhere_in_one_copy_is_mended_from_the_other() {
    for (bad, good) in [("a.log", "b.log"), ("b.log", "a.log")] {
        let disk = SimDisk::new();
        drop(five_votes(&disk));
        let whole = disk.contents(&copy(good)).unwrap();
        for pos in (0..whole.len() as u64).step_by(7) {
            disk.rot(&copy(bad), pos).unwrap();
            assert_eq!(term(&open(&disk).unwrap(), 1), 5, "byte {pos}");
            assert_eq!(disk.contents(&copy(bad)).unwrap(), whole);
            assert_eq!(disk.contents(&copy(good)).unwrap(), whole);
        }
    }
}

#[test]
fn a_missing_copy_is_mended() {
    let disk = SimDisk::new();
    drop(five_votes(&disk));
    disk.remove_file(&copy("a.log")).unwrap();
    assert_eq!(term(&open(&disk).unwrap(), 1), 5);
    assert_eq!(
        disk.contents(&copy("a.log")).unwrap(),
        disk.contents(&copy("b.log")).unwrap()
    );
}

#[test]
fn damage_in_both_copies_is_mended_where_it_does_not_meet() {
    let disk = SimDisk::new();
    drop(five_votes(&disk));
    let whole = disk.contents(&copy("a.log")).unwrap();
    disk.rot(&copy("a.log"), 60).unwrap();
    disk.rot(&copy("b.log"), whole.len() as u64 - 20).unwrap();
    assert_eq!(term(&open(&disk).unwrap(), 1), 5);
    assert_eq!(disk.contents(&copy("a.log")).unwrap(), whole);
}

#[test]
fn the_same_damage_in_both_copies_below_the_end_is_refused_and_nothing_changed() {
    let disk = SimDisk::new();
    drop(five_votes(&disk));
    for name in ["a.log", "b.log"] {
        disk.rot(&copy(name), 120).unwrap();
    }
    let before = disk.contents(&copy("a.log")).unwrap();
    let error = open(&disk).unwrap_err();
    assert!(matches!(&error, StateLogError::Damaged { .. }));
    assert!(error.to_string().contains("/data/state"), "{error}");
    assert_eq!(disk.contents(&copy("a.log")).unwrap(), before);
}

#[test]
fn a_torn_tail_is_cut_and_kept_aside() {
    let disk = SimDisk::new();
    let log = five_votes(&disk);
    let good = disk.contents(&copy("a.log")).unwrap();
    log.append_blocking(vec![vote(1, 6)]).unwrap();
    drop(log);
    for name in ["a.log", "b.log"] {
        disk.rot(&copy(name), good.len() as u64 + 80).unwrap();
    }
    let log = open(&disk).unwrap();
    assert_eq!(term(&log, 1), 5);
    log.append_blocking(vec![vote(1, 7)]).unwrap();
    drop(log);
    assert_eq!(term(&open(&disk).unwrap(), 1), 7);
    let quarantined = disk.list(&data().join("quarantine")).unwrap();
    assert_eq!(quarantined.len(), 2, "{quarantined:?}");
}

/// Makes the record at the front one that only readers from `version` on may read, checksum included.
fn ask_for_version(frame: &mut [u8], version: u8) {
    let (front, payload) = frame.split_at_mut(12);
    payload[..2].fill(version);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&front[4..8]), payload_of(front, payload));
    front[8..].copy_from_slice(&sum.to_le_bytes());
}

fn payload_of<'a>(front: &[u8], payload: &'a [u8]) -> &'a [u8] {
    &payload[..u32::from_le_bytes(front[4..8].try_into().unwrap()) as usize]
}

#[test]
fn a_record_of_a_newer_version_is_refused_and_not_taken_for_a_torn_tail() {
    let disk = SimDisk::new();
    let log = five_votes(&disk);
    let end = disk.contents(&copy("a.log")).unwrap().len();
    log.append_blocking(vec![vote(1, 6)]).unwrap();
    drop(log);
    for name in ["a.log", "b.log"] {
        disk.rewrite(&copy(name), |bytes| ask_for_version(&mut bytes[end..], 200))
            .unwrap();
    }
    assert!(matches!(open(&disk), Err(StateLogError::Damaged { .. })));
}

#[test]
fn a_missing_log_is_refused_where_there_must_be_one() {
    let disk = SimDisk::new();
    let missing = StateLog::open_with(sim_io(&disk), &dir(), Presence::MustExist);
    assert!(matches!(missing, Err(StateLogError::Missing { .. })));
    drop(open(&disk).unwrap());
    StateLog::open_with(sim_io(&disk), &dir(), Presence::MustExist).unwrap();
}

#[test]
fn an_old_log_is_rewritten_and_says_the_same() {
    let disk = SimDisk::new();
    let log = open(&disk).unwrap();
    let mut largest = 0;
    for n in 0..300 {
        log.append_blocking(vec![vote(n % 5, n), control(1, 5, 8_000)])
            .unwrap();
        largest = largest.max(log.len_bytes());
    }
    assert!(
        largest < 1_100_000 && log.len_bytes() < largest,
        "{largest}, {}",
        log.len_bytes()
    );
    let groups: Vec<_> = log.groups().iter().map(|group| log.group(*group)).collect();
    drop(log);
    disk.crash(0, Loss::DropAll);
    let log = open(&disk).unwrap();
    assert_eq!(
        log.groups()
            .iter()
            .map(|group| log.group(*group))
            .collect::<Vec<_>>(),
        groups
    );
}

#[test]
fn the_power_may_go_at_any_moment_of_a_rewriting() {
    for loss in [Loss::DropAll, Loss::Tear] {
        for n in 1..20 {
            let disk = SimDisk::new();
            let log = open(&disk).unwrap();
            log.append_blocking(vec![control(1, 5, 1 << 20)]).unwrap();
            log.append_blocking(vec![control(1, 5, 10)]).unwrap();
            let mut acknowledged = 0;
            disk.power_off_at(disk.changes() + n);
            for term in 1..5 {
                if log
                    .append_blocking(vec![vote(1, term), control(1, 6, 1 << 20)])
                    .is_ok()
                {
                    acknowledged = term;
                }
            }
            drop(log);
            disk.crash(n, loss);
            assert!(
                term(&open(&disk).unwrap(), 1) >= acknowledged,
                "{loss:?} at {n}"
            );
        }
    }
}

#[test]
fn a_failed_sync_is_final() {
    let disk = SimDisk::new();
    let reasons: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&reasons);
    let io: Io =
        sim_io(&disk).with_fatal_hook(Arc::new(move |reason| told.lock().push(reason.to_owned())));
    let log = StateLog::open(io, &dir()).unwrap();
    log.append_blocking(vec![vote(1, 1)]).unwrap();
    let mut once = Some(std::io::Error::other("lost power to the platters"));
    disk.set_fault(Some(Box::new(move |call, _| {
        (call == Call::Sync).then(|| once.take()).flatten()
    })));
    log.append_blocking(vec![vote(1, 2)]).unwrap_err();
    log.append_blocking(vec![vote(1, 3)]).unwrap_err();
    log.flush_lazy();
    assert_eq!(term(&log, 1), 1);
    let reasons = reasons.lock();
    let [reason] = reasons.as_slice() else {
        panic!("{reasons:?}")
    };
    assert!(reason.contains("platters"), "{reason}");
}

fn any_kind() -> impl Strategy<Value = ControlKind> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40).prop_map(bytes::Bytes::from);
    prop_oneof![
        Just(ControlKind::Blank),
        bytes().prop_map(ControlKind::Membership),
        any::<u64>().prop_map(|upto| ControlKind::Trim { upto }),
        bytes().prop_map(ControlKind::Void),
    ]
}

fn any_record() -> impl Strategy<Value = Record> {
    let group = 0_u64..3;
    let control = (0_u64..50, 0_u64..9, 0_u64..99, any_kind());
    prop_oneof![
        (
            group.clone(),
            any::<u64>(),
            any::<Option<u64>>(),
            any::<bool>()
        )
            .prop_map(|(group, term, voted_for, committed)| Record::Vote {
                group,
                vote: VoteRecord {
                    term,
                    voted_for,
                    committed
                }
            }),
        (group.clone(), control).prop_map(|(group, (index, term, offset, kind))| Record::Control {
            group,
            index,
            control: Control { term, offset, kind }
        }),
        (group.clone(), any::<u64>(), any::<u64>()).prop_map(|(group, term, index)| {
            Record::Purged {
                group,
                pos: LogPos { term, index },
            }
        }),
        (group.clone(), 0_u64..60)
            .prop_map(|(group, below)| Record::ControlsDropped { group, below }),
        (group.clone(), any::<u64>()).prop_map(|(group, start_offset)| Record::Start {
            group,
            start_offset
        }),
        (group.clone(), any::<u64>())
            .prop_map(|(group, replica)| Record::Replica { group, replica }),
        group.prop_map(|group| Record::Dropped { group }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is read back is what the records add up to, and so is what the state itself is written as.
    #[test]
    fn reading_back_gives_the_sum_of_the_records(records in prop::collection::vec(any_record(), 0..30)) {
        let disk = SimDisk::new();
        let log = open(&disk).unwrap();
        let mut expected = NodeState::default();
        for record in &records {
            expected.apply(record);
            log.append_blocking(vec![record.clone()]).unwrap();
        }
        drop(log);
        let log = open(&disk).unwrap();
        let mut rewritten = NodeState::default();
        expected.records().for_each(|record| rewritten.apply(&record));
        prop_assert_eq!(&rewritten, &expected);
        let found: Vec<_> = log.groups().iter().map(|group| (*group, log.group(*group).unwrap())).collect();
        prop_assert_eq!(found, expected.groups.into_iter().collect::<Vec<_>>());
    }
}
