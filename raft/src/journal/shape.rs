//! The log as it is known in memory: what stands where, decided without any I/O.
//!
//! Invariants:
//! * `purged <= last`; if they are equal there is no entry.
//! * Control entries are in index order and so in offset order. An index above `purged` is a control entry's or a data
//!   batch's, without gaps; a data batch's index is its ordinal plus the control entries before it.
//! * The term of a data batch is that of the last change of term at or before it: `terms` holds those, rising.
//! * Segments are in order; only the last may be unsealed.
//! * `start_offset <= next_offset`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::segment::Segment;
use crate::statelog::{Control, ControlKind, LogPos, RollSettings};

/// Where a term begins, as far as this log still knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TermStart {
    /// The term.
    pub term: u64,
    /// Its first index here.
    pub index: u64,
    /// The offset of its first data here.
    pub offset: u64,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Shape {
    /// In force before any settings entry.
    pub initial_roll: RollSettings,
    /// In force at the log's end: the last settings entry, or the initial ones.
    pub roll: RollSettings,
    /// Control entries by index.
    pub controls: BTreeMap<u64, Control>,
    /// Rising in every field.
    pub terms: Vec<TermStart>,
    /// In order.
    pub segments: VecDeque<Arc<Segment>>,
    /// The last entry, or what was purged if there is none.
    pub last: Option<LogPos>,
    /// Gone for Raft up to here.
    pub purged: Option<LogPos>,
    /// First unwritten offset.
    pub next_offset: u64,
    /// Stamp of the last batch, microseconds.
    pub last_stamp: u64,
    /// First kept offset.
    pub start_offset: u64,
    /// A purge passed the log's end and took it to this index: a segment that begins at or before it takes no batch behind
    /// it, because indexes within a segment follow on.
    pub jump: Option<u64>,
    /// How often the log was cut: a reader that finds garbage looks whether that happened meanwhile.
    pub cuts: u64,
}

impl Shape {
    /// A log without entries.
    pub fn new(initial_roll: RollSettings) -> Self {
        Self {
            initial_roll,
            roll: initial_roll,
            controls: BTreeMap::new(),
            terms: Vec::new(),
            segments: VecDeque::new(),
            last: None,
            purged: None,
            next_offset: 0,
            last_stamp: 0,
            start_offset: 0,
            jump: None,
            cuts: 0,
        }
    }

    /// Settles which settings are in force, after control entries came or went other than by appending.
    pub fn find_roll(&mut self) {
        self.roll = self
            .last_settings(u64::MAX)
            .map_or(self.initial_roll, |(_, settings)| settings);
    }

    /// Index of the first entry that Raft may read. A log that was never purged may begin at 0 or later.
    pub fn first_index(&self) -> u64 {
        if let Some(purged) = self.purged {
            return purged.index + 1;
        }
        let control = self.controls.keys().next().copied();
        let data = self
            .segments
            .front()
            .map(|segment| segment.name.first_index);
        control.into_iter().chain(data).min().unwrap_or(0)
    }

    /// The index after the last entry, or 0.
    pub fn end_index(&self) -> u64 {
        self.last.map_or(0, |pos| pos.index + 1)
    }

    /// Term of the log's end.
    pub fn last_term(&self) -> u64 {
        let begun = self.terms.last().map_or(0, |start| start.term);
        begun.max(self.last.map_or(0, |pos| pos.term))
    }

    /// Term of an entry; `None` outside of the log. The purged position itself is known.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if let Some(purged) = self.purged.filter(|purged| index <= purged.index) {
            return (index == purged.index).then_some(purged.term);
        }
        self.last.filter(|last| index <= last.index)?;
        Some(self.term_of(index))
    }

    /// As `term_at`, for an index that is known to be in the log or in a kept segment.
    pub fn term_of(&self, index: u64) -> u64 {
        let known = self.terms.partition_point(|start| start.index <= index);
        known
            .checked_sub(1)
            .and_then(|n| self.terms.get(n))
            .map_or(0, |start| start.term)
    }

    /// Notes that an entry stands at `pos`, if it begins a term.
    pub fn note_term(&mut self, pos: LogPos, offset: u64) {
        if self.terms.last().is_none_or(|last| last.term < pos.term) {
            self.terms.push(TermStart {
                term: pos.term,
                index: pos.index,
                offset,
            });
        }
    }

    /// Adds a control entry at the end.
    pub fn push_control(&mut self, pos: LogPos, kind: ControlKind) {
        let offset = self.next_offset;
        self.note_term(pos, offset);
        if let ControlKind::Settings(settings) = &kind {
            self.roll = *settings;
        }
        self.controls.insert(
            pos.index,
            Control {
                term: pos.term,
                offset,
                kind,
            },
        );
        self.last = Some(pos);
    }

    /// The last membership at or before an index.
    pub fn last_membership(&self, upto: u64) -> Option<(LogPos, bytes::Bytes)> {
        self.last_control(upto, |kind| match kind {
            ControlKind::Membership(bytes) => Some(bytes.clone()),
            _ => None,
        })
    }

    /// The last settings entry at or before an index.
    pub fn last_settings(&self, upto: u64) -> Option<(LogPos, RollSettings)> {
        self.last_control(upto, |kind| match kind {
            ControlKind::Settings(settings) => Some(*settings),
            _ => None,
        })
    }

    fn last_control<T>(
        &self,
        upto: u64,
        wanted: impl Fn(&ControlKind) -> Option<T>,
    ) -> Option<(LogPos, T)> {
        self.controls
            .range(..=upto)
            .rev()
            .find_map(|(index, control)| {
                let pos = LogPos {
                    term: control.term,
                    index: *index,
                };
                Some((pos, wanted(&control.kind)?))
            })
    }

    /// The segment that holds the data batch of this index, if one does.
    pub fn segment_by_index(&self, index: u64) -> Option<Arc<Segment>> {
        let behind = self
            .segments
            .partition_point(|segment| segment.name.first_index <= index);
        behind
            .checked_sub(1)
            .and_then(|n| self.segments.get(n))
            .cloned()
    }

    /// The segment that holds this offset, if one does.
    pub fn segment_by_offset(&self, offset: u64) -> Option<Arc<Segment>> {
        let behind = self
            .segments
            .partition_point(|segment| segment.name.base_offset <= offset);
        behind
            .checked_sub(1)
            .and_then(|n| self.segments.get(n))
            .cloned()
    }

    /// Where a segment ends: the next one's base, or the log's end.
    pub fn end_of(&self, segment: &Segment) -> u64 {
        let behind = self
            .segments
            .partition_point(|other| other.name.base_offset <= segment.name.base_offset);
        self.segments
            .get(behind)
            .map_or(self.next_offset, |next| next.name.base_offset)
    }

    /// The epochs of the offsets `from..to`, each with the first offset known of it.
    pub fn epochs(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        // Of several terms that begin at the same offset only the last has data there.
        let first = self
            .terms
            .partition_point(|start| start.offset <= from)
            .saturating_sub(1);
        let within = self
            .terms
            .iter()
            .skip(first)
            .take_while(|start| start.offset < to || start.offset <= from);
        within.map(|start| (start.term, start.offset)).collect()
    }

    /// Segments at the front that trim and purge have both passed. The active one never goes.
    pub fn expired(&self) -> usize {
        let first_kept_index = self.first_index();
        let followers = self.segments.iter().skip(1);
        let gone = |next: &&Arc<Segment>| {
            next.name.base_offset <= self.start_offset && next.name.first_index <= first_kept_index
        };
        followers.take_while(gone).count()
    }

    /// Control entries below this index are of no more use, but for a last membership.
    pub fn useless_controls_below(&self) -> u64 {
        let first_index = self.first_index();
        self.segments.front().map_or(first_index, |segment| {
            segment.name.first_index.min(first_index)
        })
    }

    /// Moves the purged position. Says whether the log's end moved with it.
    pub fn purge(&mut self, upto: LogPos) -> bool {
        if self.purged.is_some_and(|purged| upto.index <= purged.index) {
            return false;
        }
        self.purged = Some(upto);
        let passes_end = self.last.is_none_or(|last| last.index < upto.index);
        if passes_end {
            self.last = Some(upto);
            self.jump = Some(upto.index);
            self.note_term(upto, self.next_offset);
        }
        passes_end
    }

    /// Cuts the log after `keep`: memory only. The segments that go are returned, in order.
    pub fn cut_after(&mut self, keep: Option<LogPos>, end: u64, stamp: u64) -> Vec<Arc<Segment>> {
        let from_index = keep.map_or(0, |pos| pos.index + 1);
        self.controls.split_off(&from_index);
        self.find_roll();
        self.terms
            .truncate(self.terms.partition_point(|start| start.index < from_index));
        let kept = self
            .segments
            .partition_point(|segment| segment.name.base_offset < end);
        let gone = self.segments.split_off(kept).into();
        self.cuts += 1;
        self.last = keep;
        self.next_offset = end;
        self.last_stamp = stamp;
        gone
    }
}
