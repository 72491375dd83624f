//! What time it is, for deleting: cautiously.
//!
//! A wall clock that jumps ahead would make everything old at once. So this clock follows the wall
//! clock down at once and up at no more than twice the speed of the monotonic one: after a jump ahead
//! of an hour it needs an hour to believe it. A wrong jump is seen, in the log and as a metric, long
//! before it deletes what it shouldn't; a right one (a machine that slept) only deletes later.
//!
//! Nothing is known of the time before the first look, so whoever asks also hears for how long this
//! clock has watched.

use std::time::Duration;
use tokio::time::Instant;

/// Behind the wall clock by more than this is worth a line.
const WORTH_TELLING: Duration = Duration::from_secs(60);

/// A time, and for how long the clock that gave it has been watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Microseconds since the Unix epoch.
    pub us: u64,
    pub watched_us: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct SteadyClock {
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    first: Instant,
    last: Instant,
    us: u64,
    told: bool,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl SteadyClock {
    /// Looks at the wall clock, `wall_us`, at `at` by the monotonic one.
    pub fn look(&mut self, wall_us: u64, at: Instant) -> Now {
        let seen = self.seen.get_or_insert(Seen {
            first: at,
            last: at,
            us: wall_us,
            told: false,
        });
        let passed = micros(at.saturating_duration_since(seen.last));
        let fastest = seen.us.saturating_add(passed.saturating_mul(2));
        seen.us = wall_us.min(fastest);
        seen.last = seen.last.max(at);
        seen.tell(wall_us);
        Now {
            us: seen.us,
            watched_us: micros(at.saturating_duration_since(seen.first)),
        }
    }
}

impl Seen {
    fn tell(&mut self, wall_us: u64) {
        let behind = Duration::from_micros(wall_us.saturating_sub(self.us));
        let far = behind > WORTH_TELLING;
        if far && !self.told {
            tracing::warn!(
                seconds = behind.as_secs(),
                "the clock jumped ahead; retention by time follows it slowly"
            );
        }
        self.told = far;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_steady_clock_is_believed() {
        let start = Instant::now();
        let mut clock = SteadyClock::default();
        for seconds in [0, 1, 30, 3600] {
            let now = clock.look((1000 + seconds) * SECOND, at(start, seconds));
            assert_eq!(now.us, (1000 + seconds) * SECOND);
            assert_eq!(now.watched_us, seconds * SECOND);
        }
    }

    #[test]
    fn a_jump_ahead_is_followed_at_double_speed() {
        let start = Instant::now();
        let mut clock = SteadyClock::default();
        clock.look(1000 * SECOND, start);
        let year = 365 * 86_400;
        for (seconds, believed) in [(0, 1000), (10, 1020), (30, 1060)] {
            let now = clock.look((1000 + year + seconds) * SECOND, at(start, seconds));
            assert_eq!(now.us, believed * SECOND);
        }
        let back = clock.look(1040 * SECOND, at(start, 40));
        assert_eq!(back.us, 1040 * SECOND);
    }

    #[test]
    fn a_jump_back_is_followed_at_once() {
        let start = Instant::now();
        let mut clock = SteadyClock::default();
        clock.look(1000 * SECOND, start);
        assert_eq!(clock.look(10 * SECOND, at(start, 5)).us, 10 * SECOND);
        assert_eq!(clock.look(11 * SECOND, at(start, 6)).us, 11 * SECOND);
    }
}
