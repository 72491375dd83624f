//! Which index and term the data batch at an offset has: what the control log and the segments' names say of places.
//!
//! Batches carry neither. A batch's index is that of the one before plus one, control entries between them counted; its term
//! is that of the last change of term at or before it. Both are certain only from a place that is certain, without a hole
//! between.

use std::collections::BTreeMap;

use super::LogPos;
use super::shape::TermStart;
use crate::statelog::Control;

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// Control entries by index.
    pub controls: BTreeMap<u64, Control>,
    /// Rising in every field.
    pub terms: Vec<TermStart>,
}

impl Places {
    /// The place of the data batch at `offset`, from the first index that it may have.
    pub fn of(&self, from: u64, offset: u64) -> Result<LogPos, String> {
        let index = index_of(&self.controls, from, offset)?;
        Ok(LogPos {
            term: self.term_of(index),
            index,
        })
    }

    /// Whether anything says which term an index has.
    pub fn knows_term(&self, index: u64) -> bool {
        self.terms.first().is_some_and(|first| first.index <= index)
    }

    /// The term of an index.
    pub fn term_of(&self, index: u64) -> u64 {
        let known = self.terms.partition_point(|start| start.index <= index);
        known
            .checked_sub(1)
            .and_then(|n| self.terms.get(n))
            .map_or(0, |start| start.term)
    }
}

/// The index of the data batch at `offset`, from the first index that it may have: control entries come before it. Says what
/// contradicts it.
pub(crate) fn index_of(
    controls: &BTreeMap<u64, Control>,
    from: u64,
    offset: u64,
) -> Result<u64, String> {
    let mut index = from;
    for (at, control) in controls.range(from..) {
        let in_place = *at == index && control.offset == offset;
        if in_place {
            index += 1;
            continue;
        }
        if *at == index || control.offset <= offset {
            let found = format!("control entry {at} stands at offset {}", control.offset);
            return Err(format!("{found}, data of index {index} at {offset}"));
        }
        break;
    }
    Ok(index)
}
