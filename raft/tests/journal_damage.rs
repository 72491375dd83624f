//! Damage in segments: found by reads and checks, marked, served around, and kept over restarts.

mod journal_support;

use std::path::{Path, PathBuf};

use imprint_proto::batch::split_batches;
use imprint_raft::disk::sim::{Call, Loss, SimDisk};
use imprint_raft::disk::{Disk, OpenMode};
use imprint_raft::journal::{CheckError, DamageKind, Journal, JournalConfig, ReadError};
use journal_support::*;

/// About five batches to a segment.
fn wide() -> JournalConfig {
    JournalConfig {
        segment_bytes: 4_000,
        tail_cache_bytes: 0,
        ..small()
    }
}

/// A blank, then batches of three messages in several sealed segments and an active one.
fn filled(disk: &SimDisk) -> Storage {
    let storage = open_sim(disk, wide());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..30 {
        append_ok(&storage.journal, vec![admit(1, index, 2)]);
    }
    storage
}

fn reopen(disk: &SimDisk, storage: Storage) -> Storage {
    drop(storage);
    disk.crash(0, Loss::DropAll);
    open_sim(disk, wide())
}

/// Where each batch of a segment begins.
fn positions(disk: &SimDisk, path: &Path) -> Vec<u64> {
    let mut pos = 0;
    let bytes = bytes::Bytes::from(disk.contents(path).unwrap());
    let batches = split_batches(bytes).map_while(Result::ok);
    batches
        .map(|batch| {
            pos += batch.len() as u64;
            pos - batch.len() as u64
        })
        .collect()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Every offset that can't be read, by asking for each.
fn unreadable(journal: &Journal) -> Vec<u64> {
    (journal.start_offset()..journal.next_offset())
        .filter(|offset| match journal.read_stamped(*offset, u64::MAX, 0) {
            Ok(read) => {
                assert!(read.next_offset > *offset, "a shorter history at {offset}");
                false
            }
            Err(ReadError::Corrupt(range)) => {
                assert!(range.holds(*offset), "{range:?} for {offset}");
                true
            }
            Err(other) => panic!("{other}"),
        })
        .collect()
}

/// Each place of a batch in which a flipped byte has to be found.
const PLACES: [u64; 5] = [0, 9, 20, 33, 300];

#[test]
fn a_read_marks_what_it_finds_and_reads_around_it_go_on() {
    for place in PLACES {
        let disk = SimDisk::new();
        let storage = filled(&disk);
        let journal = &storage.journal;
        let segment = journal.segments()[1].clone();
        let at = positions(&disk, &segment.path);
        let mut watch = journal.watch_damage();
        let before = *watch.borrow_and_update();
        disk.rot(&segment.path, at[2] + place).unwrap();
        let from = segment.base_offset + 6;
        let bad: Vec<u64> = (from..from + 3).collect();
        let storage = reopen(&disk, storage);
        assert!(storage.journal.damage().is_empty(), "not read yet");
        assert_eq!(unreadable(&storage.journal), bad, "byte {place}");
        let [range] = storage.journal.damage().try_into().unwrap();
        assert_eq!((range.from_byte, range.to_byte), (at[2], Some(at[3])));
        assert_eq!((range.from_offset, range.to_offset), (from, from + 3));
        assert_eq!(range.segment_base, segment.base_offset);
        assert_eq!(before, *watch.borrow());
        // The mark outlives the process and is known before anything is read.
        let storage = reopen(&disk, storage);
        assert_eq!(storage.journal.damage(), [range]);
        assert_eq!(unreadable(&storage.journal), bad);
    }
}

#[test]
fn a_watcher_hears_of_damage() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segment = storage.journal.segments()[1].clone();
    let watch = storage.journal.watch_damage();
    disk.rot(&segment.path, 300).unwrap();
    assert!(!watch.has_changed().unwrap());
    storage
        .journal
        .read_stamped(segment.base_offset, u64::MAX, 0)
        .unwrap_err();
    assert!(watch.has_changed().unwrap());
}

#[test]
fn every_way_to_find_damage_marks_it() {
    type Find = fn(&Journal, u64);
    let ways: [(&str, Find); 4] = [
        ("read by index", |journal, _| {
            journal.read(0, u64::MAX, u64::MAX).unwrap_err();
        }),
        ("lookup by index", |journal, _| {
            (1..29)
                .map(|index| journal.offset_after(index))
                .find_map(Result::err)
                .unwrap();
        }),
        ("lookup by time", |journal, _| {
            (1_000_000..1_000_100)
                .map(|stamp| journal.offset_for_time(stamp))
                .find_map(Result::err)
                .unwrap();
        }),
        ("check", |journal, base| {
            let checked = journal.check_segment(base, &mut |_| true).unwrap();
            assert_eq!(checked.damage, journal.damage());
        }),
    ];
    for (way, find) in ways {
        let disk = SimDisk::new();
        let storage = filled(&disk);
        let segment = storage.journal.segments()[1].clone();
        let storage = reopen(&disk, storage);
        disk.rot(&segment.path, positions(&disk, &segment.path)[1] + 9)
            .unwrap();
        find(&storage.journal, segment.base_offset);
        let bad = storage.journal.damage();
        let [range] = bad.as_slice() else {
            panic!("{way}: {bad:?}")
        };
        assert_eq!(range.from_offset, segment.base_offset + 3, "{way}");
        assert!(disk.exists(&beside(&segment.path, ".damaged")).unwrap());
    }
}

#[test]
fn sealing_leaves_a_digest_and_a_check_agrees_with_it() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let journal = &storage.journal;
    let whole = journal.digest(journal.synced_offset()).unwrap();
    let (active, sealed) = journal
        .segments()
        .split_last()
        .map(|(a, s)| (a.clone(), s.to_vec()))
        .unwrap();
    for (segment, digest) in sealed.iter().zip(&whole.segments) {
        assert_eq!(journal.known_digest(segment.base_offset), Some(*digest));
        let mut told = 0;
        let checked = journal
            .check_segment(segment.base_offset, &mut |bytes| {
                told += bytes;
                true
            })
            .unwrap();
        assert_eq!(checked.digest, Some(*digest));
        assert!(checked.bytes == segment.bytes && told >= segment.bytes);
    }
    let refused = journal.check_segment(active.base_offset, &mut |_| true);
    assert!(matches!(refused, Err(CheckError::NotSealed(_))));
    let stopped = journal.check_segment(sealed[0].base_offset, &mut |_| false);
    assert!(matches!(stopped, Err(CheckError::Stopped)));
}

#[test]
fn a_digest_file_that_is_gone_or_broken_is_made_again() {
    type Break = fn(&SimDisk, &Path, &Path);
    let breaks: [(&str, Break); 5] = [
        ("gone", |disk, path, _| disk.remove_file(path).unwrap()),
        ("empty", |disk, path, _| {
            disk.rewrite(path, Vec::clear).unwrap()
        }),
        ("cut", |disk, path, _| {
            disk.rewrite(path, |bytes| bytes.truncate(7)).unwrap()
        }),
        ("rotten", |disk, path, _| disk.rot(path, 20).unwrap()),
        ("another's", |disk, path, other| {
            let other = disk.contents(other).unwrap();
            disk.rewrite(path, move |bytes| *bytes = other.clone())
                .unwrap();
        }),
    ];
    for (what, break_it) in breaks {
        let disk = SimDisk::new();
        let storage = filled(&disk);
        let segments = storage.journal.segments();
        let digest = beside(&segments[1].path, ".digest");
        let right = disk.contents(&digest).unwrap();
        break_it(&disk, &digest, &beside(&segments[0].path, ".digest"));
        let storage = reopen(&disk, storage);
        let checked = storage
            .journal
            .check_segment(segments[1].base_offset, &mut |_| true)
            .unwrap();
        assert!(checked.damage.is_empty(), "{what}");
        assert_eq!(disk.contents(&digest).unwrap(), right, "{what}");
    }
}

#[test]
fn valid_batches_that_are_not_those_that_were_sealed_are_damage_of_the_whole_segment() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segment = storage.journal.segments()[1].clone();
    // Another log with the same offsets, other stamps.
    let other_disk = SimDisk::new();
    let other = open_sim(&other_disk, wide());
    append_ok(&other.journal, vec![blank(1, 0), blank(1, 1)]);
    for index in 2..31 {
        append_ok(&other.journal, vec![admit(1, index, 5)]);
    }
    let foreign = other_disk
        .contents(&other.journal.segments()[1].path)
        .unwrap();
    disk.rewrite(&segment.path, move |bytes| *bytes = foreign.clone())
        .unwrap();
    let checked = storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    let [range] = checked.damage.as_slice() else {
        panic!("{checked:?}")
    };
    assert_eq!(range.kind, DamageKind::Foreign);
    assert_eq!(
        (range.from_offset, range.to_offset),
        (segment.base_offset, segment.end_offset)
    );
    assert_eq!(storage.journal.damage(), checked.damage);
    // Without a digest nothing could tell: the mark stays.
    disk.remove_file(&beside(&segment.path, ".digest")).unwrap();
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    assert_eq!(storage.journal.damage(), checked.damage);
}

#[test]
fn a_check_that_finds_a_segment_good_takes_its_marks_away() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segment = storage.journal.segments()[1].clone();
    disk.rot(&segment.path, 300).unwrap();
    assert!(!unreadable(&storage.journal).is_empty());
    disk.rot(&segment.path, 300).unwrap();
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    assert!(storage.journal.damage().is_empty());
    assert!(unreadable(&storage.journal).is_empty());
    assert!(!disk.exists(&beside(&segment.path, ".damaged")).unwrap());
}

#[test]
fn an_unreadable_file_is_excluded_and_never_a_smaller_end() {
    for error in [5, 13] {
        let disk = SimDisk::new();
        let storage = filled(&disk);
        let segment = storage.journal.segments()[1].clone();
        let (path, end) = (segment.path.clone(), storage.journal.next_offset());
        let storage = reopen(&disk, storage);
        disk.set_fault(Some(Box::new(move |call, at| {
            let hit = matches!(call, Call::Open | Call::Read) && at == path;
            hit.then(|| std::io::Error::from_raw_os_error(error))
        })));
        let bad: Vec<u64> = (segment.base_offset..segment.end_offset).collect();
        assert_eq!(unreadable(&storage.journal), bad, "errno {error}");
        assert_eq!(storage.journal.next_offset(), end);
        let [range] = storage.journal.damage().try_into().unwrap();
        assert_eq!(range.kind, DamageKind::Unreadable);
        // Also at the start.
        drop(storage);
        let storage = open_sim(&disk, wide());
        assert_eq!(unreadable(&storage.journal), bad);
        assert_eq!(storage.journal.next_offset(), end);
        disk.set_fault(None);
        storage
            .journal
            .check_segment(segment.base_offset, &mut |_| true)
            .unwrap();
        assert!(
            unreadable(&storage.journal).is_empty(),
            "it was the disk's mood"
        );
    }
}

#[test]
fn a_file_that_is_gone_is_damage_that_survives_a_start() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segment = storage.journal.segments()[1].clone();
    let storage = reopen(&disk, storage);
    disk.remove_file(&segment.path).unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    let bad: Vec<u64> = (segment.base_offset..segment.end_offset).collect();
    // Without having been read: its digest tells of it.
    let storage = reopen(&disk, storage);
    assert_eq!(storage.journal.damage()[0].kind, DamageKind::Missing);
    assert_eq!(unreadable(&storage.journal), bad);
}

#[test]
fn a_mark_that_cannot_be_read_marks_the_whole_segment_until_it_is_checked() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segment = storage.journal.segments()[1].clone();
    let mark = beside(&segment.path, ".damaged");
    disk.open(&mark, OpenMode::CreateNew)
        .unwrap()
        .write_all_at(&[b"x"], 0)
        .unwrap();
    disk.open(&mark, OpenMode::Write)
        .unwrap()
        .sync_all()
        .unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    let storage = reopen(&disk, storage);
    let bad = unreadable(&storage.journal);
    assert!(bad.contains(&segment.base_offset));
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    assert!(unreadable(&storage.journal).is_empty());
}

#[test]
fn a_truncation_takes_digests_and_marks_with_it() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segments = storage.journal.segments();
    let (kept, gone) = (&segments[1], &segments[2]);
    disk.rot(&gone.path, 300).unwrap();
    assert!(!unreadable(&storage.journal).is_empty());
    let last = 1 + kept.base_offset / 3;
    now(storage.journal.truncate_after(Some(last))).unwrap();
    assert!(storage.journal.damage().is_empty());
    for path in [&kept.path, &gone.path] {
        assert!(!disk.exists(&beside(path, ".digest")).unwrap());
        assert!(!disk.exists(&beside(path, ".damaged")).unwrap());
    }
    for index in last + 1..last + 20 {
        append_ok(&storage.journal, vec![admit(1, index, 5)]);
    }
    let storage = reopen(&disk, storage);
    for segment in storage.journal.segments().iter().filter(|s| s.sealed) {
        let checked = storage
            .journal
            .check_segment(segment.base_offset, &mut |_| true)
            .unwrap();
        assert!(checked.damage.is_empty(), "{checked:?}");
    }
}
