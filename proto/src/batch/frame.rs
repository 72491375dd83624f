//! Frames: a borrowed view of one message, and the walk that cuts a blob into them.
//!
//! Walking reads frame headers only and allocates nothing. [`Frames`] is the walk over bytes that
//! nobody has checked yet; [`FrameIter`] is the same walk over a blob whose type promises that it
//! tiles.

use super::{FRAME_HEADER_LEN, user_headers};
use crate::wire::{u32_at, u64_at, u128_at};
use xxhash_rust::xxh3::xxh3_64;

pub(super) const CHECKSUM: usize = 0;
/// Where the bytes that a frame's checksum covers begin.
pub(super) const COVERED: usize = 8;
pub(super) const ID: usize = 8;
pub(super) const OFFSET_DELTA: usize = 24;
pub(super) const TIMESTAMP_DELTA: usize = 28;
pub(super) const USER_HEADERS_LENGTH: usize = 32;
pub(super) const PAYLOAD_LENGTH: usize = 36;
const RESERVED: usize = 40;

/// How the frames fail to fill the blob exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TilingError {
    /// A frame header does not fit in what is left.
    #[error("frame {index}: header of 48 bytes at blob byte {at} has only {left} left")]
    HeaderCut { index: u32, at: u64, left: u64 },
    /// A payload and its headers do not fit in what is left after the frame header.
    #[error(
        "frame {index}: payload of {payload_length} and user headers of {user_headers_length} bytes have only {left} left"
    )]
    BodyCut {
        index: u32,
        payload_length: u32,
        user_headers_length: u32,
        left: u64,
    },
    /// The frame's reserved field is not zero.
    #[error("frame {index}: reserved field is {value:#x}, not zero")]
    Reserved { index: u32, value: u64 },
    /// The blob ends before the last of the frames that the header counts.
    #[error("header counts {message_count} frames, blob holds {found}")]
    TooFewFrames { message_count: u32, found: u32 },
    /// Bytes are left after the last of the frames that the header counts.
    #[error("{left} bytes left after the {message_count} frames that the header counts")]
    BytesLeft { message_count: u32, left: u64 },
}

/// One message of a batch, borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameView<'a> {
    /// The stored checksum, over everything in the frame but itself.
    pub checksum: u64,
    /// The message's id, chosen by the producer; zero is allowed.
    pub id: u128,
    /// Distance in messages from the batch's base offset; the frame's index.
    pub offset_delta: u32,
    /// Distance in microseconds from the batch's origin timestamp.
    pub timestamp_delta: u32,
    /// The message's own bytes.
    pub payload: &'a [u8],
    /// The undecoded block of user headers; see [`user_headers::iter`].
    pub user_headers: &'a [u8],
    covered: &'a [u8],
}

impl<'a> FrameView<'a> {
    /// The checksum that the frame's bytes have, to compare with the stored one.
    pub fn computed_checksum(&self) -> u64 {
        xxh3_64(self.covered)
    }

    /// Bytes of the whole frame, its header included.
    pub fn len_bytes(&self) -> usize {
        COVERED + self.covered.len()
    }

    /// The user headers, decoded one by one.
    pub fn headers(&self) -> user_headers::UserHeaderIter<'a> {
        user_headers::iter(self.user_headers)
    }

    /// The message's offset in the partition.
    pub fn offset(&self, base_offset: u64) -> u64 {
        base_offset.saturating_add(u64::from(self.offset_delta))
    }

    /// The producer's time of the message, in microseconds.
    pub fn origin_timestamp(&self, batch_origin_timestamp: u64) -> u64 {
        batch_origin_timestamp.saturating_add(u64::from(self.timestamp_delta))
    }
}

/// The walk over a blob that may not tile. Yields frames until the first fault, which is its last
/// item; without a fault, exactly as many frames as were asked for fill the blob.
#[derive(Clone, Debug)]
pub(super) struct Frames<'a> {
    blob: &'a [u8],
    at: usize,
    index: u32,
    message_count: u32,
    done: bool,
}

impl<'a> Frames<'a> {
    pub(super) fn new(blob: &'a [u8], message_count: u32) -> Self {
        Self {
            blob,
            at: 0,
            index: 0,
            message_count,
            done: false,
        }
    }

    fn step(&mut self) -> Result<Option<FrameView<'a>>, TilingError> {
        let rest = &self.blob[self.at..];
        if self.index == self.message_count {
            return self.at_end(rest.len());
        }
        if rest.is_empty() {
            return Err(TilingError::TooFewFrames {
                message_count: self.message_count,
                found: self.index,
            });
        }
        let frame = cut_frame(rest, self.index, self.at)?;
        self.at += frame.len_bytes();
        self.index += 1;
        Ok(Some(frame))
    }

    fn at_end(&self, left: usize) -> Result<Option<FrameView<'a>>, TilingError> {
        if left == 0 {
            return Ok(None);
        }
        Err(TilingError::BytesLeft {
            message_count: self.message_count,
            left: left as u64,
        })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<FrameView<'a>, TilingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.step().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Cuts the frame at the front of `rest`, which begins at byte `at` of the blob.
fn cut_frame(rest: &[u8], index: u32, at: usize) -> Result<FrameView<'_>, TilingError> {
    let Some((header, body)) = rest.split_at_checked(FRAME_HEADER_LEN) else {
        return Err(TilingError::HeaderCut {
            index,
            at: at as u64,
            left: rest.len() as u64,
        });
    };
    let payload_length = u32_at(header, PAYLOAD_LENGTH);
    let user_headers_length = u32_at(header, USER_HEADERS_LENGTH);
    // In 64 bits, so that two lengths of 4 GiB can't wrap to a small sum.
    let body_length = u64::from(payload_length) + u64::from(user_headers_length);
    if body_length > body.len() as u64 {
        return Err(TilingError::BodyCut {
            index,
            payload_length,
            user_headers_length,
            left: body.len() as u64,
        });
    }
    let reserved = u64_at(header, RESERVED);
    if reserved != 0 {
        return Err(TilingError::Reserved {
            index,
            value: reserved,
        });
    }
    let (payload, after) = body.split_at(payload_length as usize);
    Ok(FrameView {
        checksum: u64_at(header, CHECKSUM),
        id: u128_at(header, ID),
        offset_delta: u32_at(header, OFFSET_DELTA),
        timestamp_delta: u32_at(header, TIMESTAMP_DELTA),
        payload,
        user_headers: &after[..user_headers_length as usize],
        covered: &rest[COVERED..FRAME_HEADER_LEN + body_length as usize],
    })
}

/// The frames of a batch whose type promises that they tile its blob.
#[derive(Clone, Debug)]
pub struct FrameIter<'a>(Frames<'a>);

impl<'a> FrameIter<'a> {
    pub(super) fn new(blob: &'a [u8], message_count: u32) -> Self {
        Self(Frames::new(blob, message_count))
    }
}

impl<'a> Iterator for FrameIter<'a> {
    type Item = FrameView<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()?.ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.0.message_count - self.0.index) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for FrameIter<'_> {}
