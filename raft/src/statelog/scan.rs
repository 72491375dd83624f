//! Reading the two copies of a state log back: which records are good, what is torn, what is damaged.
//!
//! Both copies were written with the same bytes at the same positions, so they are read together, frame by frame:
//!
//! | at a position | means | what is done |
//! |---|---|---|
//! | the frame is good in both | | taken |
//! | good in one, bad or absent in the other | rot, or a crash between the two writes | taken; the other copy is mended |
//! | bad in both, and a good frame behind it in either copy says that the log had been synced beyond this position | damage to what was synced | refused |
//! | good in neither, in one of them written by a newer version | | refused |
//! | bad in both, nothing behind it says so | a torn tail | cut, the bytes are kept aside |
//!
//! Whether something had been synced is said by the `Flush` records: each carries the length that was synced before it.

use bytes::Bytes;

use super::record::{self, FRAME_OVERHEAD, MAGIC, Record, RecordError};

/// What was found.
#[derive(Debug)]
pub struct Scan {
    /// Rewriting that the file comes from.
    pub generation: u64,
    /// The good records, in order, without the head.
    pub records: Vec<Record>,
    /// The good bytes; what a copy holds beyond or in place of them is bad.
    pub good: Bytes,
}

/// Why the copies can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// Damage to synced records in both copies.
    #[error("both copies are damaged at byte {pos}, synced up to byte {synced_len}")]
    Damaged { pos: u64, synced_len: u64 },
    /// Good checksums around a record that is not understood: a newer version wrote it.
    #[error("the record at byte {pos} is not understood")]
    NotUnderstood { pos: u64, source: RecordError },
    /// The front of the file is bad.
    #[error("no copy has a good front")]
    NoHead,
}

/// The generation that a copy's front names, if it is good.
pub fn generation(copy: &Bytes) -> Option<u64> {
    match frame_at(copy, 0)?.1 {
        Ok(Record::Head { generation }) => Some(generation),
        _ => None,
    }
}

/// Reads copies of the same generation together. A missing copy is an empty one.
pub fn scan(copies: &[Bytes; 2]) -> Result<Scan, ScanError> {
    let mut found = Scan {
        generation: 0,
        records: Vec::new(),
        good: Bytes::new(),
    };
    let mut pos = 0;
    let mut good = Vec::new();
    while let Some((copy, len, record)) = best_frame(copies, pos) {
        match record {
            Ok(Record::Head { generation }) => found.generation = generation,
            Ok(record) => found.records.push(record),
            Err(source) => {
                return Err(ScanError::NotUnderstood {
                    pos: pos as u64,
                    source,
                });
            }
        }
        good.extend_from_slice(&copy[pos..pos + len]);
        pos += len;
    }
    if pos == 0 {
        return Err(ScanError::NoHead);
    }
    let synced_len = copies
        .iter()
        .map(|copy| synced_beyond(copy, pos))
        .max()
        .unwrap_or(0);
    if synced_len > pos as u64 {
        return Err(ScanError::Damaged {
            pos: pos as u64,
            synced_len,
        });
    }
    found.good = good.into();
    Ok(found)
}

/// The good frame of either copy at a position; else one that only a newer version understands.
fn best_frame(
    copies: &[Bytes; 2],
    pos: usize,
) -> Option<(&Bytes, usize, Result<Record, RecordError>)> {
    let frames = copies
        .iter()
        .filter_map(|copy| frame_at(copy, pos).map(|(len, record)| (copy, len, record)));
    frames.min_by_key(|(_, _, record)| record.is_err())
}

/// Length and record of the frame at `pos`, if its checksum is good.
fn frame_at(copy: &Bytes, pos: usize) -> Option<(usize, Result<Record, RecordError>)> {
    let front = copy.get(pos..pos + FRAME_OVERHEAD)?;
    let len = record::payload_len(front)?;
    let start = pos + FRAME_OVERHEAD;
    if len > copy.len() - start {
        return None;
    }
    let payload = copy.slice(start..start + len);
    record::is_intact(front, &payload).then(|| (FRAME_OVERHEAD + len, record::decode(payload)))
}

/// The greatest synced length that any good frame behind a bad spot tells of.
fn synced_beyond(copy: &Bytes, bad: usize) -> u64 {
    let mut synced = 0;
    let mut pos = bad;
    while pos + FRAME_OVERHEAD <= copy.len() {
        match frame_at(copy, pos) {
            Some((len, record)) => {
                if let Ok(Record::Flush { synced_len }) = record {
                    synced = synced.max(synced_len);
                }
                pos += len;
            }
            None => pos = next_magic(copy, pos + 1),
        }
    }
    synced
}

/// The next position at which a frame may begin, or the end.
fn next_magic(copy: &Bytes, from: usize) -> usize {
    let rest = copy.get(from..).unwrap_or_default();
    let found = rest.windows(MAGIC.len()).position(|window| window == MAGIC);
    found.map_or(copy.len(), |skip| from + skip)
}
