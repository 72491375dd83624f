//! Directories of groups that the state log knows nothing of are set aside, whole, and touch nothing else.

mod journal_support;

use imprint_raft::disk::Disk;
use imprint_raft::disk::sim::{Loss, SimDisk};
use imprint_raft::journal::{StateLog, group_dir, set_aside_unknown_groups};
use imprint_raft::statelog::Record;
use journal_support::*;

fn filled(disk: &SimDisk) {
    let storage = open_sim(disk, small());
    append_ok(&storage.journal, vec![blank(1, 0), admit(1, 1, 1)]);
}

#[test]
fn an_unknown_directory_is_set_aside_under_a_name_that_says_why() {
    let disk = SimDisk::new();
    filled(&disk);
    let segment = disk.list(&group_dir(&data(), GROUP)).unwrap().remove(0);
    let bytes = disk
        .contents(&group_dir(&data(), GROUP).join(&segment))
        .unwrap();
    // A crash right after the replica was forgotten, before its files were removed.
    let io = sim_io(&disk);
    let state = StateLog::open(io.clone(), &data().join("state")).unwrap();
    state
        .append_blocking(vec![Record::Dropped { group: GROUP }])
        .unwrap();
    let moved = set_aside_unknown_groups(&io, &data(), &state).unwrap();
    let [aside] = moved.as_slice() else {
        panic!("{moved:?}")
    };
    let name = aside.file_name().unwrap().to_string_lossy().into_owned();
    let why = format!("group-{GROUP:020}-unknown-to-state-log");
    assert!(
        aside.starts_with(data().join("quarantine")) && name.ends_with(&why),
        "{name}"
    );
    drop(state);
    disk.crash(1, Loss::DropAll);
    assert_eq!(disk.contents(&aside.join(&segment)).unwrap(), bytes);
    // The group may be created anew, without anything of what was there.
    let storage = open_sim(&disk, small());
    assert_eq!(storage.journal.next_offset(), 0);
}

#[test]
fn known_groups_and_other_names_stay_where_they_are() {
    let disk = SimDisk::new();
    filled(&disk);
    let groups = data().join("groups");
    disk.create_dir_all(&groups.join("notes")).unwrap();
    let io = sim_io(&disk);
    let state = StateLog::open(io.clone(), &data().join("state")).unwrap();
    assert!(
        set_aside_unknown_groups(&io, &data(), &state)
            .unwrap()
            .is_empty()
    );
    assert_eq!(disk.list(&groups).unwrap().len(), 2);
    assert!(!disk.exists(&data().join("quarantine")).unwrap());
}

#[test]
fn a_data_directory_without_groups_is_left_alone() {
    let disk = SimDisk::new();
    let io = sim_io(&disk);
    let state = StateLog::open(io.clone(), &data().join("state")).unwrap();
    assert!(
        set_aside_unknown_groups(&io, &data(), &state)
            .unwrap()
            .is_empty()
    );
}
