//! The meta store on sled.
//!
//! sled can be left by a crash with a half-written snapshot file that keeps it from opening, so those go first. If it does
//! not open even then, the whole directory is moved to `quarantine/` and an empty store takes its place. It works on real
//! files, past the disk seam.

use std::fs;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{MetaError, MetaStore, Pair, scan_start, unwrap_value, wrap};

/// How much sled may cache, in bytes.
const CACHE_BYTES: u64 = 16 << 20;

/// The name of a half-written snapshot ends so.
const HALF_WRITTEN: &str = ".generating";

/// See the module's text.
#[derive(Debug)]
pub struct SledMeta {
    db: sled::Db,
    rebuilt: bool,
}

impl SledMeta {
    /// Opens `<data>/meta`. Blocks.
    pub fn open(data: &Path) -> Result<Self, MetaError> {
        let dir = data.join("meta");
        remove_half_written(&dir).map_err(sled::Error::Io)?;
        match open_db(&dir) {
            Ok(db) => Ok(Self { db, rebuilt: false }),
            Err(error) => {
                let aside = move_aside(data, &dir).map_err(sled::Error::Io)?;
                tracing::warn!(%error, aside = %aside.display(), "the meta store did not open: an empty one takes its place");
                Ok(Self {
                    db: open_db(&dir)?,
                    rebuilt: true,
                })
            }
        }
    }

    /// Whether the store that was there did not open: everything in it has to be rebuilt.
    pub fn rebuilt(&self) -> bool {
        self.rebuilt
    }
}

/// Whether the store in a directory opens. It may write there, so it is asked of a copy.
pub fn opens(dir: &Path) -> Result<(), MetaError> {
    remove_half_written(dir).map_err(sled::Error::Io)?;
    open_db(dir).map(drop).map_err(MetaError::from)
}

/// A store that panics while it opens, as sled does on some kinds of damage, is one that does not open.
fn open_db(dir: &Path) -> sled::Result<sled::Db> {
    std::panic::catch_unwind(|| {
        let config = sled::Config::default().path(dir);
        config.cache_capacity(CACHE_BYTES).open()
    })
    .unwrap_or_else(|_| {
        Err(sled::Error::ReportableBug(
            "panicked while opening".to_owned(),
        ))
    })
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
    let quarantine = data.join("quarantine");
    fs::create_dir_all(&quarantine)?;
    let count = fs::read_dir(&quarantine)?.count();
    let aside = quarantine.join(format!("{count:06}-meta"));
    fs::rename(dir, &aside)?;
    Ok(aside)
}

impl MetaStore for SledMeta {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        let stored = self.db.get(key)?;
        stored.map(|stored| unwrap_value(key, &stored)).transpose()
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        self.db.insert(key, wrap(value).as_ref())?;
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<(), MetaError> {
        self.db.remove(key)?;
        Ok(())
    }

    fn scan_prefix(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, MetaError> {
        let mut pairs = Vec::new();
        let start = scan_start(prefix, after);
        for item in self
            .db
            .range::<&[u8], _>((start, Bound::Unbounded))
            .take(limit)
        {
            let (key, stored) = item?;
            if !key.starts_with(prefix) {
                break;
            }
            pairs.push((Bytes::copy_from_slice(&key), unwrap_value(&key, &stored)?));
        }
        Ok(pairs)
    }

    fn flush(&self) -> Result<(), MetaError> {
        self.db.flush()?;
        Ok(())
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
        assert!(dir.path().join("quarantine/000000-meta/conf").exists());
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
}
