//! Walking over the batches of a segment file, by headers or with the full check.
//!
//! A walk begins at a batch whose place is known and goes on until the bytes end, a limit is reached or something is wrong.
//! What is wrong is reported, never judged: recovery and readers do that, each by its own rules.

use std::io;

use bytes::Bytes;
use imprint_proto::batch::{BatchError, BatchHeader, HEADER_LEN, StampedBatch};

use super::segment::{Spot, index_push};
use crate::disk::DiskFile;

/// Bytes read at a time.
const WINDOW: usize = 256 << 10;

/// A file seen through a buffer that moves forward.
#[derive(Debug)]
pub struct Window<'a> {
    file: &'a dyn DiskFile,
    buf: Vec<u8>,
    at: u64,
}

impl<'a> Window<'a> {
    /// Nothing is read yet.
    pub fn new(file: &'a dyn DiskFile) -> Self {
        Self {
            file,
            buf: Vec::new(),
            at: 0,
        }
    }

    /// The bytes at `pos`: `len` of them, or as many as the file has.
    pub fn get(&mut self, pos: u64, len: usize, read_ahead: usize) -> io::Result<&[u8]> {
        let inside = pos
            .checked_sub(self.at)
            .and_then(|skip| usize::try_from(skip).ok());
        let inside = inside.filter(|skip| {
            skip.checked_add(len)
                .is_some_and(|end| end <= self.buf.len())
        });
        let skip = match inside {
            Some(skip) => skip,
            None => {
                self.buf.resize(len.max(read_ahead), 0);
                let got = self.file.read_at(&mut self.buf, pos)?;
                self.buf.truncate(got);
                self.at = pos;
                0
            }
        };
        let end = self.buf.len().min(skip + len);
        Ok(&self.buf[skip..end])
    }
}

/// How closely a walk looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Headers and their chain: for files that were synced, to find places in them.
    Headers,
    /// Everything, for what may be torn or rotten.
    Full,
}

/// Something that is not a batch in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Where.
    pub pos: u64,
    /// What.
    pub found: String,
}

/// What a walk over a whole segment found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Walked {
    /// End of the good batches.
    pub end: u64,
    /// Offset after them.
    pub next_offset: u64,
    /// The last of them.
    pub last: Option<Spot>,
    /// Sparse index of them.
    pub index: Vec<Spot>,
    /// Stamp of the first.
    pub first_stamp: Option<u64>,
    /// What comes next, unless it is zeros to the end.
    pub bad: Option<Bad>,
}

/// A problem with the bytes rather than with reading them.
enum Stop {
    End,
    Bad(String),
}

impl From<BatchError> for Stop {
    fn from(error: BatchError) -> Self {
        Self::Bad(error.to_string())
    }
}

/// Walks a segment from its first batch to the end of the file. `index_of` gives the index of the next data batch, from the
/// first one that it may have and its offset, or says what contradicts it.
pub fn walk_segment(
    file: &dyn DiskFile,
    group: u64,
    first: (u64, u64),
    check: Check,
    index_of: &dyn Fn(u64, u64) -> Result<u64, String>,
) -> io::Result<Walked> {
    let file_len = file.len()?;
    let mut window = Window::new(file);
    let (mut next_index, next_offset) = first;
    let mut walked = Walked {
        next_offset,
        ..Walked::default()
    };
    loop {
        match step(&mut window, group, file_len, &walked, check)? {
            Ok(header) => {
                let index = match index_of(next_index, header.base_offset) {
                    Ok(index) => index,
                    Err(found) => {
                        walked.bad = Some(Bad {
                            pos: walked.end,
                            found,
                        });
                        return Ok(walked);
                    }
                };
                next_index = index + 1;
                push(&mut walked, index, &header);
            }
            Err(Stop::End) => return Ok(walked),
            Err(Stop::Bad(found)) => {
                walked.bad = Some(Bad {
                    pos: walked.end,
                    found,
                });
                return Ok(walked);
            }
        }
    }
}

fn push(walked: &mut Walked, index: u64, header: &BatchHeader) {
    let spot = Spot {
        index,
        offset: header.base_offset,
        pos: walked.end,
        stamp: header.base_timestamp,
    };
    index_push(&mut walked.index, spot);
    walked.first_stamp.get_or_insert(spot.stamp);
    walked.end += header.batch_length;
    walked.next_offset = header.next_offset().unwrap_or(u64::MAX);
    walked.last = Some(spot);
}

fn step(
    window: &mut Window<'_>,
    group: u64,
    file_len: u64,
    walked: &Walked,
    check: Check,
) -> io::Result<Result<BatchHeader, Stop>> {
    let pos = walked.end;
    let ahead = WINDOW.min(usize::try_from(file_len.saturating_sub(pos)).unwrap_or(WINDOW));
    let front = window.get(pos, HEADER_LEN, ahead)?;
    if front.iter().all(|byte| *byte == 0) {
        let behind = last_nonzero(window, pos, file_len)?;
        return Ok(Err(behind.map_or(Stop::End, |end| {
            Stop::Bad(format!("zeros, then other bytes up to {end}"))
        })));
    }
    let header = match BatchHeader::decode_checked(front) {
        Ok(header) => header,
        Err(error) => return Ok(Err(error.into())),
    };
    if header.batch_length > file_len - pos {
        return Ok(Err(Stop::Bad(format!(
            "a batch of {} bytes, the file ends before",
            header.batch_length
        ))));
    }
    let last_stamp = walked.last.map_or(0, |spot| spot.stamp);
    if let Err(error) = header.verify_chain(walked.next_offset, last_stamp) {
        return Ok(Err(error.into()));
    }
    if check == Check::Full {
        let len = usize::try_from(header.batch_length).map_err(io::Error::other)?;
        let bytes = Bytes::copy_from_slice(window.get(pos, len, ahead.max(len))?);
        if let Err(error) = StampedBatch::verify(bytes, group) {
            return Ok(Err(error.into()));
        }
    }
    Ok(Ok(header))
}

/// End of the last byte at or behind `pos` that is not zero.
pub fn last_nonzero(window: &mut Window<'_>, pos: u64, file_len: u64) -> io::Result<Option<u64>> {
    let mut at = pos;
    let mut last = None;
    while at < file_len {
        let bytes = window.get(
            at,
            WINDOW.min(usize::try_from(file_len - at).unwrap_or(WINDOW)),
            WINDOW,
        )?;
        if bytes.is_empty() {
            break;
        }
        let behind = bytes.iter().rposition(|byte| *byte != 0);
        last = behind.map_or(last, |n| Some(at + n as u64 + 1));
        at += bytes.len() as u64;
    }
    Ok(last)
}
