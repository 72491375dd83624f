//! One segment as it is: runs of good batches, what is bad, and the indexes of what is good.

use std::collections::BTreeMap;
use std::io;

use xxhash_rust::xxh3::Xxh3;

use super::super::segment::{Damage, Piece, SegmentReader};
use crate::disk::DiskFile;
use crate::journal::SegmentName;
use crate::journal::digest::SealedDigest;
use crate::journal::places::index_of;
use crate::journal::walk::{Check, walk_segment};
use crate::statelog::Control;

/// What is known of a segment before it is read.
pub(crate) struct Order<'a> {
    pub group: u64,
    pub name: SegmentName,
    /// Offset at which the next segment begins; `None` for the last one.
    pub end_offset: Option<u64>,
    pub controls: &'a BTreeMap<u64, Control>,
}

/// What a segment holds.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub file_len: u64,
    pub batches: u64,
    /// End of the last good batch.
    pub end_byte: u64,
    /// Offset after the last good batch.
    pub next_offset: u64,
    /// Index of the last good batch, if no damage is before it.
    pub last_index: Option<u64>,
    /// Zeros at the end of the file.
    pub zeros: u64,
    pub damage: Vec<Damage>,
    /// Of a whole segment that was read in full.
    pub digest: Option<SealedDigest>,
}

/// Reads a segment in full. `progress` is told the bytes read.
pub(crate) fn look(
    file: &dyn DiskFile,
    order: &Order<'_>,
    progress: &dyn Fn(u64),
) -> io::Result<Look> {
    let mut reader = SegmentReader::new(file, Some(order.name), Some(order.group))?;
    let mut look = Look {
        file_len: reader.file_len(),
        next_offset: order.name.base_offset,
        ..Look::default()
    };
    let mut index = Some(order.name.first_index);
    let mut hash = Xxh3::new();
    let mut stamps = None;
    let mut said = 0;
    while let Some(piece) = reader.next_piece()? {
        match piece {
            Piece::Batch { pos, batch } => {
                let wrong = place(order, index, batch.base_offset(), batch.next_offset());
                if let Err(found) = wrong {
                    let before = look.damage.last_mut();
                    match before.filter(|damage| damage.to_byte == pos) {
                        // Nothing good lies between: one piece of damage.
                        Some(damage) => (damage.to_byte, damage.to_offset) = (look.file_len, None),
                        None => look.damage.push(Damage {
                            from_byte: pos,
                            to_byte: look.file_len,
                            from_offset: Some(batch.base_offset()),
                            to_offset: None,
                            stamp_before: stamps.map_or(0, |(_, last)| last),
                            found,
                            header: Some(*batch.header()),
                        }),
                    }
                    break;
                }
                look.last_index = wrong.unwrap_or(None);
                index = look.last_index.map(|index| index + 1);
                let (header, blob) = batch.parts();
                hash.update(header);
                hash.update(blob);
                let stamp = batch.base_timestamp();
                stamps = Some((stamps.map_or(stamp, |(first, _)| first), stamp));
                look.batches += 1;
                look.end_byte = pos + batch.len();
                look.next_offset = batch.next_offset();
            }
            Piece::Damage(damage) => {
                (index, look.last_index) = (None, None);
                look.damage.push(damage);
            }
            Piece::Zeros { from, to } => look.zeros = to - from,
        }
        progress(reader.position() - said);
        said = reader.position();
    }
    if let (Some((first_stamp_us, last_stamp_us)), true) = (stamps, look.damage.is_empty()) {
        look.digest = Some(SealedDigest {
            group: order.group,
            base_offset: order.name.base_offset,
            bytes: look.end_byte,
            end_offset: look.next_offset,
            first_stamp_us,
            last_stamp_us,
            xxh3: hash.digest(),
        });
    }
    Ok(look)
}

/// Walks a segment by headers, up to the first thing that is wrong.
pub(crate) fn glance(file: &dyn DiskFile, order: &Order<'_>) -> io::Result<Look> {
    let first = (order.name.first_index, order.name.base_offset);
    let controls = order.controls;
    let places = |from, offset| index_of(controls, from, offset);
    let walked = walk_segment(file, order.group, first, Check::Headers, &places)?;
    let file_len = file.len()?;
    let damage = walked.bad.map(|bad| Damage {
        from_byte: bad.pos,
        to_byte: file_len,
        from_offset: Some(walked.next_offset),
        to_offset: None,
        stamp_before: walked.last.map_or(0, |spot| spot.stamp),
        found: bad.found,
        header: None,
    });
    Ok(Look {
        file_len,
        batches: walked
            .last
            .map_or(0, |spot| spot.index + 1 - order.name.first_index),
        end_byte: walked.end,
        next_offset: walked.next_offset,
        last_index: walked.last.map(|spot| spot.index),
        zeros: match damage {
            None => file_len - walked.end,
            Some(_) => 0,
        },
        damage: damage.into_iter().collect(),
        digest: None,
    })
}

/// The index of a good batch, if it is known, or why the batch can't stand there.
fn place(
    order: &Order<'_>,
    from: Option<u64>,
    offset: u64,
    next_offset: u64,
) -> Result<Option<u64>, String> {
    if let Some(end) = order.end_offset.filter(|end| next_offset > *end) {
        return Err(format!(
            "a batch up to offset {next_offset}, the next segment begins at {end}"
        ));
    }
    from.map(|from| index_of(order.controls, from, offset))
        .transpose()
}
