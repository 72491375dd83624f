//! Thousands of power cuts and single rotten bytes on a simulated disk, by seed.
//!
//! Journal and state log live on one disk that forgets what was not synced. `TORTURE_LIVES` and `TORTURE_SEED` choose how
//! many lives and which; a failure names the seed of its life, and `TORTURE_SEED=that TORTURE_LIVES=1` repeats it.

mod journal_support;

use std::path::PathBuf;

use imprint_raft::disk::sim::Loss;
use imprint_raft::journal::{Journal, StoredEntry};
use journal_support::draw::{Draw, number};
use journal_support::history::{History, Op};
use journal_support::{data, group_dir, read_all, small};

const LIVES: u64 = 800;
const CUTS_PER_LIFE: u64 = 4;
const LOSSES: [Loss; 4] = [Loss::DropAll, Loss::KeepSome, Loss::Tear, Loss::KeepAll];

fn op(draw: &mut Draw) -> Op {
    match draw.below(16) {
        0 => Op::Vote,
        1 => Op::Membership,
        2 | 3 => Op::Elected(draw.small(4)),
        4 | 5 => Op::Truncate(draw.below(8)),
        6 => Op::PurgeBut(draw.below(8)),
        7 => Op::Trim,
        8 | 9 => Op::Flush,
        10 => Op::Install(draw.below(5)),
        _ => Op::Data(1 + draw.small(3)),
    }
}

fn script(draw: &mut Draw) -> Vec<Op> {
    (0..1 + draw.below(20)).map(|_| op(draw)).collect()
}

fn loss(draw: &mut Draw) -> Loss {
    LOSSES[draw.small(4) as usize]
}

/// Names the life if it ends badly.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("TORTURE_SEED={} TORTURE_LIVES=1", self.0);
        }
    }
}

/// Works until the power goes, `cuts` times, and is checked each time.
fn live(draw: &mut Draw, cuts: u64) -> History {
    let mut history = History::new(small());
    history.open().expect("an empty disk");
    for _ in 0..cuts {
        let script = script(draw);
        let off_in = 1 + draw.below(150);
        history.disk.power_off_at(history.disk.changes() + off_in);
        history.run(&script);
        history.crash(draw.next(), loss(draw));
    }
    history
}

#[test]
fn no_power_cut_takes_what_was_acknowledged() {
    let (first, lives) = (number("TORTURE_SEED", 1), number("TORTURE_LIVES", LIVES));
    for seed in first..first + lives {
        let _named = Named(seed);
        live(&mut Draw(seed), CUTS_PER_LIFE);
    }
    println!("{} crash points", lives * CUTS_PER_LIFE);
}

/// Everything that a sound journal says of itself.
#[derive(Debug, PartialEq)]
struct Face {
    last: Option<imprint_raft::journal::LogPos>,
    start_offset: u64,
    next_offset: u64,
    vote: Option<imprint_raft::journal::VoteRecord>,
}

fn face(journal: &Journal) -> Face {
    Face {
        last: journal.last(),
        start_offset: journal.start_offset(),
        next_offset: journal.next_offset(),
        vote: journal.vote(),
    }
}

/// A life that ends with everything synced and every mark durable.
fn settled(draw: &mut Draw) -> History {
    let mut history = live(draw, 2);
    let script = [Op::Elected(3), Op::Data(6), Op::Membership, Op::Data(9)];
    assert_eq!(history.run(&script), script.len());
    assert!(history.step(&Op::Flush));
    history
}

/// One byte of the batches of a segment that is wholly kept, so that somebody may read it.
fn rot_a_segment(history: &History, before: &[StoredEntry], draw: &mut Draw) -> PathBuf {
    let journal = &history.storage.as_ref().expect("open").journal;
    let first = before.iter().find_map(|entry| match entry {
        StoredEntry::Data { batch, .. } => Some(batch.base_offset()),
        StoredEntry::Control { .. } => None,
    });
    let kept_from = first.expect("data").max(journal.start_offset());
    let mut infos = journal.segments();
    infos.retain(|info| info.base_offset >= kept_from);
    let info = &infos[usize::try_from(draw.below(infos.len() as u64)).expect("small")];
    let base = format!("{:020}-", info.base_offset);
    let files = history.disk.files();
    let path = files.iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.parent() == Some(&group_dir(&data()))
            && name.starts_with(&base)
            && name.ends_with(".seg")
    });
    let path = path.expect("a file for each segment").clone();
    let at = draw.below(info.bytes);
    history.disk.rot(&path, at).expect("it is there");
    path
}

/// Right, or an error: an entry that was there is never absent and never another one.
fn reads_are_honest(journal: &Journal, before: &[StoredEntry]) -> u64 {
    let mut refused = 0;
    for entry in before {
        let index = entry.pos().index;
        match journal.read(index, index + 1, u64::MAX) {
            Ok(found) => assert_eq!(found.first(), Some(entry), "at {index}"),
            Err(_) => refused += 1,
        }
        let StoredEntry::Data { batch, .. } = entry else {
            continue;
        };
        if batch.base_offset() < journal.start_offset() {
            continue;
        }
        match journal.read_bytes(batch.base_offset(), u64::MAX, 0) {
            Ok(read) => assert_eq!(
                read.batches.first(),
                Some(&batch.to_contiguous()),
                "at {index}"
            ),
            Err(_) => refused += 1,
        }
    }
    refused
}

#[test]
fn a_rotten_byte_below_the_synced_mark_is_reported_and_never_served() {
    let (first, lives) = (
        number("TORTURE_SEED", 1),
        number("TORTURE_LIVES", LIVES) / 2,
    );
    let (mut at_open, mut at_read) = (0, 0);
    for seed in first..first + lives.max(1) {
        let _named = Named(seed);
        let mut draw = Draw(seed ^ 0x00B1_7F11);
        let mut history = settled(&mut draw);
        let journal = history.storage.take().expect("open").journal;
        let (before, expected) = (read_all(&journal), face(&journal));
        history.open().expect("nothing is wrong yet");
        let path = rot_a_segment(&history, &before, &mut draw);
        history.storage = None;
        history.disk.crash(draw.next(), Loss::KeepAll);
        match history.open() {
            Err(said) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                assert!(said.contains(&*name), "{name} is not named: {said}");
                at_open += 1;
            }
            Ok(()) => {
                let journal = &history.storage.as_ref().expect("open").journal;
                assert_eq!(face(journal), expected, "{}", path.display());
                let refused = reads_are_honest(journal, &before);
                assert!(refused > 0, "{}: nobody noticed", path.display());
                at_read += 1;
            }
        }
    }
    println!("{at_open} rotten bytes found at the start, {at_read} when they were read");
    assert!(at_open + at_read > 0);
}

#[test]
fn a_rotten_byte_in_one_copy_of_the_state_log_changes_nothing() {
    let (first, lives) = (
        number("TORTURE_SEED", 1),
        number("TORTURE_LIVES", LIVES) / 4,
    );
    for seed in first..first + lives.max(1) {
        let _named = Named(seed);
        let mut draw = Draw(seed ^ 0x57A7_E106);
        let mut history = settled(&mut draw);
        let storage = history.storage.take().expect("open");
        let (before, expected) = (read_all(&storage.journal), face(&storage.journal));
        drop(storage);
        let path = data()
            .join("state")
            .join(["a.log", "b.log"][draw.small(2) as usize]);
        let len = history.disk.contents(&path).expect("it is there").len() as u64;
        history
            .disk
            .rot(&path, draw.below(len))
            .expect("it is there");
        history.disk.crash(draw.next(), Loss::KeepAll);
        history.open().expect("the other copy is good");
        let journal = &history.storage.as_ref().expect("open").journal;
        assert_eq!(face(journal), expected);
        assert_eq!(read_all(journal), before);
    }
}
