//! The 256-byte batch header, and the input of the batch checksum.
//!
//! Decoding here is structural: it tells what the bytes say, not whether the batch may be
//! admitted. A header-only batch of no messages decodes; admission refuses it.

use super::{BatchError, HEADER_LEN};
use crate::limits::CEILING_MAX_BATCH_BYTES;
use crate::wire::{u32_at, u64_at};
use xxhash_rust::xxh3::xxh3_64;

const PARTITION_ID: usize = 0;
const BASE_OFFSET: usize = 8;
const BASE_TIMESTAMP: usize = 16;
const ORIGIN_TIMESTAMP: usize = 24;
const BATCH_LENGTH: usize = 32;
const BATCH_CHECKSUM: usize = 40;
const MESSAGE_COUNT: usize = 48;
const RESERVED: usize = 52;

/// Bytes of header fields at the front of the checksum's input.
const SEALED_FIELDS_LEN: usize = 44;

/// The fields of a batch header. All integers are little-endian on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchHeader {
    /// The partition, stamped at admission; zero from a producer.
    pub partition_id: u64,
    /// Offset of the first message, stamped at append; zero from a producer.
    pub base_offset: u64,
    /// Server time in microseconds, stamped at append; zero from a producer.
    pub base_timestamp: u64,
    /// Producer time in microseconds of the earliest message.
    pub origin_timestamp: u64,
    /// Bytes of the whole batch, this header included.
    pub batch_length: u64,
    /// XXH3-64 over the other fields and the frames' checksums.
    pub batch_checksum: u64,
    /// Frames in the blob.
    pub message_count: u32,
}

impl BatchHeader {
    /// Reads the fields from the first 256 bytes, without judging them.
    ///
    /// # Errors
    /// [`BatchError::TooShort`] where there are fewer bytes than a header has.
    pub fn decode(bytes: &[u8]) -> Result<Self, BatchError> {
        if bytes.len() < HEADER_LEN {
            return Err(BatchError::TooShort { len: bytes.len() });
        }
        Ok(Self {
            partition_id: u64_at(bytes, PARTITION_ID),
            base_offset: u64_at(bytes, BASE_OFFSET),
            base_timestamp: u64_at(bytes, BASE_TIMESTAMP),
            origin_timestamp: u64_at(bytes, ORIGIN_TIMESTAMP),
            batch_length: u64_at(bytes, BATCH_LENGTH),
            batch_checksum: u64_at(bytes, BATCH_CHECKSUM),
            message_count: u32_at(bytes, MESSAGE_COUNT),
        })
    }

    /// Reads the fields and checks what a header alone can show: a length between a header's
    /// and the ceiling, reserved bytes of zero, at least one message, and offsets that do not wrap. Enough to walk
    /// a run of batches; it says nothing about the blob.
    ///
    /// # Errors
    /// The first of these that does not hold.
    pub fn decode_checked(bytes: &[u8]) -> Result<Self, BatchError> {
        let header = Self::decode(bytes)?;
        if header.batch_length < HEADER_LEN as u64 {
            return Err(BatchError::LengthBelowHeader {
                batch_length: header.batch_length,
            });
        }
        if header.batch_length > CEILING_MAX_BATCH_BYTES {
            return Err(BatchError::TooLarge {
                batch_length: header.batch_length,
                ceiling: CEILING_MAX_BATCH_BYTES,
            });
        }
        if let Some((at, value)) = reserved_fault(bytes) {
            return Err(BatchError::Reserved { at, value });
        }
        if header.message_count == 0 {
            return Err(BatchError::NoMessages);
        }
        if header.next_offset().is_none() {
            return Err(BatchError::OffsetOverflow {
                base_offset: header.base_offset,
                message_count: header.message_count,
            });
        }
        Ok(header)
    }

    /// Writes the header, reserved bytes of zero included.
    pub fn encode_into(&self, out: &mut [u8; HEADER_LEN]) {
        out.fill(0);
        let mut put = |at: usize, field: &[u8]| out[at..at + field.len()].copy_from_slice(field);
        put(PARTITION_ID, &self.partition_id.to_le_bytes());
        put(BASE_OFFSET, &self.base_offset.to_le_bytes());
        put(BASE_TIMESTAMP, &self.base_timestamp.to_le_bytes());
        put(ORIGIN_TIMESTAMP, &self.origin_timestamp.to_le_bytes());
        put(BATCH_LENGTH, &self.batch_length.to_le_bytes());
        put(BATCH_CHECKSUM, &self.batch_checksum.to_le_bytes());
        put(MESSAGE_COUNT, &self.message_count.to_le_bytes());
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        self.encode_into(&mut out);
        out
    }

    /// The offset after the last message, or `None` where it would wrap.
    pub fn next_offset(&self) -> Option<u64> {
        self.base_offset.checked_add(u64::from(self.message_count))
    }

    /// Bytes of frames after the header.
    pub fn blob_length(&self) -> u64 {
        self.batch_length.saturating_sub(HEADER_LEN as u64)
    }

    fn sealed_fields(&self) -> [u8; SEALED_FIELDS_LEN] {
        let mut out = [0; SEALED_FIELDS_LEN];
        out[0..8].copy_from_slice(&self.partition_id.to_le_bytes());
        out[8..16].copy_from_slice(&self.base_offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.base_timestamp.to_le_bytes());
        out[24..32].copy_from_slice(&self.origin_timestamp.to_le_bytes());
        out[32..40].copy_from_slice(&self.batch_length.to_le_bytes());
        out[40..44].copy_from_slice(&self.message_count.to_le_bytes());
        out
    }
}

/// The first reserved byte of a header that is not zero: where, and what. The caller has checked
/// that there is a whole header.
pub(super) fn reserved_fault(bytes: &[u8]) -> Option<(usize, u8)> {
    let reserved = bytes.get(RESERVED..HEADER_LEN)?;
    let at = reserved.iter().position(|&byte| byte != 0)?;
    Some((RESERVED + at, reserved[at]))
}

/// The input of a batch checksum: 44 bytes of header fields, then 8 per frame.
///
/// It is gathered once, while the frames are walked for another reason, and lies in one piece, so
/// that the checksum is one call. Restamping overwrites the front and hashes again.
#[derive(Clone, Debug)]
pub(super) struct Seal(Vec<u8>);

impl Seal {
    /// An empty seal with room for as many frames as `message_count` claims, but for no more than
    /// can lie in `blob_len` bytes: the claim is the sender's.
    pub(super) fn for_frames(message_count: u32, blob_len: usize) -> Self {
        let frames = (message_count as usize).min(blob_len / super::FRAME_HEADER_LEN);
        let mut input = Vec::with_capacity(SEALED_FIELDS_LEN + 8 * frames);
        input.resize(SEALED_FIELDS_LEN, 0);
        Self(input)
    }

    /// Adds the next frame's checksum.
    pub(super) fn push(&mut self, frame_checksum: u64) {
        self.0.extend_from_slice(&frame_checksum.to_le_bytes());
    }

    /// The batch checksum under these header fields.
    pub(super) fn checksum(&mut self, header: &BatchHeader) -> u64 {
        self.0[..SEALED_FIELDS_LEN].copy_from_slice(&header.sealed_fields());
        xxh3_64(&self.0)
    }
}
