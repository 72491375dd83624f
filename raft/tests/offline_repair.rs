//! Checks and repairs of a whole data directory, with every kind of damage.

mod journal_support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imprint_raft::disk::{Disk, InlineOffload, OpenMode, SimDisk};
use imprint_raft::identity::{self, Identity};
use imprint_raft::journal::LogPos;
use imprint_raft::offline::check::{self, Options, Place, Report, Verdict};
use imprint_raft::offline::repair::{self, Source};
use journal_support::{
    GROUP, Storage, admit, append_ok, blank, group_dir, io_on, membership, now, open_in, read_all,
    small,
};

/// Batches of the log that these tests look at.
const BATCHES: u64 = 40;

fn data() -> PathBuf {
    PathBuf::from("/data")
}

/// Another replica's directory, on the same disk.
fn other() -> PathBuf {
    PathBuf::from("/other")
}

fn open(disk: &SimDisk, data: &Path) -> Storage {
    let io = io_on(Arc::new(disk.clone()), Arc::new(InlineOffload));
    open_in(io, data, small()).expect("journal")
}

fn write_log(disk: &SimDisk, data: &Path) {
    let storage = open(disk, data);
    append_ok(&storage.journal, vec![blank(1, 1)]);
    for index in 2..2 + BATCHES / 2 {
        append_ok(&storage.journal, vec![admit(1, index, index)]);
    }
    let index = 2 + BATCHES / 2;
    append_ok(&storage.journal, vec![membership(2, index, b"members")]);
    for index in index + 1..=index + BATCHES / 2 {
        append_ok(&storage.journal, vec![admit(2, index, index)]);
    }
    storage.journal.note_committed(LogPos { term: 2, index });
    now(storage.journal.close()).unwrap();
    let identity = Identity {
        cluster_id: None,
        node_id: imprint_proto::ids::NodeId(1),
        storage_id: imprint_proto::ids::StorageId([7; 16]),
        incarnation: 1,
    };
    identity::store(disk, data, &identity).unwrap();
}

/// Two replicas' directories with the same log.
fn written() -> SimDisk {
    let disk = SimDisk::new();
    write_log(&disk, &data());
    write_log(&disk, &other());
    disk
}

fn place() -> Place {
    Place {
        data: data(),
        group: None,
    }
}

fn look(disk: &SimDisk) -> Report {
    let options = Options {
        quick: false,
        formation: &|_| Ok(String::new()),
        meta: &|_| None,
        progress: &|_| {},
    };
    check::check(disk, &place(), &options).unwrap()
}

/// Repairs, and says what could not be done.
fn fix(disk: &SimDisk, from: Option<&Path>) -> Vec<String> {
    let source = from.map(|from| Source::open(disk, from).unwrap());
    let steps = repair::plan(&look(disk), source.as_ref());
    let io = io_on(Arc::new(disk.clone()), Arc::new(InlineOffload));
    let mut failed = Vec::new();
    repair::apply(&io, &place(), &steps, source.as_ref(), &mut |_, result| {
        if let Err(error) = result {
            failed.push(error.to_string());
        }
    });
    failed
}

fn contents(disk: &SimDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = disk.files();
    let contents = files.into_iter().map(|path| {
        let bytes = disk.contents(&path).unwrap();
        (path, bytes)
    });
    contents.collect()
}

fn segments(disk: &SimDisk, data: &Path) -> Vec<PathBuf> {
    let dir = group_dir(data);
    let names = disk.list(&dir).unwrap();
    let segments = names.into_iter().filter(|name| name.ends_with(".seg"));
    segments.map(|name| dir.join(name)).collect()
}

/// The digest of a segment.
fn beside(segment: &Path) -> PathBuf {
    PathBuf::from(format!("{}.digest", segment.display()))
}

fn flip(disk: &SimDisk, path: &Path, at: u64) {
    disk.rot(path, at).unwrap();
}

fn len(disk: &SimDisk, path: &Path) -> u64 {
    disk.contents(path).unwrap().len() as u64
}

fn set_len(disk: &SimDisk, path: &Path, len: u64) {
    let file = disk.open(path, OpenMode::Write).unwrap();
    file.set_len(len).unwrap();
    file.sync_all().unwrap();
}

/// End of the batches in the last segment.
fn active_end(disk: &SimDisk, path: &Path) -> u64 {
    let bytes = disk.contents(path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0);
    end.map_or(0, |end| end as u64 + 1)
}

fn damaged(report: &Report) -> Vec<(&str, Option<(u64, u64)>)> {
    let items = report.of(Verdict::Damaged);
    let offsets = |item: &check::Item| {
        let range = item.range?;
        Some((range.from_offset?, range.to_offset?))
    };
    items.map(|item| (item.area, offsets(item))).collect()
}

/// All entries of the log at `data`, which has to open.
fn entries(disk: &SimDisk, data: &Path) -> Vec<imprint_raft::journal::StoredEntry> {
    read_all(&open(disk, data).journal)
}

#[test]
fn a_good_directory_is_good_and_left_alone() {
    let disk = written();
    let before = contents(&disk);
    let report = look(&disk);
    let bad: Vec<_> = report
        .items
        .iter()
        .filter(|item| item.verdict != Verdict::Ok)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(repair::plan(&report, None).is_empty());
    assert!(fix(&disk, None).is_empty());
    assert_eq!(contents(&disk), before);
}

#[test]
fn rot_in_a_sealed_segment_is_found_and_filled_from_another_replica() {
    let whole = entries(&written(), &data());
    let paths = segments(&written(), &data());
    for path in &paths[..paths.len() - 1] {
        for percent in [30, 60, 99] {
            let disk = written();
            flip(&disk, path, len(&disk, path) * percent / 100);
            let report = look(&disk);
            assert_eq!(damaged(&report).len(), 1, "{percent} %");
            let before = contents(&disk);
            // Without another replica nothing can be done, and nothing is.
            assert!(fix(&disk, None).is_empty());
            assert_eq!(contents(&disk), before);
            assert_eq!(fix(&disk, Some(&other())), [""; 0]);
            assert!(!look(&disk).is_damaged(), "{percent} %");
            assert_eq!(entries(&disk, &data()), whole);
            let kept = disk.list(&data().join("quarantine")).unwrap();
            assert_eq!(kept.len(), 1);
        }
    }
}

#[test]
fn damage_below_the_synced_mark_in_the_last_segment_is_filled_too() {
    let disk = written();
    let path = segments(&disk, &data()).pop().unwrap();
    let whole = entries(&written(), &data());
    flip(&disk, &path, active_end(&disk, &path) * 60 / 100);
    // The clean stop would let a start trust the headers; the mark still says what has to be there.
    let report = look(&disk);
    assert_eq!(damaged(&report).len(), 1, "{:?}", report.items);
    assert_eq!(fix(&disk, Some(&other())), [""; 0]);
    assert!(!look(&disk).is_damaged());
    assert_eq!(entries(&disk, &data()), whole);
}

#[test]
fn a_torn_tail_is_cut_and_kept() {
    let garbage = vec![0x5a; 300];
    for torn in [1, 4, 8, 255, 256, 257] {
        let disk = written();
        let path = segments(&disk, &data()).pop().unwrap();
        let whole = entries(&written(), &data());
        let end = active_end(&disk, &path);
        set_len(&disk, &path, end);
        let file = disk.open(&path, OpenMode::Write).unwrap();
        file.write_all_at(&[&garbage[..torn]], end).unwrap();
        file.sync_all().unwrap();
        let report = look(&disk);
        assert!(!report.is_damaged(), "{torn}: {:?}", report.items);
        let mends: Vec<_> = report.of(Verdict::Mends).collect();
        assert_eq!(mends.len(), 1, "{torn}");
        let range = mends[0].range.unwrap();
        assert_eq!(
            (range.from_byte, range.to_byte),
            (end, Some(end + torn as u64))
        );
        assert!(fix(&disk, None).is_empty());
        assert_eq!(len(&disk, &path), end);
        let kept = disk.list(&data().join("quarantine")).unwrap();
        assert_eq!(kept.len(), 1, "{torn}");
        let aside = data().join("quarantine").join(&kept[0]);
        assert_eq!(disk.contents(&aside).unwrap(), garbage[..torn]);
        let after = contents(&disk);
        assert!(fix(&disk, None).is_empty());
        assert_eq!(contents(&disk), after, "a second repair changed something");
        assert_eq!(entries(&disk, &data()), whole);
    }
}

#[test]
fn synced_bytes_cut_off_are_damage_however_few() {
    for cut in [1, 4, 8, 255, 256, 257] {
        let disk = written();
        let path = segments(&disk, &data()).pop().unwrap();
        let end = active_end(&disk, &path);
        set_len(&disk, &path, end - cut);
        let before = contents(&disk);
        assert_eq!(damaged(&look(&disk)).len(), 1, "{cut}");
        assert!(fix(&disk, None).is_empty());
        assert_eq!(contents(&disk), before);
        assert_eq!(fix(&disk, Some(&other())), [""; 0]);
        assert!(!look(&disk).is_damaged(), "{cut}");
    }
}

#[test]
fn a_missing_and_a_foreign_segment_are_named_with_their_offsets() {
    let disk = written();
    let paths = segments(&disk, &data());
    let base = |n: usize| -> u64 {
        let name = paths[n].file_name().unwrap().to_str().unwrap();
        name[..20].parse().unwrap()
    };
    disk.remove_file(&paths[1]).unwrap();
    assert_eq!(
        damaged(&look(&disk)),
        [("segment", Some((base(1), base(2))))]
    );

    let whole = entries(&written(), &data());
    for gone in [vec![0], vec![1], vec![0, 1], vec![1, 2]] {
        let disk = written();
        for n in &gone {
            disk.remove_file(&paths[*n]).unwrap();
            disk.remove_file(&beside(&paths[*n])).unwrap();
        }
        let (from, to) = (base(gone[0]), base(gone[gone.len() - 1] + 1));
        assert_eq!(damaged(&look(&disk)), [("gap", Some((from, to)))]);
        assert_eq!(fix(&disk, Some(&other())), [""; 0]);
        assert!(!look(&disk).is_damaged(), "{gone:?}");
        assert_eq!(entries(&disk, &data()), whole);
    }

    let disk = written();
    let foreign = disk.contents(&paths[2]).unwrap();
    disk.rewrite(&paths[1], |bytes| bytes.clone_from(&foreign))
        .unwrap();
    assert_eq!(
        damaged(&look(&disk)),
        [("segment", Some((base(1), base(2))))]
    );
    assert_eq!(fix(&disk, Some(&other())), [""; 0]);
    assert!(!look(&disk).is_damaged());
}

#[test]
fn a_digest_of_other_content_is_damage_and_an_unreadable_one_is_made_again() {
    let disk = written();
    let path = segments(&disk, &data())[1].clone();
    let good = disk.contents(&beside(&path)).unwrap();
    let middle = good.len() as u64 / 2;
    flip(&disk, &beside(&path), middle);
    assert!(!look(&disk).is_damaged());
    assert!(fix(&disk, None).is_empty());
    assert_eq!(disk.contents(&beside(&path)).unwrap(), good);

    // A good digest that says something else: the segment may be an older copy.
    disk.rewrite(&beside(&path), |bytes| {
        let at = bytes.len() - 1;
        bytes[at] ^= 1;
        let crc = crc32c::crc32c(&bytes[10..]);
        bytes[6..10].copy_from_slice(&crc.to_le_bytes());
    })
    .unwrap();
    assert_eq!(damaged(&look(&disk)).len(), 1);
    let before = contents(&disk);
    assert!(fix(&disk, None).is_empty());
    assert_eq!(contents(&disk), before);
}

#[test]
fn another_logs_bytes_are_not_taken() {
    let disk = written();
    let path = segments(&disk, &data())[1].clone();
    flip(&disk, &path, 300);
    // The other directory has a segment of the same name whose own batches are valid, but differ.
    let theirs = segments(&disk, &other())[1].clone();
    let before = contents(&disk);
    flip(&disk, &theirs, 300);
    let failed = fix(&disk, Some(&other()));
    assert_eq!(failed.len(), 1);
    let after = contents(&disk);
    assert_eq!(after[&path], before[&path]);
    // A directory without a state log is refused at once.
    disk.remove_dir_all(&other().join("state")).unwrap();
    assert!(Source::open(&disk, &other()).is_err());
}

#[test]
fn one_bad_copy_of_the_state_log_is_mended_and_two_are_refused() {
    let names = ["a.log", "b.log"].map(|name| data().join("state").join(name));
    for path in &names {
        for percent in [0, 30, 60, 99] {
            let disk = written();
            let good = disk.contents(path).unwrap();
            flip(&disk, path, good.len() as u64 * percent / 100);
            let report = look(&disk);
            assert!(!report.is_damaged());
            assert_eq!(report.of(Verdict::Mends).count(), 1);
            assert!(fix(&disk, None).is_empty());
            assert_eq!(disk.contents(path).unwrap(), good);
            let after = contents(&disk);
            assert!(fix(&disk, None).is_empty());
            assert_eq!(contents(&disk), after);
        }
    }
    let disk = written();
    for path in &names {
        flip(&disk, path, 60);
    }
    let before = contents(&disk);
    assert!(
        look(&disk)
            .items
            .iter()
            .any(|item| { item.area == "state log" && item.verdict == Verdict::Damaged })
    );
    assert!(fix(&disk, None).is_empty());
    assert_eq!(contents(&disk), before);
}

#[test]
fn strangers_are_set_aside_and_leftovers_removed() {
    let disk = written();
    let put = |path: &str| {
        let path = data().join(path);
        disk.create_dir_all(path.parent().unwrap()).unwrap();
        disk.open(&path, OpenMode::Truncate).unwrap();
    };
    put("notes.txt");
    put("identity.new");
    put("groups/README");
    // These two are a node's own.
    put("reserve");
    put("suspect");
    let report = look(&disk);
    assert!(!report.is_damaged());
    assert_eq!(report.of(Verdict::Note).count(), 4);
    assert!(fix(&disk, None).is_empty());
    let kept = disk.list(&data().join("quarantine")).unwrap();
    // Each begins with its date.
    let names = kept.iter().map(|name| name.split_once('-').unwrap().1);
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["unknown-README", "unknown-notes.txt"]
    );
    assert!(!disk.exists(&data().join("identity.new")).unwrap());
    let after = contents(&disk);
    assert!(fix(&disk, None).is_empty());
    assert_eq!(contents(&disk), after);
}

#[test]
fn the_end_of_a_log_is_given_up_only_as_said() {
    let disk = written();
    let whole = entries(&written(), &data());
    let path = segments(&disk, &data())[2].clone();
    let report = look(&disk);
    assert!(repair::loss(&disk, &place(), &report, GROUP).is_err());
    flip(&disk, &path, len(&disk, &path) * 60 / 100);
    let report = look(&disk);
    let loss = repair::loss(&disk, &place(), &report, GROUP).unwrap();
    let end = (2..2 + BATCHES / 2)
        .chain(3 + BATCHES / 2..3 + BATCHES)
        .map(|tag| 1 + tag % 3)
        .sum::<u64>();
    assert_eq!(loss.to_offset, end);
    let io = io_on(Arc::new(disk.clone()), Arc::new(InlineOffload));
    let before = contents(&disk);
    let wrong = repair::give_up(&io, &place(), &loss, loss.from_offset + 1..loss.to_offset);
    assert!(wrong.is_err());
    assert_eq!(contents(&disk), before);
    repair::give_up(&io, &place(), &loss, loss.from_offset..loss.to_offset).unwrap();
    assert!(!look(&disk).is_damaged());
    let left = entries(&disk, &data());
    assert_eq!(left, whole[..left.len()]);
    assert_eq!(left.last().unwrap().pos().index + 1, loss.from_index);
    let kept = disk.list(&data().join("quarantine")).unwrap();
    assert_eq!(kept.len(), 1 + loss.segments.len());
}

#[test]
fn an_older_copy_of_a_segment_is_replaced_by_what_was_sealed() {
    let disk = written();
    let path = segments(&disk, &data())[1].clone();
    // Valid batches of the right offsets with other payloads: only the digest tells.
    let older = SimDisk::new();
    let storage = open(&older, &data());
    append_ok(&storage.journal, vec![blank(1, 1)]);
    for index in 2..2 + BATCHES / 2 {
        let mut entry = admit(1, index, index + 30);
        if index == 2 {
            entry = admit(1, index, index);
        }
        append_ok(&storage.journal, vec![entry]);
    }
    let bytes = older.contents(&path).unwrap();
    assert_ne!(bytes, disk.contents(&path).unwrap());
    disk.rewrite(&path, |now| now.clone_from(&bytes)).unwrap();
    assert_eq!(damaged(&look(&disk)).len(), 1);
    assert_eq!(fix(&disk, Some(&other())), [""; 0]);
    assert!(!look(&disk).is_damaged());
    assert_eq!(entries(&disk, &data()), entries(&written(), &data()));
}
