//! A line per fact and not one per occurrence: what repeats is written when it is new, and then seldom.
//!
//! Facts are texts, which a peer or a stranger may choose, so their number is bounded: when as many are fresh as are
//! kept, further ones are not written at all. A log thus gets at most [`MAX_FACTS`] times `lines` of them in a [`WINDOW`],
//! whoever sends what.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// A fact is written at most so many times as its owner says within this time.
const WINDOW: Duration = Duration::from_secs(60);

/// Facts that are remembered.
const MAX_FACTS: usize = 64;

/// Bytes of a fact that tell it from others.
const FACT_BYTES: usize = 256;

#[derive(Debug)]
struct Fact {
    since: Instant,
    lines: u32,
    /// Occurrences since the last line.
    silent: u64,
}

/// Decides which occurrences are written.
#[derive(Debug)]
pub(crate) struct Notices {
    lines: u32,
    facts: BTreeMap<String, Fact>,
}

impl Notices {
    /// Each fact is written `lines` times a minute at most.
    pub(crate) fn new(lines: u32) -> Self {
        Notices {
            lines,
            facts: BTreeMap::new(),
        }
    }

    /// Whether to write this occurrence; if so, how many before it were not.
    pub(crate) fn due(&mut self, fact: &str) -> Option<u64> {
        let fact = &fact[..fact.floor_char_boundary(FACT_BYTES)];
        let now = Instant::now();
        if let Some(known) = self.facts.get_mut(fact) {
            return known.again(now, self.lines);
        }
        if self.facts.len() >= MAX_FACTS {
            self.facts.retain(|_, fact| !fact.is_over(now));
        }
        if self.facts.len() >= MAX_FACTS {
            return None;
        }
        let first = Fact {
            since: now,
            lines: 1,
            silent: 0,
        };
        self.facts.insert(fact.to_owned(), first);
        Some(0)
    }

    /// What comes next is news again.
    pub(crate) fn forget(&mut self) {
        self.facts.clear();
    }
}

impl Fact {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= WINDOW
    }

    fn again(&mut self, now: Instant, limit: u32) -> Option<u64> {
        if self.is_over(now) {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= limit {
            self.silent += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_repeats_is_written_once_a_minute_with_its_number() {
        let mut notices = Notices::new(1);
        assert_eq!(notices.due("refused"), Some(0));
        for _ in 0..29 {
            tokio::time::advance(Duration::from_secs(2)).await;
            assert_eq!(notices.due("refused"), None);
        }
        assert_eq!(notices.due("something else"), Some(0));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(notices.due("refused"), Some(29));
        assert_eq!(notices.due("refused"), None);
        notices.forget();
        assert_eq!(notices.due("refused"), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn facts_that_are_all_new_are_bounded_too() {
        let mut notices = Notices::new(1);
        let mut written = |count: usize| {
            let facts = (0..count).map(|n| format!("{n} {}", "x".repeat(10_000)));
            facts.filter_map(|fact| notices.due(&fact)).count()
        };
        assert_eq!(written(1000), MAX_FACTS);
        assert_eq!(written(1000), 0);
        tokio::time::advance(WINDOW).await;
        assert_eq!(written(1000), MAX_FACTS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_lines_may_be_allowed() {
        let mut notices = Notices::new(3);
        let written = (0..10).filter_map(|_| notices.due("connected")).count();
        assert_eq!(written, 3);
    }
}
