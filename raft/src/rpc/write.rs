//! Several frames in one vectored write, without copying what is large.
//!
//! Headers and small parts are copied next to each other; a part of [`COPY_BELOW`] bytes or more is referenced. Each frame
//! has an owner, which pays for its memory: it is dropped as soon as the frame's last byte has been taken by the socket,
//! not when its caller gives up and not when a later frame of the same write is done.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::config::STALL_BYTES;

/// Parts from this many bytes on are referenced: below, a copy is cheaper than one more element in the vector.
const COPY_BELOW: usize = 512;

/// Elements of one vectored write. The system's limit is 1024; beyond some dozens nothing is gained.
const MAX_SLICES: usize = 64;

/// Frames on their way into the socket, each with its owner.
pub(crate) struct WriteBatch<T> {
    chunks: VecDeque<Bytes>,
    copied: BytesMut,
    owners: VecDeque<(u64, T)>,
    end: u64,
    written: u64,
}

impl<T> WriteBatch<T> {
    pub(crate) fn new() -> Self {
        WriteBatch {
            chunks: VecDeque::new(),
            copied: BytesMut::new(),
            owners: VecDeque::new(),
            end: 0,
            written: 0,
        }
    }

    /// Appends one frame.
    pub(crate) fn push(&mut self, header: &[u8], parts: &[Bytes], owner: T) {
        self.copied.put_slice(header);
        self.end += header.len() as u64;
        for part in parts {
            self.end += part.len() as u64;
            if part.len() < COPY_BELOW {
                self.copied.put_slice(part);
            } else {
                self.seal();
                self.chunks.push_back(part.clone());
            }
        }
        self.owners.push_back((self.end, owner));
    }

    /// Bytes put in so far.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.end).unwrap_or(usize::MAX)
    }

    /// Frames put in and not yet written.
    pub(crate) fn frames(&self) -> usize {
        self.owners.len()
    }

    /// Writes everything. `done` gets each owner when its frame's last byte has been taken. A peer that takes less than
    /// its [`Pace`] asks for makes it fail with `TimedOut`.
    pub(crate) async fn write_to<W: AsyncWrite + Unpin>(
        mut self,
        stream: &mut W,
        stall: Duration,
        mut done: impl FnMut(T),
    ) -> io::Result<()> {
        self.seal();
        let mut pace = Pace::new(stall);
        while !self.chunks.is_empty() {
            let taken = {
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                let count = self.slices(&mut slices);
                timeout_at(pace.until, stream.write_vectored(&slices[..count])).await
            };
            match taken {
                Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(Ok(bytes)) => {
                    pace.moved(bytes);
                    self.advance(bytes, &mut done);
                }
                Ok(Err(e)) => return Err(e),
                Err(_) => return Err(pace.stalled("the peer takes no bytes")),
            }
        }
        match timeout_at(pace.until, stream.flush()).await {
            Ok(flushed) => flushed,
            Err(_) => Err(pace.stalled("the peer takes no bytes")),
        }
    }

    fn seal(&mut self) {
        if !self.copied.is_empty() {
            self.chunks.push_back(self.copied.split().freeze());
        }
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut bytes: usize, done: &mut impl FnMut(T)) {
        self.written += bytes as u64;
        while let Some(first) = self.chunks.front_mut() {
            if bytes < first.len() {
                first.advance(bytes);
                break;
            }
            bytes -= first.len();
            self.chunks.pop_front();
        }
        while self
            .owners
            .front()
            .is_some_and(|(end, _)| *end <= self.written)
        {
            if let Some((_, owner)) = self.owners.pop_front() {
                done(owner);
            }
        }
    }
}

/// What a peer owes while a frame is under way: [`STALL_BYTES`] in each window, or all that's left. A byte now and then
/// is no progress, or a frame and the memory it holds would last for ever.
#[derive(Debug)]
pub(super) struct Pace {
    window: Duration,
    moved: usize,
    /// When the window ends.
    pub(super) until: Instant,
}

impl Pace {
    pub(super) fn new(window: Duration) -> Self {
        Pace {
            window,
            moved: 0,
            until: Instant::now() + window,
        }
    }

    /// Bytes went through.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.moved >= STALL_BYTES {
            *self = Pace::new(self.window);
        }
    }

    /// The error of a connection that stands still.
    pub(super) fn stalled(&self, what: &str) -> io::Error {
        let (moved, window) = (self.moved, self.window);
        let reason = format!("{what}: {moved} bytes in {window:?}");
        io::Error::new(io::ErrorKind::TimedOut, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    const STALL: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn owners_leave_one_by_one_as_their_bytes_do() {
        let mut batch = WriteBatch::new();
        batch.push(b"AA", &[Bytes::from_static(b"small")], 1);
        batch.push(b"BB", &[Bytes::from(vec![b'x'; COPY_BELOW])], 2);
        assert_eq!(
            (batch.bytes(), batch.frames(), batch.chunks.len()),
            (7 + 2 + COPY_BELOW, 2, 2)
        );
        let (mut near, mut far) = tokio::io::duplex(16);
        let done = parking_lot::Mutex::new(Vec::new());
        let write = batch.write_to(&mut near, STALL, |owner| done.lock().push(owner));
        let read = async {
            let mut seen = vec![0; 9];
            far.read_exact(&mut seen).await.expect("bytes");
            assert_eq!(&seen, b"AAsmallBB");
            assert_eq!(*done.lock(), [1]);
            let mut rest = vec![0; COPY_BELOW];
            far.read_exact(&mut rest).await.expect("bytes");
        };
        let (written, ()) = tokio::join!(write, read);
        written.expect("written");
        assert_eq!(*done.lock(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stands_still_ends_the_write() {
        let mut batch = WriteBatch::new();
        batch.push(b"AA", &[Bytes::from(vec![0; 4096])], ());
        let (mut near, _far) = tokio::io::duplex(16);
        let failed = batch
            .write_to(&mut near, STALL, |()| ())
            .await
            .expect_err("stalled");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_is_no_progress() {
        let mut batch = WriteBatch::new();
        batch.push(b"AA", &[Bytes::from(vec![0; 4096])], ());
        let (mut near, mut far) = tokio::io::duplex(16);
        let begun = Instant::now();
        let trickle = async {
            loop {
                tokio::time::sleep(STALL / 2).await;
                far.read_u8().await.expect("a byte");
            }
        };
        tokio::select! {
            written = batch.write_to(&mut near, STALL, |()| ()) => {
                assert_eq!(written.expect_err("stalled").kind(), io::ErrorKind::TimedOut);
            }
            () = trickle => {}
        }
        assert_eq!(begun.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_peer_that_moves_enough_is_kept() {
        let mut batch = WriteBatch::new();
        batch.push(b"", &[Bytes::from(vec![0; 5 * STALL_BYTES])], ());
        let (mut near, mut far) = tokio::io::duplex(16);
        let drain = async {
            let mut seen = vec![0; STALL_BYTES];
            for _ in 0..5 {
                tokio::time::sleep(STALL * 9 / 10).await;
                far.read_exact(&mut seen).await.expect("bytes");
            }
        };
        let (written, ()) = tokio::join!(batch.write_to(&mut near, STALL, |()| ()), drain);
        written.expect("written");
    }
}
