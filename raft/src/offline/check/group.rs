//! One group: its segments in order, held against each other and against what the state log says of the group.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::segment::Damage;
use super::look::{Look, Order, glance, look};
use super::{Checker, Failed, Fix, Item, Range, Verdict};
use crate::disk::OpenMode;
use crate::journal::SegmentName;
use crate::journal::damage::Companion;
use crate::journal::places::index_of;
use crate::offline::small;
use crate::statelog::{GroupState, NodeState};

/// What to do about data that is lost here.
pub(super) const FETCH: &str = "a running node fetches it from another replica; offline, `imprint log repair --from` takes it \
                                from a copy of another replica's directory";
/// The newest snapshot and the one before.
const SNAPSHOTS: [&str; 2] = ["snapshot", "snapshot.before"];
const AT_START: &str = "nothing: the next start does it; so does a repair";

/// A group's directory sorted by what is in it.
#[derive(Default)]
struct Names {
    segments: Vec<SegmentName>,
    beside: Vec<(SegmentName, Companion, String)>,
    snapshots: Vec<String>,
    other: Vec<String>,
}

/// What is known of a group before its segments are read.
pub(super) struct Known<'a> {
    pub group: u64,
    pub dir: &'a Path,
    pub kept: &'a GroupState,
    /// Whether `kept` comes from a state log.
    pub by_state: bool,
}

impl Checker<'_> {
    /// A group's directory that was named alone.
    pub(super) fn one_group(&mut self, group: u64, dir: &Path) -> Result<(), Failed> {
        let state_dir = self.data.join(super::STATE);
        let has_state = self.exists(&state_dir)?;
        let state = if has_state {
            super::kept_state(self.disk, self.data).map_err(|e| (state_dir, e))?
        } else {
            None
        };
        if state.is_none() {
            let found = "no state log to go by: indexes, terms and what was synced are not checked";
            self.push(Item::new("group", Some(group), dir, Verdict::Note, found));
        }
        self.group(group, dir, state.as_ref())
    }

    pub(super) fn group(
        &mut self,
        group: u64,
        dir: &Path,
        state: Option<&NodeState>,
    ) -> Result<(), Failed> {
        let names = self.sort_names(dir)?;
        let kept = state.and_then(|state| state.groups.get(&group));
        if state.is_some() && kept.is_none() && !names.segments.is_empty() {
            let found = "the state log knows nothing of this group: it is not opened";
            let item = Item::new("group", Some(group), dir, Verdict::Mends, found);
            let todo = "nothing: the next start moves it to quarantine; so does a repair";
            self.push(item.todo(todo).fix(Fix::SetAside(dir.to_owned())));
            return Ok(());
        }
        let nothing = GroupState::default();
        let known = Known {
            group,
            dir,
            kept: kept.unwrap_or(&nothing),
            by_state: kept.is_some(),
        };
        let first = self.items.len();
        let end = self.segments(&known, &names)?;
        self.begun_cut(&known);
        self.snapshots(&known, &names.snapshots);
        for name in &names.other {
            let path = dir.join(name);
            match name.strip_suffix(".new") {
                Some(of) if SNAPSHOTS.contains(&of) => self.unfinished(Some(group), &path),
                _ => self.stranger(&path),
            }
        }
        let summary = summary(&known, &names, end);
        self.items.insert(first, summary);
        Ok(())
    }

    fn sort_names(&self, dir: &Path) -> Result<Names, Failed> {
        let mut names = Names::default();
        for name in self.list(dir)? {
            if let Some(segment) = SegmentName::parse(&name) {
                names.segments.push(segment);
            } else if let Some((segment, kind)) = Companion::parse(&name) {
                names.beside.push((segment, kind, name));
            } else if SNAPSHOTS.contains(&name.as_str()) {
                names.snapshots.push(name);
            } else {
                names.other.push(name);
            }
        }
        names.segments.sort_unstable();
        Ok(names)
    }

    /// Looks at each segment; returns the offset after the last good batch.
    fn segments(&mut self, known: &Known<'_>, names: &Names) -> Result<u64, Failed> {
        let Known { dir, kept, .. } = *known;
        let first = names.segments.first().map(|name| name.base_offset);
        let begin = first.unwrap_or(kept.empty_end);
        if known.by_state && first.is_some_and(|first| first > kept.start_offset) {
            self.push(lost(known, dir, kept.start_offset, begin));
        }
        let mut end = begin;
        for (n, name) in names.segments.iter().enumerate() {
            let next = names.segments.get(n + 1);
            if !self.follows(known, name, next) {
                return Ok(end);
            }
            end = self.segment(known, name, next)?;
            let beside = names.beside.iter().filter(|(of, _, _)| of == name);
            for (_, kind, file) in beside {
                if matches!(kind, Companion::Mend | Companion::Unfinished) {
                    self.unfinished(Some(known.group), &dir.join(file));
                }
            }
        }
        self.orphans(known, &names.segments, &names.beside)?;
        let has_damage = self
            .items
            .iter()
            .any(|item| item.group == Some(known.group) && item.verdict == Verdict::Damaged);
        if names.segments.is_empty() && end < kept.must_have() && !has_damage {
            self.push(lost(known, dir, end, kept.must_have()));
        }
        Ok(end)
    }

    /// Whether two names can follow on each other.
    fn follows(
        &mut self,
        known: &Known<'_>,
        name: &SegmentName,
        next: Option<&SegmentName>,
    ) -> bool {
        let Some(next) = next else { return true };
        let rises = name.base_offset < next.base_offset
            && name.first_index < next.first_index
            && name.term <= next.term;
        if !rises {
            let path = known.dir.join(next.file_name());
            let found = format!("its name does not follow {}", name.file_name());
            let item = Item::new("segment", Some(known.group), &path, Verdict::Damaged, found);
            self.push(item.todo("find out which of the two belongs here and move the other away"));
        }
        rises
    }

    /// One segment and what lies beside it; returns the offset after it.
    fn segment(
        &mut self,
        known: &Known<'_>,
        name: &SegmentName,
        next: Option<&SegmentName>,
    ) -> Result<u64, Failed> {
        let path = known.dir.join(name.file_name());
        let no_controls = BTreeMap::new();
        let order = Order {
            group: known.group,
            name: *name,
            end_offset: next.map(|next| next.base_offset),
            controls: if known.by_state {
                &known.kept.controls
            } else {
                &no_controls
            },
        };
        let opened = self.disk.open(&path, OpenMode::Read);
        let looked = opened.and_then(|file| match self.options.quick {
            true => glance(file.as_ref(), &order),
            false => look(file.as_ref(), &order, self.options.progress),
        });
        let looked = match looked {
            Ok(looked) => looked,
            Err(error) => {
                let found = format!("can't be read: {error}");
                let item = Item::new("segment", Some(known.group), &path, Verdict::Damaged, found);
                self.push(item.todo(FETCH));
                return Ok(next.map_or(name.base_offset, |next| next.base_offset));
            }
        };
        let count = self.items.len();
        match next {
            Some(next) => self.sealed(known, &path, name, next, &looked),
            None => self.active(known, &path, name, &looked),
        }
        self.beside(known, &path, name, next, &looked)?;
        if self.items.len() == count {
            let zeros = match looked.zeros {
                0 => String::new(),
                zeros => format!(", {zeros} zeros ahead"),
            };
            let found = format!(
                "offsets {}..{}, {} batches, {} bytes{zeros}",
                name.base_offset, looked.next_offset, looked.batches, looked.end_byte
            );
            self.push(Item::new(
                "segment",
                Some(known.group),
                &path,
                Verdict::Ok,
                found,
            ));
        }
        Ok(next.map_or(looked.next_offset, |next| next.base_offset))
    }

    fn damaged(
        &mut self,
        known: &Known<'_>,
        path: &Path,
        name: &SegmentName,
        damage: &Damage,
        to: Option<u64>,
    ) {
        let range = Range {
            from_byte: damage.from_byte,
            to_byte: Some(damage.to_byte),
            from_offset: damage.from_offset,
            to_offset: damage.to_offset.or(to),
        };
        let fix = Fix::Fill {
            group: known.group,
            segment: *name,
        };
        let item = Item::new(
            "segment",
            Some(known.group),
            path,
            Verdict::Damaged,
            damage.found.clone(),
        );
        self.push(item.at(range).todo(FETCH).fix(fix));
    }

    /// A segment that another one follows: all of it was synced.
    fn sealed(
        &mut self,
        known: &Known<'_>,
        path: &Path,
        name: &SegmentName,
        next: &SegmentName,
        looked: &Look,
    ) {
        for damage in &looked.damage {
            self.damaged(known, path, name, damage, Some(next.base_offset));
        }
        if !looked.damage.is_empty() {
            return;
        }
        if looked.next_offset < next.base_offset && looked.zeros == 0 {
            // The file ends at the end of a batch, as a whole segment does.
            self.push(lost(known, known.dir, looked.next_offset, next.base_offset));
            return;
        }
        if looked.next_offset != next.base_offset || looked.zeros > 0 {
            let found = match looked.zeros {
                0 => format!(
                    "ends at offset {}, the next segment begins at {}",
                    looked.next_offset, next.base_offset
                ),
                zeros => format!("zeros in place of batches: {zeros} bytes"),
            };
            let missing = Damage {
                from_byte: looked.end_byte,
                to_byte: looked.file_len,
                from_offset: Some(looked.next_offset),
                to_offset: None,
                stamp_before: 0,
                found,
                header: None,
            };
            self.damaged(known, path, name, &missing, Some(next.base_offset));
            return;
        }
        if let Some(found) = index_problem(known, next, looked) {
            let path = known.dir.join(next.file_name());
            let item = Item::new("segment", Some(known.group), &path, Verdict::Damaged, found);
            self.push(item.todo(
                "its name and the state log contradict each other: one of them is of another time",
            ));
        }
    }

    /// The last segment: what lies above the synced mark may be torn.
    fn active(&mut self, known: &Known<'_>, path: &Path, name: &SegmentName, looked: &Look) {
        let must_have = known.kept.must_have();
        let good_to = looked.damage.first().map_or(looked.next_offset, |damage| {
            damage.from_offset.unwrap_or(name.base_offset)
        });
        if good_to < must_have {
            let short = Damage {
                from_byte: looked.end_byte,
                to_byte: looked.file_len,
                from_offset: Some(good_to),
                to_offset: None,
                stamp_before: 0,
                found: format!("ends at offset {good_to}, {must_have} were synced"),
                header: None,
            };
            let all = match looked.damage.as_slice() {
                [] => vec![short],
                some => some.to_vec(),
            };
            for damage in &all {
                self.damaged(known, path, name, damage, Some(must_have));
            }
            return;
        }
        let Some(damage) = looked.damage.first() else {
            if looked.batches == 0 {
                let found = "holds nothing: it is removed";
                self.at_start(known, path, found, None);
            }
            return;
        };
        let end = looked.file_len - looked.zeros;
        let range = Range {
            from_byte: damage.from_byte,
            to_byte: Some(end),
            from_offset: damage.from_offset,
            to_offset: None,
        };
        let found = format!(
            "torn: {} bytes behind offset {good_to} go to quarantine: {}",
            end - damage.from_byte,
            damage.found
        );
        if known.by_state {
            self.at_start(known, path, found, Some(range));
        } else {
            let item = Item::new("segment", Some(known.group), path, Verdict::Note, found);
            self.push(item.at(range));
        }
    }

    fn at_start(
        &mut self,
        known: &Known<'_>,
        path: &Path,
        found: impl Into<String>,
        range: Option<Range>,
    ) {
        let mut item = Item::new("segment", Some(known.group), path, Verdict::Mends, found)
            .todo(AT_START)
            .fix(Fix::Recover(known.group));
        item.range = range;
        self.push(item);
    }

    fn begun_cut(&mut self, known: &Known<'_>) {
        let Some(cut) = known.kept.cut else { return };
        // What lies behind the cut is not the log's any more, so nothing of it counts as damage.
        let own = |item: &Item| item.group == Some(known.group);
        let behind = |item: &Item| {
            let from = item.range.and_then(|range| range.from_offset);
            cut.whole || from.is_some_and(|from| from >= cut.offset)
        };
        self.items
            .retain(|item| !(own(item) && item.verdict >= Verdict::Mends && behind(item)));
        let found = format!("a cut at offset {} was begun and not finished", cut.offset);
        let item = Item::new("group", Some(known.group), known.dir, Verdict::Mends, found);
        self.push(item.todo(AT_START).fix(Fix::Recover(known.group)));
    }

    /// The log is purged up to the older of two snapshots only, so one that is bad costs nothing as long as the other is good,
    /// or as long as there never were two.
    fn snapshots(&mut self, known: &Known<'_>, names: &[String]) {
        let read = names.iter().map(|name| {
            let path = known.dir.join(name);
            let bytes = small::read_small(self.disk, &path).map_err(|e| e.to_string());
            let fields = bytes.and_then(|b| small::snapshot(b).map_err(|e| e.to_string()));
            (path, fields)
        });
        let read: Vec<_> = read.collect();
        let is_needed = read.len() == SNAPSHOTS.len()
            && read.iter().all(|(_, fields)| fields.is_err())
            && known.kept.purged.is_some();
        for (path, fields) in read {
            let item = match fields {
                Ok(fields) => {
                    let words: Vec<String> = fields
                        .iter()
                        .map(|(name, field)| format!("{name} {field}"))
                        .collect();
                    let found = words.join(", ");
                    Item::new("snapshot", Some(known.group), &path, Verdict::Ok, found)
                }
                Err(found) if is_needed => {
                    Item::new("snapshot", Some(known.group), &path, Verdict::Damaged, found)
                        .todo("restore one of the two from a copy; another replica sends one to a running node")
                }
                Err(found) => Item::new("snapshot", Some(known.group), &path, Verdict::Mends, found)
                    .todo("nothing: the log or the other snapshot has it all, and a good one takes its place"),
            };
            self.push(item);
        }
    }
}

/// Whether the next segment's first index follows on this one's last, control entries counted.
fn index_problem(known: &Known<'_>, next: &SegmentName, looked: &Look) -> Option<String> {
    if !known.by_state {
        return None;
    }
    let last = looked.last_index?;
    // A purge beyond the log's end leaves out indexes.
    let purged = known.kept.purged.map_or(0, |purged| purged.index);
    if next.first_index <= purged + 1 {
        return None;
    }
    match index_of(&known.kept.controls, last + 1, next.base_offset) {
        Ok(index) if index == next.first_index => None,
        Ok(index) => Some(format!(
            "its name says index {}, the segment before ends so that it is {index}",
            next.first_index
        )),
        Err(found) => Some(found),
    }
}

fn lost(known: &Known<'_>, path: &Path, from: u64, to: u64) -> Item {
    let range = Range {
        from_byte: 0,
        to_byte: None,
        from_offset: Some(from),
        to_offset: Some(to),
    };
    let found = format!("offsets {from}..{to} are missing");
    Item::new("gap", Some(known.group), path, Verdict::Damaged, found)
        .at(range)
        .todo(FETCH)
        .fix(Fix::FillGap {
            group: known.group,
            from_offset: from,
            to_offset: to,
        })
}

fn summary(known: &Known<'_>, names: &Names, end: u64) -> Item {
    let kept = known.kept;
    let start = names
        .segments
        .first()
        .map_or(kept.empty_end, |name| name.base_offset);
    let mut found = format!(
        "offsets {}..{end} in {} segment(s)",
        start.max(kept.start_offset),
        names.segments.len()
    );
    if known.by_state {
        let pos = |pos: Option<crate::statelog::LogPos>| {
            pos.map_or("-".to_owned(), |pos| pos.to_string())
        };
        found.push_str(&format!(
            "; synced mark {}, committed {}, purged {}, vote in term {}, {}",
            kept.marks.synced_offset,
            pos(kept.marks.committed),
            pos(kept.purged),
            kept.vote.map_or(0, |vote| vote.term),
            if kept.clean.is_some() {
                "closed in order"
            } else {
                "not closed in order"
            },
        ));
    }
    Item::new("group", Some(known.group), known.dir, Verdict::Ok, found)
}
