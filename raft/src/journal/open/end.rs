//! Where the log ends and which terms it has: rows j, l and m of the table.

use super::{OpenError, Opening};
use crate::journal::LogPos;
use crate::journal::segment::SegmentName;
use crate::journal::shape::{Shape, TermStart};

impl Opening<'_> {
    /// Finds the last entry: rows j, l and m.
    pub(super) fn place_end(
        &self,
        shape: &mut Shape,
        last_data: Option<u64>,
    ) -> Result<(), OpenError> {
        let purged = shape.purged.map(|pos| pos.index);
        let first_control = || shape.controls.keys().next().copied();
        let begin = last_data
            .or(purged)
            .map(|index| index + 1)
            .or_else(first_control);
        let mut next = begin.unwrap_or(0);
        let mut jump = None;
        for (index, control) in shape.controls.range(next..) {
            if *index != next {
                if purged.is_none_or(|purged| index - 1 > purged) {
                    return Err(
                        self.inconsistent(self.dir, format!("entries {next}..{index} are missing"))
                    );
                }
                jump = Some(index - 1);
            }
            if control.offset != shape.next_offset {
                let found = format!("control entry {index} stands at offset {}", control.offset);
                return Err(self.inconsistent(
                    self.dir,
                    format!("{found}, the log ends at {}", shape.next_offset),
                ));
            }
            next = index + 1;
        }
        if let Some(purged) = purged.filter(|purged| *purged >= next) {
            jump = Some(purged);
            next = purged + 1;
        }
        shape.jump = jump.filter(|_| last_data.is_some());
        let last = begin.and_then(|_| next.checked_sub(1));
        shape.last = last.map(
            |index| match shape.purged.filter(|purged| purged.index == index) {
                Some(purged) => purged,
                None => LogPos {
                    term: shape.term_of(index),
                    index,
                },
            },
        );
        Ok(())
    }
}

/// The changes of term that control entries, segment names and the purged position tell of.
pub(super) fn terms(shape: &Shape) -> Vec<TermStart> {
    let controls = shape.controls.iter();
    let mut all: Vec<_> = controls
        .map(|(i, c)| TermStart {
            term: c.term,
            index: *i,
            offset: c.offset,
        })
        .collect();
    all.extend(shape.segments.iter().map(|segment| {
        let SegmentName {
            base_offset: offset,
            first_index: index,
            term,
        } = segment.name;
        TermStart {
            term,
            index,
            offset,
        }
    }));
    all.extend(shape.purged.map(|pos| {
        let behind = shape
            .segments
            .iter()
            .find(|segment| segment.name.first_index > pos.index);
        let offset = behind.map_or(shape.next_offset, |segment| segment.name.base_offset);
        TermStart {
            term: pos.term,
            index: pos.index,
            offset,
        }
    }));
    all.sort_unstable_by_key(|start| (start.index, start.term));
    let mut rising: Vec<TermStart> = Vec::new();
    for start in all {
        if rising.last().is_none_or(|last| last.term < start.term) {
            rising.push(start);
        }
    }
    rising
}
