//! The frame: 26 bytes in front of every payload between nodes.
//!
//! | offset | width | field |
//! |---:|---:|---|
//! | 0 | 1 | version: 2 |
//! | 1 | 4 | CRC-32C of bytes 5..26 |
//! | 5 | 1 | compression: 0 none, 1 zstd |
//! | 6 | 4 | payload size in bytes as sent |
//! | 10 | 4 | request: method id; reply: status |
//! | 14 | 4 | correlation id |
//! | 18 | 8 | XXH64, seed 0, of the payload as sent |
//!
//! The header's checksum covers neither the version nor itself. So the version is looked at first:
//! a peer of another version gets an answer, and need not agree on what else there is.
//!
//! What is not here: connections, method ids, statuses; those belong to the transport.

mod compress;

pub use compress::{CompressError, Compressed, compress, decompress};

use crate::wire::{array, u32_at, u64_at};
use bytes::Bytes;
use xxhash_rust::xxh64::Xxh64;

/// Bytes of a frame header.
pub const FRAME_HEADER_LEN: usize = 26;

/// The frame version that this build speaks.
pub const FRAME_VERSION: u8 = 2;

/// How a payload was compressed before it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    #[default]
    None,
    Zstd,
}

impl Compression {
    /// The byte on the wire.
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
        }
    }

    const fn from_wire(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version: answer with status 505, skip the payload, keep the connection. Only where
    /// `checksum_holds` is the header laid out as ours is and `payload_size` to be believed;
    /// otherwise close.
    #[error("frame version {found}, this build speaks {FRAME_VERSION}")]
    Version {
        found: u8,
        correlation_id: u32,
        payload_size: u32,
        checksum_holds: bool,
    },
    /// The header is damaged: close.
    #[error("stored header checksum {stored:#010x}, computed {computed:#010x}")]
    HeaderChecksum { stored: u32, computed: u32 },
    /// A compression that this build does not know: close.
    #[error("unknown compression {found}")]
    Compression { found: u8 },
    /// The payload is larger than this end reads: refuse before any memory is reserved.
    #[error("payload of {payload_size} bytes, limit {limit}")]
    TooLarge { payload_size: u32, limit: u32 },
    /// The payload is damaged: close.
    #[error("stored payload checksum {stored:#018x}, computed {computed:#018x}")]
    PayloadChecksum { stored: u64, computed: u64 },
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// [`FRAME_VERSION`], in any header that was decoded.
    pub version: u8,
    pub compression: Compression,
    /// Bytes after the header, after compression.
    pub payload_size: u32,
    /// Method id of a request, status of a reply.
    pub meta: u32,
    /// Pairs a reply with its request on one connection.
    pub correlation_id: u32,
    /// XXH64 of the payload as sent.
    pub payload_checksum: u64,
}

impl FrameHeader {
    /// The header in front of a payload that is sent as it is, in the parts given.
    pub fn for_payload(
        compression: Compression,
        meta: u32,
        correlation_id: u32,
        parts: &[Bytes],
    ) -> Self {
        let size: usize = parts.iter().map(Bytes::len).sum();
        Self {
            version: FRAME_VERSION,
            compression,
            payload_size: crate::wire::wire_len(size),
            meta,
            correlation_id,
            payload_checksum: payload_checksum_parts(parts),
        }
    }

    /// The header's bytes, its checksum computed.
    pub fn encode(&self) -> [u8; FRAME_HEADER_LEN] {
        let mut out = [0; FRAME_HEADER_LEN];
        out[0] = self.version;
        out[5] = self.compression.to_wire();
        out[6..10].copy_from_slice(&self.payload_size.to_le_bytes());
        out[10..14].copy_from_slice(&self.meta.to_le_bytes());
        out[14..18].copy_from_slice(&self.correlation_id.to_le_bytes());
        out[18..26].copy_from_slice(&self.payload_checksum.to_le_bytes());
        let crc = crc32c::crc32c(&out[5..]);
        out[1..5].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header: the version first, then the checksum, then the compression.
    ///
    /// # Errors
    /// The first of these that does not hold.
    pub fn decode(bytes: &[u8; FRAME_HEADER_LEN]) -> Result<Self, FrameError> {
        let (stored, computed) = (u32_at(bytes, 1), crc32c::crc32c(&bytes[5..]));
        let payload_size = u32_at(bytes, 6);
        let correlation_id = u32_at(bytes, 14);
        if bytes[0] != FRAME_VERSION {
            return Err(FrameError::Version {
                found: bytes[0],
                correlation_id,
                payload_size,
                checksum_holds: stored == computed,
            });
        }
        if stored != computed {
            return Err(FrameError::HeaderChecksum { stored, computed });
        }
        let compression =
            Compression::from_wire(bytes[5]).ok_or(FrameError::Compression { found: bytes[5] })?;
        Ok(Self {
            version: bytes[0],
            compression,
            payload_size,
            meta: u32_at(bytes, 10),
            correlation_id,
            payload_checksum: u64_at(bytes, 18),
        })
    }

    /// Reads the header at the front of `bytes`; `None` where it is not all there yet.
    ///
    /// # Errors
    /// As [`FrameHeader::decode`].
    pub fn decode_front(bytes: &[u8]) -> Option<Result<Self, FrameError>> {
        (bytes.len() >= FRAME_HEADER_LEN).then(|| Self::decode(&array(bytes, 0)))
    }

    /// Refuses a payload that is larger than this end reads, before memory is reserved for it.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`].
    pub fn check_size(&self, limit: u32) -> Result<(), FrameError> {
        if self.payload_size > limit {
            return Err(FrameError::TooLarge {
                payload_size: self.payload_size,
                limit,
            });
        }
        Ok(())
    }

    /// Checks the payload as it was received.
    ///
    /// # Errors
    /// [`FrameError::PayloadChecksum`].
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), FrameError> {
        let computed = payload_checksum(payload);
        if computed != self.payload_checksum {
            return Err(FrameError::PayloadChecksum {
                stored: self.payload_checksum,
                computed,
            });
        }
        Ok(())
    }
}

/// XXH64, seed 0, of a payload in one piece.
pub fn payload_checksum(payload: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(payload, 0)
}

/// XXH64, seed 0, of a payload in parts, as if they were one piece.
pub fn payload_checksum_parts(parts: &[Bytes]) -> u64 {
    if let [whole] = parts {
        return payload_checksum(whole);
    }
    let mut hash = Xxh64::new(0);
    parts.iter().for_each(|part| hash.update(part));
    hash.digest()
}
