//! Compressing payloads, and decompressing them without trusting what they claim.

use super::Compression;
use bytes::Bytes;
use std::io::{Read as _, Write as _};

/// The level that zstd calls fast and good enough; payloads are compressed on the sending path.
const LEVEL: i32 = 1;

/// The greatest window, as a power of two, that a payload may ask the decoder to keep. At our level
/// zstd writes at most 2^19; the rest is room for a later choice of level.
const MAX_WINDOW_LOG: u32 = 23;

/// Why a payload could not be compressed or decompressed.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// Decompressed, the payload would be larger than this end reads.
    #[error("decompressed payload exceeds {limit} bytes")]
    TooLarge { limit: u32 },
    /// Not what zstd wrote.
    #[error("zstd failed")]
    Zstd(#[source] std::io::Error),
}

/// A payload ready to be sent, and how it was compressed.
#[derive(Clone, Debug)]
pub struct Compressed {
    pub compression: Compression,
    pub parts: Vec<Bytes>,
}

/// Compresses a payload of at least `min_bytes`; a shorter one, or one that would not shrink, is
/// passed through as it is.
///
/// # Errors
/// [`CompressError::Zstd`] where zstd can't work, for want of memory say.
pub fn compress(parts: Vec<Bytes>, min_bytes: usize) -> Result<Compressed, CompressError> {
    let size: usize = parts.iter().map(Bytes::len).sum();
    let plain = |parts| Compressed {
        compression: Compression::None,
        parts,
    };
    if size < min_bytes {
        return Ok(plain(parts));
    }
    let packed = zstd_parts(&parts).map_err(CompressError::Zstd)?;
    if packed.len() >= size {
        return Ok(plain(parts));
    }
    Ok(Compressed {
        compression: Compression::Zstd,
        parts: vec![Bytes::from(packed)],
    })
}

fn zstd_parts(parts: &[Bytes]) -> std::io::Result<Vec<u8>> {
    let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
    for part in parts {
        encoder.write_all(part)?;
    }
    encoder.finish()
}

/// The payload as it was before it was sent. What zstd says about the size is not believed: reading
/// stops at `limit` bytes.
///
/// # Errors
/// [`CompressError::TooLarge`] beyond the limit, [`CompressError::Zstd`] on damaged data.
pub fn decompress(
    payload: Bytes,
    compression: Compression,
    limit: u32,
) -> Result<Bytes, CompressError> {
    match compression {
        Compression::None => Ok(payload),
        Compression::Zstd => unzstd(&payload, limit),
    }
}

fn unzstd(payload: &[u8], limit: u32) -> Result<Bytes, CompressError> {
    let mut decoder = zstd::Decoder::with_buffer(payload).map_err(CompressError::Zstd)?;
    decoder
        .window_log_max(MAX_WINDOW_LOG)
        .map_err(CompressError::Zstd)?;
    let mut out = Vec::new();
    decoder
        .take(u64::from(limit) + 1)
        .read_to_end(&mut out)
        .map_err(CompressError::Zstd)?;
    if out.len() as u64 > u64::from(limit) {
        return Err(CompressError::TooLarge { limit });
    }
    Ok(Bytes::from(out))
}
