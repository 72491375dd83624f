//! From bytes on a socket to frames, and back.
//!
//! Reading is in steps, so that memory is paid for before it is used: the head tells the size, [`FrameReader::need`] says
//! what the payload will take (after decompression too), the caller gets that from its budget, and only then
//! [`FrameReader::body`] allocates. A payload is one allocation; what is made of it are slices.
//!
//! Bytes that contradict themselves (a checksum, a compression byte, a size that isn't so) make the whole stream
//! untrustworthy: whoever gets a [`WireError`] closes the connection.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use imprint_proto::frame::{
    Compression, FRAME_HEADER_LEN, FRAME_VERSION, FrameError, FrameHeader, payload_checksum_parts,
};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, ReadBuf};
use tokio::time::timeout_at;

use super::config::RpcConfig;
use super::write::Pace;

/// A zstd frame's own header is never longer.
const ZSTD_HEADER_MAX: usize = 18;

/// Read ahead per connection. A payload larger than what is buffered is read past the buffer.
const READ_AHEAD_BYTES: usize = 16 * 1024;

/// Why a connection can't be read any further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("bad compressed payload: {0}")]
    Compressed(String),
    #[error("a frame of {bytes} bytes is over the limit of {limit}")]
    TooLarge { bytes: u64, limit: usize },
    #[error("bad envelope: {0}")]
    Envelope(String),
}

impl WireError {
    /// Whether the peer sent something that no correct peer sends.
    pub(crate) fn is_bad_bytes(&self) -> bool {
        !matches!(self, WireError::Io(_))
    }

    pub(crate) fn is_stall(&self) -> bool {
        matches!(self, WireError::Io(e) if e.kind() == io::ErrorKind::TimedOut)
    }
}

/// The start of a frame.
#[derive(Debug)]
pub(crate) enum Head {
    Frame(FrameHeader),
    /// Only these fields can be relied on.
    OtherVersion {
        version: u8,
        correlation_id: u32,
        payload_bytes: u64,
    },
}

/// A payload of which the size is known and that hasn't been read, apart from its first bytes.
#[derive(Debug)]
pub(crate) struct Body {
    header: FrameHeader,
    prefix: BytesMut,
    plain_bytes: u64,
}

impl Body {
    /// Memory that reading it takes at most, in bytes.
    pub(crate) fn need(&self) -> u64 {
        match self.header.compression {
            Compression::None => self.plain_bytes,
            Compression::Zstd => self
                .plain_bytes
                .saturating_add(u64::from(self.header.payload_size)),
        }
    }

    /// Bytes of it that are still in the socket.
    pub(crate) fn unread(&self) -> u64 {
        u64::from(self.header.payload_size) - self.prefix.len() as u64
    }

    /// Bytes after decompression.
    pub(crate) fn plain_bytes(&self) -> u64 {
        self.plain_bytes
    }
}

/// Reads frames from one connection.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    stream: BufReader<Counted<R>>,
    stall: Duration,
}

/// Counts what comes in, for those who ask whether anything does.
#[derive(Debug)]
struct Counted<R> {
    stream: R,
    bytes: Arc<AtomicU64>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        self.bytes.fetch_add(bytes as u64, Relaxed);
        read
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(stream: R, stall: Duration) -> Self {
        Self::counted(stream, stall, Arc::default())
    }

    /// Adds to `bytes` what comes in.
    pub(crate) fn counted(stream: R, stall: Duration, bytes: Arc<AtomicU64>) -> Self {
        let stream = Counted { stream, bytes };
        FrameReader {
            stream: BufReader::with_capacity(READ_AHEAD_BYTES, stream),
            stall,
        }
    }

    /// Waits until there is something to read; false at the end of the stream. Safe to cancel.
    pub(crate) async fn readable(&mut self) -> io::Result<bool> {
        Ok(!self.stream.fill_buf().await?.is_empty())
    }

    /// Reads a header; None if the stream ended before it. Waits without limit for its first byte.
    pub(crate) async fn head(&mut self) -> Result<Option<Head>, WireError> {
        if !self.readable().await? {
            return Ok(None);
        }
        let mut bytes = [0; FRAME_HEADER_LEN];
        let pace = Pace::new(self.stall);
        match timeout_at(pace.until, self.stream.read_exact(&mut bytes)).await {
            Ok(read) => read?,
            Err(_) => return Err(pace.stalled("half a header and no more").into()),
        };
        head(&bytes).map(Some)
    }

    /// Finds out what a payload will take, without having memory for it.
    pub(crate) async fn need(&mut self, header: FrameHeader) -> Result<Body, WireError> {
        let mut body = Body {
            plain_bytes: u64::from(header.payload_size),
            prefix: BytesMut::new(),
            header,
        };
        if body.header.compression == Compression::Zstd {
            let wanted = ZSTD_HEADER_MAX.min(body.header.payload_size as usize);
            self.fill(&mut body.prefix, wanted).await?;
            body.plain_bytes = zstd_plain_bytes(&body.prefix)?;
        }
        Ok(body)
    }

    /// Reads, checks and decompresses a payload.
    pub(crate) async fn body(&mut self, body: Body) -> Result<Bytes, WireError> {
        let wanted = body.header.payload_size as usize;
        let mut buffer = BytesMut::with_capacity(wanted);
        buffer.put_slice(&body.prefix);
        self.fill(&mut buffer, wanted).await?;
        let payload = buffer.freeze();
        body.header.check_payload(&payload)?;
        match body.header.compression {
            Compression::None => Ok(payload),
            Compression::Zstd => decompress(&payload, body.plain_bytes),
        }
    }

    /// Reads past `bytes` without keeping them.
    pub(crate) async fn skip(&mut self, mut bytes: u64) -> Result<(), WireError> {
        let mut pace = Pace::new(self.stall);
        while bytes > 0 {
            let buffered = match timeout_at(pace.until, self.stream.fill_buf()).await {
                Ok(buffered) => buffered?.len(),
                Err(_) => return Err(pace.stalled("half a frame and no more").into()),
            };
            if buffered == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let taken = bytes.min(buffered as u64);
            self.stream.consume(taken as usize);
            pace.moved(taken as usize);
            bytes -= taken;
        }
        Ok(())
    }

    /// Fills `buffer` up to `wanted` bytes, never asking for more than that.
    async fn fill(&mut self, buffer: &mut BytesMut, wanted: usize) -> Result<(), WireError> {
        let mut pace = Pace::new(self.stall);
        while buffer.len() < wanted {
            let missing = wanted - buffer.len();
            let mut room = (&mut *buffer).limit(missing);
            match timeout_at(pace.until, self.stream.read_buf(&mut room)).await {
                Ok(Ok(0)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => pace.moved(read?),
                Err(_) => return Err(pace.stalled("half a frame and no more").into()),
            };
        }
        Ok(())
    }
}

/// A frame of another version can be answered and skipped, if its header is laid out as ours is.
fn head(bytes: &[u8; FRAME_HEADER_LEN]) -> Result<Head, WireError> {
    match FrameHeader::decode(bytes) {
        Ok(header) => Ok(Head::Frame(header)),
        Err(FrameError::Version {
            found,
            correlation_id,
            payload_size,
            checksum_holds: true,
        }) => Ok(Head::OtherVersion {
            version: found,
            correlation_id,
            payload_bytes: u64::from(payload_size),
        }),
        Err(e) => Err(e.into()),
    }
}

fn zstd_plain_bytes(prefix: &[u8]) -> Result<u64, WireError> {
    match zstd::zstd_safe::get_frame_content_size(prefix) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(WireError::Compressed(
            "it doesn't say how large it is".into(),
        )),
        Err(_) => Err(WireError::Compressed("it isn't zstd".into())),
    }
}

/// The size was paid for by the caller; a payload that says less than it holds fails here.
fn decompress(payload: &[u8], plain_bytes: u64) -> Result<Bytes, WireError> {
    let capacity = usize::try_from(plain_bytes).map_err(|_| WireError::TooLarge {
        bytes: plain_bytes,
        limit: usize::MAX,
    })?;
    let plain = zstd::bulk::decompress(payload, capacity)
        .map_err(|e| WireError::Compressed(e.to_string()))?;
    if plain.len() != capacity {
        return Err(WireError::Compressed("it holds less than it says".into()));
    }
    Ok(Bytes::from(plain))
}

/// A payload that is ready to be framed.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) parts: Vec<Bytes>,
    size: u32,
    compression: Compression,
    checksum: u64,
}

impl Encoded {
    /// Takes parts as they are, and never copies them.
    pub(crate) fn plain(parts: Vec<Bytes>) -> Encoded {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        Encoded {
            // Callers have checked it against max_frame_bytes, which is below 4 GiB.
            size: u32::try_from(bytes).unwrap_or(u32::MAX),
            compression: Compression::None,
            checksum: payload_checksum_parts(&parts),
            parts,
        }
    }

    /// Compresses where it's worth it: from `compress_min_bytes` on, and if the result is smaller.
    pub(crate) fn compressed(parts: Vec<Bytes>, config: &RpcConfig) -> io::Result<Encoded> {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        if bytes < config.compress_min_bytes {
            return Ok(Encoded::plain(parts));
        }
        let packed = compress(&parts, bytes, config.compress_level)?;
        if packed.len() >= bytes {
            return Ok(Encoded::plain(parts));
        }
        Ok(Encoded {
            compression: Compression::Zstd,
            ..Encoded::plain(vec![Bytes::from(packed)])
        })
    }

    /// Payload bytes on the wire.
    pub(crate) fn bytes(&self) -> usize {
        self.size as usize
    }

    /// The header that goes before the parts.
    pub(crate) fn header(&self, meta: u32, correlation_id: u32) -> [u8; FRAME_HEADER_LEN] {
        FrameHeader {
            version: FRAME_VERSION,
            compression: self.compression,
            payload_size: self.size,
            meta,
            correlation_id,
            payload_checksum: self.checksum,
        }
        .encode()
    }
}

fn compress(parts: &[Bytes], bytes: usize, level: i32) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::with_capacity(bytes / 2), level)?;
    encoder.set_pledged_src_size(Some(bytes as u64))?;
    encoder.include_contentsize(true)?;
    for part in parts {
        encoder.write_all(part)?;
    }
    encoder.finish()
}
