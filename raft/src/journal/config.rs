//! What a journal may use, and how it says no.

use std::io;
use std::path::PathBuf;

use imprint_proto::batch::BatchError;

use super::damage::BadRange;
use super::{LogPos, RollSettings};

/// Settings of one group's journal. Those marked *initial* decide where segments end until a settings entry of the log says
/// otherwise; they have to be equal on all replicas, at every start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalConfig {
    /// A batch that would take a segment past this many bytes opens a new one. Initial. Default 256 MiB.
    pub segment_bytes: u64,
    /// A batch stamped this many microseconds or more after its segment's first batch opens a new one. Initial. Default none.
    pub segment_span_us: Option<u64>,
    /// Bytes of the newest synced batches kept in memory for followers and readers at the tail. Default 4 MiB.
    pub tail_cache_bytes: u64,
    /// Appended bytes that may wait for their sync before [`super::Journal::wait_for_room`] waits. Default 8 MiB.
    pub max_unsynced_bytes: u64,
    /// Bytes written between two syncs at most, unless one batch is larger. Default 8 MiB.
    pub sync_group_bytes: u64,
    /// Space zeroed ahead of the active end at a time, in bytes; 0 switches it off. Default 4 MiB.
    pub zero_step_bytes: u64,
}

impl JournalConfig {
    /// The settings in force before any settings entry.
    pub fn initial_roll(&self) -> RollSettings {
        RollSettings {
            segment_bytes: self.segment_bytes,
            segment_span_us: self.segment_span_us,
        }
    }
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 256 << 20,
            segment_span_us: None,
            tail_cache_bytes: 4 << 20,
            max_unsynced_bytes: 8 << 20,
            sync_group_bytes: 8 << 20,
            zero_step_bytes: 4 << 20,
        }
    }
}

/// Why a journal can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Something that was synced is not there or is not what it was. The group stays down until the range is fetched from a
    /// peer; nothing was changed.
    #[error(
        "{}: corrupt from byte {}: offsets {}..{} were synced; {}",
        .0.path.display(), .0.from_byte, .0.from_offset, .0.to_offset, .0.found
    )]
    Corrupt(BadRange),
    /// Segments and control entries contradict each other.
    #[error("{}: {found}", path.display())]
    Inconsistent {
        /// The directory or file.
        path: PathBuf,
        /// The contradiction.
        found: String,
    },
    /// The disk.
    #[error("{}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether it was for want of room on the disk, and may work when there is some.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { source, .. } if crate::disk::is_no_space(source))
    }
}

/// Why an append was refused. Nothing of it was taken.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The entries don't follow on. A bug or a broken peer: deterministic, stops the replica.
    #[error("entry {found} does not follow {last:?}")]
    NotNext {
        /// The log's last entry.
        last: Option<LogPos>,
        /// The entry.
        found: LogPos,
    },
    /// A data entry of a term that no control entry began. Deterministic, stops the replica.
    #[error("data entry {found} in term {term}")]
    TermNotBegun {
        /// The term of the log's end.
        term: u64,
        /// The entry.
        found: LogPos,
    },
    /// A stamped batch does not follow on. Deterministic, stops the replica.
    #[error("batch of entry {pos}")]
    Batch {
        /// The entry.
        pos: LogPos,
        /// What is wrong with it.
        source: BatchError,
    },
    /// A write or sync failed before: final.
    #[error("the journal failed before: {0}")]
    Failed(String),
    /// It was closed.
    #[error("the journal is closed")]
    Closed,
}

/// Why a client's read can't be served.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Trimmed away.
    #[error("offset {offset} is below the log, which has {start}..{end}")]
    BelowStart {
        /// What was asked for.
        offset: u64,
        /// First kept offset.
        start: u64,
        /// First unwritten offset.
        end: u64,
    },
    /// Not there yet.
    #[error("offset {offset} is above the log, which has {start}..{end}")]
    AboveEnd {
        /// What was asked for.
        offset: u64,
        /// First kept offset.
        start: u64,
        /// First unwritten offset.
        end: u64,
    },
    /// What is on the disk is not what was written. Never sent; the range is served from a peer.
    #[error(
        "{}: corrupt from byte {}, offset {}: {}", .0.path.display(), .0.from_byte, .0.from_offset, .0.found
    )]
    Corrupt(BadRange),
    /// The disk, or a segment that was trimmed away meanwhile.
    #[error("read of the journal")]
    Io(#[from] io::Error),
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            ReadError::Corrupt(_) => Self::new(io::ErrorKind::InvalidData, error),
            ReadError::BelowStart { .. } | ReadError::AboveEnd { .. } => {
                Self::new(io::ErrorKind::NotFound, error)
            }
        }
    }
}
