//! How fast this node reads old log for replicas that lag, all groups together.
//!
//! Replication at the tail reads from memory and is never held up. Reads that miss the tail's cache go to the disk that
//! appends share; they are paid for here. A reader waits before it reads, so a lagging follower holds no memory while it
//! waits, and pays afterwards for what it really got. Several readers that wait for the same moment overdraw by one read
//! each; the debt is worked off before the next.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct CatchUpLimit {
    /// 0: no limit.
    bytes_per_second: u64,
    /// When everything read so far is paid for.
    paid_at: Mutex<Option<Instant>>,
}

impl CatchUpLimit {
    pub(crate) fn new(bytes_per_second: u64) -> Arc<Self> {
        Arc::new(CatchUpLimit {
            bytes_per_second,
            paid_at: Mutex::new(None),
        })
    }

    /// Waits until all that was read is paid for.
    pub(crate) async fn ready(&self) {
        loop {
            let paid_at = *self.paid_at.lock();
            match paid_at {
                Some(at) if at > Instant::now() => tokio::time::sleep_until(at).await,
                _ => return,
            }
        }
    }

    /// Notes that so many bytes were read.
    pub(crate) fn charge(&self, bytes: u64) {
        if self.bytes_per_second == 0 {
            return;
        }
        let micros = bytes.saturating_mul(1_000_000) / self.bytes_per_second;
        let mut paid_at = self.paid_at.lock();
        let now = Instant::now();
        let from = paid_at.map_or(now, |at| at.max(now));
        // A price beyond the clock's end is a configuration of about no bytes at all.
        *paid_at = from
            .checked_add(Duration::from_micros(micros))
            .or(Some(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn time_of(limit: &CatchUpLimit, reads: u64, bytes: u64) -> Duration {
        let begin = Instant::now();
        for _ in 0..reads {
            limit.ready().await;
            limit.charge(bytes);
        }
        limit.ready().await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn reads_take_the_time_that_the_rate_says() {
        let limit = CatchUpLimit::new(1 << 20);
        let took = time_of(&limit, 10, 1 << 20).await;
        let expected = Duration::from_secs(10);
        assert!(took >= expected && took < expected * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn two_readers_share_the_rate() {
        let limit = CatchUpLimit::new(1 << 20);
        let begin = Instant::now();
        tokio::join!(time_of(&limit, 5, 1 << 20), time_of(&limit, 5, 1 << 20));
        assert!(begin.elapsed() >= Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn zero_is_no_limit() {
        let limit = CatchUpLimit::new(0);
        assert_eq!(time_of(&limit, 1000, u64::MAX).await, Duration::ZERO);
    }
}
