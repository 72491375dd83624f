//! Which segments of a partition go now, and which next: a plain function.
//!
//! Whole segments go, the oldest first, and one that stays keeps all behind it. The active segment
//! never goes, nor one that isn't wholly committed.
//! * size: the oldest goes while what is left without it is at least the limit;
//! * time: it goes when its last message is older than the limit, by a clock that has been watched
//!   for as long, or for [`WATCHED_US`].

use super::clock::Now;
use super::words;
use crate::controller::settings::{self, Settings};

/// A limit of days is not held against a clock that was seen for the first time just now: a minute
/// lets a machine that booted with a wrong one set it right.
const WATCHED_US: u64 = 60_000_000;

/// What a topic says about how long its messages stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    pub bytes: Option<u64>,
    pub age_us: Option<u64>,
}

impl Retention {
    pub fn of(settings: &Settings) -> Self {
        let age_ms = settings::number(settings, "retention_ms");
        Self {
            bytes: settings::number(settings, "retention_bytes"),
            age_us: age_ms.map(|ms| ms.saturating_mul(1000)),
        }
    }

    /// Everything is kept for ever.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}

/// What the decision needs to know of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFacts {
    pub base_offset: u64,
    pub end_offset: u64,
    pub bytes: u64,
    pub sealed: bool,
    /// Stamp of its last batch; `None`: not looked up, because an older segment already stays.
    pub last_stamp_us: Option<u64>,
}

/// A partition's log, from its first kept segment on.
#[derive(Debug, Clone, Copy)]
pub struct Log<'a> {
    pub segments: &'a [SegmentFacts],
    pub start: u64,
    pub commit: u64,
}

/// What goes next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NextDeletion {
    /// The offsets below; 0: nothing can be said to go.
    pub up_to_offset: u64,
    pub bytes: u64,
    /// Not before that time; `None`: not a matter of time.
    pub due_us: Option<u64>,
    /// When the partition has grown by so much; `None`: not a matter of size.
    pub bytes_missing: Option<u64>,
    /// Why not yet; empty: now.
    pub why_not: String,
}

impl NextDeletion {
    fn none(why_not: &str) -> Self {
        Self {
            why_not: why_not.to_string(),
            ..Self::default()
        }
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Trim up to this offset.
    pub trim_upto: Option<u64>,
    /// Segments that go with it.
    pub segments: u64,
    pub next: NextDeletion,
}

/// Whether a message of that stamp is too old.
pub fn is_expired(stamp_us: u64, age_us: u64, now: Now) -> bool {
    now.watched_us >= age_us.min(WATCHED_US) && stamp_us.saturating_add(age_us) < now.us
}

/// Decides. Nothing here depends on how often it is asked.
pub fn decide(log: Log<'_>, retention: Retention, now: Now) -> Decision {
    let kept = log.segments.iter().filter(|s| s.end_offset > log.start);
    let total: u64 = kept.clone().map(|segment| segment.bytes).sum();
    let may_go = |s: &&SegmentFacts| s.sealed && s.end_offset <= log.commit;
    let (mut rest, mut upto, mut segments) = (total, None, 0);
    for segment in kept.clone().take_while(may_go) {
        let left = rest.saturating_sub(segment.bytes);
        let by_size = retention.bytes.is_some_and(|limit| left >= limit);
        let by_age = match (retention.age_us, segment.last_stamp_us) {
            (Some(age_us), Some(stamp_us)) => is_expired(stamp_us, age_us, now),
            _ => false,
        };
        if !by_size && !by_age {
            break;
        }
        (rest, upto, segments) = (left, Some(segment.end_offset), segments + 1);
    }
    let next = match upto {
        Some(upto) => NextDeletion {
            up_to_offset: upto,
            bytes: total - rest,
            ..NextDeletion::default()
        },
        None if retention.is_off() => NextDeletion::none("retention is off"),
        None => match kept.clone().next() {
            None => NextDeletion::none("nothing is stored"),
            Some(oldest) if !oldest.sealed => {
                NextDeletion::none("the active segment is never deleted")
            }
            Some(oldest) => not_yet(oldest, total, log.commit, retention, now),
        },
    };
    Decision {
        trim_upto: upto,
        segments,
        next,
    }
}

/// When the oldest segment, which stays for now, will go.
fn not_yet(
    oldest: &SegmentFacts,
    total: u64,
    commit: u64,
    retention: Retention,
    now: Now,
) -> NextDeletion {
    let mut why = Vec::new();
    let left = total - oldest.bytes;
    let missing = retention.bytes.map(|limit| limit.saturating_sub(left));
    if let (Some(missing), Some(limit)) = (missing, retention.bytes)
        && missing > 0
    {
        let (missing, limit) = (words::size(missing), words::size(limit));
        why.push(format!("the rest is {missing} below the limit of {limit}"));
    }
    let due = retention.age_us.zip(oldest.last_stamp_us);
    let due = due.map(|(age_us, stamp_us)| stamp_us.saturating_add(age_us));
    if let (Some(due), Some(age_us)) = (due, retention.age_us) {
        let age = words::duration(age_us);
        if due < now.us {
            why.push("the clock has been watched for too short a time".to_string());
        } else {
            let left = words::duration(due - now.us);
            why.push(format!("its newest message is kept for {age}, {left} more"));
        }
    }
    if oldest.end_offset > commit {
        why.push("it is not wholly committed".to_string());
    }
    NextDeletion {
        up_to_offset: oldest.end_offset,
        bytes: oldest.bytes,
        due_us: due,
        bytes_missing: missing,
        why_not: why.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1_000_000;
    const NOW: Now = Now {
        us: 1_000 * MB,
        watched_us: u64::MAX,
    };

    /// Segments of these sizes, ten offsets each, the last one active; the last stamp of segment n
    /// is n seconds.
    fn segments(sizes: &[u64]) -> Vec<SegmentFacts> {
        let facts = sizes.iter().enumerate().map(|(n, bytes)| SegmentFacts {
            base_offset: 10 * n as u64,
            end_offset: 10 * (n as u64 + 1),
            bytes: *bytes,
            sealed: n + 1 < sizes.len(),
            last_stamp_us: Some(n as u64 * MB),
        });
        facts.collect()
    }

    fn decide_all(sizes: &[u64], retention: Retention, now: Now) -> Decision {
        let segments = segments(sizes);
        let log = Log {
            segments: &segments,
            start: 0,
            commit: u64::MAX,
        };
        decide(log, retention, now)
    }

    fn by_size(sizes: &[u64], limit: u64) -> Decision {
        let retention = Retention {
            bytes: Some(limit),
            age_us: None,
        };
        decide_all(sizes, retention, NOW)
    }

    fn by_age(now_seconds: u64, age_seconds: u64, watched_us: u64) -> Decision {
        let retention = Retention {
            bytes: None,
            age_us: Some(age_seconds * MB),
        };
        let us = now_seconds * MB;
        decide_all(&[MB, MB, MB, MB], retention, Now { us, watched_us })
    }

    #[test]
    fn the_oldest_goes_while_the_rest_is_as_large_as_the_limit() {
        let sizes = [MB, 2 * MB, MB];
        for (limit, upto) in [
            (2 * MB, Some(10)),
            (3 * MB, Some(10)),
            (3 * MB + 1, None),
            (4 * MB, None),
            (MB, Some(20)),
            // Below one segment, below the active one, and nothing at all: the active one stays.
            (MB / 2, Some(20)),
            (1, Some(20)),
            (0, Some(20)),
        ] {
            assert_eq!(by_size(&sizes, limit).trim_upto, upto, "{limit}");
        }
        assert_eq!(by_size(&[9 * MB], 0).trim_upto, None);
        assert_eq!(by_size(&[], 0).trim_upto, None);
    }

    #[test]
    fn what_is_older_than_the_limit_goes() {
        // Last stamps are 0, 1, 2 and, in the active segment, 3 seconds.
        for (now, age, upto) in [
            (2, 2, None),
            (3, 2, Some(10)),
            (4, 2, Some(20)),
            (900, 2, Some(30)),
            (900, 900, None),
        ] {
            assert_eq!(by_age(now, age, u64::MAX).trim_upto, upto, "{now} {age}");
        }
        // A clock behind the stamps makes nothing old.
        assert_eq!(by_age(0, 1, u64::MAX).trim_upto, None);
    }

    #[test]
    fn a_clock_that_was_just_looked_at_deletes_nothing() {
        assert_eq!(by_age(900, 500, 59 * MB).trim_upto, None);
        let why = by_age(900, 500, 59 * MB).next.why_not;
        assert_eq!(why, "the clock has been watched for too short a time");
        assert_eq!(by_age(900, 500, 60 * MB).trim_upto, Some(30));
        // A limit of seconds needs seconds.
        assert_eq!(by_age(900, 2, MB).trim_upto, None);
        assert_eq!(by_age(900, 2, 2 * MB).trim_upto, Some(30));
    }

    #[test]
    fn what_goes_next_says_when_or_why_not() {
        let off = decide_all(&[MB, MB], Retention::default(), NOW);
        assert_eq!(off.next.why_not, "retention is off");
        assert_eq!(off.trim_upto, None);
        let active = by_size(&[MB], 0).next;
        assert_eq!(active.why_not, "the active segment is never deleted");
        assert_eq!(by_size(&[], 0).next.why_not, "nothing is stored");
        let now = by_size(&[MB, 2 * MB, MB], MB).next;
        assert_eq!(
            (now.up_to_offset, now.bytes, now.why_not.as_str()),
            (20, 3 * MB, "")
        );
        let mib = 1 << 20;
        let later = by_size(&[8 * mib, 80 * mib, 8 * mib], 100 * mib).next;
        assert_eq!((later.up_to_offset, later.bytes), (10, 8 * mib));
        assert_eq!(later.bytes_missing, Some(12 * mib));
        assert_eq!(
            later.why_not,
            "the rest is 12 MiB below the limit of 100 MiB"
        );
        let later = by_age(2, 10, u64::MAX).next;
        assert_eq!((later.up_to_offset, later.due_us), (10, Some(10 * MB)));
        assert_eq!(later.why_not, "its newest message is kept for 10s, 8s more");
    }

    #[test]
    fn trimmed_and_uncommitted_segments_are_left_alone() {
        let segments = segments(&[MB, MB, MB, MB]);
        let retention = Retention {
            bytes: Some(0),
            age_us: None,
        };
        let with = |start, commit| {
            let log = Log {
                segments: &segments,
                start,
                commit,
            };
            decide(log, retention, NOW)
        };
        assert_eq!(with(10, 40).trim_upto, Some(30));
        assert_eq!(with(10, 40).segments, 2);
        assert_eq!(with(0, 25).trim_upto, Some(20));
        assert_eq!(with(0, 9).trim_upto, None);
        assert!(with(0, 9).next.why_not.contains("committed"));
        assert_eq!(with(30, 40).trim_upto, None);
    }

    /// The rules once more, one segment at a time.
    fn model(facts: &[SegmentFacts], start: u64, commit: u64, retention: Retention) -> u64 {
        let mut log: Vec<SegmentFacts> = facts.to_vec();
        log.retain(|segment| segment.end_offset > start);
        let mut upto = 0;
        loop {
            let Some(oldest) = log.first().copied() else {
                return upto;
            };
            let others: u64 = log[1..].iter().map(|segment| segment.bytes).sum();
            let too_much = matches!(retention.bytes, Some(limit) if others >= limit);
            let stamp = oldest.last_stamp_us.expect("known");
            let too_old = matches!(retention.age_us, Some(age) if stamp + age < NOW.us);
            let allowed = oldest.sealed && oldest.end_offset <= commit;
            if !allowed || !(too_much || too_old) {
                return upto;
            }
            upto = oldest.end_offset;
            log.remove(0);
        }
    }

    proptest! {
        #[test]
        fn decides_as_the_model(
            sizes in proptest::collection::vec(1u64..50, 0..12),
            stamps in proptest::collection::vec(0u64..100, 12),
            start in 0u64..130,
            commit in 0u64..130,
            bytes in proptest::option::of(0u64..400),
            age in proptest::option::of(1u64..100),
        ) {
            let mut facts = segments(&sizes);
            let mut stamp = NOW.us - 600;
            for (fact, step) in facts.iter_mut().zip(stamps) {
                stamp += step;
                fact.last_stamp_us = Some(stamp);
            }
            let retention = Retention { bytes, age_us: age };
            let log = Log { segments: &facts, start, commit };
            let decision = decide(log, retention, NOW);
            let expected = model(&facts, start, commit, retention);
            prop_assert_eq!(decision.trim_upto.unwrap_or(0), expected);
            prop_assert_eq!(decision.trim_upto.is_some(), decision.next.why_not.is_empty());
        }

        /// Deciding again after a trim finds nothing more to do.
        #[test]
        fn one_decision_is_enough(
            sizes in proptest::collection::vec(1u64..50, 0..12),
            bytes in 0u64..400,
        ) {
            let facts = segments(&sizes);
            let retention = Retention { bytes: Some(bytes), age_us: None };
            let log = Log { segments: &facts, start: 0, commit: 1000 };
            if let Some(start) = decide(log, retention, NOW).trim_upto {
                prop_assert_eq!(decide(Log { start, ..log }, retention, NOW).trim_upto, None);
            }
        }
    }
}
