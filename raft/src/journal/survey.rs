//! What of a segment is good: runs of good batches and the bad ranges between them.
//!
//! A survey begins at the segment's first byte and checks every batch in full: both levels of checksums, the partition, and
//! that offsets and stamps follow on. Behind a bad place it looks for the next batch, at every byte: first the partition's
//! id, then the header's own rules, then an offset between the last good one and the segment's end, then both checksums. So
//! what it takes for a batch was one. It never judges which content should be there: an old copy of the segment is good to
//! it.
//!
//! Offsets are in the batches, so they are certain everywhere; indexes are not, and are none of its business.

use std::io;
use std::path::Path;

use bytes::Bytes;
use imprint_proto::batch::{BatchHeader, HEADER_LEN, StampedBatch};
use xxhash_rust::xxh3::Xxh3;

use super::damage::{BadRange, DamageKind, is_lost};
use crate::disk::DiskFile;

/// Good batches, back to back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoodRun {
    /// First byte.
    pub from_byte: u64,
    /// First byte behind.
    pub to_byte: u64,
    /// First offset.
    pub from_offset: u64,
    /// First offset behind.
    pub to_offset: u64,
    /// Batches in it.
    pub batches: u64,
    /// Stamp of its first batch, microseconds.
    pub first_stamp_us: u64,
    /// Stamp of its last batch, microseconds.
    pub last_stamp_us: u64,
}

/// A part of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Good batches.
    Good(GoodRun),
    /// Something else.
    Bad(BadRange),
}

/// Which file is surveyed, and what it should hold.
pub(super) struct Order<'a> {
    pub path: &'a Path,
    pub group: u64,
    pub base_offset: u64,
    /// Offset that its batches reach.
    pub end_offset: u64,
    /// Nothing may follow on its batches.
    pub sealed: bool,
}

/// What a survey found.
#[derive(Debug)]
pub(super) struct Surveyed {
    pub pieces: Vec<Piece>,
    /// XXH3-64 of all good batches: of the whole file if nothing is bad.
    pub xxh3: u64,
    pub file_len: u64,
}

impl Surveyed {
    pub fn bad(&self) -> impl Iterator<Item = &BadRange> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Bad(range) => Some(range),
            Piece::Good(_) => None,
        })
    }

    pub fn good(&self) -> impl Iterator<Item = &GoodRun> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Good(run) => Some(run),
            Piece::Bad(_) => None,
        })
    }
}

/// Why a survey was not finished.
#[derive(Debug, thiserror::Error)]
pub(super) enum SurveyError {
    /// The pace said so.
    #[error("stopped")]
    Stopped,
    /// The disk, in a way that says nothing of the segment.
    #[error("reading the segment")]
    Io(#[from] io::Error),
}

/// Told how many bytes are about to be read; says whether to go on.
pub type Pace<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Bytes read at a time.
const WINDOW: usize = 256 << 10;
/// What an unreadable place is counted as, in bytes.
const BLOCK: usize = 4096;

/// A file seen through a buffer, at a pace. What the medium does not give back reads as zeros and is noted.
struct Reader<'a, 'p> {
    file: &'a dyn DiskFile,
    file_len: u64,
    pace: Pace<'p>,
    buf: Vec<u8>,
    at: u64,
    lost: Option<String>,
}

impl Reader<'_, '_> {
    /// The bytes at `pos`: `len` of them, or as many as the file has.
    fn get(&mut self, pos: u64, len: usize) -> Result<&[u8], SurveyError> {
        let inside = pos
            .checked_sub(self.at)
            .and_then(|skip| usize::try_from(skip).ok())
            .filter(|skip| skip.saturating_add(len) <= self.buf.len());
        let skip = match inside {
            Some(skip) => skip,
            None => {
                self.fill(pos, len.max(WINDOW))?;
                0
            }
        };
        let end = self.buf.len().min(skip + len);
        Ok(&self.buf[skip..end])
    }

    fn fill(&mut self, pos: u64, want: usize) -> Result<(), SurveyError> {
        let left = usize::try_from(self.file_len.saturating_sub(pos)).unwrap_or(want);
        let want = want.min(left);
        if !(self.pace)(want as u64) {
            return Err(SurveyError::Stopped);
        }
        self.buf.clear();
        self.buf.resize(want, 0);
        self.at = pos;
        match self.file.read_at(&mut self.buf, pos) {
            Ok(got) => self.buf.truncate(got),
            Err(error) if is_lost(&error) => self.fill_by_blocks(pos)?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn fill_by_blocks(&mut self, pos: u64) -> Result<(), SurveyError> {
        let mut at = pos;
        for block in self.buf.chunks_mut(BLOCK) {
            match self.file.read_at(block, at) {
                Ok(_) => {}
                Err(error) if is_lost(&error) => {
                    block.fill(0);
                    self.lost.get_or_insert_with(|| error.to_string());
                }
                Err(error) => return Err(error.into()),
            }
            at += block.len() as u64;
        }
        Ok(())
    }
}

/// The moving place of a survey.
struct Surveyor<'a, 'p> {
    order: &'a Order<'a>,
    reader: Reader<'a, 'p>,
    hash: Xxh3,
    pieces: Vec<Piece>,
    pos: u64,
    offset: u64,
    stamp: u64,
}

/// Looks at a whole segment. Blocks; reads everything.
pub(super) fn survey(
    file: &dyn DiskFile,
    order: &Order<'_>,
    pace: Pace<'_>,
) -> Result<Surveyed, SurveyError> {
    let file_len = file.len()?;
    let reader = Reader {
        file,
        file_len,
        pace,
        buf: Vec::new(),
        at: 0,
        lost: None,
    };
    let mut surveyor = Surveyor {
        order,
        reader,
        hash: Xxh3::new(),
        pieces: Vec::new(),
        pos: 0,
        offset: order.base_offset,
        stamp: 0,
    };
    surveyor.run()?;
    Ok(Surveyed {
        pieces: surveyor.pieces,
        xxh3: surveyor.hash.digest(),
        file_len,
    })
}

impl Surveyor<'_, '_> {
    fn run(&mut self) -> Result<(), SurveyError> {
        while self.offset < self.order.end_offset {
            match self.batch_at(self.pos)? {
                Ok(batch) => match self.check_place(&batch) {
                    Ok(()) => self.take(&batch),
                    Err(found) => self.skip_bad(found)?,
                },
                Err(found) => self.skip_bad(found)?,
            }
        }
        let file_len = self.reader.file_len;
        if self.order.sealed && self.pos < file_len {
            let found = format!("{} bytes behind the end", file_len - self.pos);
            self.push_bad(self.pos, None, self.offset, self.offset, found);
        }
        Ok(())
    }

    fn check_place(&self, batch: &StampedBatch) -> Result<(), String> {
        let chained = batch.verify_chain(self.offset, self.stamp);
        chained.map_err(|error| error.to_string())?;
        let (next, end) = (batch.next_offset(), self.order.end_offset);
        if next > end {
            return Err(format!(
                "a batch up to offset {next}, the segment ends at {end}"
            ));
        }
        Ok(())
    }

    fn take(&mut self, batch: &StampedBatch) {
        let (header, blob) = batch.parts();
        self.hash.update(header);
        self.hash.update(blob);
        let to_byte = self.pos + batch.len();
        let run = GoodRun {
            from_byte: self.pos,
            to_byte,
            from_offset: self.offset,
            to_offset: batch.next_offset(),
            batches: 1,
            first_stamp_us: batch.base_timestamp(),
            last_stamp_us: batch.base_timestamp(),
        };
        match self.pieces.last_mut() {
            Some(Piece::Good(last)) => {
                last.to_byte = run.to_byte;
                last.to_offset = run.to_offset;
                last.last_stamp_us = run.last_stamp_us;
                last.batches += 1;
            }
            _ => self.pieces.push(Piece::Good(run)),
        }
        (self.pos, self.offset, self.stamp) = (run.to_byte, run.to_offset, run.last_stamp_us);
    }

    /// The batch at a byte, fully checked but for its place in the chain.
    fn batch_at(&mut self, pos: u64) -> Result<Result<StampedBatch, String>, SurveyError> {
        let left = self.reader.file_len.saturating_sub(pos);
        if left == 0 {
            return Ok(Err("the batches end".to_owned()));
        }
        let front = self.reader.get(pos, HEADER_LEN)?;
        if front.iter().all(|byte| *byte == 0) {
            return Ok(Err("zeros".to_owned()));
        }
        let header = match BatchHeader::decode_checked(front) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if header.batch_length > left {
            return Ok(Err(format!(
                "a batch of {} bytes, the file ends after {left}",
                header.batch_length
            )));
        }
        let len = usize::try_from(header.batch_length).map_err(io::Error::other)?;
        let bytes = Bytes::copy_from_slice(self.reader.get(pos, len)?);
        Ok(StampedBatch::verify(bytes, self.order.group).map_err(|e| e.to_string()))
    }

    /// Notes what is bad here and goes on behind it.
    fn skip_bad(&mut self, found: String) -> Result<(), SurveyError> {
        let (from_byte, from_offset) = (self.pos, self.offset);
        let next = self.search(from_byte + 1)?;
        let found = match self.reader.lost.take() {
            Some(lost) => lost,
            None => found,
        };
        match next {
            Some((pos, batch)) => {
                self.push_bad(
                    from_byte,
                    Some(pos),
                    from_offset,
                    batch.base_offset(),
                    found,
                );
                (self.pos, self.offset) = (pos, batch.base_offset());
            }
            None => {
                let end = self.order.end_offset;
                self.push_bad(from_byte, None, from_offset, end, found);
                (self.pos, self.offset) = (self.reader.file_len, end);
            }
        }
        Ok(())
    }

    fn push_bad(
        &mut self,
        from_byte: u64,
        to_byte: Option<u64>,
        from_offset: u64,
        to_offset: u64,
        found: String,
    ) {
        let kind = if from_byte >= self.reader.file_len {
            DamageKind::Missing
        } else {
            DamageKind::Bytes
        };
        self.pieces.push(Piece::Bad(BadRange {
            path: self.order.path.to_owned(),
            segment_base: self.order.base_offset,
            from_byte,
            to_byte,
            from_offset,
            to_offset,
            kind,
            found,
        }));
    }

    /// The next batch at or behind a byte.
    fn search(&mut self, from: u64) -> Result<Option<(u64, StampedBatch)>, SurveyError> {
        let needle = self.order.group.to_le_bytes();
        let mut at = from;
        loop {
            let bytes = self.reader.get(at, HEADER_LEN)?;
            if bytes.len() < HEADER_LEN {
                return Ok(None);
            }
            // Everything in the buffer is looked at before it moves.
            let skip = usize::try_from(at - self.reader.at).unwrap_or(0);
            let ready = &self.reader.buf[skip..];
            let whole = ready.len() - HEADER_LEN + 1;
            let candidate = (0..whole).find(|n| {
                ready[*n..].starts_with(&needle) && self.could_be(&ready[*n..*n + HEADER_LEN])
            });
            let Some(n) = candidate else {
                at += whole as u64;
                continue;
            };
            at += n as u64;
            if let Ok(batch) = self.batch_at(at)? {
                return Ok(Some((at, batch)));
            }
            at += 1;
        }
    }

    /// Whether a header can belong to a batch behind the last good one.
    fn could_be(&self, bytes: &[u8]) -> bool {
        BatchHeader::decode_checked(bytes).is_ok_and(|header| {
            let inside = header.base_offset >= self.offset
                && header
                    .next_offset()
                    .is_some_and(|next| next <= self.order.end_offset);
            inside && header.base_timestamp >= self.stamp && header.partition_id == self.order.group
        })
    }
}
