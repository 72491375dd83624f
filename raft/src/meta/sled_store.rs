//! The meta store on sled.
//!
//! What sled makes of damaged files is not in our hands: it may refuse, panic, read something else than what was written,
//! or search without end. So a store only counts as open when it has opened and all that is in it was walked through, in a
//! thread of its own and within a time limit. If it isn't, its directory is set aside in `quarantine/` and an empty store
//! takes its place: everything in it can be rebuilt. sled also panics later on damage that it finds late: that becomes an
//! error of the call.
//!
//! A crash can leave a half-written snapshot file that keeps sled from opening, so those go first.
//!
//! # Why may the directory have a number?
//!
//! A thread that hangs in sled can't be stopped, and goes by the directory's path. Should it ever go on, it must not write
//! into its successor's files. So the store that takes the place of a hanging one lives in `meta-2`, the next in `meta-3`;
//! the highest number counts.
//!
//! It works on real files, past the disk seam.

use std::fs;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use bytes::Bytes;

use super::{MetaError, MetaStore, Pair, scan_start, unwrap_value, wrap};
use crate::disk::RealDisk;
use crate::quarantine::Quarantine;
use crate::seams::{Clock, SystemClock};

/// How much sled may cache, in bytes.
const CACHE_BYTES: u64 = 16 << 20;

/// The name of a half-written snapshot ends so.
const HALF_WRITTEN: &str = ".generating";

/// The store's directory, and with a number behind it its successors.
const DIR_NAME: &str = "meta";

/// Opening and walking through takes milliseconds for what is kept here; this is patience with a slow disk.
const OPEN_LIMIT: Duration = Duration::from_secs(20);

/// See the module's text.
#[derive(Debug)]
pub struct SledMeta {
    db: sled::Db,
    rebuilt: bool,
}

/// How an attempt to open ended other than well.
enum Unusable {
    Failed(String),
    Hangs,
}

/// What opens the database in a directory and looks whether it is sound.
type Opener = fn(&Path) -> sled::Result<sled::Db>;

impl SledMeta {
    /// Opens the store in a data directory. Blocks, for twice the time limit at most.
    pub fn open(data: &Path) -> Result<Self, MetaError> {
        Self::open_with(data, open_sound, OPEN_LIMIT)
    }

    fn open_with(data: &Path, opener: Opener, limit: Duration) -> Result<Self, MetaError> {
        let number = current_number(data).map_err(sled::Error::Io)?;
        let dir = numbered(data, number);
        let (reason, next) = match open_within(&dir, opener, limit) {
            Ok(db) => return Ok(Self { db, rebuilt: false }),
            Err(Unusable::Failed(reason)) => (reason, number),
            Err(Unusable::Hangs) => (format!("not open after {limit:?}"), number + 1),
        };
        let aside = move_aside(data, &dir).map_err(sled::Error::Io)?;
        tracing::warn!(
            %reason, aside = %aside.display(),
            "the meta store did not open: an empty one takes its place, its contents are rebuilt"
        );
        match open_within(&numbered(data, next), open_sound, OPEN_LIMIT) {
            Ok(db) => Ok(Self { db, rebuilt: true }),
            Err(Unusable::Failed(reason)) => Err(MetaError::Unusable(reason)),
            Err(Unusable::Hangs) => Err(MetaError::Unusable(format!(
                "an empty store is not open after {OPEN_LIMIT:?}"
            ))),
        }
    }

    /// Whether the store that was there did not open: everything in it has to be rebuilt.
    pub fn rebuilt(&self) -> bool {
        self.rebuilt
    }
}

/// Whether the store in a directory opens. It may write there, so it is asked of a copy.
pub fn opens(dir: &Path) -> Result<(), MetaError> {
    match open_within(dir, open_sound, OPEN_LIMIT) {
        Ok(_) => Ok(()),
        Err(Unusable::Failed(reason)) => Err(MetaError::Unusable(reason)),
        Err(Unusable::Hangs) => Err(MetaError::Unusable(format!(
            "not open after {OPEN_LIMIT:?}"
        ))),
    }
}

/// The highest number that a store's directory has.
fn current_number(data: &Path) -> io::Result<u64> {
    if !data.try_exists()? {
        return Ok(1);
    }
    let mut highest = 1;
    for entry in fs::read_dir(data)? {
        let name = entry?.file_name();
        highest = highest.max(name.to_str().and_then(number_of).unwrap_or(1));
    }
    Ok(highest)
}

/// The number of a store's directory; `None` for another name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    match name.strip_prefix(DIR_NAME)? {
        "" => Some(1),
        rest => rest.strip_prefix('-')?.parse().ok(),
    }
}

fn numbered(data: &Path, number: u64) -> PathBuf {
    match number {
        1 => data.join(DIR_NAME),
        _ => data.join(format!("{DIR_NAME}-{number}")),
    }
}

/// Opens in a thread of its own; one that hangs is left behind.
fn open_within(dir: &Path, opener: Opener, limit: Duration) -> Result<sled::Db, Unusable> {
    let (tell, told) = mpsc::sync_channel(1);
    let path = dir.to_owned();
    let work = move || {
        let opened = catch_unwind(|| {
            remove_half_written(&path)?;
            opener(&path)
        });
        // A store that opens when nobody waits any more is closed right here.
        drop(tell.send(opened));
    };
    let thread = std::thread::Builder::new().name("meta-open".to_owned());
    thread
        .spawn(work)
        .map_err(|error| Unusable::Failed(error.to_string()))?;
    match told.recv_timeout(limit) {
        Ok(Ok(Ok(db))) => Ok(db),
        Ok(Ok(Err(error))) => Err(Unusable::Failed(error.to_string())),
        Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
            Err(Unusable::Failed("panicked while opening".to_owned()))
        }
        Err(RecvTimeoutError::Timeout) => Err(Unusable::Hangs),
    }
}

fn open_sound(dir: &Path) -> sled::Result<sled::Db> {
    let config = sled::Config::default().path(dir);
    let db = config.cache_capacity(CACHE_BYTES).open()?;
    for item in db.iter() {
        item?;
    }
    Ok(db)
}

fn remove_half_written(dir: &Path) -> io::Result<()> {
    if !dir.try_exists()? {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(HALF_WRITTEN) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn move_aside(data: &Path, dir: &Path) -> io::Result<PathBuf> {
    let quarantine = Quarantine::new(&RealDisk, data, SystemClock.now_micros());
    quarantine.set_aside(dir, DIR_NAME)
}

/// Calls sled; a panic of its is an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, MetaError>) -> Result<T, MetaError> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(MetaError::Unusable("panicked during a call".to_owned())))
}

impl MetaStore for SledMeta {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        guarded(|| {
            let stored = self.db.get(key)?;
            stored.map(|stored| unwrap_value(key, &stored)).transpose()
        })
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        guarded(|| {
            self.db.insert(key, wrap(value).as_ref())?;
            Ok(())
        })
    }

    fn delete(&self, key: &[u8]) -> Result<(), MetaError> {
        guarded(|| {
            self.db.remove(key)?;
            Ok(())
        })
    }

    fn scan_prefix(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, MetaError> {
        guarded(|| {
            let mut pairs = Vec::new();
            let start = scan_start(prefix, after);
            let range = self.db.range::<&[u8], _>((start, Bound::Unbounded));
            for item in range.take(limit) {
                let (key, stored) = item?;
                if !key.starts_with(prefix) {
                    break;
                }
                pairs.push((Bytes::copy_from_slice(&key), unwrap_value(&key, &stored)?));
            }
            Ok(pairs)
        })
    }

    fn flush(&self) -> Result<(), MetaError> {
        guarded(|| {
            self.db.flush()?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemMeta;
    use super::*;

    fn fill(store: &dyn MetaStore) {
        for n in 0_u8..10 {
            store.put(&[1, n], &[n; 3]).unwrap();
        }
        store.put(&[2], b"other").unwrap();
        store.delete(&[1, 4]).unwrap();
        store.flush().unwrap();
    }

    fn check(store: &dyn MetaStore) {
        assert_eq!(store.get(&[1, 3]).unwrap().unwrap().as_ref(), [3; 3]);
        assert_eq!(store.get(&[1, 4]).unwrap(), None);
        let first = store.scan_prefix(&[1], None, 4).unwrap();
        let keys = |pairs: &[Pair]| pairs.iter().map(|(key, _)| key[1]).collect::<Vec<_>>();
        assert_eq!(keys(&first), [0, 1, 2, 3]);
        let rest = store.scan_prefix(&[1], Some(&first[3].0), 100).unwrap();
        assert_eq!(keys(&rest), [5, 6, 7, 8, 9]);
    }

    fn set_aside(data: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(data.join("quarantine")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn both_stores_keep_and_page_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (sled, mem) = (SledMeta::open(dir.path()).unwrap(), MemMeta::default());
        for store in [&sled as &dyn MetaStore, &mem] {
            fill(store);
            check(store);
        }
        drop(sled);
        let reopened = SledMeta::open(dir.path()).unwrap();
        assert!(!reopened.rebuilt());
        check(&reopened);
    }

    #[test]
    fn a_half_written_snapshot_does_not_keep_it_from_opening() {
        let dir = tempfile::tempdir().unwrap();
        fill(&SledMeta::open(dir.path()).unwrap());
        fs::write(
            dir.path().join("meta/snap.0000000000000001.generating"),
            b"half",
        )
        .unwrap();
        check(&SledMeta::open(dir.path()).unwrap());
    }

    #[test]
    fn a_store_that_does_not_open_is_kept_aside_and_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        fill(&SledMeta::open(dir.path()).unwrap());
        fs::remove_file(dir.path().join("meta/db")).unwrap();
        fs::create_dir(dir.path().join("meta/db")).unwrap();
        let store = SledMeta::open(dir.path()).unwrap();
        assert!(store.rebuilt());
        assert_eq!(store.get(&[1, 3]).unwrap(), None);
        let [aside] = set_aside(dir.path()).try_into().unwrap();
        assert!(aside.join("conf").exists());
    }

    #[test]
    fn deleting_the_directory_costs_nothing_but_its_contents() {
        let dir = tempfile::tempdir().unwrap();
        fill(&SledMeta::open(dir.path()).unwrap());
        fs::remove_dir_all(dir.path().join("meta")).unwrap();
        let store = SledMeta::open(dir.path()).unwrap();
        assert_eq!(store.get(&[1, 3]).unwrap(), None);
        fill(&store);
        check(&store);
    }

    #[test]
    fn a_damaged_value_is_not_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let store = SledMeta::open(dir.path()).unwrap();
        let mut bytes = wrap(b"value").to_vec();
        bytes[12] ^= 1;
        store.db.insert(b"key", bytes).unwrap();
        assert!(matches!(store.get(b"key"), Err(MetaError::Damaged { .. })));
    }

    #[test]
    fn a_store_that_hangs_while_it_opens_is_left_to_itself() {
        fn hang(_: &Path) -> sled::Result<sled::Db> {
            loop {
                std::thread::park();
            }
        }
        let dir = tempfile::tempdir().unwrap();
        fill(&SledMeta::open(dir.path()).unwrap());
        let store = SledMeta::open_with(dir.path(), hang, Duration::from_millis(5)).unwrap();
        assert_eq!(store.get(&[1, 3]).unwrap(), None);
        assert!(!dir.path().join("meta").exists());
        assert_eq!(set_aside(dir.path()).len(), 1);
        fill(&store);
        drop(store);
        check(&SledMeta::open(dir.path()).unwrap());
        assert!(dir.path().join("meta-2").exists());
    }
}
