//! The producer's side: messages in, one batch out.
//!
//! # Why are checksums computed at the end?
//!
//! A frame stores its time as a distance from the earliest message of the batch, which is only
//! known when the last one is in, and the frame's checksum covers that distance. So a push copies
//! the message to its final place, and building fills in distances and checksums in one walk.

use super::frame::{
    CHECKSUM, COVERED, ID, OFFSET_DELTA, PAYLOAD_LENGTH, TIMESTAMP_DELTA, USER_HEADERS_LENGTH,
};
use super::header::{BatchHeader, Seal};
use super::user_headers::{self, HeadersError, UserHeader};
use super::{FRAME_HEADER_LEN, HEADER_LEN};
use crate::limits::BatchLimits;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// A message to put into a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// Chosen by the producer; zero is allowed.
    pub id: u128,
    /// The producer's time, in microseconds.
    pub origin_timestamp_us: u64,
    /// May be empty.
    pub payload: &'a [u8],
    pub headers: &'a [UserHeader<'a>],
}

/// Why a message does not go into the batch, or the batch can't be built. The builder is unchanged:
/// after [`BuildError::BatchFull`] or [`BuildError::TimeSpan`] the caller builds what there is and
/// begins another batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error("batch would have {bytes} bytes, limit {limit}")]
    BatchFull { bytes: u64, limit: u64 },
    #[error("batch has {limit} messages, the limit")]
    TooManyMessages { limit: u32 },
    #[error("malformed user headers")]
    UserHeaders(#[source] HeadersError),
    #[error(
        "messages would be {span_us} microseconds apart, a batch spans at most {}",
        u32::MAX
    )]
    TimeSpan { span_us: u64 },
    #[error("a batch needs at least one message")]
    NoMessages,
}

impl BuildError {
    /// Whether the message may go into another batch.
    pub const fn is_full(&self) -> bool {
        matches!(
            self,
            Self::BatchFull { .. } | Self::TooManyMessages { .. } | Self::TimeSpan { .. }
        )
    }
}

/// A batch as a producer sends it: it passes admission under the limits it was built with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerBatch(Bytes);

impl ProducerBatch {
    /// The batch's bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The batch's bytes, for sending.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

/// Collects messages into a batch.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    limits: BatchLimits,
    /// A place for the header, then the frames; distances and checksums are still zero.
    bytes: Vec<u8>,
    /// Of each message: where its frame begins, and its time in microseconds.
    frames: Vec<(usize, u64)>,
    earliest: u64,
    latest: u64,
}

impl BatchBuilder {
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            bytes: vec![0; HEADER_LEN],
            frames: Vec::new(),
            earliest: u64::MAX,
            latest: 0,
        }
    }

    /// Bytes that the batch would have now.
    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Messages so far.
    pub fn count(&self) -> u32 {
        // Fits: a push beyond a limit that is a u32 is refused.
        u32::try_from(self.frames.len()).unwrap_or(u32::MAX)
    }

    /// Whether there is no message yet.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a message.
    ///
    /// # Errors
    /// The limit that the message would break; nothing has changed then.
    pub fn push(&mut self, message: Message<'_>) -> Result<(), BuildError> {
        let time = message.origin_timestamp_us;
        let (earliest, latest) = (self.earliest.min(time), self.latest.max(time));
        self.check_room(&message, latest - earliest)?;
        let start = self.bytes.len();
        match self.put_frame(&message, start) {
            Ok(()) => {
                self.frames.push((start, time));
                (self.earliest, self.latest) = (earliest, latest);
                Ok(())
            }
            Err(error) => {
                self.bytes.truncate(start);
                Err(error)
            }
        }
    }

    /// What can be said before anything is copied.
    fn check_room(&self, message: &Message<'_>, span_us: u64) -> Result<(), BuildError> {
        if self.count() >= self.limits.max_messages {
            return Err(BuildError::TooManyMessages {
                limit: self.limits.max_messages,
            });
        }
        if span_us > u64::from(u32::MAX) {
            return Err(BuildError::TimeSpan { span_us });
        }
        self.check_bytes(self.bytes.len() + FRAME_HEADER_LEN, message.payload.len())
    }

    fn check_bytes(&self, so_far: usize, more: usize) -> Result<(), BuildError> {
        let bytes = (so_far as u64).saturating_add(more as u64);
        let limit = self.limits.batch_bytes();
        if bytes > limit {
            return Err(BuildError::BatchFull { bytes, limit });
        }
        Ok(())
    }

    /// Copies the message to its place, without distance and checksum.
    fn put_frame(&mut self, message: &Message<'_>, start: usize) -> Result<(), BuildError> {
        self.bytes.resize(start + FRAME_HEADER_LEN, 0);
        self.bytes.extend_from_slice(message.payload);
        let headers_at = self.bytes.len();
        user_headers::encode_into(message.headers, &mut self.bytes);
        let block = &self.bytes[headers_at..];
        user_headers::check(block, &self.limits).map_err(BuildError::UserHeaders)?;
        let block_len = block.len();
        self.check_bytes(headers_at, block_len)?;
        let index = self.count();
        let frame = &mut self.bytes[start..];
        put(frame, ID, &message.id.to_le_bytes());
        put(frame, OFFSET_DELTA, &index.to_le_bytes());
        put(
            frame,
            USER_HEADERS_LENGTH,
            &(block_len as u32).to_le_bytes(),
        );
        put(
            frame,
            PAYLOAD_LENGTH,
            &(message.payload.len() as u32).to_le_bytes(),
        );
        Ok(())
    }

    /// Closes the batch.
    ///
    /// # Errors
    /// [`BuildError::NoMessages`] without a message.
    pub fn build(mut self) -> Result<ProducerBatch, BuildError> {
        if self.frames.is_empty() {
            return Err(BuildError::NoMessages);
        }
        let mut seal = self.close_frames();
        let mut header = BatchHeader {
            origin_timestamp: self.earliest,
            batch_length: self.len_bytes(),
            message_count: self.count(),
            ..BatchHeader::default()
        };
        header.batch_checksum = seal.checksum(&header);
        put(&mut self.bytes, 0, &header.encode());
        Ok(ProducerBatch(Bytes::from(self.bytes)))
    }

    /// Fills in each frame's distance from the earliest message and its checksum.
    fn close_frames(&mut self) -> Seal {
        let mut seal = Seal::for_frames(self.count(), self.bytes.len());
        for (at, &(start, time)) in self.frames.iter().enumerate() {
            let end = self
                .frames
                .get(at + 1)
                .map_or(self.bytes.len(), |next| next.0);
            let frame = &mut self.bytes[start..end];
            // Fits: a push that spans more was refused.
            let distance = (time - self.earliest) as u32;
            put(frame, TIMESTAMP_DELTA, &distance.to_le_bytes());
            let checksum = xxh3_64(&frame[COVERED..]);
            put(frame, CHECKSUM, &checksum.to_le_bytes());
            seal.push(checksum);
        }
        seal
    }
}

fn put(out: &mut [u8], at: usize, field: &[u8]) {
    out[at..at + field.len()].copy_from_slice(field);
}
