//! Where a log begins: the cut that a snapshot stands for, found here and put in place elsewhere.
//!
//! A cut is an entry and what is known there: everything up to it may be forgotten, the log goes on behind it. In a log of
//! data it always lies right before a segment's first batch, so that a replica that begins at the cut makes the same segments
//! as all others.
//!
//! # Why may an installed cut be installed again?
//!
//! It takes several steps, and a crash may come between any two. Whoever keeps the snapshot repeats the whole at the next
//! start: a log that is already cut there only gets what is still missing.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::segment::Segment;
use super::shape::Shape;
use super::writer::Work;
use super::{Journal, LogPos, RollSettings};
use crate::statelog::{Control, ControlKind, PendingCut, Record};

/// Where a log is cut, and what is known there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The last entry that goes.
    pub upto: LogPos,
    /// The first offset behind it.
    pub next_offset: u64,
    /// Stamp of the last batch before it, microseconds; at most the real one.
    pub last_stamp_us: u64,
    /// The membership in force there, and its place.
    pub membership: Option<(LogPos, Bytes)>,
    /// The last change of settings up to there, and its place.
    pub settings: Option<(LogPos, RollSettings)>,
}

impl Cut {
    /// The control entries that have to stay, by index.
    fn controls(&self) -> impl Iterator<Item = (u64, Control)> + '_ {
        let membership = self.membership.clone();
        let membership = membership.map(|(pos, bytes)| (pos, ControlKind::Membership(bytes)));
        let settings = self.settings;
        let settings = settings.map(|(pos, settings)| (pos, ControlKind::Settings(settings)));
        membership.into_iter().chain(settings).map(|(pos, kind)| {
            let control = Control {
                term: pos.term,
                offset: self.next_offset,
                kind,
            };
            (pos.index, control)
        })
    }

    fn records(&self, group: u64) -> Vec<Record> {
        self.controls()
            .map(|(index, control)| Record::Control {
                group,
                index,
                control,
            })
            .collect()
    }
}

/// A cut without what has to be looked up.
pub(super) struct CutPlace {
    upto: LogPos,
    /// Known if it lies before a segment.
    next_offset: Option<u64>,
    /// The segment that ends there.
    before: Option<Arc<Segment>>,
}

impl Shape {
    /// The last place where the log may be cut: before the last segment that begins at or below the first kept offset and
    /// whose first batch was applied, or else where it was cut before.
    pub(super) fn cut_place(&self, applied: Option<LogPos>) -> Option<CutPlace> {
        let may_go = |segment: &Arc<Segment>| {
            let name = &segment.name;
            let is_applied = applied.is_some_and(|applied| name.first_index <= applied.index);
            name.base_offset <= self.start_offset && is_applied
        };
        let first = self.segments.partition_point(may_go).checked_sub(1);
        first
            .and_then(|n| self.cut_before(n))
            .filter(|place| Some(place.upto) > self.purged)
            .or_else(|| {
                self.purged.map(|upto| CutPlace {
                    upto,
                    next_offset: None,
                    before: None,
                })
            })
    }

    fn cut_before(&self, n: usize) -> Option<CutPlace> {
        let name = &self.segments.get(n)?.name;
        let index = name.first_index.checked_sub(1)?;
        let term = self.term_at(index)?;
        Some(CutPlace {
            upto: LogPos { term, index },
            next_offset: Some(name.base_offset),
            before: n.checked_sub(1).and_then(|n| self.segments.get(n)).cloned(),
        })
    }

    /// Raises the first kept offset to what the trims up to `committed` say. True if it rose.
    pub(super) fn follow_trims(&mut self, committed: Option<LogPos>) -> bool {
        let Some(committed) = committed else {
            return false;
        };
        let trims = self.controls.range(..=committed.index);
        let trims = trims.filter_map(|(_, control)| match control.kind {
            ControlKind::Trim { upto } => Some(upto),
            _ => None,
        });
        let upto = trims.max().unwrap_or(0).min(self.next_offset);
        let rises = upto > self.start_offset;
        self.start_offset = self.start_offset.max(upto);
        rises
    }

    /// The last entry of every term within `from..=to`, and `to` itself. Both ends are in the log.
    pub fn term_ends(&self, from: LogPos, to: LogPos) -> Vec<LogPos> {
        let mut term = from.term;
        let mut ends = Vec::new();
        let within = |index: u64| from.index < index && index <= to.index;
        for start in self.terms.iter().filter(|start| within(start.index)) {
            ends.push(LogPos {
                term,
                index: start.index - 1,
            });
            term = start.term;
        }
        ends.push(to);
        ends
    }
}

impl Journal {
    /// Where a snapshot of a log of data would cut it now; `applied` is the last entry whose effect is known to last.
    pub fn cut_pos(&self, applied: Option<LogPos>) -> Option<LogPos> {
        let place = self.inner.lock().shape.cut_place(applied);
        place.map(|place| place.upto)
    }

    /// The cut at [`Journal::cut_pos`], with all that is known there. Blocks if something has to be looked up in a file.
    pub fn cut(&self, applied: Option<LogPos>) -> io::Result<Option<Cut>> {
        let place = self.inner.lock().shape.cut_place(applied);
        let Some(place) = place else {
            return Ok(None);
        };
        let next_offset = match place.next_offset {
            Some(offset) => offset,
            None => self
                .offset_after(place.upto.index)?
                .unwrap_or_else(|| self.start_offset()),
        };
        // What is about to go need not be readable any more.
        let stamp = place
            .before
            .and_then(|segment| self.end_of_batch(&segment, next_offset).ok())
            .map_or(0, |(_, stamp)| stamp);
        Ok(Some(Cut {
            upto: place.upto,
            next_offset,
            last_stamp_us: stamp,
            membership: self.last_membership(place.upto.index),
            settings: self.last_settings(place.upto.index),
        }))
    }

    /// Whether an entry is in this log, or was and is purged.
    pub fn holds(&self, pos: LogPos) -> bool {
        let inner = self.inner.lock();
        inner.shape.purged.is_some_and(|purged| purged >= pos)
            || inner.shape.term_at(pos.index) == Some(pos.term)
    }

    /// The last entry of every term within `from..=to`, and `to` itself. Reads no file.
    pub fn term_ends(&self, from: LogPos, to: LogPos) -> Vec<LogPos> {
        self.inner.lock().shape.term_ends(from, to)
    }

    /// The place of an entry that is a batch. Reads no file.
    pub fn data_pos(&self, index: u64) -> Option<LogPos> {
        let inner = self.inner.lock();
        let shape = &inner.shape;
        if index < shape.first_index() || shape.controls.contains_key(&index) {
            return None;
        }
        let term = shape.term_at(index)?;
        Some(LogPos { term, index })
    }

    /// Later stamps are not below this one: for a log that begins behind a snapshot and holds no batch yet.
    pub fn note_stamp(&self, stamp_us: u64) {
        let mut inner = self.inner.lock();
        inner.shape.last_stamp = inner.shape.last_stamp.max(stamp_us);
    }

    /// Makes this log begin behind a snapshot's cut. A log that holds the cut's entry already is only purged; any other is
    /// emptied. Done again, it does what is missing.
    pub async fn install_cut(self: &Arc<Self>, cut: Cut) -> io::Result<()> {
        self.perform(vec![Work::Plan(Box::new(move |journal| {
            Ok(journal.plan_install(&cut))
        }))])
        .await
    }

    fn plan_install(&self, cut: &Cut) -> Vec<Work> {
        if self.holds(cut.upto) {
            let mut work = self.plan_complete(cut);
            work.extend(self.plan_purge(cut.upto));
            return work;
        }
        let gone: Vec<_> = {
            let mut inner = self.inner.lock();
            let gone = inner
                .shape
                .cut_after(None, cut.next_offset, cut.last_stamp_us);
            let below = std::mem::take(&mut inner.shape.segments);
            inner.shape.purged = None;
            inner.shape.start_offset = cut.next_offset;
            inner.shape.purge(cut.upto);
            inner.shape.jump = None;
            inner.shape.controls.extend(cut.controls());
            inner.shape.find_roll();
            inner.tail.clear();
            (inner.synced, inner.synced_offset) = (Some(cut.upto), cut.next_offset);
            below.into_iter().chain(gone).collect()
        };
        self.damage.cut(0);
        self.state.note_synced(self.group, cut.next_offset);
        let whole = PendingCut {
            offset: cut.next_offset,
            whole: true,
        };
        let group = self.group;
        let begin = Record::CutBegin {
            group,
            from_index: 0,
            cut: whole,
            purged: Some(cut.upto),
        };
        let records = std::iter::once(begin).chain(cut.records(group)).collect();
        let files = move |journal: &Self| journal.cut_files(&gone, None, 0);
        vec![
            Work::State(records),
            Work::Disk(Box::new(files)),
            Work::State(vec![Record::CutDone { group }]),
        ]
    }

    /// A crash right behind the cut may have taken the control entries that belong to it. Nothing was appended since.
    fn plan_complete(&self, cut: &Cut) -> Vec<Work> {
        let mut inner = self.inner.lock();
        let shape = &mut inner.shape;
        let empty_at_cut = shape.purged == Some(cut.upto) && shape.last == shape.purged;
        let complete = cut
            .controls()
            .all(|(index, _)| shape.controls.contains_key(&index));
        if !empty_at_cut || complete {
            return Vec::new();
        }
        shape.controls.extend(cut.controls());
        shape.find_roll();
        vec![Work::State(cut.records(self.group))]
    }
}
