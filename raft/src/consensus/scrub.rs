//! The scrub: every sealed segment is read again within a fixed time, at a bounded rate, and compared with other replicas.
//!
//! One segment at a time on each node, groups in order of their ids, segments in order of offsets. The pace follows from how
//! much there is and how long a round may take, and never exceeds the configured rate. Where the round stands is kept in
//! the meta store: losing it starts the round anew.
//!
//! What a check finds, the journal marks; the repair does the rest. A segment whose every batch checks can still be an old
//! or a foreign copy: if the digests of all others that checked it agree with each other and not with this one, it is
//! damage of the whole segment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::group::Group;
use super::groups::Groups;
use crate::disk::Offload;
use crate::disk::offloaded;
use crate::journal::{SegmentDigest, SegmentInfo};
use crate::meta::MetaStore;

/// Where the round stands: group and offset, then when it began.
const CURSOR_KEY: &[u8] = b"scrub/cursor";
/// The pause when there is nothing to read, and between two looks at a round that is done.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// Slower than this nothing is read, however much time there would be. Bytes a second.
const MIN_RATE: u64 = 256 << 10;
/// A node that stops waits no longer than this for the scrub.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How fast the scrub may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Never more than this. 0 switches the scrub off.
    pub bytes_per_second: u64,
    /// Every sealed segment is read within this time.
    pub interval: Duration,
}

impl Default for ScrubConfig {
    fn default() -> Self {
        Self {
            bytes_per_second: 16 << 20,
            interval: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// The next segment to read, and when the round began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    group: u64,
    offset: u64,
    round_began_us: u64,
}

impl Cursor {
    fn encode(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (at, number) in [self.group, self.offset, self.round_began_us]
            .iter()
            .enumerate()
        {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            bytes
                .get(at..at + 8)?
                .try_into()
                .ok()
                .map(u64::from_le_bytes)
        };
        (bytes.len() == 24).then_some(())?;
        Some(Self {
            group: number(0)?,
            offset: number(8)?,
            round_began_us: number(16)?,
        })
    }
}

/// Bytes a second so that `total` is read in four fifths of the interval, within the bounds.
fn rate(total: u64, config: &ScrubConfig) -> u64 {
    let seconds = (config.interval.as_secs() * 4 / 5).max(1);
    (total / seconds).max(MIN_RATE).min(config.bytes_per_second)
}

/// How long reading `bytes` takes at a rate.
fn time_for(bytes: u64, rate: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / rate.max(1))
}

/// Whether anybody waits for a piece of blocking work; not any more once this is dropped, as when a node stops.
struct Wanted(Arc<AtomicBool>);

impl Default for Wanted {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Waits in a blocking job, for as long as the job is wanted; says whether it still is.
fn pause_while(wanted: &AtomicBool, offload: &Arc<dyn Offload>, time: Duration) -> bool {
    let mut left = time;
    while wanted.load(Ordering::Relaxed) && !left.is_zero() {
        let some = left.min(LONGEST_PAUSE);
        offload.pause(some);
        left -= some;
    }
    wanted.load(Ordering::Relaxed)
}

impl Groups {
    /// Scrubs until the node stops; spawn it once.
    pub async fn scrub(self: Arc<Self>, progress: Arc<dyn MetaStore>) {
        let config = self.config.scrub;
        if config.bytes_per_second == 0 {
            return;
        }
        let mut cursor = self.load_cursor(&progress).await;
        loop {
            match self.next_segment(&cursor) {
                Some((group, segment)) => {
                    let rate = rate(self.sealed_bytes(), &config);
                    self.scrub_segment(&group, &segment, rate).await;
                    cursor.group = group.id();
                    cursor.offset = segment.end_offset;
                    self.save_cursor(&progress, cursor).await;
                }
                None if self.round_is_over(&cursor, &config) => {
                    cursor = Cursor {
                        group: 0,
                        offset: 0,
                        round_began_us: self.io().clock.now_micros(),
                    };
                    tokio::time::sleep(IDLE_PAUSE.min(config.interval)).await;
                }
                None => tokio::time::sleep(IDLE_PAUSE.min(config.interval)).await,
            }
        }
    }

    fn round_is_over(&self, cursor: &Cursor, config: &ScrubConfig) -> bool {
        let now = self.io().clock.now_micros();
        let interval = u64::try_from(config.interval.as_micros()).unwrap_or(u64::MAX);
        // A clock that went back must not stop the scrub.
        now < cursor.round_began_us || now - cursor.round_began_us >= interval
    }

    async fn load_cursor(&self, progress: &Arc<dyn MetaStore>) -> Cursor {
        let store = Arc::clone(progress);
        let kept = offloaded(self.io(), move || store.get(CURSOR_KEY)).await;
        let kept = match kept {
            Ok(Ok(kept)) => kept,
            // Losing the place costs reading some segments again.
            Ok(Err(_)) | Err(_) => None,
        };
        let start = Cursor {
            group: 0,
            offset: 0,
            round_began_us: self.io().clock.now_micros(),
        };
        kept.and_then(|bytes| Cursor::decode(&bytes))
            .unwrap_or(start)
    }

    async fn save_cursor(&self, progress: &Arc<dyn MetaStore>, cursor: Cursor) {
        let store = Arc::clone(progress);
        let saved = offloaded(self.io(), move || store.put(CURSOR_KEY, &cursor.encode())).await;
        if let Ok(Err(error)) = saved {
            tracing::debug!(%error, "the scrub's place was not kept");
        }
    }

    /// The first sealed segment at or behind the cursor.
    fn next_segment(&self, cursor: &Cursor) -> Option<(Arc<Group>, SegmentInfo)> {
        self.all()
            .into_iter()
            .filter(|group| group.id() >= cursor.group)
            .find_map(|group| {
                let from = if group.id() == cursor.group {
                    cursor.offset
                } else {
                    0
                };
                let segments = group.journal().segments();
                let next = segments
                    .into_iter()
                    .find(|segment| segment.sealed && segment.base_offset >= from);
                next.map(|segment| (group, segment))
            })
    }

    fn sealed_bytes(&self) -> u64 {
        let groups = self.all();
        groups
            .iter()
            .map(|group| group.journal().total_bytes())
            .sum()
    }

    async fn scrub_segment(&self, group: &Arc<Group>, segment: &SegmentInfo, rate: u64) {
        let journal = Arc::clone(group.journal());
        let base = segment.base_offset;
        let offload = Arc::clone(&self.io().offload);
        let wanted = Wanted::default();
        let still = Arc::clone(&wanted.0);
        let check = offloaded(self.io(), move || {
            let mut pace = |bytes| pause_while(&still, &offload, time_for(bytes, rate));
            journal.check_segment(base, &mut pace)
        })
        .await;
        drop(wanted);
        match check {
            Ok(Ok(checked)) => {
                self.repairs.scrubbed(checked.bytes);
                match &checked.digest {
                    Some(digest) => self.compare(group, digest).await,
                    None => self.repairs.found(),
                }
            }
            // Trimmed meanwhile, or the node stops.
            Ok(Err(error)) => {
                tracing::debug!(group = group.id(), base, %error, "a segment was not scrubbed")
            }
            Err(error) => {
                tracing::debug!(group = group.id(), base, %error, "a segment was not scrubbed")
            }
        }
    }

    /// Holds a good segment against those of the others: the majority of all replicas decides.
    async fn compare(&self, group: &Arc<Group>, own: &SegmentDigest) {
        let sources = self.sources_of(group);
        let mut others = Vec::new();
        for node in &sources.nodes {
            let Ok(reply) = sources.digests(*node, own.base_offset).await else {
                continue;
            };
            let segments = reply.segments.into_iter();
            let mut same = segments.filter(|other| {
                (other.base_offset, other.end_offset) == (own.base_offset, own.end_offset)
            });
            others.extend(same.next().map(|other| other.xxh3));
        }
        let base = own.base_offset;
        match vote(own.xxh3, &others, sources.nodes.len() + 1) {
            Vote::Same => {}
            Vote::Outvoted => {
                self.repairs.found();
                let journal = Arc::clone(group.journal());
                let marked = offloaded(self.io(), move || journal.mark_foreign(base)).await;
                if let Ok(Err(error)) = marked {
                    tracing::warn!(group = group.id(), base, %error, "damage could not be marked");
                }
            }
            Vote::Unclear => tracing::error!(
                group = group.id(),
                base,
                "replicas hold different bytes and no majority agrees: run imprint verify"
            ),
        }
    }
}

/// What the replicas' digests of one segment say of one's own.
#[derive(Debug, PartialEq, Eq)]
enum Vote {
    /// Nobody differs, or only replicas that are outvoted themselves.
    Same,
    /// A majority of all replicas agrees on something else.
    Outvoted,
    Unclear,
}

fn vote(own: u64, others: &[u64], replicas: usize) -> Vote {
    let agree = |digest: u64| others.iter().filter(|other| **other == digest).count();
    if others.iter().all(|other| *other == own) || agree(own) + 1 > replicas / 2 {
        return Vote::Same;
    }
    if others.iter().any(|other| agree(*other) > replicas / 2) {
        return Vote::Outvoted;
    }
    Vote::Unclear
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn the_pace_follows_from_how_much_there_is() {
        let config = ScrubConfig {
            bytes_per_second: 16 << 20,
            interval: Duration::from_secs(1000),
        };
        assert_eq!(rate(0, &config), MIN_RATE);
        assert_eq!(rate(800 << 20, &config), 1 << 20);
        assert_eq!(rate(u64::MAX, &config), 16 << 20);
        assert_eq!(time_for(1 << 20, 1 << 20), Duration::from_secs(1));
    }

    /// Notes how long it was asked to wait, and who waits goes away after a while.
    struct Waits(AtomicU64, std::sync::Weak<AtomicBool>);

    impl Offload for Waits {
        fn run(&self, job: Box<dyn FnOnce() + Send>) {
            job();
        }

        fn pause(&self, time: Duration) {
            let before = self.0.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
            if before >= 1000 {
                self.1.upgrade().unwrap().store(false, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_slow_scrub_does_not_keep_a_node_from_stopping() {
        let wanted = Wanted::default();
        let waits = Arc::new(Waits(AtomicU64::new(0), Arc::downgrade(&wanted.0)));
        let offload: Arc<dyn Offload> = waits.clone();
        assert!(pause_while(&wanted.0, &offload, Duration::from_millis(999)));
        assert_eq!(waits.0.load(Ordering::Relaxed), 999);
        assert!(!pause_while(&wanted.0, &offload, Duration::from_secs(250)));
        assert!(waits.0.load(Ordering::Relaxed) < 1100);
    }

    #[test]
    fn a_majority_of_all_replicas_decides() {
        assert_eq!(vote(1, &[], 3), Vote::Same);
        assert_eq!(vote(1, &[1, 2], 3), Vote::Same);
        assert_eq!(vote(1, &[2, 2], 3), Vote::Outvoted);
        assert_eq!(vote(1, &[2], 3), Vote::Unclear);
        assert_eq!(vote(1, &[2, 3], 3), Vote::Unclear);
    }

    #[test]
    fn the_place_survives_in_bytes() {
        let cursor = Cursor {
            group: 7,
            offset: 1 << 40,
            round_began_us: 99,
        };
        assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        assert_eq!(Cursor::decode(&[1, 2, 3]), None);
    }
}
