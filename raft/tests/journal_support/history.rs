//! A slow, obvious model of one journal, held against the real one over crashes.
//!
//! The model keeps what was asked for and what was acknowledged. After a crash the log must hold every acknowledged entry,
//! nothing that was never appended, nothing that an acknowledged truncation removed, and no older vote or purge.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imprint_raft::disk::SimDisk;
use imprint_raft::disk::sim::Loss;
use imprint_raft::journal::{
    ControlKind, Cut, Journal, JournalConfig, LogPos, NewEntry, RollSettings, StateLog,
    StoredEntry, VoteRecord,
};

use super::{GROUP, Storage, append, at, cut, data, group_dir, now, read_all, sim_io};

/// One step of a script. Places are found when the step is taken.
#[derive(Debug, Clone)]
pub enum Op {
    /// So many batches, in one call each.
    Data(u32),
    /// Several entries in one call: a blank of the next term, then batches.
    Elected(u32),
    /// A membership.
    Membership,
    /// Removes so many entries at the end, as far as they are not purged.
    Truncate(u64),
    /// Purges all but so many entries at the end.
    PurgeBut(u64),
    /// Trims to the offset after the purged position.
    Trim,
    /// Votes in the next term.
    Vote,
    /// Makes marks durable.
    Flush,
    /// Begins behind a snapshot's cut, so many entries beyond the end.
    Install(u64),
    /// Other settings: segments of so many bytes.
    Settings(u64),
    /// A trim by an entry, so many messages below the end; committed, then done.
    TrimBut(u64),
}

/// What must be and what may be.
#[derive(Debug, Default, Clone)]
pub struct Model {
    /// Every entry appended and not truncated, acknowledged or not.
    entries: BTreeMap<u64, StoredEntry>,
    last: Option<LogPos>,
    /// Index up to which everything was acknowledged.
    acked: Option<u64>,
    purged: Option<LogPos>,
    purged_maybe: Option<LogPos>,
    vote: Option<VoteRecord>,
    vote_maybe: Option<VoteRecord>,
    start: u64,
    term: u64,
    tag: u64,
    /// A cut that may or may not have happened takes everything that was there.
    emptied_maybe: bool,
    /// Changes of settings by index, also those that are purged.
    settings: BTreeMap<u64, RollSettings>,
    /// What comes in their place if the cut happened.
    settings_maybe: BTreeMap<u64, RollSettings>,
    /// A trim that may be committed stands here: nothing up to it is truncated.
    floor: Option<u64>,
}

/// A disk, the storage on it, and the model beside it.
pub struct History {
    /// Used unless the history is on real files.
    pub disk: SimDisk,
    /// Where on real files it is.
    files: Option<PathBuf>,
    pub cfg: JournalConfig,
    pub storage: Option<Storage>,
    pub model: Model,
    /// A snapshot whose installation was begun.
    pending: Option<Cut>,
}

impl History {
    pub fn new(cfg: JournalConfig) -> Self {
        Self {
            disk: SimDisk::new(),
            files: None,
            cfg,
            storage: None,
            model: Model::default(),
            pending: None,
        }
    }

    /// On real files, with every job done before the call that asks for it returns.
    pub fn on_files(root: &Path, cfg: JournalConfig) -> Self {
        Self {
            files: Some(root.to_owned()),
            ..Self::new(cfg)
        }
    }

    /// Takes what was found on the disk for the model, as after [`History::check`].
    pub fn adopt(&mut self, tag: u64) {
        let journal = Arc::clone(self.journal());
        let found = read_all(&journal);
        let last = journal.last();
        let mut settings = BTreeMap::new();
        let mut upto = Some(u64::MAX);
        while let Some((pos, found)) = upto.and_then(|upto| journal.last_settings(upto)) {
            settings.insert(pos.index, found);
            upto = pos.index.checked_sub(1);
        }
        self.model = Model {
            settings,
            floor: check_trims(&journal, &found),
            entries: found.into_iter().map(|e| (e.pos().index, e)).collect(),
            last,
            acked: last.map(|pos| pos.index),
            purged: journal.purged(),
            vote: journal.vote(),
            start: journal.start_offset(),
            term: last.map_or(0, |pos| pos.term),
            tag,
            ..Model::default()
        };
    }

    /// Opens the storage; fails only if the power goes meanwhile.
    pub fn open(&mut self) -> Result<(), String> {
        let (io, data) = match &self.files {
            None => (sim_io(&self.disk), data()),
            Some(root) => {
                let disk = Arc::new(imprint_raft::disk::RealDisk);
                let io = super::io_on(disk, Arc::new(imprint_raft::disk::InlineOffload));
                (io, root.clone())
            }
        };
        let state =
            StateLog::open(io.clone(), &data.join("state")).map_err(|e| format!("{e:?}"))?;
        let journal = Journal::open(
            io.clone(),
            group_dir(&data),
            Arc::clone(&state),
            GROUP,
            self.cfg,
        );
        let journal = journal.map_err(|e| e.to_string())?;
        self.storage = Some(Storage { io, state, journal });
        Ok(())
    }

    fn journal(&self) -> &Arc<Journal> {
        &self.storage.as_ref().expect("open").journal
    }

    /// Takes steps until one fails; says how many were taken.
    pub fn run(&mut self, script: &[Op]) -> usize {
        for (n, op) in script.iter().enumerate() {
            if !self.step(op) {
                return n;
            }
        }
        script.len()
    }

    /// Takes one step; says whether it was acknowledged.
    pub fn step(&mut self, op: &Op) -> bool {
        match op {
            Op::Data(count) => (0..*count).all(|_| self.append_data(1, false)),
            Op::Elected(count) => self.append_data(*count, true),
            Op::Membership => self.append_membership(),
            Op::Truncate(count) => self.truncate(*count),
            Op::PurgeBut(count) => self.purge(*count),
            Op::Trim => self.trim(),
            Op::Vote => self.vote(),
            Op::Flush => {
                let storage = self.storage.as_ref().expect("open");
                if let Some(last) = self.journal().synced() {
                    self.journal().note_committed(last);
                }
                storage.state.flush_lazy();
                true
            }
            Op::Install(beyond) => self.install(*beyond),
            Op::Settings(bytes) => self.append_settings(*bytes),
            Op::TrimBut(messages) => self.trim_by_entry(*messages),
        }
    }

    fn next_index(&self) -> u64 {
        self.model.last.map_or(0, |pos| pos.index + 1)
    }

    fn append_data(&mut self, count: u32, elected: bool) -> bool {
        let mut entries = Vec::new();
        let mut index = self.next_index();
        if elected || self.model.last.is_none() {
            self.model.term += 1;
            entries.push(super::blank(self.model.term, index));
            index += 1;
        }
        for _ in 0..count {
            self.model.tag += 1;
            entries.push(super::admit(self.model.term, index, self.model.tag));
            index += 1;
        }
        self.append(entries)
    }

    fn append_membership(&mut self) -> bool {
        let index = self.next_index();
        self.model.term = self.model.term.max(1);
        self.append(vec![super::membership(self.model.term, index, b"members")])
    }

    fn append_control(&mut self, kind: ControlKind) -> bool {
        self.model.term = self.model.term.max(1);
        let pos = at(self.model.term, self.next_index());
        self.append(vec![NewEntry::Control { pos, kind }])
    }

    fn append_settings(&mut self, segment_bytes: u64) -> bool {
        let settings = RollSettings {
            segment_bytes,
            segment_span_us: None,
        };
        let index = self.next_index();
        let acked = self.append_control(ControlKind::Settings(settings));
        // Refused by a journal that has failed, or taken: then in force at once, synced or not.
        if self.next_index() > index {
            self.model.settings.insert(index, settings);
            assert_eq!(self.journal().roll_settings(), settings);
        }
        acked
    }

    fn trim_by_entry(&mut self, messages: u64) -> bool {
        let upto = self.journal().next_offset().saturating_sub(messages);
        let index = self.next_index();
        self.model.floor = self.model.floor.max(Some(index));
        if !self.append_control(ControlKind::Trim { upto }) {
            return false;
        }
        let last = self.model.last.expect("an entry was appended");
        self.journal().note_committed(last);
        if now(self.journal().trim(upto)).is_err() {
            return false;
        }
        assert!(self.journal().start_offset() >= upto);
        self.model.start = self.model.start.max(upto);
        true
    }

    fn append(&mut self, entries: Vec<NewEntry>) -> bool {
        let first = entries.first().map(NewEntry::pos).expect("entries");
        let last = entries.last().map(NewEntry::pos).expect("entries");
        let Ok(outcome) = append(self.journal(), entries) else {
            return false;
        };
        let stored = self
            .journal()
            .read(first.index, u64::MAX, u64::MAX)
            .expect("in memory");
        self.model
            .entries
            .extend(stored.into_iter().map(|entry| (entry.pos().index, entry)));
        self.model.last = Some(last);
        let acked = matches!(outcome.lock().take(), Some(Ok(())));
        if acked {
            self.model.acked = Some(last.index);
        }
        acked
    }

    fn truncate(&mut self, count: u64) -> bool {
        let floor = self.model.purged.map(|pos| pos.index);
        let floor = floor.max(self.model.floor.min(self.model.last.map(|pos| pos.index)));
        let keep = self
            .model
            .last
            .and_then(|last| last.index.checked_sub(count))
            .max(floor);
        self.model.acked = self.model.acked.min(keep);
        if now(self.journal().truncate_after(keep)).is_err() {
            return false;
        }
        let from = keep.map_or(0, |k| k + 1);
        self.model.entries.split_off(&from);
        self.model.settings.split_off(&from);
        assert_eq!(self.journal().roll_settings(), self.roll_settings());
        self.model.last = self
            .model
            .entries
            .values()
            .next_back()
            .map(StoredEntry::pos)
            .max(self.model.purged);
        assert_eq!(self.journal().last(), self.model.last);
        // A truncation makes room for another leader's entries.
        self.append_data(1, true)
    }

    fn purge(&mut self, count: u64) -> bool {
        let Some(index) = self
            .model
            .last
            .and_then(|last| last.index.checked_sub(count))
        else {
            return true;
        };
        let Some(upto) = self.model.entries.get(&index).map(StoredEntry::pos) else {
            return true;
        };
        if self.model.acked < Some(index) {
            return true;
        }
        self.model.purged_maybe = Some(upto);
        if now(self.journal().purge(upto)).is_err() {
            return false;
        }
        self.model.purged = self.model.purged_maybe.take().max(self.model.purged);
        true
    }

    fn trim(&mut self) -> bool {
        let Some(purged) = self.model.purged else {
            return true;
        };
        let Ok(offset) = self.journal().offset_after(purged.index) else {
            return false;
        };
        let Some(offset) = offset else { return true };
        if now(self.journal().trim(offset)).is_err() {
            return false;
        }
        self.model.start = self.model.start.max(offset);
        true
    }

    fn vote(&mut self) -> bool {
        let term = self.model.vote.map_or(0, |vote| vote.term) + 1;
        let vote = VoteRecord {
            term,
            voted_for: Some(term % 3),
            committed: term.is_multiple_of(2),
        };
        self.model.vote_maybe = Some(vote);
        if now(self.journal().save_vote(vote)).is_err() {
            return false;
        }
        self.model.vote = self.model.vote_maybe.take();
        true
    }

    fn install(&mut self, beyond: u64) -> bool {
        self.model.term += 1;
        let upto = at(self.model.term, self.next_index() + beyond);
        let offset = self.journal().next_offset() + 5 * beyond;
        self.model.purged_maybe = Some(upto);
        self.model.emptied_maybe = true;
        let membership = Some((upto, bytes::Bytes::from_static(b"snapshot members")));
        let settings = RollSettings {
            segment_bytes: 900 + 300 * beyond,
            segment_span_us: None,
        };
        let settings_at = at(self.model.term, upto.index.saturating_sub(1));
        let carries_settings = beyond % 2 == 1;
        self.model.settings_maybe = carries_settings
            .then_some((settings_at.index, settings))
            .into_iter()
            .collect();
        let cut = Cut {
            settings: carries_settings.then_some((settings_at, settings)),
            ..cut(upto, offset, 1, membership)
        };
        // As whoever keeps the snapshot does at the next start, should the power go now.
        self.pending = Some(cut.clone());
        if now(self.journal().install_cut(cut)).is_err() {
            return false;
        }
        self.pending = None;
        self.model.emptied();
        assert_eq!(self.journal().roll_settings(), self.roll_settings());
        assert_eq!(self.journal().next_offset(), offset);
        true
    }

    /// Cuts the power, comes back, and holds what is there against the model, which then is what was found.
    pub fn crash(&mut self, seed: u64, loss: Loss) {
        self.storage = None;
        self.disk.crash(seed, loss);
        if let Err(error) = self.open() {
            panic!(
                "does not open after {loss:?} {seed}: {error}\n{:?}",
                self.model
            );
        }
        self.check();
        if let Some(cut) = self.pending.take() {
            self.finish_install(cut);
        }
    }

    /// What the keeper of a snapshot does at a start if the journal does not hold the cut, or ends there.
    fn finish_install(&mut self, cut: Cut) {
        let journal = Arc::clone(self.journal());
        let upto = cut.upto;
        if journal.holds(upto) && journal.last() != Some(upto) {
            return;
        }
        self.model.settings_maybe = cut.settings.iter().map(|(at, s)| (at.index, *s)).collect();
        self.model.purged_maybe = Some(upto);
        self.model.start = self.model.start.max(cut.next_offset);
        let (membership, settings) = (cut.membership.clone(), cut.settings);
        now(journal.install_cut(cut)).expect("the power is on");
        self.model.emptied();
        assert_eq!(journal.last_membership(u64::MAX), membership);
        assert_eq!(journal.last_settings(u64::MAX), settings);
        self.check();
    }

    fn roll_settings(&self) -> RollSettings {
        let last = self.model.settings.values().next_back();
        last.copied().unwrap_or(self.cfg.initial_roll())
    }

    /// Holds the journal against the model.
    pub fn check(&mut self) {
        let journal = Arc::clone(self.journal());
        let found = read_all(&journal);
        let model = &mut self.model;
        let (purged, maybe) = (journal.purged(), model.purged_maybe.take());
        assert!(
            purged == model.purged || (maybe.is_some() && purged == maybe),
            "purged {purged:?}, {model:?}"
        );
        if std::mem::take(&mut model.emptied_maybe) && purged == maybe {
            model.purged_maybe = maybe;
            model.emptied();
        }
        model.purged = purged;
        let vote_maybe = model.vote_maybe.take();
        let vote = journal.vote();
        assert!(
            vote == model.vote || (vote_maybe.is_some() && vote == vote_maybe),
            "vote {vote:?}, {model:?}"
        );
        model.vote = vote;
        let first = purged
            .map(|pos| pos.index + 1)
            .or(found.first().map(|entry| entry.pos().index))
            .unwrap_or(0);
        for (index, entry) in (first..).zip(&found) {
            assert_eq!(entry.pos().index, index, "gap");
            let appended = model.entries.get(&index);
            assert_eq!(Some(entry), appended, "not what was appended at {index}");
        }
        let last = found.last().map(StoredEntry::pos).max(purged);
        assert!(
            last.map(|pos| pos.index) >= model.acked,
            "lost: {last:?}, acknowledged {:?}",
            model.acked
        );
        assert_eq!(journal.last(), last);
        assert!(journal.committed() <= last);
        assert!(journal.start_offset() >= model.start);
        check_offsets(&journal, &found);
        let behind = last.map_or(0, |pos| pos.index + 1);
        model.entries.split_off(&behind);
        model.settings.split_off(&behind);
        model.floor = check_trims(&journal, &found).max(model.floor);
        // An installation that was cut off may lack the settings yet.
        if self.pending.is_none() {
            check_rolls(&journal, &found, &model.settings, self.cfg.initial_roll());
        }
        model.acked = last.map(|pos| pos.index);
        model.last = last;
        model.term = last.map_or(0, |pos| pos.term);
    }
}

impl Model {
    /// This model, with the step that led here from `before` neither acknowledged nor ruled out.
    pub fn with_last_step_unsure(&self, before: &Model) -> Model {
        let mut unsure = self.clone();
        // A truncation takes acknowledged entries and may stop before the new ones are there.
        let kept = before
            .entries
            .iter()
            .rfind(|(at, e)| self.entries.get(at) == Some(e));
        let kept = kept
            .map(|(at, _)| *at)
            .max(self.purged.map(|pos| pos.index));
        unsure.acked = before.acked.min(kept).max(self.purged.map(|pos| pos.index));
        unsure
    }

    fn emptied(&mut self) {
        self.entries.clear();
        self.purged = self.purged_maybe.take();
        self.last = self.purged;
        self.acked = self.purged.map(|pos| pos.index);
        self.emptied_maybe = false;
        self.floor = None;
        self.settings = std::mem::take(&mut self.settings_maybe);
    }
}

/// A trim up to the committed mark is done, whether or not its call got through. The index of the last one.
fn check_trims(journal: &Journal, found: &[StoredEntry]) -> Option<u64> {
    let committed = journal.committed()?;
    let mut last = None;
    for entry in found.iter().filter(|entry| entry.pos() <= committed) {
        if let StoredEntry::Control {
            pos,
            kind: ControlKind::Trim { upto },
        } = entry
        {
            let upto = (*upto).min(journal.next_offset());
            assert!(
                journal.start_offset() >= upto,
                "the trim {pos} to {upto} is committed"
            );
            last = Some(pos.index);
        }
    }
    last
}

/// Segments end where the settings in force say, and nowhere else.
fn check_rolls(
    journal: &Journal,
    found: &[StoredEntry],
    settings: &BTreeMap<u64, RollSettings>,
    initial: RollSettings,
) {
    let in_force = |index: u64| {
        settings
            .range(..index)
            .next_back()
            .map_or(initial, |s| *s.1)
    };
    assert_eq!(journal.roll_settings(), in_force(u64::MAX));
    let bases: Vec<u64> = journal.segments().iter().map(|s| s.base_offset).collect();
    let mut bytes = None;
    for entry in found {
        let StoredEntry::Data { pos, batch } = entry else {
            continue;
        };
        let begins = bases.contains(&batch.base_offset());
        if let Some(bytes) = bytes {
            let rolls = bytes + batch.len() > in_force(pos.index).segment_bytes;
            assert_eq!(rolls, begins, "at {pos}, {bytes} bytes into a segment");
        }
        bytes = match (bytes, begins) {
            (_, true) => Some(batch.len()),
            (Some(bytes), false) => Some(bytes + batch.len()),
            // In the middle of a segment whose beginning is purged.
            (None, false) => None,
        };
    }
}

/// Offsets are dense, and every read by offset gives the same batches.
fn check_offsets(journal: &Journal, found: &[StoredEntry]) {
    let batches = found.iter().filter_map(|entry| match entry {
        StoredEntry::Data { batch, .. } => Some(batch),
        StoredEntry::Control { .. } => None,
    });
    let mut next = None;
    for batch in batches {
        assert!(
            next.is_none_or(|next| next == batch.base_offset()),
            "offsets are not dense"
        );
        next = Some(batch.next_offset());
        if batch.base_offset() >= journal.start_offset() {
            let read = journal
                .read_bytes(batch.next_offset() - 1, u64::MAX, 0)
                .expect("readable");
            assert_eq!(read.batches, [batch.to_contiguous()]);
        }
    }
    assert!(next.is_none_or(|next| next == journal.next_offset()));
    let all = journal
        .read_stamped(journal.start_offset(), u64::MAX, u64::MAX)
        .expect("readable");
    assert_eq!(all.next_offset, journal.next_offset());
}
