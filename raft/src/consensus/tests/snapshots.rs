//! Snapshots and cuts on a disk whose power goes at every single change, without Raft around them.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use imprint_proto::batch::StampedBatch;
use openraft::storage::{RaftSnapshotBuilder, RaftStateMachine};
use tokio::sync::watch;

use super::super::machine::{GroupMachine, Machine, NoMachine, ResumeError, SnapshotEvery};
use super::super::snapshot::{Snap, SnapshotOf};
use super::super::types::{
    Entry, GroupMembership, LogId, StoredMembership, from_journal, log_id, log_pos,
};
use super::cluster::batch;
use crate::disk::sim::Loss;
use crate::disk::{InlineOffload, Io, SimDisk};
use crate::journal::{
    ControlKind, Cut, Journal, JournalConfig, LogPos, NewEntry, RollSettings, StateLog,
};
use crate::seams::SystemClock;

const GROUP: u64 = 7;
const LOSSES: [Loss; 4] = [Loss::DropAll, Loss::KeepSome, Loss::Tear, Loss::KeepAll];

/// Runs a call that is complete at once when jobs run inline.
fn now<T>(call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match call.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("waits although jobs run inline"),
    }
}

fn at(term: u64, index: u64) -> LogPos {
    LogPos { term, index }
}

/// A state that depends on every byte that was applied, and on their order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) count: u64,
    hash: u64,
}

impl Machine for Digest {
    fn fresh(&self) -> Box<dyn Machine> {
        Box::new(Digest::default())
    }

    fn apply(&mut self, batch: &StampedBatch) -> Bytes {
        self.count += 1;
        let bytes = batch.to_contiguous();
        self.hash = xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, self.hash);
        self.snapshot()
    }

    fn snapshot(&self) -> Bytes {
        let mut bytes = self.count.to_le_bytes().to_vec();
        bytes.extend(self.hash.to_le_bytes());
        bytes.into()
    }

    fn restore(&mut self, snapshot: Bytes) -> Result<(), String> {
        let (count, hash) = snapshot
            .split_first_chunk()
            .ok_or_else(|| format!("{} bytes", snapshot.len()))?;
        let hash = hash
            .first_chunk()
            .ok_or_else(|| format!("{} bytes", snapshot.len()))?;
        self.count = u64::from_le_bytes(*count);
        self.hash = u64::from_le_bytes(*hash);
        Ok(())
    }
}

/// One replica's storage without Raft.
struct Replica {
    state: Arc<StateLog>,
    journal: Arc<Journal>,
    machine: GroupMachine,
    commit: watch::Receiver<u64>,
}

type MakeMachine = fn() -> Box<dyn Machine>;

fn no_state() -> Box<dyn Machine> {
    Box::new(NoMachine)
}

fn with_state() -> Box<dyn Machine> {
    Box::new(Digest::default())
}

fn open(disk: &SimDisk, make: MakeMachine) -> Result<Replica, ResumeError> {
    let io = Io::new(
        Arc::new(disk.clone()),
        Arc::new(InlineOffload),
        Arc::new(SystemClock),
    );
    let failed = |e: &dyn std::fmt::Display| std::io::Error::other(e.to_string());
    let state = StateLog::open(io.clone(), "/data/state".as_ref()).map_err(|e| failed(&e))?;
    let dir = format!("/data/groups/{GROUP:020}").into();
    let cfg = JournalConfig {
        segment_bytes: 2_000,
        tail_cache_bytes: 1_500,
        zero_step_bytes: 0,
        ..JournalConfig::default()
    };
    let journal = Journal::open(io, dir, Arc::clone(&state), GROUP, cfg).map_err(|e| failed(&e))?;
    let (commit_tx, commit) = watch::channel(0);
    let every = SnapshotEvery {
        bytes: u64::MAX,
        entries: 1,
    };
    let machine = now(GroupMachine::open(&journal, make(), every, commit_tx))?;
    Ok(Replica {
        state,
        journal,
        machine,
        commit,
    })
}

impl Replica {
    fn append(&self, entries: Vec<NewEntry>) -> bool {
        let (tell, told) = std::sync::mpsc::channel();
        let done = Box::new(move |result: std::io::Result<()>| {
            // Nobody listens any more when a test has failed.
            let _ = tell.send(result.is_ok());
        });
        self.journal.append(entries, done).is_ok() && told.recv().unwrap_or(false)
    }

    fn end(&self) -> u64 {
        self.journal.last().map_or(0, |last| last.index + 1)
    }

    fn control(&self, term: u64, kind: ControlKind) -> bool {
        let pos = at(term, self.end());
        self.append(vec![NewEntry::Control { pos, kind }])
    }

    /// Appends so many batches of one message of 300 bytes.
    fn batches(&self, term: u64, count: u64) -> bool {
        (0..count).all(|_| {
            let pos = at(term, self.end());
            self.append(vec![NewEntry::Admit {
                pos,
                batch: batch(GROUP, &[pos.index as u8; 300]),
                expected_offset: None,
            }])
        })
    }

    /// Applies everything behind what was applied, as openraft would.
    fn apply_all(&mut self) -> bool {
        let applied = now(self.machine.applied_state()).expect("known").0;
        let from = applied.map_or(0, |id: LogId| id.index + 1);
        assert!(
            self.journal.purged().is_none_or(|p| p.index < from),
            "entries to apply are purged"
        );
        let stored = self
            .journal
            .read(from, u64::MAX, u64::MAX)
            .expect("readable");
        let entries: Vec<Entry> = stored
            .into_iter()
            .map(|entry| from_journal(entry).expect("a known entry"))
            .collect();
        let items = stream::iter(entries.into_iter().map(|entry| Ok((entry, None))));
        now(self.machine.apply(items)).is_ok()
    }

    fn commit_all(&self) {
        if let Some(last) = self.journal.last() {
            self.journal.note_committed(last);
        }
        self.state.flush_lazy();
    }

    fn build(&mut self) -> Option<SnapshotOf> {
        let mut builder = now(self.machine.try_create_snapshot_builder(true))?;
        now(builder.build_snapshot()).ok()
    }

    /// What the keeper does, with openraft's purge in its place.
    fn purge(&self) -> bool {
        let Some(target) = self.machine.purge_target() else {
            return true;
        };
        if self.machine.keeps_state() && now(self.journal.trim(target.next_offset)).is_err() {
            return false;
        }
        now(self.journal.purge(target.pos)).is_ok()
    }

    fn state_bytes(&mut self) -> Bytes {
        let snapshot = self.build().expect("the power is on");
        Snap::received(&snapshot.meta, snapshot.snapshot)
            .expect("it was just made")
            .machine
    }
}

fn membership(index: u64) -> StoredMembership {
    let members: GroupMembership =
        openraft::Membership::new_with_defaults(vec![[1, 2, 3].into()], []);
    StoredMembership::new(Some(log_id(at(2, index))), members)
}

/// A cut at entry 50 that no test log below reaches.
fn foreign_snapshot(machine: Bytes) -> Snap {
    Snap {
        last: log_id(at(3, 50)),
        membership: membership(40),
        next_offset: 77,
        last_stamp_us: 5,
        settings: Some((
            at(2, 41),
            RollSettings {
                segment_bytes: 1_234,
                segment_span_us: Some(9),
            },
        )),
        machine,
    }
}

fn check_installed(replica: &mut Replica, snap: &Snap, what: &str) {
    let journal = &replica.journal;
    let Cut {
        upto,
        next_offset,
        membership,
        settings,
        ..
    } = snap.cut();
    assert_eq!(journal.last(), Some(upto), "{what}");
    assert_eq!(journal.purged(), Some(upto), "{what}");
    assert_eq!(
        (journal.start_offset(), journal.next_offset()),
        (next_offset, next_offset),
        "{what}"
    );
    assert_eq!(journal.last_membership(u64::MAX), membership, "{what}");
    assert_eq!(journal.last_settings(u64::MAX), settings, "{what}");
    assert!(journal.segments().is_empty(), "{what}");
    assert_eq!(*replica.commit.borrow(), next_offset, "{what}");
    let (applied, known) = now(replica.machine.applied_state()).expect("known");
    assert_eq!((applied, known), (Some(snap.last), snap.membership.clone()));
    let current = now(replica.machine.get_current_snapshot()).expect("readable");
    let current = current.expect("a log that was cut has a snapshot");
    assert_eq!(current.meta.last_log_id, Some(snap.last), "{what}");
}

/// A follower with a tail of an old term, longer than what it is sent by index or not.
fn lagging(disk: &SimDisk, make: MakeMachine, batches: u64) -> Replica {
    let mut replica = open(disk, make).expect("a new log");
    assert!(replica.control(1, ControlKind::Blank) && replica.batches(1, 8));
    assert!(replica.apply_all());
    replica.commit_all();
    assert!(replica.batches(1, batches));
    replica
}

/// Installs with the power going at the `n`-th change; says whether it went.
fn install_until(n: u64, seed: u64, loss: Loss, make: MakeMachine, tail: u64) -> bool {
    let disk = SimDisk::new();
    let state = make().snapshot();
    let snap = foreign_snapshot(state);
    let what = format!("power off at {n}, {loss:?} {seed}");
    let mut replica = lagging(&disk, make, tail);
    disk.power_off_at(disk.changes() + n);
    let wire = snap.clone().into_openraft();
    let done = now(replica
        .machine
        .install_snapshot(&wire.meta, wire.snapshot.clone()))
    .is_ok();
    drop(replica);
    disk.crash(seed, loss);

    let mut replica = open(&disk, make).unwrap_or_else(|e| panic!("{what}: {e}"));
    let before = now(replica.machine.applied_state()).expect("known").0;
    assert!(
        !done || before == Some(snap.last),
        "{what}: an installation that was reported is gone"
    );
    // The leader sends it again.
    let again = replica.machine.install_snapshot(&wire.meta, wire.snapshot);
    now(again).unwrap_or_else(|e| panic!("{what}: {e}"));
    check_installed(&mut replica, &snap, &what);
    drop(replica);
    disk.crash(seed, Loss::DropAll);
    let mut replica = open(&disk, make).unwrap_or_else(|e| panic!("{what}: {e}"));
    check_installed(&mut replica, &snap, &what);
    assert!(replica.control(4, ControlKind::Blank) && replica.batches(4, 9));
    drop(replica);
    disk.crash(seed, Loss::DropAll);
    let replica = open(&disk, make).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(replica.journal.next_offset(), 77 + 9, "{what}");
    !done
}

fn every_crash(mut until: impl FnMut(u64, u64, Loss) -> bool) {
    for loss in LOSSES {
        for seed in 0..2 {
            let mut n = 1;
            while until(n, seed, loss) {
                n += 1;
            }
            assert!(n > 4, "only {n} changes");
        }
    }
}

#[test]
fn an_installation_survives_the_power_going_anywhere() {
    every_crash(|n, seed, loss| install_until(n, seed, loss, no_state, 3));
}

#[test]
fn an_installation_over_a_longer_uncommitted_tail_survives_the_power_going_anywhere() {
    every_crash(|n, seed, loss| install_until(n, seed, loss, no_state, 70));
}

#[test]
fn an_installation_with_a_state_survives_the_power_going_anywhere() {
    every_crash(|n, seed, loss| install_until(n, seed, loss, with_state, 3));
}

/// A log of data in some ten segments, all of it committed, the last entry a trim.
fn trimmed_log(disk: &SimDisk, upto: u64) -> Replica {
    let replica = open(disk, no_state).expect("a new log");
    assert!(replica.control(1, ControlKind::Blank));
    let members = openraft::Membership::new_with_defaults(vec![[1].into()], []);
    let bytes = super::super::types::encode_membership(&members);
    assert!(replica.control(1, ControlKind::Membership(bytes)) && replica.batches(1, 30));
    let settings = RollSettings {
        segment_bytes: 3_000,
        segment_span_us: None,
    };
    assert!(replica.control(1, ControlKind::Settings(settings)) && replica.batches(1, 30));
    assert!(replica.control(1, ControlKind::Trim { upto }) && replica.batches(1, 2));
    replica
}

/// Trim, snapshot and purge with the power going at the `n`-th change; says whether it went.
fn trim_until(n: u64, seed: u64, loss: Loss, marked: bool) -> bool {
    let disk = SimDisk::new();
    let upto = 41;
    let what = format!("power off at {n}, {loss:?} {seed}, marked {marked}");
    let mut replica = trimmed_log(&disk, upto);
    if marked {
        // The mark is durable before the first kept offset is.
        replica.commit_all();
    }
    disk.power_off_at(disk.changes() + n);
    let trimmed = replica.apply_all();
    let done = trimmed && replica.build().is_some() && replica.purge();
    drop(replica);
    disk.crash(seed, loss);

    let mut replica = open(&disk, no_state).unwrap_or_else(|e| panic!("{what}: {e}"));
    if trimmed || marked {
        assert_eq!(replica.journal.start_offset(), upto, "{what}");
    }
    assert!(replica.apply_all(), "{what}");
    assert_eq!(*replica.commit.borrow(), 62, "{what}");
    let cut = replica.build().expect("the power is on").meta.last_log_id;
    assert!(replica.purge(), "{what}");
    assert_eq!(replica.journal.start_offset(), upto, "{what}");
    let segments = replica.journal.segments();
    let kept: Vec<u64> = segments.iter().map(|s| s.base_offset).collect();
    assert!(kept[0] <= upto && kept[1] > upto, "{what}: {kept:?}");
    assert_eq!(
        replica.journal.purged(),
        cut.as_ref().map(log_pos),
        "{what}"
    );
    assert_eq!(replica.journal.roll_settings().segment_bytes, 3_000);
    assert!(replica.journal.last_membership(u64::MAX).is_some());
    let read = replica.journal.read_bytes(upto, u64::MAX, u64::MAX);
    assert_eq!(read.expect("readable").next_offset, 62, "{what}");
    !done
}

#[test]
fn a_trim_that_is_marked_committed_survives_the_power_going_anywhere() {
    every_crash(|n, seed, loss| trim_until(n, seed, loss, true));
}

#[test]
fn a_trim_survives_the_power_going_anywhere() {
    every_crash(|n, seed, loss| trim_until(n, seed, loss, false));
}

#[test]
fn a_segment_whose_first_batch_is_not_committed_is_not_cut_before() {
    let disk = SimDisk::new();
    let mut replica = trimmed_log(&disk, 41);
    assert!(replica.apply_all());
    let all = replica.journal.cut_pos(replica.journal.last());
    let few = replica.journal.cut_pos(Some(at(1, 20)));
    assert!(few < all, "{few:?} {all:?}");
    let cut = replica.journal.cut(Some(at(1, 20))).expect("readable");
    let next = cut.expect("below the start").next_offset;
    let bases = replica.journal.segments();
    assert!(bases.iter().any(|s| s.base_offset == next));
}

/// A group with a state that took two snapshots, and the state that it should have.
fn two_generations(disk: &SimDisk) -> (Replica, Bytes) {
    let mut replica = open(disk, with_state).expect("a new log");
    assert!(replica.control(1, ControlKind::Blank));
    for _ in 0..2 {
        assert!(replica.batches(1, 20) && replica.apply_all());
        replica.commit_all();
        replica.build().expect("the power is on");
        assert!(replica.purge());
    }
    assert!(replica.batches(1, 3) && replica.apply_all());
    replica.commit_all();
    let state = replica_state(&replica);
    (replica, state)
}

/// The state as it is, without writing a file.
fn replica_state(replica: &Replica) -> Bytes {
    let snap = replica
        .machine
        .snap_of_state()
        .expect("entries were applied");
    snap.machine
}

type Damage = (&'static str, fn(&mut Vec<u8>));

const DAMAGES: [Damage; 3] = [
    ("one byte flipped", |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x40;
    }),
    ("cut to 7 bytes", |bytes| bytes.truncate(7)),
    ("empty", Vec::clear),
];

fn snapshot_path(name: &str) -> std::path::PathBuf {
    format!("/data/groups/{GROUP:020}/{name}").into()
}

#[test]
fn a_damaged_newest_snapshot_costs_a_longer_replay() {
    for (damage, change) in DAMAGES {
        let disk = SimDisk::new();
        let (replica, state) = two_generations(&disk);
        drop(replica);
        let newest = snapshot_path("snapshot");
        disk.rewrite(&newest, change).expect("it is there");
        let damaged = disk.contents(&newest).expect("it is there");

        let mut replica = open(&disk, with_state).unwrap_or_else(|e| panic!("{damage}: {e}"));
        assert!(replica.apply_all());
        assert_eq!(replica_state(&replica), state, "{damage}");
        assert_eq!(
            disk.contents(&newest).expect("not deleted"),
            damaged,
            "{damage}"
        );
        // The next snapshot sets it aside, and keeps the older one.
        assert_eq!(replica.state_bytes(), state, "{damage}");
        let aside = disk
            .files()
            .into_iter()
            .filter(|path| path.starts_with("/data/quarantine"))
            .map(|path| disk.contents(&path).expect("it is listed"));
        assert!(aside.into_iter().any(|bytes| bytes == damaged), "{damage}");
        drop(replica);
        let mut replica = open(&disk, with_state).unwrap_or_else(|e| panic!("{damage}: {e}"));
        assert!(replica.apply_all());
        assert_eq!(replica_state(&replica), state, "{damage}");
    }
}

#[test]
fn a_damaged_older_snapshot_costs_nothing() {
    for (damage, change) in DAMAGES {
        let disk = SimDisk::new();
        let (replica, state) = two_generations(&disk);
        drop(replica);
        let before = snapshot_path("snapshot.before");
        disk.rewrite(&before, change).expect("it is there");
        let mut replica = open(&disk, with_state).unwrap_or_else(|e| panic!("{damage}: {e}"));
        assert!(replica.apply_all() && replica.purge());
        assert_eq!(replica_state(&replica), state, "{damage}");
    }
}

#[test]
fn without_any_good_snapshot_a_purged_log_is_refused_and_nothing_is_touched() {
    for (damage, change) in DAMAGES {
        let disk = SimDisk::new();
        let (replica, _) = two_generations(&disk);
        drop(replica);
        for name in ["snapshot", "snapshot.before"] {
            disk.rewrite(&snapshot_path(name), change)
                .expect("it is there");
        }
        let files = disk.files();
        let refused = open(&disk, with_state).err().expect("no state can be had");
        let text = refused.to_string();
        assert!(
            text.contains(&snapshot_path("snapshot").display().to_string()),
            "{damage}: {text}"
        );
        assert_eq!(disk.files(), files, "{damage}");
    }
}

#[test]
fn a_damaged_only_snapshot_leads_to_a_replay_of_the_whole_log() {
    for (damage, change) in DAMAGES {
        let disk = SimDisk::new();
        let mut replica = open(&disk, with_state).expect("a new log");
        assert!(replica.control(1, ControlKind::Blank) && replica.batches(1, 20));
        assert!(replica.apply_all());
        replica.commit_all();
        let state = replica.state_bytes();
        assert!(replica.purge());
        assert_eq!(replica.journal.purged(), None, "there is no older one yet");
        drop(replica);
        let newest = snapshot_path("snapshot");
        disk.rewrite(&newest, change).expect("it is there");
        let mut replica = open(&disk, with_state).unwrap_or_else(|e| panic!("{damage}: {e}"));
        assert!(replica.apply_all());
        assert_eq!(replica_state(&replica), state, "{damage}");
    }
}

#[test]
fn the_cut_of_a_data_group_needs_no_file() {
    for (damage, change) in DAMAGES {
        let disk = SimDisk::new();
        let mut replica = trimmed_log(&disk, 41);
        assert!(replica.apply_all());
        replica.commit_all();
        let built = replica.build().expect("the power is on");
        assert!(replica.purge());
        drop(replica);
        disk.rewrite(&snapshot_path("snapshot"), change)
            .expect("it is there");
        let mut replica = open(&disk, no_state).unwrap_or_else(|e| panic!("{damage}: {e}"));
        let current = now(replica.machine.get_current_snapshot()).expect("told anew");
        assert_eq!(
            current.expect("the log was cut").meta,
            built.meta,
            "{damage}"
        );
    }
}

/// Two snapshots of a state and their purges, with the power going at the `n`-th change.
fn state_until(n: u64, seed: u64, loss: Loss) -> bool {
    let what = format!("power off at {n}, {loss:?} {seed}");
    let disk = SimDisk::new();
    let mut replica = open(&disk, with_state).expect("a new log");
    assert!(replica.control(1, ControlKind::Blank) && replica.batches(1, 10));
    assert!(replica.apply_all());
    replica.commit_all();
    disk.power_off_at(disk.changes() + n);
    let mut done = replica.build().is_some() && replica.purge();
    let mut acked = 11;
    for _ in 0..2 {
        done = done && replica.batches(1, 5) && replica.apply_all();
        if done {
            acked = replica.end();
        }
        replica.commit_all();
        done = done && replica.build().is_some() && replica.purge();
    }
    drop(replica);
    disk.crash(seed, loss);
    let mut replica = open(&disk, with_state).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(replica.end() >= acked, "{what}");
    assert!(replica.apply_all(), "{what}");
    let mut state = Digest::default();
    state.restore(replica_state(&replica)).expect("its own");
    assert_eq!(state.count, replica.journal.next_offset(), "{what}");
    assert!(replica.build().is_some() && replica.purge(), "{what}");
    !done
}

#[test]
fn snapshots_of_a_state_survive_the_power_going_anywhere() {
    every_crash(state_until);
}

#[test]
fn terms_are_told_without_reading_a_segment() {
    let disk = SimDisk::new();
    let replica = open(&disk, no_state).expect("a new log");
    for term in [1, 2, 5] {
        assert!(replica.control(term, ControlKind::Blank) && replica.batches(term, 10));
    }
    assert!(replica.control(6, ControlKind::Blank));
    let ends = replica.journal.term_ends(at(1, 3), at(6, 33));
    assert_eq!(ends, [at(1, 10), at(2, 21), at(5, 32), at(6, 33)]);
    assert_eq!(replica.journal.term_ends(at(2, 11), at(2, 15)), [at(2, 15)]);
    drop(replica);
    let replica = open(&disk, no_state).expect("it opens");
    assert_eq!(replica.journal.term_ends(at(1, 3), at(6, 33)), ends);
    assert_eq!(replica.journal.data_pos(13), Some(at(2, 13)));
    assert_eq!(replica.journal.data_pos(11), None, "a control entry");
}
