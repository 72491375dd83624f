//! The rows of the journal's recovery table from `r` on, and that no row of it is without a test. Also torn tails cut at every
//! place that real ones were cut at, on a simulated and on a real disk.

mod journal_support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imprint_proto::batch::split_batches;
use imprint_raft::disk::sim::{Call, Loss, SimDisk};
use imprint_raft::disk::{Disk, InlineOffload, Io, OpenMode, RealDisk};
use imprint_raft::journal::{
    BadRange, DamageKind, Journal, JournalConfig, NewEntry, OpenError, Rescue, StateLog,
};
use journal_support::*;

const TABLE: &str = include_str!("../src/journal/open/mod.rs");
const TESTS: [&str; 2] = [
    include_str!("journal_recovery.rs"),
    include_str!("journal_recovery_damage.rs"),
];

#[test]
fn every_row_of_the_table_has_a_test_of_its_letter() {
    let row = |line: &str| {
        let cell = line.strip_prefix("//! | ")?.split('|').next()?.trim();
        let is_letters = !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_lowercase());
        is_letters.then(|| cell.to_owned())
    };
    let rows: Vec<String> = TABLE.lines().filter_map(row).collect();
    let named: BTreeSet<String> = TESTS
        .iter()
        .flat_map(|source| source.split("#[test]\nfn ").skip(1))
        .filter_map(|rest| Some(rest.split('_').next()?.to_owned()))
        .collect();
    let without: Vec<_> = rows.iter().filter(|row| !named.contains(*row)).collect();
    assert!(rows.len() >= 33, "{rows:?}");
    assert!(without.is_empty(), "rows without a test: {without:?}");
}

fn one_segment() -> JournalConfig {
    JournalConfig {
        segment_bytes: 1 << 20,
        ..small()
    }
}

fn several() -> JournalConfig {
    JournalConfig {
        segment_bytes: 4_000,
        tail_cache_bytes: 0,
        ..small()
    }
}

fn filled(disk: &SimDisk, cfg: JournalConfig) -> Storage {
    let storage = open_sim(disk, cfg);
    fill(&storage.journal);
    storage
}

fn fill(journal: &Arc<Journal>) {
    append_ok(journal, vec![blank(1, 0)]);
    for index in 1..20 {
        append_ok(journal, vec![admit(1, index, 2)]);
    }
}

fn reopen(disk: &SimDisk, storage: Storage) -> Result<Storage, OpenError> {
    drop(storage);
    disk.crash(0, Loss::DropAll);
    open_in(sim_io(disk), &data(), several())
}

fn corrupt(result: Result<Storage, OpenError>) -> BadRange {
    match result {
        Err(OpenError::Corrupt(range)) => range,
        other => panic!("not corrupt: {other:?}"),
    }
}

fn last(journal: &Journal) -> PathBuf {
    journal.segments().last().expect("a segment").path.clone()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn put(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::Truncate).unwrap();
    file.write_all_at(&[bytes], 0).unwrap();
    file.sync_all().unwrap();
    disk.sync_dir(path.parent().unwrap()).unwrap();
}

fn positions(bytes: Vec<u8>) -> Vec<u64> {
    let mut pos = 0;
    let batches = split_batches(bytes.into()).map_while(Result::ok);
    batches
        .map(|batch| {
            pos += batch.len() as u64;
            pos - batch.len() as u64
        })
        .collect()
}

fn quarantined(disk: &SimDisk) -> usize {
    let quarantine = data().join("quarantine");
    disk.files()
        .iter()
        .filter(|path| path.starts_with(&quarantine))
        .count()
}

/// Every offset from the start to the end, of which those in `bad` can't be read.
fn assert_reads(journal: &Journal, bad: std::ops::Range<u64>) {
    for offset in journal.start_offset()..journal.next_offset() {
        let read = journal.read_stamped(offset, u64::MAX, 0);
        assert_eq!(read.is_err(), bad.contains(&offset), "{offset}: {read:?}");
    }
}

#[test]
fn f_looking_changes_nothing_so_the_second_start_finds_what_the_first_one_found() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let segments = storage.journal.segments();
    disk.rot(&segments[segments.len() - 1].path, 60).unwrap();
    disk.rot(&segments[segments.len() - 2].path, 300).unwrap();
    let first = corrupt(reopen(&disk, storage));
    disk.crash(0, Loss::DropAll);
    let second = corrupt(open_in(sim_io(&disk), &data(), several()));
    assert_eq!(first, second);
    assert_eq!(quarantined(&disk), 0);
}

#[test]
fn r_zeros_at_the_end_are_no_batches() {
    let disk = SimDisk::new();
    let storage = filled(&disk, one_segment());
    let path = last(&storage.journal);
    let from = usize::try_from(positions(disk.contents(&path).unwrap())[17]).unwrap();
    disk.rewrite(&path, |bytes| bytes[from..].fill(0)).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.last(), Some(at(1, 17)));
    assert_eq!(quarantined(&disk), 0);
}

#[test]
fn s_what_is_good_behind_a_hole_is_kept_when_the_hole_is_filled() {
    let disk = SimDisk::new();
    let storage = filled(&disk, one_segment());
    storage.state.flush_lazy();
    let before = read_all(&storage.journal);
    let path = last(&storage.journal);
    let whole = storage.journal.read_for_repair(0, u64::MAX).unwrap();
    let from = usize::try_from(positions(disk.contents(&path).unwrap())[5]).unwrap();
    disk.rewrite(&path, |bytes| bytes[from..from + 300].fill(0))
        .unwrap();
    corrupt(reopen(&disk, storage));
    let io = sim_io(&disk);
    let state = StateLog::open(io.clone(), &data().join("state")).unwrap();
    let rescue = Rescue::open(io, group_dir(&data()), state, GROUP).unwrap();
    let mut mend = rescue.mends().unwrap().remove(0);
    mend.offer(whole[5].clone()).unwrap();
    assert_eq!(mend.wanted(), None, "one batch was all that lacked");
    mend.finish().unwrap();
    drop(rescue);
    disk.crash(0, Loss::DropAll);
    let storage = open_sim(&disk, several());
    assert_eq!(read_all(&storage.journal), before);
}

#[test]
fn t_an_older_copy_of_the_active_segment_is_corruption() {
    let disk = SimDisk::new();
    let storage = filled(&disk, one_segment());
    let path = last(&storage.journal);
    let old = disk.contents(&path).unwrap();
    for index in 20..25 {
        append_ok(&storage.journal, vec![admit(1, index, 2)]);
    }
    storage.state.flush_lazy();
    let end = storage.journal.next_offset();
    disk.rewrite(&path, move |bytes| *bytes = old.clone())
        .unwrap();
    let range = corrupt(reopen(&disk, storage));
    assert_eq!((range.from_offset, range.to_offset), (57, end));
}

#[test]
fn u_a_damaged_sealed_segment_is_served_around() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    disk.rot(&storage.journal.segments()[1].path, 800).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    let base = storage.journal.segments()[1].base_offset;
    assert_reads(&storage.journal, base + 3..base + 6);
}

#[test]
fn v_a_missing_sealed_segment_is_known_by_its_digest() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let gone = storage.journal.segments()[1].clone();
    disk.remove_file(&gone.path).unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.damage()[0].kind, DamageKind::Missing);
    assert_reads(&storage.journal, gone.base_offset..gone.end_offset);
}

#[test]
fn w_an_older_or_another_logs_segment_is_found_by_its_digest() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let segment = storage.journal.segments()[1].clone();
    let older = SimDisk::new();
    let other = filled(&older, several());
    // The same offsets with other stamps: what a truncated tail would have held.
    now(other.journal.truncate_after(Some(segment.base_offset / 3))).unwrap();
    let from = other.journal.last().unwrap().index + 1;
    for index in from..20 {
        append_ok(&other.journal, vec![admit(1, index, 2)]);
    }
    let foreign = older.contents(&segment.path).unwrap();
    assert_ne!(foreign, disk.contents(&segment.path).unwrap());
    disk.rewrite(&segment.path, move |bytes| *bytes = foreign.clone())
        .unwrap();
    let storage = reopen(&disk, storage).unwrap();
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    assert_eq!(storage.journal.damage()[0].kind, DamageKind::Foreign);
    assert_reads(&storage.journal, segment.base_offset..segment.end_offset);
}

/// A valid batch of another partition, of the same offset.
fn of_another_partition(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] = bytes[at].wrapping_add(1);
    bytes
}

#[test]
fn x_another_partitions_bytes_are_bad_bytes() {
    for marked in [false, true] {
        let disk = SimDisk::new();
        let storage = filled(&disk, one_segment());
        if marked {
            storage.state.flush_lazy();
        }
        let path = last(&storage.journal);
        let at = usize::try_from(positions(disk.contents(&path).unwrap())[18]).unwrap();
        disk.rewrite(&path, move |bytes| *bytes = of_another_partition(bytes, at))
            .unwrap();
        match reopen(&disk, storage) {
            Ok(storage) => assert_eq!(
                (marked, storage.journal.last()),
                (false, Some(super_at(18)))
            ),
            Err(error) => assert!(marked && matches!(error, OpenError::Corrupt(_)), "{error}"),
        }
    }
}

fn super_at(index: u64) -> imprint_raft::journal::LogPos {
    at(1, index)
}

#[test]
fn y_a_lost_digest_is_made_again() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let segment = storage.journal.segments()[1].clone();
    let digest = beside(&segment.path, ".digest");
    let right = disk.contents(&digest).unwrap();
    disk.rewrite(&digest, Vec::clear).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.known_digest(segment.base_offset), None);
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    assert_eq!(disk.contents(&digest).unwrap(), right);
}

#[test]
fn z_a_lost_mark_is_found_again_and_a_broken_one_counts_for_the_whole_segment() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let segment = storage.journal.segments()[1].clone();
    disk.rot(&segment.path, 800).unwrap();
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    let found = storage.journal.damage();
    let mark = beside(&segment.path, ".damaged");
    disk.rewrite(&mark, |bytes| bytes.truncate(7)).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_reads(&storage.journal, segment.base_offset..segment.end_offset);
    disk.remove_file(&mark).unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert!(storage.journal.damage().is_empty());
    assert_reads(
        &storage.journal,
        segment.base_offset + 3..segment.base_offset + 6,
    );
    assert_eq!(storage.journal.damage(), found);
}

#[test]
fn aa_a_control_entry_above_the_end_of_data_is_corruption() {
    let disk = SimDisk::new();
    let storage = filled(&disk, one_segment());
    append_ok(&storage.journal, vec![blank(2, 20)]);
    let path = last(&storage.journal);
    let at = usize::try_from(positions(disk.contents(&path).unwrap())[18]).unwrap();
    disk.rewrite(&path, |bytes| bytes.truncate(at)).unwrap();
    assert_eq!(corrupt(reopen(&disk, storage)).to_offset, 57);
}

#[test]
fn ab_segments_of_a_term_that_nothing_began_are_no_log() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let path = last(&storage.journal);
    let name = path.file_name().unwrap().to_string_lossy();
    let name = name.replace("-00000000000000000001.seg", "-00000000000000000009.seg");
    disk.rename(&path, &path.with_file_name(name)).unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    assert!(matches!(
        reopen(&disk, storage),
        Err(OpenError::Inconsistent { .. })
    ));
}

#[test]
fn ac_a_sealed_file_that_cannot_be_opened_is_left_out() {
    for error in [5, 13] {
        let disk = SimDisk::new();
        let storage = filled(&disk, several());
        let (segment, end) = (
            storage.journal.segments()[1].clone(),
            storage.journal.next_offset(),
        );
        drop(storage);
        disk.crash(0, Loss::DropAll);
        let path = segment.path.clone();
        disk.set_fault(Some(Box::new(move |call, at| {
            let hit = matches!(call, Call::Open | Call::Read) && at == path;
            hit.then(|| std::io::Error::from_raw_os_error(error))
        })));
        let storage = open_sim(&disk, several());
        assert_eq!(storage.journal.next_offset(), end);
        assert_reads(&storage.journal, segment.base_offset..segment.end_offset);
    }
}

#[test]
fn ad_a_last_file_that_cannot_be_read_is_an_error_and_never_an_earlier_end() {
    for failing in [Call::Open, Call::Read] {
        let disk = SimDisk::new();
        let storage = filled(&disk, several());
        let (path, before) = (last(&storage.journal), read_all(&storage.journal));
        drop(storage);
        disk.crash(0, Loss::DropAll);
        let files = disk.files();
        disk.set_fault(Some(Box::new(move |call, at| {
            (call == failing && at == path).then(|| std::io::Error::from_raw_os_error(5))
        })));
        let refused = open_in(sim_io(&disk), &data(), several());
        assert!(matches!(refused, Err(OpenError::Io { .. })), "{refused:?}");
        disk.set_fault(None);
        assert_eq!(disk.files(), files);
        assert_eq!(read_all(&open_sim(&disk, several()).journal), before);
    }
}

#[test]
fn ae_what_was_not_finished_is_removed_and_other_files_are_not() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let before = read_all(&storage.journal);
    let path = storage.journal.segments()[1].path.clone();
    let ours = [".mend", ".digest.new", ".damaged.new"].map(|suffix| beside(&path, suffix));
    let others = ["note.mend", "x.seg.new", "snapshot.new"].map(|name| path.with_file_name(name));
    for file in ours.iter().chain(&others) {
        put(&disk, file, b"unfinished");
    }
    let storage = reopen(&disk, storage).unwrap();
    assert!(ours.iter().all(|file| !disk.exists(file).unwrap()));
    assert!(others.iter().all(|file| disk.exists(file).unwrap()));
    assert_eq!(read_all(&storage.journal), before);
}

#[test]
fn af_a_mark_of_what_is_mended_goes_with_the_next_check() {
    let disk = SimDisk::new();
    let storage = filled(&disk, several());
    let segment = storage.journal.segments()[1].clone();
    disk.rot(&segment.path, 800).unwrap();
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    // The new file is in place, the mark not removed yet.
    disk.rot(&segment.path, 800).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_reads(
        &storage.journal,
        segment.base_offset + 3..segment.base_offset + 6,
    );
    storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    assert_reads(&storage.journal, 0..0);
    assert!(!disk.exists(&beside(&segment.path, ".damaged")).unwrap());
}

#[test]
fn ag_a_mark_in_the_active_segment_counts_as_synced() {
    let disk = SimDisk::new();
    let cfg = JournalConfig {
        tail_cache_bytes: 0,
        ..one_segment()
    };
    let storage = filled(&disk, cfg);
    let path = last(&storage.journal);
    let at = positions(disk.contents(&path).unwrap())[9];
    disk.rot(&path, at + 300).unwrap();
    storage.journal.read_stamped(27, u64::MAX, 0).unwrap_err();
    assert_eq!(storage.journal.damage()[0].from_offset, 27);
    now(storage.journal.close()).unwrap();
    // Neither the clean stop nor marks that were not made durable hide it.
    assert_eq!(corrupt(reopen(&disk, storage)).from_offset, 27);
}

/// What is done to the end of the active file: the length of all batches, where the last one begins, the file.
type Tear = fn(u64, u64, &mut Vec<u8>);

const TEARS: [(&str, Tear); 10] = [
    ("1 byte", |end, _, bytes| cut(bytes, end - 1)),
    ("4 bytes", |end, _, bytes| cut(bytes, end - 4)),
    ("8 bytes", |end, _, bytes| cut(bytes, end - 8)),
    ("a header but a byte", |_, last, bytes| {
        cut(bytes, last + 255)
    }),
    ("a header", |_, last, bytes| cut(bytes, last + 256)),
    ("a header and a byte", |_, last, bytes| {
        cut(bytes, last + 257)
    }),
    ("half", |end, last, bytes| {
        cut(bytes, last + (end - last) / 2)
    }),
    ("to the last sector", |end, _, bytes| {
        cut(bytes, end / 4_096 * 4_096)
    }),
    ("sector of zeros", |end, _, bytes| {
        let from = usize::try_from(end.saturating_sub(4_096)).unwrap();
        bytes[from..].fill(0);
    }),
    ("zeros behind", |_, _, bytes| bytes.extend([0; 4_096])),
];

fn cut(bytes: &mut Vec<u8>, len: u64) {
    bytes.truncate(usize::try_from(len).unwrap());
}

/// Where all of it is: a simulated disk, or a real one in a directory of its own.
fn on_both(test: impl Fn(Io, &Path, &dyn Fn(&Path, &dyn Fn(&mut Vec<u8>)))) {
    let disk = SimDisk::new();
    let sim = disk.clone();
    test(sim_io(&disk), &data(), &move |path, change| {
        sim.rewrite(path, change).unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let io = io_on(Arc::new(RealDisk), Arc::new(InlineOffload));
    test(io, dir.path(), &|path, change| {
        let mut bytes = std::fs::read(path).unwrap();
        change(&mut bytes);
        std::fs::write(path, bytes).unwrap();
    });
}

#[test]
fn a_tail_torn_anywhere_leaves_the_last_whole_batch_and_the_log_goes_on() {
    for (what, tear) in TEARS {
        on_both(|io, dir, rewrite| {
            let open = || open_in(io.clone(), dir, one_segment()).unwrap();
            let storage = open();
            fill(&storage.journal);
            let before = read_all(&storage.journal);
            let end = storage.journal.total_bytes();
            let path = last(&storage.journal);
            drop(storage);
            let whole = std::cell::Cell::new(0);
            rewrite(&path, &|bytes| {
                let at = positions(bytes.clone());
                tear(end, *at.last().unwrap(), bytes);
                whole.set(positions(bytes.clone()).len());
            });
            let storage = open();
            let after = read_all(&storage.journal);
            assert!(after.len() >= whole.get(), "{what}");
            assert!(
                after[..] == before[..after.len()] && after.len() >= 13,
                "{what}: {}",
                after.len()
            );
            let next = storage.journal.last().unwrap().index + 1;
            append_ok(
                &storage.journal,
                vec![admit(1, next, 3), blank(2, next + 1)],
            );
            let after = read_all(&storage.journal);
            drop(storage);
            assert_eq!(read_all(&open().journal), after, "{what}");
        });
    }
}

#[test]
fn batches_of_zeros_come_back() {
    on_both(|io, dir, _| {
        let open = || open_in(io.clone(), dir, one_segment()).unwrap();
        let storage = open();
        append_ok(&storage.journal, vec![blank(1, 0)]);
        let mut index = 1;
        for len in [0, 1, 4_096] {
            let zeros = NewEntry::Admit {
                pos: at(1, index),
                batch: batch(0, 2, len),
                expected_offset: None,
            };
            append_ok(&storage.journal, vec![zeros]);
            for _ in 0..10 {
                index += 1;
                append_ok(&storage.journal, vec![admit(1, index, 2)]);
            }
            index += 1;
        }
        let before = read_all(&storage.journal);
        assert_eq!(before.len(), 34);
        drop(storage);
        assert_eq!(read_all(&open().journal), before);
    });
}

#[test]
fn damage_on_a_real_disk_is_found_marked_and_mended() {
    let io = io_on(Arc::new(RealDisk), Arc::new(InlineOffload));
    let (ours, peers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let peer = open_in(
        io_on(Arc::new(RealDisk), Arc::new(InlineOffload)),
        peers.path(),
        several(),
    )
    .unwrap();
    let storage = open_in(io, ours.path(), several()).unwrap();
    fill(&peer.journal);
    fill(&storage.journal);
    let segment = storage.journal.segments()[1].clone();
    let mut bytes = std::fs::read(&segment.path).unwrap();
    let right = bytes.clone();
    bytes[1_000] ^= 1;
    std::fs::write(&segment.path, bytes).unwrap();
    let checked = storage
        .journal
        .check_segment(segment.base_offset, &mut |_| true)
        .unwrap();
    assert_eq!(checked.damage.len(), 1);
    let mut mend = storage.journal.mend(segment.base_offset).unwrap();
    while let Some(wanted) = mend.wanted() {
        let offered = peer.journal.read_for_repair(wanted.offset, 0).unwrap();
        offered
            .into_iter()
            .for_each(|batch| mend.offer(batch).unwrap());
    }
    mend.finish().unwrap();
    assert_eq!(std::fs::read(&segment.path).unwrap(), right);
    assert_reads(&storage.journal, 0..0);
    assert_eq!(
        std::fs::read_dir(ours.path().join("quarantine"))
            .unwrap()
            .count(),
        1
    );
}
