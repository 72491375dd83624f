//! Finding the next batch behind bytes that are none.
//!
//! A batch's header ends with 204 zero bytes behind a count that is not zero. So a header can only stand where a run of at
//! least that many zeros begins, at one of four places before it, and a scan for such runs finds every header without trying
//! each byte. What is found counts only if the whole batch verifies and could follow on.

use std::io;

use bytes::Bytes;
use imprint_proto::batch::{BatchHeader, HEADER_LEN, StampedBatch};

use crate::disk::DiskFile;
use crate::journal::walk::Window;

/// Zeros at the end of a header.
const ZEROS: u64 = 204;
/// The message count may have up to three zero bytes of its own at its end.
const COUNT_ZEROS_MAX: u64 = 3;
/// From a header's first byte to the zeros.
const BEFORE_ZEROS: u64 = HEADER_LEN as u64 - ZEROS;
/// Bytes scanned at a time.
const SCAN_BYTES: usize = 256 << 10;

/// What a batch has to satisfy to be the next one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Follows {
    /// Its partition, if known.
    pub group: Option<u64>,
    /// It begins here or later, if known.
    pub offset: Option<u64>,
    /// Its stamp is this or later.
    pub stamp: u64,
}

impl Follows {
    /// Whether a header may be that of the next batch.
    fn allows(&self, header: &BatchHeader) -> bool {
        let group = self.group.is_none_or(|group| group == header.partition_id);
        let offset = self
            .offset
            .is_none_or(|offset| header.base_offset >= offset);
        group && offset && header.base_timestamp >= self.stamp
    }
}

/// The whole batch at `pos`, if there is one that verifies and follows.
pub(super) fn batch_at(
    window: &mut Window<'_>,
    pos: u64,
    follows: &Follows,
) -> io::Result<Option<StampedBatch>> {
    let front = window.get(pos, HEADER_LEN, HEADER_LEN)?;
    let Some(header) = BatchHeader::decode_checked(front)
        .ok()
        .filter(|header| follows.allows(header))
    else {
        return Ok(None);
    };
    let len = usize::try_from(header.batch_length).map_err(io::Error::other)?;
    let bytes = window.get(pos, len, len)?;
    if bytes.len() < len {
        return Ok(None);
    }
    Ok(StampedBatch::verify_unbound(Bytes::copy_from_slice(bytes)).ok())
}

/// Position of the next batch at or behind `from` that verifies and follows.
pub(super) fn next_batch(
    file: &dyn DiskFile,
    from: u64,
    follows: &Follows,
) -> io::Result<Option<u64>> {
    let mut tried = Window::new(file);
    if batch_at(&mut tried, from, follows)?.is_some() {
        return Ok(Some(from));
    }
    let mut scan = Window::new(file);
    let (mut at, mut run) = (from, 0u64);
    loop {
        let bytes = scan.get(at, SCAN_BYTES, SCAN_BYTES)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let len = bytes.len() as u64;
        for (n, byte) in (0u64..).zip(bytes) {
            run = if *byte == 0 { run + 1 } else { 0 };
            if run != ZEROS {
                continue;
            }
            let zeros_from = at + n + 1 - ZEROS;
            if let Some(found) = candidate(&mut tried, zeros_from, from, follows)? {
                return Ok(Some(found));
            }
        }
        at += len;
    }
}

/// Tries the places where a header may begin whose zeros begin at `zeros_from`.
fn candidate(
    window: &mut Window<'_>,
    zeros_from: u64,
    from: u64,
    follows: &Follows,
) -> io::Result<Option<u64>> {
    for own in (0..=COUNT_ZEROS_MAX).rev() {
        let Some(pos) = (zeros_from + own).checked_sub(BEFORE_ZEROS) else {
            continue;
        };
        if pos > from && batch_at(window, pos, follows)?.is_some() {
            return Ok(Some(pos));
        }
    }
    Ok(None)
}
