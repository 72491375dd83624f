//! A disk that knows what it is busy with: since when each change is under way, how long syncs take, how much is read and
//! written. [`super::Io`] puts it before every disk, so nothing that is kept passes it by.
//!
//! It also gives every error of a file the file's name. And where a sync reports "no space" it says so in words only, so that
//! nobody takes it for a write that may be tried again: what a failed sync has left behind is unknown.
//!
//! Times come from the clock seam's steady side. It must not know what a late sync means to anybody.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::{DirLock, Disk, DiskFile, OpenMode, Space, is_no_space};
use crate::seams::Clock;

/// A change that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingChange {
    /// The file or directory.
    pub path: PathBuf,
    /// What is done to it.
    pub what: &'static str,
    /// For how long it has been.
    pub pending: Duration,
}

/// What was done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskCounts {
    /// Syncs of files and directories that returned.
    pub syncs: u64,
    /// Changes of any kind that failed.
    pub failures: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Bytes read from files.
    pub read_bytes: u64,
}

type SyncObserver = Box<dyn Fn(Duration) + Send + Sync>;

/// What is known of a disk's work. Shared by the disk and those who watch it.
pub struct DiskWatch {
    clock: Arc<dyn Clock>,
    /// Changes under way, the oldest first: their number and when they began, microseconds.
    pending: Mutex<Pending>,
    syncs: AtomicU64,
    failures: AtomicU64,
    written_bytes: AtomicU64,
    read_bytes: AtomicU64,
    on_sync: OnceLock<SyncObserver>,
}

#[derive(Default)]
struct Pending {
    next: u64,
    /// Bounded by the threads that can be inside of the disk at once.
    changes: BTreeMap<u64, (u64, &'static str, Arc<Path>)>,
}

impl DiskWatch {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            pending: Mutex::default(),
            syncs: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            on_sync: OnceLock::new(),
        }
    }

    /// The change that has been under way for the longest time.
    pub fn oldest(&self) -> Option<PendingChange> {
        let (begun, what, path) = self.pending.lock().changes.values().next().cloned()?;
        let micros = self.clock.steady_micros().saturating_sub(begun);
        Some(PendingChange {
            path: path.to_path_buf(),
            what,
            pending: Duration::from_micros(micros),
        })
    }

    /// What was done so far.
    pub fn counts(&self) -> DiskCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCounts {
            syncs: get(&self.syncs),
            failures: get(&self.failures),
            written_bytes: get(&self.written_bytes),
            read_bytes: get(&self.read_bytes),
        }
    }

    /// Has every sync's duration told. The first caller is heard, later ones are not.
    pub fn observe_syncs(&self, observer: impl Fn(Duration) + Send + Sync + 'static) {
        // A second observer would be another node on the same disk: the first one's counts are as good.
        let _ = self.on_sync.set(Box::new(observer));
    }

    /// Does a change, with everything noted about it.
    fn change<T>(
        &self,
        path: &Arc<Path>,
        what: &'static str,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let begun = self.clock.steady_micros();
        let id = {
            let mut pending = self.pending.lock();
            let id = pending.next;
            pending.next += 1;
            pending.changes.insert(id, (begun, what, Arc::clone(path)));
            id
        };
        let result = act();
        self.pending.lock().changes.remove(&id);
        if result.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn sync(&self, path: &Arc<Path>, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let begun = self.clock.steady_micros();
        let result = self.change(path, "sync", act);
        let took = self.clock.steady_micros().saturating_sub(begun);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(observer) = self.on_sync.get() {
            observer(Duration::from_micros(took));
        }
        result.map_err(|error| {
            if is_no_space(&error) {
                io::Error::other(error.to_string())
            } else {
                error
            }
        })
    }
}

impl fmt::Debug for DiskWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskWatch")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct WatchedDisk {
    inner: Arc<dyn Disk>,
    watch: Arc<DiskWatch>,
}

impl WatchedDisk {
    /// Puts a watch before `inner`.
    pub fn over(inner: Arc<dyn Disk>, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            watch: Arc::new(DiskWatch::new(clock)),
        }
    }

    /// What is known of its work.
    pub fn watch(&self) -> &Arc<DiskWatch> {
        &self.watch
    }

    fn change<T>(
        &self,
        path: &Path,
        what: &'static str,
        act: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.watch.change(&path.into(), what, act)
    }
}

impl Disk for WatchedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let open = || self.inner.open(path, mode);
        let inner = match mode {
            OpenMode::Read | OpenMode::Write => open()?,
            OpenMode::CreateNew | OpenMode::Truncate => self.change(path, "create", open)?,
        };
        Ok(Arc::new(WatchedFile {
            inner,
            path: path.into(),
            watch: Arc::clone(&self.watch),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change(path, "create", || self.inner.create_dir_all(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(from, "rename", || self.inner.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change(path, "remove", || self.inner.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change(path, "remove", || self.inner.remove_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.watch.sync(&path.into(), || self.inner.sync_dir(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn file_len(&self, path: &Path) -> io::Result<u64> {
        self.inner.file_len(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.inner.lock(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.inner.space(path)
    }
}

#[derive(Debug)]
struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    path: Arc<Path>,
    watch: Arc<DiskWatch>,
}

impl WatchedFile {
    fn named<T>(&self, what: &str, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let text = format!("{}: {what}: {error}", self.path.display());
            io::Error::new(error.kind(), text)
        })
    }

    fn change(&self, what: &'static str, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.named(what, self.watch.change(&self.path, what, act))
    }

    fn sync(&self, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.named("sync", self.watch.sync(&self.path, act))
    }
}

impl DiskFile for WatchedFile {
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize> {
        let got = self.inner.read_at(buf, pos)?;
        self.watch
            .read_bytes
            .fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }

    fn write_all_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()> {
        self.change("write", || self.inner.write_all_at(parts, pos))?;
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        self.watch.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(|| self.inner.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(|| self.inner.sync_all())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change("set the length", || self.inner.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.change("allocate", || self.inner.allocate(len))
    }

    fn drop_cached(&self) -> io::Result<()> {
        self.inner.drop_cached()
    }
}

#[cfg(test)]
mod tests {
    use super::super::SimDisk;
    use super::super::sim::Call;
    use super::*;

    #[derive(Debug, Default)]
    struct Hands(AtomicU64);

    impl Clock for Hands {
        fn now_micros(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn watched() -> (SimDisk, WatchedDisk, Arc<Hands>) {
        let (sim, clock) = (SimDisk::new(), Arc::new(Hands::default()));
        let disk = WatchedDisk::over(Arc::new(sim.clone()), Arc::clone(&clock) as _);
        disk.create_dir_all(Path::new("/d")).expect("made");
        (sim, disk, clock)
    }

    #[test]
    fn a_sync_that_hangs_is_seen_with_its_age_and_gone_when_it_returns() {
        let (sim, disk, clock) = watched();
        let file = disk
            .open(Path::new("/d/f"), OpenMode::CreateNew)
            .expect("made");
        file.write_all_at(&[b"abc", b"de"], 0).expect("written");
        let (watch, hands) = (Arc::clone(disk.watch()), Arc::clone(&clock));
        let seen: Arc<Mutex<Option<PendingChange>>> = Arc::default();
        let found = Arc::clone(&seen);
        sim.set_fault(Some(Box::new(move |call, _| {
            if call == Call::Sync {
                hands.0.fetch_add(1_500_000, Ordering::Relaxed);
                *found.lock() = watch.oldest();
            }
            None
        })));
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        disk.watch()
            .observe_syncs(move |took| tell.lock().push(took));
        file.sync_data().expect("synced");
        let oldest = seen.lock().take().expect("it was under way");
        assert_eq!(oldest.path, Path::new("/d/f"));
        assert_eq!(oldest.pending, Duration::from_millis(1_500));
        assert_eq!(disk.watch().oldest(), None);
        assert_eq!(*told.lock(), [Duration::from_millis(1_500)]);
        let counts = disk.watch().counts();
        assert_eq!((counts.syncs, counts.written_bytes), (1, 5));
    }

    #[test]
    fn errors_name_the_file_and_a_sync_never_says_no_space() {
        let (sim, disk, _) = watched();
        let file = disk
            .open(Path::new("/d/f"), OpenMode::CreateNew)
            .expect("made");
        sim.set_fault(Some(Box::new(|call, _| {
            matches!(call, Call::Sync | Call::Write).then(|| io::ErrorKind::StorageFull.into())
        })));
        let write = file.write_all_at(&[b"x"], 0).expect_err("no space");
        assert!(is_no_space(&write) && write.to_string().contains("/d/f"));
        let sync = file.sync_data().expect_err("no space");
        assert!(!is_no_space(&sync) && sync.to_string().contains("/d/f"));
        assert_eq!(disk.watch().counts().failures, 2);
    }
}
