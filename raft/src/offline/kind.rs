//! Which kind of file is this? By its name where the name says so, else by its first bytes.
//!
//! A file under its own name is of that kind however damaged it is: the reader then says what is wrong. A file under a foreign
//! name is only taken for a segment or a state log, whose first bytes can't be mistaken.

use std::ffi::OsStr;
use std::path::Path;

use imprint_proto::batch::{BatchHeader, HEADER_LEN};

use crate::identity;
use crate::journal::SegmentName;
use crate::statelog::record;

/// What a file of a data directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Batches back to back. The name is missing on a copy under another name.
    Segment(Option<SegmentName>),
    /// What recovery cut off a segment, from this byte of it on.
    SegmentTail {
        /// Where it was cut.
        at: u64,
    },
    /// One copy of a state log.
    StateLog,
    /// Who the node is.
    Identity,
    /// Who founded the cluster.
    Formation,
    /// A group's state at a point of its log.
    Snapshot,
    /// What a sealed segment has to be.
    Digest,
    /// Which ranges of a segment are known to be bad.
    DamageMark,
    /// Which tails are suspect after a failed disk.
    Suspect,
    /// Room that is given back when the disk is full: only its length counts.
    Reserve,
    /// The lock of the running process: empty.
    Lock,
}

/// Bytes of a file's front that [`recognise`] wants to see, if the file has them.
pub const FRONT_LEN: usize = HEADER_LEN;

/// The kind of a file, by name and front; `None` for a foreign one.
pub fn recognise(path: &Path, front: &[u8]) -> Option<FileKind> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    by_name(name).or_else(|| by_front(front))
}

/// The kind that a name says.
pub fn by_name(name: &str) -> Option<FileKind> {
    if let Some(segment) = SegmentName::parse(name) {
        return Some(FileKind::Segment(Some(segment)));
    }
    if let Some((_, at)) = name.rsplit_once(".seg-at-") {
        return at.parse().ok().map(|at| FileKind::SegmentTail { at });
    }
    match name {
        "a.log" | "b.log" => Some(FileKind::StateLog),
        identity::FILE_NAME => Some(FileKind::Identity),
        identity::LOCK_NAME => Some(FileKind::Lock),
        "formation" => Some(FileKind::Formation),
        "snapshot" | "snapshot.before" => Some(FileKind::Snapshot),
        "suspect" => Some(FileKind::Suspect),
        "reserve" => Some(FileKind::Reserve),
        _ if segment_beside(name, ".digest") => Some(FileKind::Digest),
        _ if segment_beside(name, ".damaged") => Some(FileKind::DamageMark),
        _ => None,
    }
}

fn segment_beside(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix)
        .and_then(SegmentName::parse)
        .is_some()
}

fn by_front(front: &[u8]) -> Option<FileKind> {
    if front.starts_with(&record::MAGIC) {
        return Some(FileKind::StateLog);
    }
    BatchHeader::decode_checked(front)
        .is_ok()
        .then_some(FileKind::Segment(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: &str = "00000000000000000009-00000000000000000004-00000000000000000002.seg";

    #[test]
    fn names_say_what_a_file_is() {
        let name = SegmentName {
            base_offset: 9,
            first_index: 4,
            term: 2,
        };
        let digest = format!("{SEGMENT}.digest");
        let damaged = format!("{SEGMENT}.damaged");
        let tail = format!("000001-group-00000000000000000007-{SEGMENT}-at-512");
        for (file, kind) in [
            (SEGMENT, Some(FileKind::Segment(Some(name)))),
            (&digest, Some(FileKind::Digest)),
            (&damaged, Some(FileKind::DamageMark)),
            (&tail, Some(FileKind::SegmentTail { at: 512 })),
            ("state-000003-b.log", None),
            ("a.log", Some(FileKind::StateLog)),
            ("identity", Some(FileKind::Identity)),
            ("notes.txt", None),
            ("x.digest", None),
        ] {
            assert_eq!(by_name(file), kind, "{file}");
        }
    }

    #[test]
    fn a_copy_under_another_name_is_known_by_its_front() {
        let path = Path::new("/tmp/copy");
        assert_eq!(recognise(path, b"IMsl\0\0"), Some(FileKind::StateLog));
        let header = BatchHeader {
            batch_length: 304,
            message_count: 1,
            ..BatchHeader::default()
        };
        assert_eq!(
            recognise(path, &header.encode()),
            Some(FileKind::Segment(None))
        );
        assert_eq!(recognise(path, &[0; HEADER_LEN]), None);
        assert_eq!(recognise(path, b"hello"), None);
    }
}
