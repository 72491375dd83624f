//! Repair: what is damaged or missing on one replica is put together again from another one's bytes.

mod journal_support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use imprint_raft::disk::Disk;
use imprint_raft::disk::sim::{Loss, SimDisk};
use imprint_raft::journal::{
    Journal, JournalConfig, Mend, OfferError, OpenError, RepairBatch, Rescue, RescueError,
    SegmentInfo, StartCut, StateLog,
};
use journal_support::*;

/// About five batches to a segment.
fn wide() -> JournalConfig {
    JournalConfig {
        segment_bytes: 4_000,
        tail_cache_bytes: 1_500,
        ..small()
    }
}

/// Data and control entries of several terms in several segments. The same calls give the same bytes on every disk.
fn filled(disk: &SimDisk) -> Storage {
    let storage = open_sim(disk, wide());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..40 {
        let entry = match index {
            8 | 21 | 33 => blank(index, index),
            12 => membership(8, index, b"members"),
            _ => admit(term(index), index, 2),
        };
        append_ok(&storage.journal, vec![entry]);
    }
    storage.state.flush_lazy();
    storage
}

fn term(index: u64) -> u64 {
    match index {
        0..8 => 1,
        8..21 => 8,
        21..33 => 21,
        _ => 33,
    }
}

fn segment_files(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|e| e == "seg");
    disk.files()
        .into_iter()
        .filter(is_segment)
        .map(|path| {
            let mut bytes = disk.contents(&path).unwrap();
            bytes.truncate(
                bytes
                    .iter()
                    .rposition(|byte| *byte != 0)
                    .map_or(0, |n| n + 1),
            );
            (path, bytes)
        })
        .collect()
}

/// Two replicas with the same log.
struct Pair {
    disk: SimDisk,
    peer_disk: SimDisk,
    peer: Storage,
}

impl Pair {
    fn new() -> (Self, Storage) {
        let (disk, peer_disk) = (SimDisk::new(), SimDisk::new());
        let (storage, peer) = (filled(&disk), filled(&peer_disk));
        let pair = Self {
            disk,
            peer_disk,
            peer,
        };
        pair.same();
        (pair, storage)
    }

    fn same(&self) {
        let (ours, theirs) = (segment_files(&self.disk), segment_files(&self.peer_disk));
        assert!(ours == theirs, "{:?} {:?}", ours.keys(), theirs.keys());
    }

    fn rescue(&self) -> Rescue {
        let io = sim_io(&self.disk);
        let state = StateLog::open(io.clone(), &data().join("state")).unwrap();
        Rescue::open(io, group_dir(&data()), state, GROUP).unwrap()
    }

    fn crash(&self, loss: Loss) {
        self.disk.crash(3, loss);
    }

    fn open(&self) -> Result<Storage, OpenError> {
        open_in(sim_io(&self.disk), &data(), wide())
    }

    fn reopen(&self, storage: Storage) -> Result<Storage, OpenError> {
        drop(storage);
        self.crash(Loss::DropAll);
        self.open()
    }
}

/// Fetches what a mend wants, in small answers.
fn fetch(mend: &mut Mend, peer: &Journal) {
    while let Some(wanted) = mend.wanted() {
        let offered = peer.read_for_repair(wanted.offset, 1_500).unwrap();
        assert!(!offered.is_empty(), "{wanted:?}");
        for batch in offered {
            match mend.offer(batch) {
                Ok(()) => {}
                Err(OfferError::BeginsEarlier { .. } | OfferError::NotWanted) => break,
                Err(OfferError::WrongPlace { .. }) if mend.wanted() != Some(wanted) => break,
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Every offset gives a batch or is known to be damaged.
fn unreadable(journal: &Journal) -> Vec<u64> {
    (journal.start_offset()..journal.next_offset())
        .filter(|offset| journal.read_stamped(*offset, u64::MAX, 0).is_err())
        .collect()
}

fn in_quarantine(disk: &SimDisk) -> Vec<String> {
    let quarantine = data().join("quarantine");
    disk.files()
        .into_iter()
        .filter(|path| path.starts_with(&quarantine))
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect()
}

type Damage = fn(&SimDisk, &Path);

/// Ways to damage a whole file.
const WAYS: [(&str, Damage); 7] = [
    ("one byte", |disk, path| disk.rot(path, 1_500).unwrap()),
    ("headers", |disk, path| {
        disk.rot(path, 20).unwrap();
        disk.rot(path, 2_133).unwrap();
    }),
    ("zeros", |disk, path| {
        disk.rewrite(path, |bytes| bytes[600..1_700].fill(0))
            .unwrap();
    }),
    ("cut", |disk, path| {
        disk.rewrite(path, |bytes| bytes.truncate(900)).unwrap()
    }),
    ("empty", |disk, path| {
        disk.rewrite(path, Vec::clear).unwrap()
    }),
    ("shifted", |disk, path| {
        disk.rewrite(path, |bytes| drop(bytes.splice(700..700, [7; 33])))
            .unwrap();
    }),
    ("gone", |disk, path| {
        disk.remove_file(path).unwrap();
        disk.sync_dir(path.parent().unwrap()).unwrap();
    }),
];

#[test]
fn a_sealed_segment_is_mended_while_the_journal_is_open() {
    for (way, damage) in WAYS {
        for n in [1, 2] {
            let (pair, storage) = Pair::new();
            let segment = storage.journal.segments()[n].clone();
            let storage = pair.reopen(storage).unwrap();
            damage(&pair.disk, &segment.path);
            let checked = storage
                .journal
                .check_segment(segment.base_offset, &mut |_| true)
                .unwrap();
            assert!(!checked.damage.is_empty(), "{way}");
            let mut mend = storage.journal.mend(segment.base_offset).unwrap();
            fetch(&mut mend, &pair.peer.journal);
            mend.finish().unwrap();
            pair.same();
            assert!(storage.journal.damage().is_empty(), "{way}");
            assert_eq!(
                read_all(&storage.journal),
                read_all(&pair.peer.journal),
                "{way}"
            );
            assert!(unreadable(&storage.journal).is_empty());
            let again = storage
                .journal
                .check_segment(segment.base_offset, &mut |_| true)
                .unwrap();
            assert!(again.damage.is_empty() && again.digest.is_some(), "{way}");
            let aside = in_quarantine(&pair.disk);
            assert!(
                aside.iter().all(|name| name.contains("-damaged-")),
                "{aside:?}"
            );
            let storage = pair.reopen(storage).unwrap();
            assert_eq!(
                read_all(&storage.journal),
                read_all(&pair.peer.journal),
                "{way}"
            );
        }
    }
}

#[test]
fn only_the_damaged_part_is_fetched() {
    let (pair, storage) = Pair::new();
    let segment = storage.journal.segments()[1].clone();
    pair.disk.rot(&segment.path, 1_500).unwrap();
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    let mut mend = storage.journal.mend(segment.base_offset).unwrap();
    let wanted = mend.wanted().unwrap();
    assert_eq!(
        (wanted.offset, wanted.upto_offset),
        (segment.base_offset + 6, segment.base_offset + 9)
    );
    fetch(&mut mend, &pair.peer.journal);
    assert_eq!(mend.finish().unwrap().fetched_batches, 1);
}

#[test]
fn a_segment_that_vanished_is_known_after_a_start_and_mended() {
    let (pair, storage) = Pair::new();
    let segment = storage.journal.segments()[2].clone();
    pair.disk.remove_file(&segment.path).unwrap();
    pair.disk.sync_dir(storage.journal.dir()).unwrap();
    let storage = pair.reopen(storage).unwrap();
    let [range] = storage.journal.damage().try_into().unwrap();
    assert_eq!(
        (range.from_offset, range.to_offset),
        (segment.base_offset, segment.end_offset)
    );
    let mut mend = storage.journal.mend(segment.base_offset).unwrap();
    fetch(&mut mend, &pair.peer.journal);
    mend.finish().unwrap();
    pair.same();
    assert_eq!(read_all(&storage.journal), read_all(&pair.peer.journal));
    assert!(storage.journal.damage().is_empty());
}

#[test]
fn segments_that_vanished_without_a_trace_are_found_by_a_check_and_mended_with_their_boundaries() {
    let (pair, storage) = Pair::new();
    let segments = storage.journal.segments();
    for gone in &segments[1..3] {
        for suffix in ["", ".digest"] {
            let name = format!("{}{suffix}", gone.path.display());
            pair.disk.remove_file(Path::new(&name)).unwrap();
        }
    }
    pair.disk.sync_dir(storage.journal.dir()).unwrap();
    let storage = pair.reopen(storage).unwrap();
    let checked = storage
        .journal
        .check_segment(segments[0].base_offset, &mut |_| true)
        .unwrap();
    assert_eq!(checked.damage[0].to_offset, segments[3].base_offset);
    let mut mend = storage.journal.mend(segments[0].base_offset).unwrap();
    fetch(&mut mend, &pair.peer.journal);
    assert_eq!(mend.finish().unwrap().segments.len(), 3);
    pair.same();
    assert_eq!(storage.journal.segments(), segments);
    assert_eq!(read_all(&storage.journal), read_all(&pair.peer.journal));
}

#[test]
fn an_older_copy_of_a_segment_is_replaced_as_a_whole() {
    let (pair, storage) = Pair::new();
    let segment = storage.journal.segments()[1].clone();
    let other_disk = SimDisk::new();
    let other = open_sim(&other_disk, wide());
    append_ok(&other.journal, vec![blank(1, 0), blank(1, 1)]);
    for index in 2..20 {
        append_ok(&other.journal, vec![admit(1, index, 5)]);
    }
    let foreign = other_disk
        .contents(&other.journal.segments()[1].path)
        .unwrap();
    pair.disk
        .rewrite(&segment.path, move |bytes| *bytes = foreign.clone())
        .unwrap();
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    let mut mend = storage.journal.mend(segment.base_offset).unwrap();
    assert_eq!(mend.wanted().unwrap().offset, segment.base_offset);
    fetch(&mut mend, &pair.peer.journal);
    mend.finish().unwrap();
    pair.same();
    assert!(storage.journal.damage().is_empty());
    assert!(in_quarantine(&pair.disk)[0].contains("-foreign-"));
}

#[test]
fn only_the_batch_that_the_control_entries_expect_is_taken() {
    let (pair, storage) = Pair::new();
    let segment = storage.journal.segments()[1].clone();
    pair.disk.rewrite(&segment.path, Vec::clear).unwrap();
    let mut mend = storage.journal.mend(segment.base_offset).unwrap();
    let right = pair
        .peer
        .journal
        .read_for_repair(segment.base_offset, 0)
        .unwrap()
        .remove(0);
    let wanted = mend.wanted().unwrap();
    assert_eq!(wanted.from, Some(right.pos));
    let other = pair
        .peer
        .journal
        .read_for_repair(segment.base_offset + 3, 0)
        .unwrap()
        .remove(0);
    let wrong = [
        RepairBatch {
            pos: at(right.pos.term, right.pos.index + 1),
            ..right.clone()
        },
        RepairBatch {
            pos: at(right.pos.term + 1, right.pos.index),
            ..right.clone()
        },
        RepairBatch {
            batch: other.batch.clone(),
            ..right.clone()
        },
        other,
    ];
    for offered in wrong {
        assert!(mend.offer(offered).is_err());
        assert_eq!(mend.wanted(), Some(wanted));
    }
    mend.offer(right).unwrap();
    assert!(mend.finish().is_err(), "not whole");
    assert!(
        !pair
            .disk
            .files()
            .iter()
            .any(|path| path.extension().is_some_and(|e| e == "mend"))
    );
}

#[test]
fn a_reader_that_holds_the_old_file_does_not_bring_the_damage_back() {
    let (pair, storage) = Pair::new();
    let segment = storage.journal.segments()[1].clone();
    assert!(
        unreadable(&storage.journal).is_empty(),
        "the file is open now"
    );
    pair.disk.rot(&segment.path, 1_500).unwrap();
    assert_eq!(unreadable(&storage.journal).len(), 3);
    let mut mend = storage.journal.mend(segment.base_offset).unwrap();
    fetch(&mut mend, &pair.peer.journal);
    mend.finish().unwrap();
    assert!(unreadable(&storage.journal).is_empty());
    assert!(storage.journal.damage().is_empty());
}

/// The active segment and those before: what a closed group lacks.
fn lacking(storage: &Storage) -> Vec<(&'static str, Vec<SegmentInfo>)> {
    let segments = storage.journal.segments();
    let (last, first) = (segments.len() - 1, 0);
    vec![
        ("active", vec![segments[last].clone()]),
        ("the last two", segments[last - 1..].to_vec()),
        ("first", vec![segments[first].clone()]),
        ("the first two", segments[..2].to_vec()),
        ("all", segments),
    ]
}

#[test]
fn a_closed_group_is_mended_and_opens() {
    let (_, storage) = Pair::new();
    let count = lacking(&storage).len();
    for n in 0..count {
        for (way, damage) in WAYS {
            let (pair, storage) = Pair::new();
            let (what, segments) = lacking(&storage).remove(n);
            // Damage to what is not active shows only if the file is gone.
            if (segments.len() > 1 || what == "first") && way != "gone" {
                continue;
            }
            let before = read_all(&storage.journal);
            for segment in &segments {
                damage(&pair.disk, &segment.path);
            }
            assert!(pair.reopen(storage).is_err(), "{what} {way}");
            let rescue = pair.rescue();
            assert!(!rescue.damage().is_empty());
            for mut mend in rescue.mends().unwrap() {
                fetch(&mut mend, &pair.peer.journal);
                mend.finish().unwrap();
            }
            drop(rescue);
            pair.crash(Loss::DropAll);
            let storage = pair.open().unwrap_or_else(|e| panic!("{what} {way}: {e}"));
            assert_eq!(read_all(&storage.journal), before, "{what} {way}");
            pair.same();
            append_ok(&storage.journal, vec![blank(50, 40), admit(50, 41, 2)]);
        }
    }
}

#[test]
fn a_trimmed_log_that_lost_its_first_segment_gets_it_back_from_its_begin() {
    let (pair, storage) = Pair::new();
    let segments = storage.journal.segments();
    let within = segments[2].base_offset + 4;
    for journal in [&storage.journal, &pair.peer.journal] {
        now(journal.purge(at(8, 14))).unwrap();
        now(journal.trim(within)).unwrap();
    }
    let kept = storage.journal.segments();
    pair.disk.remove_file(&kept[0].path).unwrap();
    pair.disk.sync_dir(storage.journal.dir()).unwrap();
    assert!(pair.reopen(storage).is_err());
    let rescue = pair.rescue();
    let mut mends = rescue.mends().unwrap();
    let mut mend = mends.remove(0);
    assert_eq!((mend.wanted().unwrap().offset, mends.len()), (within, 0));
    fetch(&mut mend, &pair.peer.journal);
    mend.finish().unwrap();
    drop(rescue);
    pair.crash(Loss::DropAll);
    let storage = pair.open().unwrap();
    assert_eq!(storage.journal.segments(), kept);
    pair.same();
}

#[test]
fn what_is_good_of_a_closed_group_is_handed_out_with_its_places() {
    let (pair, storage) = Pair::new();
    let active = storage.journal.segments().last().unwrap().clone();
    pair.disk.rot(&active.path, 900).unwrap();
    assert!(pair.reopen(storage).is_err());
    let rescue = pair.rescue();
    let bad = rescue.damage()[0].clone();
    let mut at = 0;
    while at < bad.from_offset {
        let ours = rescue.read(at, 1_500).unwrap();
        let theirs = pair.peer.journal.read_for_repair(at, 1_500).unwrap();
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs);
        }
        at = ours.last().unwrap().batch.next_offset();
    }
    assert_eq!(at, bad.from_offset);
    assert!(matches!(
        rescue.read(at, 1_500),
        Err(RescueError::NotCertain { .. })
    ));
}

#[test]
fn a_leaders_word_takes_the_tail_back_and_the_bytes_are_set_aside() {
    let (pair, storage) = Pair::new();
    let before = read_all(&storage.journal);
    let active = storage.journal.segments().last().unwrap().clone();
    pair.disk.rot(&active.path, 900).unwrap();
    assert!(pair.reopen(storage).is_err());
    let rescue = pair.rescue();
    let end = rescue.damage()[0].from_offset;
    assert!(matches!(
        pair.rescue().cut_tail(end + 1),
        Err(RescueError::NotCertain { .. })
    ));
    rescue.cut_tail(end).unwrap();
    pair.crash(Loss::DropAll);
    let storage = pair.open().unwrap();
    assert_eq!(storage.journal.next_offset(), end);
    let after = read_all(&storage.journal);
    assert_eq!(after[..], before[..after.len()]);
    assert!(in_quarantine(&pair.disk)[0].contains("-cut-by-leader-"));
    let next = storage.journal.last().unwrap().index + 1;
    append_ok(
        &storage.journal,
        vec![blank(60, next), admit(60, next + 1, 2)],
    );
    let after = read_all(&storage.journal);
    assert_eq!(read_all(&pair.reopen(storage).unwrap().journal), after);
}

#[test]
fn a_log_that_nobody_has_any_more_begins_behind_the_leaders_cut() {
    let (pair, storage) = Pair::new();
    for segment in storage.journal.segments() {
        pair.disk
            .rewrite(&segment.path, |bytes| bytes.truncate(300))
            .unwrap();
    }
    let end = storage.journal.next_offset();
    assert!(pair.reopen(storage).is_err());
    let cut = StartCut {
        upto: at(70, 90),
        next_offset: end + 100,
        membership: Some((at(70, 90), bytes::Bytes::from_static(b"m"))),
        settings: None,
    };
    pair.rescue().move_start(cut).unwrap();
    pair.crash(Loss::DropAll);
    let storage = pair.open().unwrap();
    let journal = &storage.journal;
    assert_eq!(
        (journal.start_offset(), journal.next_offset()),
        (end + 100, end + 100)
    );
    assert_eq!(
        (journal.last(), journal.purged()),
        (Some(at(70, 90)), Some(at(70, 90)))
    );
    assert!(!in_quarantine(&pair.disk).is_empty());
    append_ok(journal, vec![blank(71, 91), admit(71, 92, 2)]);
}

const LOSSES: [Loss; 3] = [Loss::DropAll, Loss::Tear, Loss::KeepAll];

#[test]
fn the_power_may_go_at_any_step_of_a_mend_on_an_open_journal() {
    for loss in LOSSES {
        let mut steps = 0;
        for n in 1.. {
            let (pair, storage) = Pair::new();
            let segment = storage.journal.segments()[1].clone();
            let storage = pair.reopen(storage).unwrap();
            pair.disk.rot(&segment.path, 1_500).unwrap();
            storage
                .journal
                .check_segment(segment.base_offset, &mut |_| true)
                .unwrap();
            let before = unreadable(&storage.journal);
            pair.disk.power_off_at(pair.disk.changes() + n);
            let whole = mend_in(&storage.journal, segment.base_offset, &pair.peer.journal);
            drop(storage);
            pair.crash(loss);
            let storage = pair.open().unwrap_or_else(|e| panic!("{loss:?} {n}: {e}"));
            let after = unreadable(&storage.journal);
            assert!(
                after == before || after.is_empty(),
                "{loss:?} {n}: {after:?}"
            );
            if !storage.journal.damage().is_empty() {
                mend_in(&storage.journal, segment.base_offset, &pair.peer.journal).unwrap();
            }
            pair.same();
            assert!(unreadable(&storage.journal).is_empty());
            if whole.is_some() {
                break;
            }
            steps = n;
        }
        assert!(steps >= 10, "{steps} steps");
    }
}

/// Mends, unless the power goes.
fn mend_in(journal: &std::sync::Arc<Journal>, base: u64, peer: &Journal) -> Option<()> {
    fill(journal.mend(base).ok()?, peer)
}

fn fill(mut mend: Mend, peer: &Journal) -> Option<()> {
    while let Some(wanted) = mend.wanted() {
        for batch in peer.read_for_repair(wanted.offset, 1_500).unwrap() {
            match mend.offer(batch) {
                Ok(()) => {}
                Err(OfferError::Io(_)) => return None,
                Err(_) => break,
            }
        }
    }
    mend.finish().ok().map(drop)
}

#[test]
fn the_power_may_go_at_any_step_of_a_rescue() {
    for (what, lost) in [("all", 0..9), ("first two", 0..2), ("last two", 2..9)] {
        for loss in LOSSES {
            let mut steps = 0;
            for n in 1.. {
                let (pair, storage) = Pair::new();
                let segments = storage.journal.segments();
                for segment in segments.iter().take(lost.end).skip(lost.start) {
                    pair.disk.remove_file(&segment.path).unwrap();
                }
                pair.disk.sync_dir(storage.journal.dir()).unwrap();
                drop(storage);
                pair.crash(Loss::DropAll);
                let rescue = pair.rescue();
                pair.disk.power_off_at(pair.disk.changes() + n);
                let whole = rescue.mends().ok().is_some_and(|mends| {
                    mends
                        .into_iter()
                        .all(|mend| fill(mend, &pair.peer.journal).is_some())
                });
                drop(rescue);
                pair.crash(loss);
                if pair.open().is_err() {
                    pair.crash(Loss::DropAll);
                    for mend in pair.rescue().mends().unwrap() {
                        fill(mend, &pair.peer.journal).unwrap();
                    }
                }
                pair.crash(Loss::DropAll);
                let storage = pair
                    .open()
                    .unwrap_or_else(|e| panic!("{what} {loss:?} {n}: {e}"));
                for range in storage.journal.damage() {
                    mend_in(&storage.journal, range.segment_base, &pair.peer.journal).unwrap();
                }
                pair.same();
                assert_eq!(read_all(&storage.journal), read_all(&pair.peer.journal));
                if whole {
                    break;
                }
                steps = n;
            }
            assert!(steps >= 6, "{what}: {steps} steps");
        }
    }
}
