//! Why a batch was not taken at append: the content of a void entry.
//!
//! A batch that got its place in Raft's order and is then found to be out of place in the log becomes a void control entry,
//! so that index order never depends on content. The proposer reads its outcome from the entry.

use bytes::Bytes;
use imprint_proto::envelope::{self, EnvelopeError};

/// Why the batch of a void entry was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoidOutcome {
    /// The proposer expected another offset.
    OffsetMismatch {
        /// What the proposer expected.
        expected: u64,
        /// The log's next offset at that point.
        next: u64,
    },
    /// The log's offsets are used up.
    OffsetOverflow {
        /// The log's next offset at that point.
        next: u64,
        /// Messages in the batch.
        message_count: u32,
    },
    /// A newer version wrote it for a reason that this one does not know.
    Other {
        /// The number of the reason.
        kind: u32,
    },
}

imprint_proto::envelope! {
    /// Two numbers whose meaning depends on the kind. Kinds 3 to 6 are kept for duplicate, fenced, out of sequence and
    /// duplicate of unknown offset.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct VoidBody: version 1, compat 0 {
        kind: u32,
        first: u64 = 0,
        second: u64 = 0,
    }
}

impl VoidOutcome {
    /// As the content of [`super::ControlKind::Void`].
    pub fn encode(self) -> Bytes {
        let (kind, first, second) = match self {
            Self::OffsetMismatch { expected, next } => (1, expected, next),
            Self::OffsetOverflow {
                next,
                message_count,
            } => (2, next, u64::from(message_count)),
            Self::Other { kind } => (kind, 0, 0),
        };
        envelope::encode(&VoidBody {
            kind,
            first,
            second,
        })
    }

    /// From the content of [`super::ControlKind::Void`].
    pub fn decode(bytes: Bytes) -> Result<Self, EnvelopeError> {
        let VoidBody {
            kind,
            first,
            second,
        } = envelope::decode(bytes)?;
        Ok(match kind {
            1 => Self::OffsetMismatch {
                expected: first,
                next: second,
            },
            2 => Self::OffsetOverflow {
                next: first,
                message_count: u32::try_from(second).unwrap_or(u32::MAX),
            },
            kind => Self::Other { kind },
        })
    }
}
