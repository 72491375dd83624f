//! Admission: the one full check of a producer's batch, and the stamp that follows it.
//!
//! # In which order are the rules applied?
//!
//! By number, each with its own error kind ([`AdmissionError::rule`]):
//!
//! | rule | holds when |
//! |---:|---|
//! | 1 | there are at least 256 bytes |
//! | 2 | `batch_length` is at least 256 and equals the bytes given |
//! | 3 | `batch_length` is within the limit |
//! | 4 | the header's reserved bytes are zero |
//! | 5 | there is at least one message, and no more than the limit |
//! | 6 | the frames tile the blob exactly |
//! | 7 | each `offset_delta` is the frame's index |
//! | 8 | each frame's checksum is right |
//! | 9 | some frame has `timestamp_delta` 0 |
//! | 10 | user headers are well formed and within the limits |
//! | 11 | the batch checksum is right |
//! | 12 | `partition_id`, `base_offset` and `base_timestamp` are zero |
//!
//! Rule 12 comes last, since only a right checksum tells a batch that was already stamped (and is
//! being sent again by mistake) from a damaged one.
//!
//! # How is that one pass?
//!
//! The walk over the frames applies rules 6, 7, 8 and 10 to each frame in turn and goes on after a
//! fault of a later rule, to see whether an earlier rule is broken further on. It keeps the fault
//! with the lowest number and skips the checks that could only find a higher one.

use super::frame::{FrameIter, FrameView, Frames};
use super::header::{BatchHeader, Seal, reserved_fault};
use super::user_headers::{self, HeadersError};
use super::{HEADER_LEN, StampedBatch, TilingError};
use crate::limits::BatchLimits;
use bytes::Bytes;

/// Why a producer's batch was refused. Every kind is the producer's fault and would be refused
/// again: never retryable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    #[error("{len} bytes are fewer than a batch header's 256")]
    TooShort { len: u64 },
    #[error("batch_length {batch_length} is less than a batch header's 256")]
    LengthBelowHeader { batch_length: u64 },
    #[error("batch_length is {batch_length}, {given} bytes were given")]
    LengthMismatch { batch_length: u64, given: u64 },
    #[error("batch of {batch_length} bytes, limit {limit}")]
    TooLarge { batch_length: u64, limit: u64 },
    #[error("reserved header byte {at} is {value:#04x}, not zero")]
    Reserved { at: usize, value: u8 },
    #[error("message_count is zero")]
    NoMessages,
    #[error("{message_count} messages, limit {limit}")]
    TooManyMessages { message_count: u32, limit: u32 },
    #[error(transparent)]
    Tiling(#[from] TilingError),
    #[error("frame {index}: offset_delta is {found}, not the frame's index")]
    OffsetDelta { index: u32, found: u32 },
    #[error("frame {index}: stored checksum {stored:#018x}, computed {computed:#018x}")]
    FrameChecksum {
        index: u32,
        stored: u64,
        computed: u64,
    },
    #[error("no frame has timestamp_delta 0, the least is {least}")]
    NoEarliest { least: u32 },
    #[error("frame {index}: malformed user headers")]
    UserHeaders {
        index: u32,
        #[source]
        source: HeadersError,
    },
    #[error("stored batch checksum {stored:#018x}, computed {computed:#018x}")]
    BatchChecksum { stored: u64, computed: u64 },
    #[error(
        "already stamped: partition_id {partition_id}, base_offset {base_offset}, base_timestamp {base_timestamp}"
    )]
    AlreadyStamped {
        partition_id: u64,
        base_offset: u64,
        base_timestamp: u64,
    },
}

impl AdmissionError {
    /// The number of the rule that refused the batch; see the module's table.
    pub const fn rule(&self) -> u8 {
        match self {
            Self::TooShort { .. } => 1,
            Self::LengthBelowHeader { .. } | Self::LengthMismatch { .. } => 2,
            Self::TooLarge { .. } => 3,
            Self::Reserved { .. } => 4,
            Self::NoMessages | Self::TooManyMessages { .. } => 5,
            Self::Tiling(_) => 6,
            Self::OffsetDelta { .. } => 7,
            Self::FrameChecksum { .. } => 8,
            Self::NoEarliest { .. } => 9,
            Self::UserHeaders { .. } => 10,
            Self::BatchChecksum { .. } => 11,
            Self::AlreadyStamped { .. } => 12,
        }
    }
}

/// Why a batch can't be stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StampError {
    /// The partition's offsets are used up.
    #[error("{message_count} messages from offset {base_offset} wrap")]
    OffsetOverflow {
        base_offset: u64,
        message_count: u32,
    },
}

/// A producer's batch that passed every admission rule, bound to its partition and waiting for its
/// place in the log.
///
/// Beside the batch it keeps the 8 checksum bytes of each frame in one piece, so that stamping
/// hashes those and never reads the blob again. That is at most a sixth of the batch, and it goes
/// when the batch is stamped. Cloning shares the blob and copies those.
#[derive(Clone, Debug)]
pub struct AdmittedBatch {
    header: BatchHeader,
    blob: Bytes,
    seal: Seal,
}

impl AdmittedBatch {
    /// Checks `bytes` against every rule and binds them to a partition.
    ///
    /// # Errors
    /// The first rule that is broken, by number, and the bytes back.
    pub fn admit(
        bytes: Bytes,
        partition_id: u64,
        limits: &BatchLimits,
    ) -> Result<Self, (AdmissionError, Bytes)> {
        match inspect(&bytes, limits) {
            Ok((mut header, seal)) => {
                header.partition_id = partition_id;
                Ok(Self {
                    header,
                    blob: bytes.slice(HEADER_LEN..),
                    seal,
                })
            }
            Err(error) => Err((error, bytes)),
        }
    }

    /// The header as the producer sent it, but for the partition. Its checksum is the producer's.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Messages in the batch, at least 1.
    pub fn message_count(&self) -> u32 {
        self.header.message_count
    }

    /// Bytes of the batch, header included.
    pub fn batch_length(&self) -> u64 {
        self.header.batch_length
    }

    /// The partition it was admitted to.
    pub fn partition_id(&self) -> u64 {
        self.header.partition_id
    }

    /// The messages.
    pub fn frames(&self) -> FrameIter<'_> {
        FrameIter::new(&self.blob, self.header.message_count)
    }

    /// Gives the batch its offset and its time, in microseconds, and closes it with a new checksum.
    ///
    /// # Errors
    /// Where the messages' offsets would wrap; the batch comes back unchanged.
    #[expect(clippy::result_large_err, reason = "the batch comes back by value")]
    pub fn stamp(
        self,
        base_offset: u64,
        base_timestamp: u64,
    ) -> Result<StampedBatch, (StampError, Self)> {
        let mut header = self.header;
        header.base_offset = base_offset;
        header.base_timestamp = base_timestamp;
        if header.next_offset().is_none() {
            let error = StampError::OffsetOverflow {
                base_offset,
                message_count: header.message_count,
            };
            return Err((error, self));
        }
        let mut seal = self.seal;
        header.batch_checksum = seal.checksum(&header);
        Ok(StampedBatch::from_stamped(header, self.blob))
    }
}

fn inspect(bytes: &[u8], limits: &BatchLimits) -> Result<(BatchHeader, Seal), AdmissionError> {
    let header = inspect_header(bytes, limits)?;
    let mut seal = inspect_frames(&header, &bytes[HEADER_LEN..], limits)?;
    let computed = seal.checksum(&header);
    if computed != header.batch_checksum {
        return Err(AdmissionError::BatchChecksum {
            stored: header.batch_checksum,
            computed,
        });
    }
    if (
        header.partition_id,
        header.base_offset,
        header.base_timestamp,
    ) != (0, 0, 0)
    {
        return Err(AdmissionError::AlreadyStamped {
            partition_id: header.partition_id,
            base_offset: header.base_offset,
            base_timestamp: header.base_timestamp,
        });
    }
    Ok((header, seal))
}

/// Rules 1 to 5.
fn inspect_header(bytes: &[u8], limits: &BatchLimits) -> Result<BatchHeader, AdmissionError> {
    let given = bytes.len() as u64;
    let Ok(header) = BatchHeader::decode(bytes) else {
        return Err(AdmissionError::TooShort { len: given });
    };
    let (batch_length, message_count) = (header.batch_length, header.message_count);
    if batch_length < HEADER_LEN as u64 {
        return Err(AdmissionError::LengthBelowHeader { batch_length });
    }
    if batch_length != given {
        return Err(AdmissionError::LengthMismatch {
            batch_length,
            given,
        });
    }
    let limit = limits.batch_bytes();
    if batch_length > limit {
        return Err(AdmissionError::TooLarge {
            batch_length,
            limit,
        });
    }
    if let Some((at, value)) = reserved_fault(bytes) {
        return Err(AdmissionError::Reserved { at, value });
    }
    if message_count == 0 {
        return Err(AdmissionError::NoMessages);
    }
    if message_count > limits.max_messages {
        return Err(AdmissionError::TooManyMessages {
            message_count,
            limit: limits.max_messages,
        });
    }
    Ok(header)
}

/// Rules 6 to 10, in one walk.
fn inspect_frames(
    header: &BatchHeader,
    blob: &[u8],
    limits: &BatchLimits,
) -> Result<Seal, AdmissionError> {
    let mut seal = Seal::for_frames(header.message_count, blob.len());
    let mut least_delta = u32::MAX;
    let mut fault = LowestFault::default();
    for (index, frame) in (0..).zip(Frames::new(blob, header.message_count)) {
        let frame = frame?;
        seal.push(frame.checksum);
        least_delta = least_delta.min(frame.timestamp_delta);
        fault.inspect(index, &frame, limits);
    }
    if least_delta != 0 && fault.could_be_lowered_by(9) {
        return Err(AdmissionError::NoEarliest { least: least_delta });
    }
    fault.0.map_or(Ok(seal), Err)
}

/// The fault of the lowest rule so far; of several under one rule, the first frame's.
#[derive(Default)]
struct LowestFault(Option<AdmissionError>);

impl LowestFault {
    fn could_be_lowered_by(&self, rule: u8) -> bool {
        self.0.is_none_or(|fault| rule < fault.rule())
    }

    fn inspect(&mut self, index: u32, frame: &FrameView<'_>, limits: &BatchLimits) {
        let found = self.find(index, frame, limits);
        self.0 = found.or(self.0);
    }

    /// The frame's lowest fault, if that is lower than what is known.
    fn find(
        &self,
        index: u32,
        frame: &FrameView<'_>,
        limits: &BatchLimits,
    ) -> Option<AdmissionError> {
        if self.could_be_lowered_by(7) && frame.offset_delta != index {
            let found = frame.offset_delta;
            return Some(AdmissionError::OffsetDelta { index, found });
        }
        if self.could_be_lowered_by(8) {
            let (stored, computed) = (frame.checksum, frame.computed_checksum());
            if stored != computed {
                return Some(AdmissionError::FrameChecksum {
                    index,
                    stored,
                    computed,
                });
            }
        }
        if self.could_be_lowered_by(10) {
            let checked = user_headers::check(frame.user_headers, limits);
            return checked
                .err()
                .map(|source| AdmissionError::UserHeaders { index, source });
        }
        None
    }
}
