//! What a segment held when it was sealed, kept beside it as `NAME.seg.digest`.
//!
//! Written once every batch of the sealed segment was checked, so later checks can tell an older or another log's content,
//! whose own checksums are all good, from what was sealed here. Nothing depends on it being there: one that is missing,
//! can't be read or names another segment is made again by the next check. It is removed before its segment changes.

use std::io;
use std::path::Path;

use imprint_proto::envelope;

use super::damage::Companion;
use super::lookup::SegmentDigest;
use crate::disk::{self, Disk};

imprint_proto::envelope! {
    /// A digest file. The first two fields tell another segment's file that got this name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct SealedDigest: version 1, compat 0 {
        group: u64,
        base_offset: u64,
        bytes: u64,
        end_offset: u64,
        first_stamp_us: u64,
        last_stamp_us: u64,
        xxh3: u64,
    }
}

impl SealedDigest {
    /// The digest of a segment that ends at `end_offset`; `None` if there is none, it can't be read, or it is not of this
    /// segment.
    pub fn read(disk: &dyn Disk, segment: &Path, of: (u64, u64, u64)) -> io::Result<Option<Self>> {
        let digest = Self::read_any(disk, segment)?;
        Ok(digest.filter(|d| (d.group, d.base_offset, d.end_offset) == of))
    }

    /// Whatever the digest file says.
    pub fn read_any(disk: &dyn Disk, segment: &Path) -> io::Result<Option<Self>> {
        let path = Companion::Digest.path(segment);
        if !disk.exists(&path)? {
            return Ok(None);
        }
        let decoded = envelope::decode_checked(disk::read_file(disk, &path)?.into());
        Ok(decoded
            .map_err(|error| {
                tracing::info!(path = %path.display(), %error, "a digest can't be read: it is made again");
            })
            .ok())
    }

    /// Writes the digest beside its segment.
    pub fn write(&self, disk: &dyn Disk, segment: &Path) -> io::Result<()> {
        let path = Companion::Digest.path(segment);
        disk::replace_file(disk, &path, &[&envelope::encode_checked(self)])
    }

    /// As others name it.
    pub fn as_segment_digest(&self) -> SegmentDigest {
        SegmentDigest {
            base_offset: self.base_offset,
            end_offset: self.end_offset,
            xxh3: self.xxh3,
        }
    }
}
