//! A segment file piece by piece: batches, damaged ranges, and the zeros written ahead.
//!
//! The reader goes on behind damage at the next batch that verifies and could follow on. A damaged batch whose header still
//! tells its length is one piece, if what follows it agrees; otherwise everything up to the next good batch is.

use std::io;

use imprint_proto::batch::{BatchHeader, HEADER_LEN, StampedBatch};

use super::resync::{Follows, batch_at, next_batch};
use crate::disk::DiskFile;
use crate::journal::SegmentName;
use crate::journal::walk::{Window, last_nonzero};

/// Bytes read at a time, unless a batch is longer.
const WINDOW: u64 = 256 << 10;
/// Bytes read at a time while headers are skipped over.
const SKIP_WINDOW: usize = 4 << 10;

/// A part of a segment file.
#[derive(Debug, Clone)]
pub enum Piece {
    /// A batch in its place, all checksums good.
    Batch {
        /// First byte.
        pos: u64,
        /// The batch.
        batch: StampedBatch,
    },
    /// Bytes that are not what belongs there. Empty if batches are missing between two good ones.
    Damage(Damage),
    /// Nothing but zeros to the end of the file: space written ahead of the log's end.
    Zeros {
        /// First byte.
        from: u64,
        /// End of the file.
        to: u64,
    },
}

/// A range that is not good batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// First bad byte.
    pub from_byte: u64,
    /// First byte behind that is good again, or the end of what is not zero.
    pub to_byte: u64,
    /// First offset that is not readable, if it is known.
    pub from_offset: Option<u64>,
    /// First offset that is readable again, if a good batch follows.
    pub to_offset: Option<u64>,
    /// Stamp of the last good batch before, microseconds.
    pub stamp_before: u64,
    /// What is wrong.
    pub found: String,
    /// What the header at `from_byte` says, if it reads like one.
    pub header: Option<BatchHeader>,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the file's first byte.
    Front,
    /// At the first good batch at or behind this byte, or at the byte if there is none.
    Byte(u64),
    /// At the batch that holds this offset, or what stands in its place.
    Offset(u64),
}

/// Reads a segment's pieces in order.
#[derive(Debug)]
pub struct SegmentReader<'a> {
    file: &'a dyn DiskFile,
    window: Window<'a>,
    file_len: u64,
    pos: u64,
    follows: Follows,
}

impl<'a> SegmentReader<'a> {
    /// A reader of `file`. The name says with which offset it begins; `group`, where known, to which partition its batches
    /// belong. What isn't known is taken from the first good batch.
    pub fn new(
        file: &'a dyn DiskFile,
        name: Option<SegmentName>,
        group: Option<u64>,
    ) -> io::Result<Self> {
        Ok(Self {
            file,
            window: Window::new(file),
            file_len: file.len()?,
            pos: 0,
            follows: Follows {
                group,
                offset: name.map(|name| name.base_offset),
                stamp: 0,
            },
        })
    }

    /// Bytes of the file when it was opened.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// The byte at which the next piece begins.
    pub fn position(&self) -> u64 {
        self.pos
    }

    /// The offset that the next batch should have, if it is known.
    pub fn next_offset(&self) -> Option<u64> {
        self.follows.offset
    }

    /// Moves to where reading should begin. Skips by headers, so damage within what is skipped may go unseen.
    pub fn start_at(&mut self, start: Start) -> io::Result<()> {
        match start {
            Start::Front => Ok(()),
            Start::Byte(pos) => {
                (self.pos, self.follows.offset) = (pos.min(self.file_len), None);
                // A byte within a batch is no damage.
                if let Some(next) = next_batch(self.file, self.pos, &self.follows)? {
                    self.pos = next;
                }
                Ok(())
            }
            Start::Offset(offset) => self.skip_to(offset),
        }
    }

    fn skip_to(&mut self, offset: u64) -> io::Result<()> {
        loop {
            let front = self.window.get(self.pos, HEADER_LEN, SKIP_WINDOW)?;
            let header = BatchHeader::decode_checked(front)
                .ok()
                .filter(|header| self.in_place(header));
            match header {
                Some(header) if header.next_offset().is_some_and(|next| next <= offset) => {
                    self.step_over(&header);
                }
                Some(_) => return Ok(()),
                None => {
                    // Damage on the way: the pieces before the offset are read and left out.
                    if self.follows.offset.is_some_and(|next| next > offset)
                        || self.next_piece()?.is_none()
                    {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn in_place(&self, header: &BatchHeader) -> bool {
        self.wrong_place(header).is_none() && header.batch_length <= self.file_len - self.pos
    }

    /// Why a batch with this header can't stand here.
    fn wrong_place(&self, header: &BatchHeader) -> Option<String> {
        let Follows {
            group,
            offset,
            stamp,
        } = self.follows;
        if let Some(group) = group.filter(|group| *group != header.partition_id) {
            let found = header.partition_id;
            return Some(format!("batch of partition {found}, expected {group}"));
        }
        let expected = offset.unwrap_or(header.base_offset);
        let chain = header.verify_chain(expected, stamp);
        chain.err().map(|error| error.to_string())
    }

    fn step_over(&mut self, header: &BatchHeader) {
        self.pos += header.batch_length;
        self.follows = Follows {
            group: Some(header.partition_id),
            offset: header.next_offset(),
            stamp: header.base_timestamp,
        };
    }

    /// The next piece, or `None` at the end of the file.
    pub fn next_piece(&mut self) -> io::Result<Option<Piece>> {
        if self.pos >= self.file_len {
            return Ok(None);
        }
        let pos = self.pos;
        if self.front()?.iter().all(|byte| *byte == 0) {
            let Some(end) = last_nonzero(&mut self.window, pos, self.file_len)? else {
                self.pos = self.file_len;
                return Ok(Some(Piece::Zeros {
                    from: pos,
                    to: self.file_len,
                }));
            };
            let found = format!("zeros, then other bytes up to {end}");
            return self.damage(found, None).map(Some);
        }
        match self.whole_batch()? {
            Ok(batch) => {
                self.step_over(&batch.header().to_owned());
                Ok(Some(Piece::Batch { pos, batch }))
            }
            Err((found, header)) => self.damage(found, header).map(Some),
        }
    }

    fn front(&mut self) -> io::Result<&[u8]> {
        let ahead = WINDOW.min(self.file_len.saturating_sub(self.pos));
        let ahead = usize::try_from(ahead).unwrap_or(HEADER_LEN);
        self.window.get(self.pos, HEADER_LEN, ahead)
    }

    /// The batch at the position, fully checked, or why there is none and what its header says.
    fn whole_batch(&mut self) -> io::Result<Result<StampedBatch, (String, Option<BatchHeader>)>> {
        let header = match BatchHeader::decode_checked(self.front()?) {
            Ok(header) => header,
            Err(error) => return Ok(Err((error.to_string(), None))),
        };
        if let Some(found) = self.wrong_place(&header) {
            return Ok(Err((found, Some(header))));
        }
        let left = self.file_len - self.pos;
        if header.batch_length > left {
            let found = format!(
                "a batch of {} bytes, the file ends after {left} of them",
                header.batch_length
            );
            return Ok(Err((found, Some(header))));
        }
        let len = usize::try_from(header.batch_length).map_err(io::Error::other)?;
        let ahead = len.max(usize::try_from(WINDOW.min(left)).unwrap_or(len));
        let bytes = bytes::Bytes::copy_from_slice(self.window.get(self.pos, len, ahead)?);
        let verified = StampedBatch::verify_unbound(bytes);
        Ok(verified.map_err(|error| (error.to_string(), Some(header))))
    }

    /// Finds out how far the damage goes, and moves behind it.
    fn damage(&mut self, found: String, header: Option<BatchHeader>) -> io::Result<Piece> {
        let from_byte = self.pos;
        let (from_offset, stamp_before) = (self.follows.offset, self.follows.stamp);
        let next = self.good_again(header.as_ref())?;
        let (to_byte, to_offset) = match next {
            Some((pos, offset)) => (pos, Some(offset)),
            None => {
                let end = last_nonzero(&mut self.window, from_byte, self.file_len)?;
                (end.unwrap_or(self.file_len), None)
            }
        };
        self.pos = to_byte;
        self.follows.offset = to_offset.or(self.follows.offset);
        Ok(Piece::Damage(Damage {
            from_byte,
            to_byte,
            from_offset,
            to_offset,
            stamp_before,
            found,
            header,
        }))
    }

    /// Position and offset of the next good batch.
    fn good_again(&mut self, header: Option<&BatchHeader>) -> io::Result<Option<(u64, u64)>> {
        if let Some(pos) = self.behind(header)? {
            return Ok(Some(pos));
        }
        let Some(pos) = next_batch(self.file, self.pos, &self.follows)? else {
            return Ok(None);
        };
        let batch = batch_at(&mut self.window, pos, &self.follows)?;
        Ok(batch.map(|batch| (pos, batch.base_offset())))
    }

    /// The batch right behind a damaged one, if the damaged one's header is confirmed by it. Batches inside of a damaged
    /// payload are thus not taken for the log's.
    fn behind(&mut self, header: Option<&BatchHeader>) -> io::Result<Option<(u64, u64)>> {
        let Some(header) = header.filter(|header| self.in_place(header)) else {
            return Ok(None);
        };
        let pos = self.pos + header.batch_length;
        let follows = Follows {
            offset: header.next_offset(),
            ..self.follows
        };
        let batch = batch_at(&mut self.window, pos, &follows)?;
        Ok(batch
            .filter(|batch| Some(batch.base_offset()) == header.next_offset())
            .map(|batch| (pos, batch.base_offset())))
    }
}
