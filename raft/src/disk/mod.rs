//! The disk seam: files, directories, and the place where blocking work runs.
//!
//! Everything that Imprint keeps goes through [`Disk`] and [`DiskFile`]. [`RealDisk`] is the file system; [`SimDisk`] is a
//! model of one that forgets what was not synced. What a caller may rely on:
//!
//! * A write is durable after a later [`DiskFile::sync_data`] (or `sync_all`) of that file returned success.
//! * Creation, renaming and removal of a name is durable after [`Disk::sync_dir`] of its directory returned success.
//! * [`Disk::create_dir_all`] is durable when it returns.
//! * After a failed write or sync nothing is known of the file. Nobody retries: see [`Io::fatal`].
//!
//! Nothing here knows what the files hold.

mod offload;
mod real;
pub mod sim;
mod space;
mod warm;
mod watched;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use offload::{InlineOffload, Offload, RealOffload, offloaded};
pub use real::RealDisk;
pub use sim::SimDisk;
pub use space::{Space, SpaceGate, SpaceLevel, is_no_space};
pub use warm::{Cooling, DEFAULT_WARM_BYTES, DEFAULT_WARM_FILES, WarmFiles};
pub use watched::{DiskCounts, DiskWatch, PendingChange, WatchedDisk};

use crate::seams::Clock;

/// How [`Disk::open`] opens a file. All modes but `Read` allow writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// The file has to exist and is only read.
    Read,
    /// The file has to exist.
    Write,
    /// The file must not exist yet.
    CreateNew,
    /// The file is made if it is not there, and emptied if it is.
    Truncate,
}

/// One file system.
pub trait Disk: Send + Sync + fmt::Debug + 'static {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Makes a directory and all above it, and syncs every directory that got a new name.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Names in a directory, sorted, without their path.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Gives a file or directory another name, replacing a file that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and everything in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Whether a file or directory has this name. An unreadable parent is an error, never "no".
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// A file's length, without opening it.
    fn file_len(&self, path: &Path) -> io::Result<u64>;
    /// Takes an exclusive lock on a file, made if need be; `WouldBlock` if another process or caller has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>>;
    /// As [`Disk::lock`], of a file that is there, for who writes nothing: also where nothing may be written.
    fn lock_to_read(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.lock(path)
    }
    /// Room on the file system that holds this file or directory.
    fn space(&self, path: &Path) -> io::Result<Space>;
}

/// One open file. All methods take `&self` and positions, so any number of threads may share it.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Reads at `pos` until `buf` is full or the file ends; returns how many bytes that were.
    fn read_at(&self, buf: &mut [u8], pos: u64) -> io::Result<usize>;
    /// Writes all parts one after the other from `pos` on.
    fn write_all_at(&self, parts: &[&[u8]], pos: u64) -> io::Result<()>;
    /// Makes the contents durable, with the metadata that is needed to read them back.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the contents and all metadata durable.
    fn sync_all(&self) -> io::Result<()>;
    /// Cuts the file, or extends it with zeros. Durable with the next sync.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Asks that what is in memory of the file and is on the medium already be read from there the next time. What was not
    /// written yet stays. A disk without a cache does nothing.
    fn drop_cached(&self) -> io::Result<()> {
        Ok(())
    }
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Takes up room for this many bytes, by writing zeros where the file system knows no shorter way.
    fn allocate(&self, len: u64) -> io::Result<()> {
        static PIECE: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = self.len()?;
        while at < len {
            let piece = PIECE
                .len()
                .min(usize::try_from(len - at).unwrap_or(PIECE.len()));
            self.write_all_at(&[&PIECE[..piece]], at)?;
            at += piece as u64;
        }
        Ok(())
    }
}

/// Held for as long as the owner may use the directory; released when dropped.
pub trait DirLock: Send + Sync + fmt::Debug {}

/// What a failed write or sync calls, once per log: the process is expected to say why and to exit.
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// What the storage modules need from outside.
#[derive(Clone)]
pub struct Io {
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// Where blocking work runs.
    pub offload: Arc<dyn Offload>,
    /// Wall-clock time for stamps.
    pub clock: Arc<dyn Clock>,
    /// Called when a write or sync failed; see [`FatalHook`].
    pub on_fatal: FatalHook,
    /// What stays open after use; one for all logs of a node.
    pub warm: Arc<WarmFiles>,
    /// What the disk is busy with.
    pub watch: Arc<DiskWatch>,
    /// Whether there is room on it, and who waits for some.
    pub space: Arc<SpaceGate>,
    /// What became of it.
    end: Arc<End>,
}

type LastWords = Box<dyn Fn(Option<u64>, &str) + Send + Sync>;

/// The end of a process whose disk has failed.
#[derive(Default)]
struct End {
    failed: AtomicBool,
    last_words: OnceLock<LastWords>,
}

/// How long a failed disk may take to keep the last words.
const LAST_WORDS_WAIT: Duration = Duration::from_secs(2);

impl Io {
    /// Bundles the three seams and watches the disk; a fatal error is only logged until [`Io::with_fatal_hook`] says otherwise.
    pub fn new(disk: Arc<dyn Disk>, offload: Arc<dyn Offload>, clock: Arc<dyn Clock>) -> Self {
        let disk = WatchedDisk::over(disk, Arc::clone(&clock));
        let watch = Arc::clone(disk.watch());
        Self {
            disk: Arc::new(disk),
            offload,
            clock,
            on_fatal: Arc::new(|_| {}),
            warm: Arc::default(),
            watch,
            space: Arc::default(),
            end: Arc::default(),
        }
    }

    /// Bounds what stays open after use.
    #[must_use]
    pub fn with_warm_files(mut self, warm: WarmFiles) -> Self {
        self.warm = Arc::new(warm);
        self
    }

    /// Replaces what is called after a failed write or sync.
    #[must_use]
    pub fn with_fatal_hook(mut self, hook: FatalHook) -> Self {
        self.on_fatal = hook;
        self
    }

    /// Reports a failed write or sync: it is logged, the last words are written if that takes no longer than a moment, then
    /// the hook decides. From here on nothing is acknowledged. `group` is the one whose file failed, if it was one's. Called
    /// without locks.
    pub fn fatal(&self, group: Option<u64>, what: &str) {
        let first = !self.end.failed.swap(true, Ordering::AcqRel);
        tracing::error!(
            reason = what,
            "a write or sync failed: nothing more is taken"
        );
        if first {
            self.say_last_words(group, what);
        }
        (self.on_fatal)(what);
    }

    /// Whether a write or sync has failed: nothing may be acknowledged any more.
    pub fn has_failed(&self) -> bool {
        self.end.failed.load(Ordering::Acquire)
    }

    /// Has `words` called, with the group and the reason, before the hook of a failed write or sync. May block. The first
    /// caller is heard, later ones are not.
    pub fn set_last_words(&self, words: impl Fn(Option<u64>, &str) + Send + Sync + 'static) {
        // Two registries on one disk can only be a test's; the first one's groups are as good.
        let _ = self.end.last_words.set(Box::new(words));
    }

    /// Elsewhere and with a limit: the disk may hang.
    fn say_last_words(&self, group: Option<u64>, what: &str) {
        if self.end.last_words.get().is_none() {
            return;
        }
        let (end, what) = (Arc::clone(&self.end), what.to_owned());
        let (tell, told) = std::sync::mpsc::channel();
        self.offload.run(Box::new(move || {
            if let Some(words) = end.last_words.get() {
                words(group, &what);
            }
            // Nobody listens any more when it took too long.
            let _ = tell.send(());
        }));
        // An offload that never ran it says nothing either.
        let _ = told.recv_timeout(LAST_WORDS_WAIT);
    }

    /// Does a write that harms nothing when it is done again: where there is no room it waits for some, unless `ends`. Any
    /// other failure is final for the process.
    pub async fn patiently(
        &self,
        group: u64,
        write: impl Fn() -> io::Result<()> + Send + Sync + 'static,
        ends: impl Fn() -> bool,
    ) -> io::Result<()> {
        let write = Arc::new(write);
        loop {
            let (tell, told) = tokio::sync::oneshot::channel();
            let (io, job) = (self.clone(), Arc::clone(&write));
            self.offload.run(Box::new(move || {
                let written = io.space.with_reserve(io.disk.as_ref(), || job());
                // Nobody hears it when the waiting task was cancelled.
                let _ = tell.send(written);
            }));
            let written = told.await;
            let written = written.unwrap_or_else(|_| Err(io::Error::other("it was not run")));
            let Err(error) = written else { return Ok(()) };
            if !self.space.may_pass(&error) {
                self.fatal(Some(group), &format!("group {group}: {error}"));
                return Err(error);
            }
            if self.space.is_closed() || ends() {
                return Err(error);
            }
            tracing::debug!(group, %error, "a file waits for room on the disk");
            let (wake, woken) = tokio::sync::oneshot::channel();
            self.space.wait(group, move || {
                // Nobody hears it when the waiting task was cancelled.
                let _ = wake.send(());
            });
            // A gate that is gone lets nobody wait.
            let _ = woken.await;
        }
    }

    /// Replaces a small file, with the help of the reserve where there is no room. Any other failure is final for the process.
    pub fn replace_file(&self, group: Option<u64>, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let disk = self.disk.as_ref();
        let replace = || replace_file(disk, path, parts);
        let replaced = self.space.with_reserve(disk, replace);
        if let Err(error) = &replaced
            && !is_no_space(error)
        {
            self.fatal(group, &format!("{}: {error}", path.display()));
        }
        replaced
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("disk", &self.disk)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}

/// Reads exactly `buf.len()` bytes at `pos`; a file that ends before is an `UnexpectedEof` error.
pub fn read_exact_at(file: &dyn DiskFile, buf: &mut [u8], pos: u64) -> io::Result<()> {
    let got = file.read_at(buf, pos)?;
    if got == buf.len() {
        return Ok(());
    }
    let what = format!(
        "wanted {} bytes at {pos}, the file ends after {got} of them",
        buf.len()
    );
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
}

/// Reads a whole file. Only for files that are small by construction.
pub fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = usize::try_from(file.len()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    read_exact_at(file.as_ref(), &mut bytes, 0)?;
    Ok(bytes)
}

/// Replaces a small file so that a crash leaves the old or the new contents: written aside, synced, renamed, directory
/// synced.
pub fn replace_file(disk: &dyn Disk, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = Path::new(&aside);
    let file = disk.open(aside, OpenMode::Truncate)?;
    file.write_all_at(parts, 0)?;
    file.sync_all()?;
    disk.rename(aside, path)?;
    disk.sync_dir(parent(path)?)
}

/// The directory that a path lies in.
pub fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} has no parent directory", path.display()),
        )
    })
}
