//! The small files: checked envelopes that are read whole.

use std::io;
use std::path::Path;

use bytes::Bytes;
use imprint_proto::envelope::{self, EnvelopeError};

use super::fields::{Field, Fields, hex};
use crate::consensus::codec::LogIdWire;
use crate::consensus::snapshot::{SnapshotBody, SnapshotRecord};
use crate::consensus::suspect::SuspectRecord;
use crate::disk::{Disk, OpenMode, read_exact_at};
use crate::identity::Identity;
use crate::journal::damage::DamageRecord;
use crate::journal::digest::SealedDigest;

/// The longest file that is read whole. No small file comes near.
const MAX_BYTES: u64 = 1 << 30;

/// Reads a small file, or says that it is too long to be one.
pub fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Bytes> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    if len > MAX_BYTES {
        let what = format!("{len} bytes, a file of this kind has at most {MAX_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    read_exact_at(file.as_ref(), &mut bytes, 0)?;
    Ok(bytes.into())
}

/// What an identity file says.
pub fn identity(bytes: Bytes) -> Result<Fields, EnvelopeError> {
    let Identity {
        cluster_id,
        node_id,
        storage_id,
        incarnation,
    } = envelope::decode_checked(bytes)?;
    Ok(vec![
        ("node_id", node_id.0.into()),
        ("cluster_id", cluster_id.map(|id| hex(&id)).into()),
        ("storage_id", hex(&storage_id.0).into()),
        ("incarnation", incarnation.into()),
    ])
}

/// What a snapshot file says. The state itself is its machine's and is only measured.
pub fn snapshot(bytes: Bytes) -> Result<Fields, EnvelopeError> {
    let record: SnapshotRecord = envelope::decode_checked(bytes)?;
    let at = |id: Option<LogIdWire>| -> Field {
        id.map(|id| format!("{}.{}", id.term, id.index)).into()
    };
    let body: SnapshotBody = envelope::decode(record.state)?;
    Ok(vec![
        ("last", at(record.last)),
        ("next_offset", body.next_offset.into()),
        ("last_stamp_us", body.last_stamp_us.into()),
        ("settings_at", at(body.settings_at)),
        ("membership_at", at(record.membership_at)),
        ("membership_bytes", (record.membership.len() as u64).into()),
        ("state_bytes", (body.machine.len() as u64).into()),
    ])
}

/// What a digest file says.
pub fn digest(bytes: Bytes) -> Result<Fields, EnvelopeError> {
    let SealedDigest {
        group,
        base_offset,
        bytes,
        end_offset,
        first_stamp_us,
        last_stamp_us,
        xxh3,
    } = envelope::decode_checked(bytes)?;
    Ok(vec![
        ("group", group.into()),
        ("base_offset", base_offset.into()),
        ("end_offset", end_offset.into()),
        ("bytes", bytes.into()),
        ("first_stamp_us", first_stamp_us.into()),
        ("last_stamp_us", last_stamp_us.into()),
        ("xxh3", format!("{xxh3:016x}").into()),
    ])
}

/// What a mark of damage says.
pub fn damage_mark(bytes: Bytes) -> Result<Fields, EnvelopeError> {
    let DamageRecord { group, ranges } = envelope::decode_checked(bytes)?;
    let ranges = ranges.into_iter().map(|range| -> Fields {
        vec![
            ("from_byte", range.from_byte.into()),
            ("to_byte", range.to_byte.into()),
            ("from_offset", range.from_offset.into()),
            ("to_offset", range.to_offset.into()),
            ("kind", range.kind().to_string().into()),
            ("found", range.found.into()),
        ]
    });
    Ok(vec![
        ("group", group.into()),
        ("ranges", Field::Many(ranges.collect())),
    ])
}

/// What the marker of a failed disk says.
pub fn suspect(bytes: Bytes) -> Result<Fields, EnvelopeError> {
    let SuspectRecord { failed, groups } = envelope::decode_checked(bytes)?;
    let groups = groups.into_iter().map(|tail| -> Fields {
        vec![
            ("group", tail.group.into()),
            ("end_offset", tail.end_offset.into()),
            (
                "end",
                format!("{}.{}", tail.end_term, tail.end_index).into(),
            ),
        ]
    });
    Ok(vec![
        ("failed", failed.into()),
        ("groups", Field::Many(groups.collect())),
    ])
}
