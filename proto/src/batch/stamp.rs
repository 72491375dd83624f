//! Stamped batches: final bytes, checked wherever they come from outside.
//!
//! A follower and a recovering replica run the same full check ([`StampedBatch::verify`]): header,
//! tiling, both levels of checksums, partition. Limits are not part of it. They are the operator's,
//! may have been lowered since, and what was once committed must stay readable; only the ceiling
//! holds for all.

use super::frame::{FrameIter, Frames};
use super::header::{BatchHeader, Seal};
use super::{HEADER_LEN, TilingError};
use bytes::Bytes;

/// What is wrong with bytes that should be a stamped batch.
///
/// Deterministic in the bytes. Behind a follower's check it means a broken peer, behind a
/// recovery check a damaged or torn file; the caller knows which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("{len} bytes are fewer than a batch header's 256")]
    TooShort { len: usize },
    #[error("batch_length {batch_length} is less than a batch header's 256")]
    LengthBelowHeader { batch_length: u64 },
    #[error("batch_length is {batch_length}, {given} bytes are there")]
    LengthMismatch { batch_length: u64, given: u64 },
    #[error("batch of {batch_length} bytes, no batch is longer than {ceiling}")]
    TooLarge { batch_length: u64, ceiling: u64 },
    #[error("reserved header byte {at} is {value:#04x}, not zero")]
    Reserved { at: usize, value: u8 },
    #[error("message_count is zero")]
    NoMessages,
    #[error("{message_count} messages from offset {base_offset} wrap")]
    OffsetOverflow {
        base_offset: u64,
        message_count: u32,
    },
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
    #[error("stored batch checksum {stored:#018x}, computed {computed:#018x}")]
    BatchChecksum { stored: u64, computed: u64 },
    #[error("batch of partition {found}, expected {expected}")]
    WrongPartition { expected: u64, found: u64 },
    #[error("base_offset is {found}, expected {expected}")]
    WrongOffset { expected: u64, found: u64 },
    #[error("base_timestamp {found} is before the last one, {last}")]
    TimeBackwards { last: u64, found: u64 },
}

/// A batch with its final bytes. Cheap to clone; never changed.
///
/// Header and blob are kept apart, so that stamping leaves the blob where the socket put it; a
/// vectored write puts them together. The frames tile the blob, always.
#[derive(Clone)]
pub struct StampedBatch {
    header: BatchHeader,
    header_bytes: Bytes,
    blob: Bytes,
    /// The same bytes in one piece, where they came in one piece.
    whole: Option<Bytes>,
}

impl PartialEq for StampedBatch {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for StampedBatch {}

/// The header, not the payloads: they may be large and are nobody's business in a log.
impl std::fmt::Debug for StampedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StampedBatch").field(&self.header).finish()
    }
}

impl StampedBatch {
    /// The end of stamping: the fields are final, the blob was admitted.
    pub(super) fn from_stamped(header: BatchHeader, blob: Bytes) -> Self {
        Self {
            header,
            header_bytes: Bytes::copy_from_slice(&header.encode()),
            blob,
            whole: None,
        }
    }

    /// The full check of bytes from a peer or from a file, of one batch of the given partition.
    /// The caller checks its place among its neighbours with [`StampedBatch::verify_chain`].
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(bytes: Bytes, partition_id: u64) -> Result<Self, BatchError> {
        let batch = Self::verify_unbound(bytes)?;
        let found = batch.header.partition_id;
        if found != partition_id {
            return Err(BatchError::WrongPartition {
                expected: partition_id,
                found,
            });
        }
        Ok(batch)
    }

    /// As [`StampedBatch::verify`], for a reader to whom the partition's number means nothing.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify_unbound(bytes: Bytes) -> Result<Self, BatchError> {
        let header = whole_header(&bytes)?;
        let mut seal = verify_frames(&header, &bytes[HEADER_LEN..])?;
        let computed = seal.checksum(&header);
        if computed != header.batch_checksum {
            return Err(BatchError::BatchChecksum {
                stored: header.batch_checksum,
                computed,
            });
        }
        Ok(Self::from_checked(header, bytes))
    }

    /// Takes bytes that were verified before (a cache, a file of this run) and checks only their
    /// structure: header and tiling, no checksum.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn from_contiguous(bytes: Bytes) -> Result<Self, BatchError> {
        let header = whole_header(&bytes)?;
        for frame in Frames::new(&bytes[HEADER_LEN..], header.message_count) {
            frame?;
        }
        Ok(Self::from_checked(header, bytes))
    }

    fn from_checked(header: BatchHeader, bytes: Bytes) -> Self {
        Self {
            header,
            header_bytes: bytes.slice(..HEADER_LEN),
            blob: bytes.slice(HEADER_LEN..),
            whole: Some(bytes),
        }
    }

    /// Checks that this batch follows on: it begins at `expected_offset`, and its time in
    /// microseconds is not before `last_timestamp`.
    ///
    /// # Errors
    /// [`BatchError::WrongOffset`] or [`BatchError::TimeBackwards`].
    pub fn verify_chain(
        &self,
        expected_offset: u64,
        last_timestamp: u64,
    ) -> Result<(), BatchError> {
        self.header.verify_chain(expected_offset, last_timestamp)
    }

    /// The decoded header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Header bytes and blob, to write one after the other.
    pub fn parts(&self) -> (&Bytes, &Bytes) {
        (&self.header_bytes, &self.blob)
    }

    /// Bytes of the batch, header included.
    #[expect(clippy::len_without_is_empty, reason = "a batch has at least a header")]
    pub fn len(&self) -> u64 {
        self.header.batch_length
    }

    /// The partition it belongs to.
    pub fn partition_id(&self) -> u64 {
        self.header.partition_id
    }

    /// Offset of the first message.
    pub fn base_offset(&self) -> u64 {
        self.header.base_offset
    }

    /// Offset after the last message.
    pub fn next_offset(&self) -> u64 {
        // Never saturates: a sum that wraps was refused when this value was made.
        let count = u64::from(self.header.message_count);
        self.header.base_offset.saturating_add(count)
    }

    /// Server time in microseconds.
    pub fn base_timestamp(&self) -> u64 {
        self.header.base_timestamp
    }

    /// Messages in the batch, at least 1.
    pub fn message_count(&self) -> u32 {
        self.header.message_count
    }

    /// The messages.
    pub fn frames(&self) -> FrameIter<'_> {
        FrameIter::new(&self.blob, self.header.message_count)
    }

    /// The batch in one piece. Copies a batch that was stamped here; one that came in one piece
    /// is shared.
    pub fn to_contiguous(&self) -> Bytes {
        if let Some(whole) = &self.whole {
            return whole.clone();
        }
        let mut out = Vec::with_capacity(HEADER_LEN + self.blob.len());
        out.extend_from_slice(&self.header_bytes);
        out.extend_from_slice(&self.blob);
        Bytes::from(out)
    }
}

impl BatchHeader {
    /// See [`StampedBatch::verify_chain`]; for a walk that reads headers only.
    ///
    /// # Errors
    /// [`BatchError::WrongOffset`] or [`BatchError::TimeBackwards`].
    pub fn verify_chain(
        &self,
        expected_offset: u64,
        last_timestamp: u64,
    ) -> Result<(), BatchError> {
        if self.base_offset != expected_offset {
            return Err(BatchError::WrongOffset {
                expected: expected_offset,
                found: self.base_offset,
            });
        }
        if self.base_timestamp < last_timestamp {
            return Err(BatchError::TimeBackwards {
                last: last_timestamp,
                found: self.base_timestamp,
            });
        }
        Ok(())
    }
}

/// The checked header of a batch that `bytes` hold exactly.
fn whole_header(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
    let header = BatchHeader::decode_checked(bytes)?;
    let given = bytes.len() as u64;
    if header.batch_length != given {
        return Err(BatchError::LengthMismatch {
            batch_length: header.batch_length,
            given,
        });
    }
    Ok(header)
}

fn verify_frames(header: &BatchHeader, blob: &[u8]) -> Result<Seal, BatchError> {
    let mut seal = Seal::for_frames(header.message_count, blob.len());
    for (index, frame) in (0..).zip(Frames::new(blob, header.message_count)) {
        let frame = frame?;
        if frame.offset_delta != index {
            let found = frame.offset_delta;
            return Err(BatchError::OffsetDelta { index, found });
        }
        let (stored, computed) = (frame.checksum, frame.computed_checksum());
        if stored != computed {
            return Err(BatchError::FrameChecksum {
                index,
                stored,
                computed,
            });
        }
        seal.push(stored);
    }
    Ok(seal)
}

/// The length in bytes of the batch that begins at the front of `bytes`, of which at least the
/// header must be there.
///
/// # Errors
/// What [`BatchHeader::decode_checked`] finds, or a length above the ceiling.
pub fn peek_length(bytes: &[u8]) -> Result<u64, BatchError> {
    BatchHeader::decode_checked(bytes).map(|header| header.batch_length)
}

/// Cuts a run of batches, back to back, by their headers. Each item is one whole batch, still to be
/// verified; the first fault is the last item.
pub fn split_batches(bytes: Bytes) -> SplitBatches {
    SplitBatches { rest: bytes }
}

/// See [`split_batches`].
#[derive(Clone, Debug)]
pub struct SplitBatches {
    rest: Bytes,
}

impl SplitBatches {
    /// What has not been cut yet; after a fault, the bytes from the fault on are gone.
    pub fn rest(&self) -> &Bytes {
        &self.rest
    }

    fn cut(&mut self) -> Result<Bytes, BatchError> {
        let batch_length = peek_length(&self.rest)?;
        match usize::try_from(batch_length) {
            Ok(length) if length <= self.rest.len() => Ok(self.rest.split_to(length)),
            _ => Err(BatchError::LengthMismatch {
                batch_length,
                given: self.rest.len() as u64,
            }),
        }
    }
}

impl Iterator for SplitBatches {
    type Item = Result<Bytes, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.cut();
        if item.is_err() {
            self.rest.clear();
        }
        Some(item)
    }
}
