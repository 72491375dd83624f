//! Finding places in segments: by index, offset and time, from the sparse index and a short walk over headers; and hashing.
//!
//! A walk over headers checks their chain. The batches themselves are checked when they are read.

use std::io;
use std::sync::Arc;

use imprint_proto::batch::{BatchHeader, HEADER_LEN};
use xxhash_rust::xxh3::Xxh3;

use super::config::ReadError;
use super::damage::{BadRange, DamageKind};
use super::segment::{Seek, Segment, Spot};
use super::walk::Window;
use super::{Journal, StoredEntry};

/// XXH3-64 over one segment's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentDigest {
    /// First offset.
    pub base_offset: u64,
    /// Offset after the last one hashed.
    pub end_offset: u64,
    /// The hash.
    pub xxh3: u64,
}

/// XXH3-64 over a log's bytes from its first kept segment on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDigest {
    /// First offset.
    pub base_offset: u64,
    /// Offset after the last one hashed.
    pub end_offset: u64,
    /// Over everything.
    pub xxh3: u64,
    /// By segment.
    pub segments: Vec<SegmentDigest>,
}

/// A batch found in a file.
pub(super) struct Located {
    /// First byte.
    pub pos: u64,
    /// Its header.
    pub header: BatchHeader,
}

impl Journal {
    /// The first offset after applying the entry `index`; `None` if that is not known any more or not yet. Blocks if it has
    /// to be looked up in a file.
    pub fn offset_after(&self, index: u64) -> io::Result<Option<u64>> {
        let (segment, cuts) = {
            let inner = self.inner.lock();
            let shape = &inner.shape;
            let behind = index.saturating_add(1);
            if behind == shape.end_index() {
                return Ok(Some(shape.next_offset));
            }
            if behind < shape.first_index() || behind > shape.end_index() {
                return Ok(None);
            }
            if let Some(control) = shape.controls.get(&behind) {
                return Ok(Some(control.offset));
            }
            if let Some(StoredEntry::Data { batch, .. }) = inner.tail.get(behind) {
                return Ok(Some(batch.base_offset()));
            }
            (shape.segment_by_index(behind), shape.cuts)
        };
        let Some(segment) = segment else {
            return Ok(None);
        };
        let located = self.locate_index(&segment, index + 1);
        let located = self.judged(&segment, cuts, located)?;
        Ok(Some(located.header.base_offset))
    }

    /// The offset of the first batch stamped at or after `stamp_us`, or the log's end. Blocks if it has to be looked up.
    pub fn offset_for_time(&self, stamp_us: u64) -> Result<u64, ReadError> {
        let (start, segments, cuts) = {
            let inner = self.inner.lock();
            if let Some(found) = inner.tail.offset_for_time(stamp_us) {
                return Ok(found.unwrap_or(inner.shape.next_offset));
            }
            (
                inner.shape.start_offset,
                inner.shape.segments.iter().cloned().collect::<Vec<_>>(),
                inner.shape.cuts,
            )
        };
        let (mut low, mut high) = (0, segments.len());
        while low < high {
            let middle = low.midpoint(high);
            let before = segments
                .get(middle)
                .map(|segment| self.judged(segment, cuts, self.first_stamp(segment)))
                .transpose()?;
            if before.is_some_and(|first| first < stamp_us) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let Some(segment) = low.checked_sub(1).and_then(|n| segments.get(n)) else {
            return Ok(start);
        };
        let found = self.search_stamp(segment, stamp_us);
        Ok(self.judged(segment, cuts, found)?.max(start))
    }

    fn first_stamp(&self, segment: &Arc<Segment>) -> Result<u64, ReadError> {
        if let Some(stamp) = segment.with(|body| body.first_stamp) {
            return Ok(stamp);
        }
        let file = self.readable(segment)?;
        let header = header_at(
            segment,
            &mut Window::new(file.as_ref()),
            0,
            segment.name.base_offset,
        )?;
        segment.with(|body| body.first_stamp = Some(header.base_timestamp));
        Ok(header.base_timestamp)
    }

    fn search_stamp(&self, segment: &Arc<Segment>, stamp_us: u64) -> Result<u64, ReadError> {
        let end = self.inner.lock().disk_end(segment);
        let spot = self.spot_before(segment, Seek::Stamp(stamp_us))?;
        let file = self.readable(segment)?;
        let mut window = Window::new(file.as_ref());
        let (mut pos, mut offset) = (spot.pos, spot.offset);
        while offset < end {
            let header = header_at(segment, &mut window, pos, offset)?;
            if header.base_timestamp >= stamp_us {
                return Ok(offset);
            }
            pos += header.batch_length;
            offset = header.next_offset().unwrap_or(u64::MAX);
        }
        Ok(end)
    }

    /// Hashes the bytes of all kept segments up to an offset, which has to be synced. Blocks; reads everything.
    pub fn digest(&self, upto_offset: u64) -> Result<GroupDigest, ReadError> {
        let (segments, base_offset, cuts) = {
            let inner = self.inner.lock();
            if upto_offset > inner.synced_offset {
                let what = format!("offset {upto_offset} is not synced yet");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
            }
            let wanted = inner
                .shape
                .segments
                .iter()
                .filter(|segment| segment.name.base_offset < upto_offset);
            let segments: Vec<_> = wanted
                .map(|s| (Arc::clone(s), inner.shape.end_of(s)))
                .collect();
            let base = segments
                .first()
                .map_or(upto_offset, |(segment, _)| segment.name.base_offset);
            (segments, base, inner.shape.cuts)
        };
        let mut whole = Xxh3::new();
        let mut digests = Vec::with_capacity(segments.len());
        for (segment, end) in segments {
            let end_offset = end.min(upto_offset);
            let len = if end_offset == end && segment.with(|body| body.sealed) {
                segment.len()
            } else {
                let last = self.locate_offset(&segment, end_offset - 1);
                let last = self.judged(&segment, cuts, last)?;
                last.pos + last.header.batch_length
            };
            let mut own = Xxh3::new();
            let hashed = self.hash(&segment, len, &mut [&mut whole, &mut own]);
            self.judged(&segment, cuts, hashed.map_err(ReadError::Io))?;
            let base_offset = segment.name.base_offset;
            digests.push(SegmentDigest {
                base_offset,
                end_offset,
                xxh3: own.digest(),
            });
        }
        Ok(GroupDigest {
            base_offset,
            end_offset: upto_offset,
            xxh3: whole.digest(),
            segments: digests,
        })
    }

    fn hash(&self, segment: &Arc<Segment>, len: u64, into: &mut [&mut Xxh3]) -> io::Result<()> {
        let file = self.readable(segment)?;
        let mut buf = vec![0; 256 << 10];
        let mut pos = 0;
        while pos < len {
            let want = buf
                .len()
                .min(usize::try_from(len - pos).unwrap_or(buf.len()));
            crate::disk::read_exact_at(file.as_ref(), &mut buf[..want], pos)?;
            into.iter_mut().for_each(|hash| hash.update(&buf[..want]));
            pos += want as u64;
        }
        Ok(())
    }

    pub(super) fn spot_before(&self, segment: &Arc<Segment>, at: Seek) -> Result<Spot, ReadError> {
        let start = Spot {
            index: segment.name.first_index,
            offset: segment.name.base_offset,
            pos: 0,
            stamp: 0,
        };
        // Another reader may drop the index again before it was looked at.
        for _ in 0..16 {
            match segment.spot_before(at) {
                Ok(spot) => return Ok(spot.unwrap_or(start)),
                Err(_) => self.load(segment)?,
            }
        }
        Ok(start)
    }

    pub(super) fn locate_index(
        &self,
        segment: &Arc<Segment>,
        index: u64,
    ) -> Result<Located, ReadError> {
        let spot = self.spot_before(segment, Seek::Index(index))?;
        let mut skip = self.inner.lock().batches_between(spot, index);
        let mut enough = |_: &BatchHeader| {
            let here = skip == 0;
            skip = skip.saturating_sub(1);
            here
        };
        self.step_to(segment, spot, &mut enough)
    }

    /// The batch that holds an offset.
    pub(super) fn locate_offset(
        &self,
        segment: &Arc<Segment>,
        offset: u64,
    ) -> Result<Located, ReadError> {
        let mut spot = self.spot_before(segment, Seek::Offset(offset))?;
        if let Some((from, pos)) = self.damage.resume_before(segment.name.base_offset, offset)
            && pos > spot.pos
        {
            (spot.offset, spot.pos) = (from, pos);
        }
        self.step_to(segment, spot, &mut |header| {
            header.next_offset().is_none_or(|next| next > offset)
        })
    }

    /// Position behind the batch that ends at `offset`, and its stamp.
    pub(super) fn end_of_batch(
        &self,
        segment: &Arc<Segment>,
        offset: u64,
    ) -> Result<(u64, u64), ReadError> {
        let last = self.locate_offset(segment, offset.saturating_sub(1))?;
        Ok((
            last.pos + last.header.batch_length,
            last.header.base_timestamp,
        ))
    }

    fn step_to(
        &self,
        segment: &Arc<Segment>,
        spot: Spot,
        enough: &mut dyn FnMut(&BatchHeader) -> bool,
    ) -> Result<Located, ReadError> {
        let file = self.readable(segment)?;
        let mut window = Window::new(file.as_ref());
        let (mut pos, mut offset) = (spot.pos, spot.offset);
        loop {
            let header = header_at(segment, &mut window, pos, offset)?;
            if enough(&header) {
                return Ok(Located { pos, header });
            }
            pos += header.batch_length;
            offset = header.next_offset().unwrap_or(u64::MAX);
        }
    }
}

/// Something in a segment that is not what was written.
pub(super) fn corrupt(
    segment: &Segment,
    from_byte: u64,
    from_offset: u64,
    found: String,
) -> ReadError {
    let path = segment.path();
    ReadError::Corrupt(BadRange {
        path,
        segment_base: segment.name.base_offset,
        from_byte,
        to_byte: None,
        from_offset,
        to_offset: from_offset.saturating_add(1),
        kind: DamageKind::Bytes,
        found,
    })
}

/// Bytes read ahead when headers are walked.
const HEADERS_AHEAD: usize = 16 << 10;

pub(super) fn header_at(
    segment: &Segment,
    window: &mut Window<'_>,
    pos: u64,
    offset: u64,
) -> Result<BatchHeader, ReadError> {
    let bytes = window.get(pos, HEADER_LEN, HEADERS_AHEAD)?;
    let header = BatchHeader::decode_checked(bytes)
        .map_err(|e| corrupt(segment, pos, offset, e.to_string()))?;
    header
        .verify_chain(offset, 0)
        .map_err(|e| corrupt(segment, pos, offset, e.to_string()))?;
    Ok(header)
}
