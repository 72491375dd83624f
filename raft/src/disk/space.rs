//! Room on the disk: how much there is, and what a writer does when there is none.
//!
//! A write that fails for want of space has harmed nothing as long as no sync came between: the same bytes can be written to
//! the same place again. So such a writer does not fail. It frees the reserve (a file that only takes up room), tries again,
//! and if that doesn't help it leaves its work with the [`SpaceGate`] and ends its job; whoever watches the disk calls
//! [`SpaceGate::retry`] when there may be room again. No thread waits meanwhile.
//!
//! * Nobody waits for space unless somebody watches ([`SpaceGate::attend`]): without a watcher, or once the gate is closed, no
//!   space is a failure like any other.
//! * A sync that reports "no space" is a failed sync: final, never asked again.
//! * How many wait is bounded by the logs of a node: each leaves its work at most once.
//!
//! The gate must not know which floors the level comes from, nor what waits.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Disk;

/// Room on one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this process may still write.
    pub free_bytes: u64,
    /// Bytes of the file system as a whole.
    pub total_bytes: u64,
}

/// How short of room a disk is. Pinned numbers, also between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum SpaceLevel {
    /// Room enough.
    #[default]
    Enough = 0,
    /// Below the soft floor: no new data is asked for.
    Low = 1,
    /// Below the hard floor, or a write has found no space: no data is appended.
    Full = 2,
}

impl SpaceLevel {
    /// From its number; one that this version doesn't know is the worst.
    pub fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Enough,
            1 => Self::Low,
            _ => Self::Full,
        }
    }

    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enough => "enough",
            Self::Low => "low",
            Self::Full => "full",
        }
    }
}

/// Whether a call failed for want of room on the disk, or in the owner's quota.
pub fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

type Waiter = Box<dyn FnOnce() + Send>;

/// See the module's text. One per node.
#[derive(Default)]
pub struct SpaceGate {
    level: AtomicU8,
    attended: AtomicBool,
    closed: AtomicBool,
    hits: AtomicU64,
    inner: Mutex<Inner>,
    news: Notify,
}

#[derive(Default)]
struct Inner {
    /// The reserve file, while it may be there.
    reserve: Option<PathBuf>,
    waiting: Vec<(u64, Waiter)>,
}

impl SpaceGate {
    /// What the one who watches has found last, or what a failed write has shown since.
    pub fn level(&self) -> SpaceLevel {
        SpaceLevel::from_number(self.level.load(Ordering::Acquire))
    }

    /// True when no data may be appended.
    pub fn is_full(&self) -> bool {
        self.level() == SpaceLevel::Full
    }

    /// Sets the level; for the one who watches.
    pub fn set_level(&self, level: SpaceLevel) {
        self.level.store(level as u8, Ordering::Release);
    }

    /// Somebody watches from now on and calls [`SpaceGate::retry`]: writers may wait.
    pub fn attend(&self) {
        self.attended.store(true, Ordering::Release);
    }

    /// Tells of the reserve file, which is there.
    pub fn set_reserve(&self, path: PathBuf) {
        self.inner.lock().reserve = Some(path);
    }

    /// True while the reserve file is there.
    pub fn has_reserve(&self) -> bool {
        self.inner.lock().reserve.is_some()
    }

    /// How many writes have found no space.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// A write has found no space: the level is "full" from now on, the reserve is freed. True if it was there, so that the
    /// same write may work now.
    pub fn hit(&self, disk: &dyn Disk) -> bool {
        self.hits.fetch_add(1, Ordering::Relaxed);
        if self.attended.load(Ordering::Acquire) && !self.is_full() {
            self.set_level(SpaceLevel::Full);
            // Only the first of them is news: those who wait try again when the watcher looks, not as fast as they can.
            self.news.notify_one();
        }
        let reserve = self.inner.lock().reserve.take();
        let Some(path) = reserve else { return false };
        match disk.remove_file(&path) {
            Ok(()) => {
                tracing::warn!(path = %path.display(), "no space left on the disk: the reserve is freed");
                true
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the reserve can't be freed");
                false
            }
        }
    }

    /// Runs a write that harms nothing when it is tried again; frees the reserve for a second try.
    pub fn with_reserve<T>(
        &self,
        disk: &dyn Disk,
        mut write: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        match write() {
            Err(error) if is_no_space(&error) && self.hit(disk) => write(),
            other => other,
        }
    }

    /// Whether `error` is a lack of room that may pass, so that a writer may leave its work here instead of failing. Once the
    /// gate is closed it gives up, which is no failure of the disk either.
    pub fn may_pass(&self, error: &io::Error) -> bool {
        is_no_space(error) && self.attended.load(Ordering::Acquire)
    }

    /// Leaves work to be tried again when there may be room. It runs at once if the gate was closed meanwhile: then it has to
    /// give up. `key` is for [`SpaceGate::retry_one`].
    pub fn wait(&self, key: u64, waiter: impl FnOnce() + Send + 'static) {
        let waiter: Waiter = Box::new(waiter);
        let mut inner = self.inner.lock();
        if self.closed.load(Ordering::Acquire) {
            drop(inner);
            return waiter();
        }
        inner.waiting.push((key, waiter));
    }

    /// How many wait for room.
    pub fn waiting(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    /// Lets everybody who waits try again. They wait anew if there is still no room.
    pub fn retry(&self) {
        let waiting = std::mem::take(&mut self.inner.lock().waiting);
        waiting.into_iter().for_each(|(_, waiter)| waiter());
    }

    /// Lets those of one key try again.
    pub fn retry_one(&self, key: u64) {
        let mut inner = self.inner.lock();
        let (these, others) = std::mem::take(&mut inner.waiting)
            .into_iter()
            .partition(|(of, _)| *of == key);
        inner.waiting = others;
        drop(inner);
        let these: Vec<(u64, Waiter)> = these;
        these.into_iter().for_each(|(_, waiter)| waiter());
    }

    /// Ends all waiting, now and later: the node stops.
    pub fn close(&self) {
        {
            let _inner = self.inner.lock();
            self.closed.store(true, Ordering::Release);
        }
        self.retry();
    }

    /// Whether the waiting has ended for good.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Completes when a write has found no space since the last call.
    pub async fn news(&self) {
        self.news.notified().await;
    }
}

impl fmt::Debug for SpaceGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceGate")
            .field("level", &self.level())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::{OpenMode, SimDisk};
    use super::*;

    fn no_space() -> io::Error {
        io::ErrorKind::StorageFull.into()
    }

    #[test]
    fn nobody_waits_where_nobody_watches() {
        let gate = SpaceGate::default();
        assert!(!gate.may_pass(&no_space()));
        gate.attend();
        assert!(gate.may_pass(&no_space()));
        assert!(!gate.may_pass(&io::Error::other("broken")));
    }

    #[test]
    fn the_reserve_is_freed_once_and_the_write_tried_again() {
        let disk = SimDisk::new();
        let path = Path::new("/data/reserve");
        disk.create_dir_all(Path::new("/data")).expect("made");
        disk.open(path, OpenMode::CreateNew).expect("made");
        let gate = SpaceGate::default();
        gate.attend();
        gate.set_reserve(path.to_owned());
        let mut tries = 0;
        let mut write = || {
            tries += 1;
            if tries == 1 { Err(no_space()) } else { Ok(()) }
        };
        gate.with_reserve(&disk, &mut write).expect("room now");
        assert!(!disk.exists(path).expect("a live disk"));
        assert!(gate.is_full());
        let again = gate.with_reserve(&disk, || Err::<(), _>(no_space()));
        assert!(is_no_space(&again.expect_err("no reserve any more")));
        assert_eq!(gate.hits(), 2);
    }

    #[test]
    fn closing_ends_the_wait_and_later_waits() {
        let gate = SpaceGate::default();
        gate.attend();
        let ran = Arc::new(AtomicU64::new(0));
        let waiter = |ran: &Arc<AtomicU64>| {
            let ran = Arc::clone(ran);
            move || {
                ran.fetch_add(1, Ordering::Relaxed);
            }
        };
        gate.wait(1, waiter(&ran));
        gate.wait(2, waiter(&ran));
        gate.retry_one(2);
        assert_eq!((ran.load(Ordering::Relaxed), gate.waiting()), (1, 1));
        gate.close();
        assert_eq!((ran.load(Ordering::Relaxed), gate.waiting()), (2, 0));
        gate.wait(3, waiter(&ran));
        assert_eq!(ran.load(Ordering::Relaxed), 3);
    }
}
