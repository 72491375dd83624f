//! How many envelopes this process has refused, by the rule that they broke.
//!
//! One counter per rule, counted where the outermost envelope is read, so that no reader can forget
//! it. They are the process's and not a node's, because bytes are read in many places that know no
//! node; like its memory and its open files.

use super::{EnvelopeError, Rule};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static REFUSED: [AtomicU64; Rule::ALL.len()] = [const { AtomicU64::new(0) }; Rule::ALL.len()];

/// Envelopes refused since the process began, for each rule. Relaxed: nothing is decided by them.
pub fn refused() -> impl Iterator<Item = (Rule, u64)> {
    let counts = Rule::ALL.iter().zip(&REFUSED);
    counts.map(|(rule, count)| (*rule, count.load(Relaxed)))
}

pub(super) fn count(error: &EnvelopeError) {
    REFUSED[error.rule() as usize].fetch_add(1, Relaxed);
}
