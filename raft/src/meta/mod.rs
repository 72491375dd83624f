//! A store of keys for what can be rebuilt: producer tables, group offsets, catalogues, index checkpoints.
//!
//! Losing it costs time, never data: nothing keeps its only copy of anything here, and whoever reads a value has a way to do
//! without it. Each value is a checksum envelope, so that a damaged one is told from a missing one. Writes reach the disk
//! some time after [`MetaStore::flush`], or never.

mod sled_store;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use imprint_proto::envelope::{self, EnvelopeError};
use parking_lot::Mutex;

pub(crate) use sled_store::number_of;
pub use sled_store::{SledMeta, opens};

imprint_proto::envelope! {
    /// A value as it is stored.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct MetaValue: version 1, compat 0 {
        data: Bytes,
    }
}

/// What went wrong. The caller rebuilds what it wanted to read.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The value's bytes are not what was written.
    #[error("the value of key {key:02x?} is damaged")]
    Damaged {
        /// Its key.
        key: Bytes,
        /// What is wrong.
        source: EnvelopeError,
    },
    /// The database.
    #[error("meta store")]
    Store(#[from] sled::Error),
    /// The database can't be used at all; its directory may be deleted while the node is stopped.
    #[error("meta store: {0}")]
    Unusable(String),
}

/// A key and its value.
pub type Pair = (Bytes, Bytes);

/// See the module's text. Calls may block on the disk.
pub trait MetaStore: Send + Sync + fmt::Debug + 'static {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError>;
    /// Sets the value of a key.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), MetaError>;
    /// Removes a key.
    fn delete(&self, key: &[u8]) -> Result<(), MetaError>;
    /// At most `limit` pairs whose key begins with `prefix` and is greater than `after`, in order. To page on, give the last
    /// key seen as `after`.
    fn scan_prefix(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, MetaError>;
    /// Hands what was written to the operating system.
    fn flush(&self) -> Result<(), MetaError>;
}

fn wrap(value: &[u8]) -> Bytes {
    envelope::encode_checked(&MetaValue {
        data: Bytes::copy_from_slice(value),
    })
}

fn unwrap_value(key: &[u8], stored: &[u8]) -> Result<Bytes, MetaError> {
    let value = envelope::decode_checked::<MetaValue>(Bytes::copy_from_slice(stored));
    let damaged = |source| MetaError::Damaged {
        key: Bytes::copy_from_slice(key),
        source,
    };
    Ok(value.map_err(damaged)?.data)
}

/// Where a scan begins.
fn scan_start<'a>(prefix: &'a [u8], after: Option<&'a [u8]>) -> Bound<&'a [u8]> {
    match after.filter(|after| *after >= prefix) {
        Some(after) => Bound::Excluded(after),
        None => Bound::Included(prefix),
    }
}

/// In memory, for tests and simulation.
#[derive(Debug, Default)]
pub struct MemMeta {
    values: Mutex<BTreeMap<Vec<u8>, Bytes>>,
}

impl MetaStore for MemMeta {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, MetaError> {
        let stored = self.values.lock().get(key).cloned();
        stored.map(|stored| unwrap_value(key, &stored)).transpose()
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), MetaError> {
        self.values.lock().insert(key.to_vec(), wrap(value));
        Ok(())
    }

    fn delete(&self, key: &[u8]) -> Result<(), MetaError> {
        self.values.lock().remove(key);
        Ok(())
    }

    fn scan_prefix(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, MetaError> {
        let values = self.values.lock();
        let range = values.range::<[u8], _>((scan_start(prefix, after), Bound::Unbounded));
        let within = range
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit);
        within
            .map(|(key, stored)| Ok((Bytes::copy_from_slice(key), unwrap_value(key, stored)?)))
            .collect()
    }

    fn flush(&self) -> Result<(), MetaError> {
        Ok(())
    }
}
