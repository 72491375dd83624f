//! The rows of the journal's recovery table, one test each, by the letters of the table.

mod journal_support;

use std::path::{Path, PathBuf};

use imprint_proto::batch::split_batches;
use imprint_raft::disk::sim::{Call, Loss, SimDisk};
use imprint_raft::disk::{Disk, OpenMode};
use imprint_raft::journal::{BadRange, Journal, JournalConfig, OpenError, StateLog};
use journal_support::*;

/// Nine batches behind a blank, in several segments; marks only as far as control entries make them.
fn filled(disk: &SimDisk) -> Storage {
    let storage = open_sim(disk, small());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..10 {
        append_ok(&storage.journal, vec![admit(1, index, 2)]);
    }
    storage
}

fn one_segment() -> JournalConfig {
    JournalConfig {
        segment_bytes: 1 << 20,
        ..small()
    }
}

/// The same in one segment.
fn filled_one(disk: &SimDisk) -> Storage {
    let storage = open_sim(disk, one_segment());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    for index in 1..10 {
        append_ok(&storage.journal, vec![admit(1, index, 2)]);
    }
    storage
}

fn reopen(disk: &SimDisk, storage: Storage) -> Result<Storage, OpenError> {
    drop(storage);
    disk.crash(0, Loss::DropAll);
    open_in(sim_io(disk), &data(), small())
}

fn last_segment(journal: &Journal) -> PathBuf {
    journal.segments().last().expect("a segment").path.clone()
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

fn corrupt(result: Result<Storage, OpenError>) -> BadRange {
    match result {
        Err(OpenError::Corrupt(range)) => range,
        other => panic!("not corrupt: {other:?}"),
    }
}

fn in_quarantine(disk: &SimDisk) -> Vec<PathBuf> {
    let quarantine = data().join("quarantine");
    disk.files()
        .into_iter()
        .filter(|path| path.starts_with(&quarantine))
        .collect()
}

#[test]
fn a_a_cut_that_was_begun_is_finished() {
    let mut finished = 0;
    for n in 1..30 {
        let disk = SimDisk::new();
        let storage = filled(&disk);
        disk.power_off_at(disk.changes() + n);
        let whole = now(storage.journal.truncate_after(Some(4))).is_ok();
        drop(storage);
        disk.crash(0, Loss::DropAll);
        let state = StateLog::open(sim_io(&disk), &data().join("state")).unwrap();
        let begun = state.group(GROUP).unwrap().cut.is_some();
        drop(state);
        let storage = open_sim(&disk, small());
        let last = storage.journal.last().unwrap().index;
        assert!(
            last == 4 || (last == 9 && !begun && !whole),
            "{last} after {n}"
        );
        assert_eq!(read_all(&storage.journal).len() as u64, last + 1);
        finished += u32::from(begun);
    }
    assert!(finished > 3, "cut files in {finished} of the runs only");
}

#[test]
fn b_a_good_tail_is_kept_also_beyond_the_mark() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let before = read_all(&storage.journal);
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(read_all(&storage.journal), before);
    assert!(in_quarantine(&disk).is_empty());
}

#[test]
fn c_a_torn_tail_is_cut_and_kept_aside_also_what_is_good_behind_the_hole() {
    let disk = SimDisk::new();
    let storage = filled_one(&disk);
    let before = read_all(&storage.journal);
    let path = last_segment(&storage.journal);
    let at = positions(&disk, &path);
    let bytes = disk.contents(&path).unwrap();
    disk.rot(&path, at[6] + 300).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(read_all(&storage.journal), before[..7]);
    let kept = in_quarantine(&disk);
    let [aside] = kept.as_slice() else {
        panic!("{kept:?}")
    };
    let aside = disk.contents(aside).unwrap();
    let cut = &bytes[usize::try_from(at[6]).unwrap()..][..aside.len()];
    assert_eq!(
        aside.iter().zip(cut).filter(|(a, b)| a != b).count(),
        1,
        "all but the rotten byte"
    );
    append_ok(&storage.journal, vec![blank(2, 7), admit(2, 8, 4)]);
    let after = read_all(&storage.journal);
    assert_eq!(read_all(&reopen(&disk, storage).unwrap().journal), after);
}

#[test]
fn c_zeros_in_the_place_of_a_header_are_a_hole_if_something_is_behind() {
    let disk = SimDisk::new();
    let storage = filled_one(&disk);
    let path = last_segment(&storage.journal);
    let at = usize::try_from(positions(&disk, &path)[5]).unwrap();
    disk.rewrite(&path, |bytes| bytes[at..at + 256].fill(0))
        .unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.last(), Some(at_index(5)));
    assert_eq!(in_quarantine(&disk).len(), 1);
}

fn at_index(index: u64) -> imprint_raft::journal::LogPos {
    at(1, index)
}

#[test]
fn d_rot_below_the_mark_is_corruption_that_names_its_place_and_changes_nothing() {
    let disk = SimDisk::new();
    let storage = filled_one(&disk);
    let path = last_segment(&storage.journal);
    let end = storage.journal.next_offset();
    storage.state.flush_lazy();
    let place = positions(&disk, &path)[6];
    disk.rot(&path, place + 300).unwrap();
    let bytes = disk.contents(&path).unwrap();
    let range = corrupt(reopen(&disk, storage));
    assert_eq!((&range.path, range.from_byte), (&path, place));
    assert_eq!((range.from_offset, range.to_offset), (end / 9 * 6, end));
    assert_eq!(disk.contents(&path).unwrap(), bytes);
    assert!(in_quarantine(&disk).is_empty());
}

#[test]
fn d_a_control_entry_marks_what_is_before_it() {
    let disk = SimDisk::new();
    let storage = filled_one(&disk);
    append_ok(&storage.journal, vec![blank(2, 10)]);
    let path = last_segment(&storage.journal);
    disk.rot(&path, positions(&disk, &path)[8] + 300).unwrap();
    corrupt(reopen(&disk, storage));
}

#[test]
fn e_a_file_that_ends_below_the_mark_is_corruption() {
    let disk = SimDisk::new();
    let storage = filled_one(&disk);
    storage.state.flush_lazy();
    let path = last_segment(&storage.journal);
    let place = usize::try_from(positions(&disk, &path)[8]).unwrap();
    disk.rewrite(&path, |bytes| bytes.truncate(place)).unwrap();
    assert_eq!(corrupt(reopen(&disk, storage)).found, "the batches end");
}

#[test]
fn f_a_last_segment_without_a_good_batch_goes_and_the_one_before_is_active() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segments = storage.journal.segments();
    let (last, before) = (&segments[segments.len() - 1], &segments[segments.len() - 2]);
    disk.rot(&last.path, 60).unwrap();
    let (gone, base) = (last.path.clone(), last.base_offset);
    let before = before.path.clone();
    let storage = reopen(&disk, storage).unwrap();
    assert!(!disk.exists(&gone).unwrap());
    assert_eq!(in_quarantine(&disk).len(), 1);
    assert_eq!(storage.journal.next_offset(), base);
    assert_eq!(last_segment(&storage.journal), before);
    let next = storage.journal.last().unwrap().index + 1;
    append_ok(
        &storage.journal,
        vec![blank(2, next), admit(2, next + 1, 2)],
    );
    let after = read_all(&storage.journal);
    assert_eq!(read_all(&reopen(&disk, storage).unwrap().journal), after);
}

#[test]
fn f_the_one_before_must_reach_the_removed_ones_base() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segments = storage.journal.segments();
    disk.rot(&segments[segments.len() - 1].path, 60).unwrap();
    disk.rot(&segments[segments.len() - 2].path, 300).unwrap();
    let range = corrupt(reopen(&disk, storage));
    assert_eq!(range.path, segments[segments.len() - 2].path);
    assert_eq!(range.to_offset, segments[segments.len() - 1].base_offset);
}

#[test]
fn g_no_segments_and_nothing_marked_is_an_empty_log() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, small());
    append_ok(&storage.journal, vec![blank(1, 0)]);
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(
        (storage.journal.last(), storage.journal.next_offset()),
        (Some(at(1, 0)), 0)
    );
}

#[test]
fn h_all_segments_gone_is_corruption() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    storage.state.flush_lazy();
    for segment in storage.journal.segments() {
        disk.remove_file(&segment.path).unwrap();
    }
    disk.sync_dir(storage.journal.dir()).unwrap();
    assert_eq!(
        corrupt(reopen(&disk, storage)).found,
        "segments are missing"
    );
}

#[test]
fn i_a_missing_first_segment_is_corruption() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    disk.remove_file(&storage.journal.segments()[0].path)
        .unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    let range = corrupt(reopen(&disk, storage));
    assert_eq!(range.from_offset, 0);
    assert!(range.to_offset > 0);
}

#[test]
fn i_a_segment_missing_in_the_middle_shows_when_it_is_read() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    disk.remove_file(&storage.journal.segments()[1].path)
        .unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    let error = storage.journal.read(0, u64::MAX, u64::MAX).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn j_names_out_of_order_are_inconsistent() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let path = last_segment(&storage.journal);
    let wrong = storage.journal.dir().join(
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .replace("00000000000000000001.seg", "00000000000000000000.seg"),
    );
    disk.rename(&path, &wrong).unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    assert!(matches!(
        reopen(&disk, storage),
        Err(OpenError::Inconsistent { .. })
    ));
}

#[test]
fn j_a_segment_where_a_control_entry_stands_is_refused() {
    let disk = SimDisk::new();
    let storage = open_sim(&disk, one_segment());
    append_ok(
        &storage.journal,
        vec![
            blank(1, 0),
            admit(1, 1, 1),
            blank(2, 2),
            admit(2, 3, 1),
            blank(3, 4),
        ],
    );
    let path = last_segment(&storage.journal);
    let name = path
        .file_name()
        .unwrap()
        .to_string_lossy()
        .replace("-00000000000000000001-", "-00000000000000000002-");
    disk.rename(&path, &storage.journal.dir().join(name))
        .unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    assert!(matches!(
        reopen(&disk, storage),
        Err(OpenError::Inconsistent { .. })
    ));
}

#[test]
fn k_a_clean_stop_is_trusted_only_as_far_as_it_is_true() {
    for damaged in [false, true] {
        let disk = SimDisk::new();
        let storage = filled_one(&disk);
        let path = last_segment(&storage.journal);
        now(storage.journal.close()).unwrap();
        let before = read_all(&storage.journal);
        if damaged {
            let end = usize::try_from(storage.journal.total_bytes()).unwrap();
            disk.rewrite(&path, |bytes| bytes[end + 100] = 1).unwrap();
        }
        let storage = reopen(&disk, storage).unwrap();
        assert_eq!(read_all(&storage.journal), before);
        assert_eq!(in_quarantine(&disk).len(), usize::from(damaged));
    }
}

#[test]
fn k_a_clean_stop_counts_for_one_start_only() {
    let disk = SimDisk::new();
    let storage = filled_one(&disk);
    now(storage.journal.close()).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    append_ok(&storage.journal, vec![admit(1, 10, 2)]);
    let path = last_segment(&storage.journal);
    disk.rot(&path, positions(&disk, &path).last().unwrap() + 300)
        .unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.last(), Some(at(1, 9)));
    assert_eq!(in_quarantine(&disk).len(), 1);
}

#[test]
fn l_control_entries_may_end_the_log() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    append_ok(
        &storage.journal,
        vec![blank(2, 10), membership(2, 11, b"m")],
    );
    let before = read_all(&storage.journal);
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(read_all(&storage.journal), before);
    assert_eq!(storage.journal.last(), Some(at(2, 11)));
    assert_eq!(
        storage.journal.last_membership(u64::MAX).unwrap().0,
        at(2, 11)
    );
}

#[test]
fn m_a_purge_beyond_the_end_leaves_a_gap_that_the_next_segment_spans() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let end = storage.journal.next_offset();
    now(storage.journal.purge(at(3, 20))).unwrap();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.last(), Some(at(3, 20)));
    append_ok(
        &storage.journal,
        vec![admit(3, 21, 2), blank(4, 22), admit(4, 23, 2)],
    );
    let before = read_all(&storage.journal);
    assert_eq!(before.len(), 3);
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(read_all(&storage.journal), before);
    let named = last_segment(&storage.journal);
    assert!(
        named
            .to_string_lossy()
            .contains(&format!("{end:020}-{:020}-{:020}", 21, 3))
    );
}

#[test]
fn n_a_committed_mark_above_the_end_is_taken_back() {
    let disk = SimDisk::new();
    let storage = filled_one(&disk);
    storage.journal.note_committed(at(1, 8));
    storage.state.flush_lazy();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.committed(), Some(at(1, 8)));
    storage.journal.note_committed(at(1, 30));
    storage.state.flush_lazy();
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.committed(), Some(at(1, 9)));
}

#[test]
fn o_other_files_are_left_alone() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let other = storage.journal.dir().join("snapshot");
    disk.open(&other, OpenMode::CreateNew)
        .unwrap()
        .write_all_at(&[b"cut"], 0)
        .unwrap();
    disk.open(&other, OpenMode::Write)
        .unwrap()
        .sync_all()
        .unwrap();
    disk.sync_dir(storage.journal.dir()).unwrap();
    reopen(&disk, storage).unwrap();
    assert_eq!(disk.contents(&other).unwrap(), b"cut");
}

#[test]
fn p_a_deletion_that_was_begun_is_finished() {
    let disk = SimDisk::new();
    let storage = filled(&disk);
    let segments = storage.journal.segments();
    now(storage.journal.purge(at(1, 8))).unwrap();
    disk.set_fault(Some(Box::new(|call, _| {
        (call == Call::Remove).then(|| std::io::Error::other("no removal"))
    })));
    assert!(now(storage.journal.trim(segments[2].base_offset)).is_err());
    assert!(disk.exists(&segments[0].path).unwrap());
    disk.set_fault(None);
    let storage = reopen(&disk, storage).unwrap();
    assert_eq!(storage.journal.start_offset(), segments[2].base_offset);
    assert_eq!(storage.journal.segments()[0].path, segments[2].path);
    assert!(!disk.exists(&segments[0].path).unwrap());
    assert!(!disk.exists(&segments[1].path).unwrap());
}

#[test]
fn q_segments_of_an_unknown_group_are_no_log() {
    let disk = SimDisk::new();
    drop(filled(&disk));
    let files = disk.files().len();
    let io = sim_io(&disk);
    let state = StateLog::open(io.clone(), &data().join("other-state")).unwrap();
    let opened = Journal::open(io, group_dir(&data()), state, GROUP, small());
    assert!(matches!(opened, Err(OpenError::Inconsistent { .. })));
    assert_eq!(
        disk.files().len(),
        files + 2,
        "only the other state log came"
    );
}
