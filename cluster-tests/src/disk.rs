//! The segment files themselves: walked with the public batch codec, compared between data directories
//! and with what the nodes give out.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use imprint_proto::batch::{BatchHeader, HEADER_LEN, StampedBatch};
use sha2::{Digest, Sha256};

/// One segment file and the batches in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentFile {
    pub name: String,
    pub path: PathBuf,
    /// Bytes of whole batches; zeros written ahead are left out.
    pub batches: Vec<u8>,
    /// SHA-256 of the file as it is.
    pub sha256: String,
    /// False when zeros follow the last batch, as only an active segment has them.
    pub exact: bool,
}

impl SegmentFile {
    /// Where the batches in it end.
    pub fn end(&self) -> u64 {
        self.batches.len() as u64
    }

    /// First byte of each batch.
    pub fn starts(&self) -> Vec<u64> {
        let mut starts = Vec::new();
        let mut rest = &self.batches[..];
        while let Some(head) = rest.get(..HEADER_LEN) {
            starts.push((self.batches.len() - rest.len()) as u64);
            let header = BatchHeader::decode(head).expect("checked when it was read");
            rest = &rest[usize::try_from(header.batch_length).expect("checked")..];
        }
        starts
    }
}

/// The segment that a group of a data directory is appended to.
pub fn active(data_dir: &Path, group: u64) -> SegmentFile {
    let mut segments = segments(data_dir, group).unwrap_or_else(|problem| panic!("{problem}"));
    segments.pop().expect("a segment")
}

/// The segments of a group in a data directory, in order; the text says what is wrong with one.
pub fn segments(data_dir: &Path, group: u64) -> Result<Vec<SegmentFile>, String> {
    let dir = data_dir.join("groups").join(format!("{group:020}"));
    let entries = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "seg"))
        .collect();
    paths.sort();
    // The first one may begin anywhere: what was before it may be trimmed.
    let mut next = None;
    let mut read = |path: PathBuf| {
        let base = next.or_else(|| base_offset(&path));
        let base = base.ok_or(format!("{}: no segment's name", path.display()))?;
        let (segment, end) = read(path, group, base)?;
        next = Some(end);
        Ok(segment)
    };
    paths.into_iter().map(&mut read).collect()
}

/// The first offset, as a segment's name has it.
fn base_offset(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.split('-').next()?.parse().ok()
}

/// The segment that has to begin at offset `next`, and the offset behind it.
fn read(path: PathBuf, group: u64, next: u64) -> Result<(SegmentFile, u64), String> {
    let raw = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (len, end) = walk(&raw, group, next).map_err(|e| format!("{}: {e}", path.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(&format!("{next:020}-")) {
        return Err(format!("{}: offset {next} is due", path.display()));
    }
    let segment = SegmentFile {
        name: name.into_owned(),
        sha256: format!("{:x}", Sha256::digest(&raw)),
        exact: len == raw.len(),
        batches: raw[..len].to_vec(),
        path,
    };
    Ok((segment, end))
}

/// Checks batch after batch, the first at offset `next`; gives the length of what they take and the
/// offset behind them. Behind it there may be zeros only.
fn walk(raw: &[u8], group: u64, mut next: u64) -> Result<(usize, u64), String> {
    let mut at = 0;
    while let Some(head) = raw.get(at..at + HEADER_LEN) {
        if head.iter().all(|byte| *byte == 0) {
            break;
        }
        let header = BatchHeader::decode(head).map_err(|e| format!("at {at}: {e}"))?;
        let len = usize::try_from(header.batch_length).map_err(|e| e.to_string())?;
        let bytes = raw.get(at..at + len).ok_or(format!("at {at}: cut short"))?;
        let batch = StampedBatch::verify(Bytes::copy_from_slice(bytes), group)
            .map_err(|e| format!("at {at}: {e}"))?;
        if batch.base_offset() != next {
            let found = batch.base_offset();
            return Err(format!("at {at}: offset {found} where {next} is due"));
        }
        next = batch.next_offset();
        at += len;
    }
    match raw[at..].iter().all(|byte| *byte == 0) {
        true => Ok((at, next)),
        false => Err(format!(
            "something other than zeros stands behind byte {at}"
        )),
    }
}

/// Compares the segments of several data directories: the same names, the same batches, and for all
/// but the last the same file. Gives the first one's.
pub fn compare(data_dirs: &[PathBuf], group: u64) -> Result<Vec<SegmentFile>, String> {
    let mut all = data_dirs
        .iter()
        .map(|dir| segments(dir, group))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter();
    let first = all.next().ok_or("no data directories")?;
    for (other, dir) in all.zip(&data_dirs[1..]) {
        if first.len() != other.len() {
            return Err(format!(
                "{} has {} segments, {} has {}",
                data_dirs[0].display(),
                first.len(),
                dir.display(),
                other.len()
            ));
        }
        for (n, (a, b)) in first.iter().zip(&other).enumerate() {
            let sealed = n + 1 < first.len();
            let same = a.name == b.name
                && a.batches == b.batches
                && (!sealed || (a.sha256 == b.sha256 && a.exact));
            if !same {
                return Err(format!(
                    "{} and {} differ",
                    a.path.display(),
                    b.path.display()
                ));
            }
        }
    }
    Ok(first)
}

/// Damage that a test does to files must be found here, or the comparison is worth nothing.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::batch_of;
    use imprint_proto::batch::AdmittedBatch;
    use imprint_proto::limits::BatchLimits;
    use tempfile::TempDir;

    const GROUP: u64 = 1024;

    fn batch(offset: u64) -> Vec<u8> {
        let bytes = batch_of(format!("message {offset}").as_bytes()).into_bytes();
        let admitted = AdmittedBatch::admit(bytes, GROUP, &BatchLimits::default()).unwrap();
        admitted
            .stamp(offset, 7 + offset)
            .unwrap()
            .to_contiguous()
            .to_vec()
    }

    fn path(dir: &Path, base: u64) -> PathBuf {
        let name = format!("{base:020}-{:020}-{:020}.seg", base + 1, 1);
        dir.join("groups").join(format!("{GROUP:020}")).join(name)
    }

    /// Offsets 0 to 2 sealed, 3 and 4 active with zeros behind them, on each of two nodes.
    fn two_nodes() -> (TempDir, Vec<PathBuf>) {
        let dir = TempDir::new().unwrap();
        let dirs = vec![dir.path().join("a"), dir.path().join("b")];
        let sealed: Vec<u8> = (0..3).flat_map(batch).collect();
        let mut active: Vec<u8> = (3..5).flat_map(batch).collect();
        for data in &dirs {
            std::fs::create_dir_all(path(data, 0).parent().unwrap()).unwrap();
        }
        // The ids are drawn, so both nodes get the same bytes and not the same calls.
        for data in &dirs {
            std::fs::write(path(data, 0), &sealed).unwrap();
            std::fs::write(path(data, 3), &active).unwrap();
            active.extend([0; 4096]);
        }
        (dir, dirs)
    }

    /// What the comparison says once the second node's file at `base` was changed.
    fn after(base: u64, change: impl FnOnce(&mut Vec<u8>)) -> Result<usize, String> {
        let (_dir, dirs) = two_nodes();
        let path = path(&dirs[1], base);
        let mut raw = std::fs::read(&path).unwrap();
        change(&mut raw);
        std::fs::write(path, raw).unwrap();
        compare(&dirs, GROUP).map(|segments| segments.len())
    }

    #[test]
    fn equal_directories_pass_whatever_zeros_are_written_ahead() {
        assert_eq!(after(3, |_| ()), Ok(2));
    }

    #[test]
    fn each_damage_is_found() {
        let len = batch(0).len();
        let found = [
            ("a flipped bit", after(0, |raw| raw[len + 300] ^= 1)),
            (
                "a missing batch",
                after(0, |raw| drop(raw.drain(len..2 * len))),
            ),
            (
                "a batch twice",
                after(0, |raw| raw.extend_from_within(2 * len..)),
            ),
            ("a lost last batch", after(0, |raw| raw.truncate(2 * len))),
            ("a batch cut short", after(3, |raw| raw.truncate(len + 9))),
            (
                "zeros behind a sealed one",
                after(0, |raw| raw.extend([0; 512])),
            ),
            ("bytes behind the zeros", after(3, |raw| raw.push(1))),
            (
                "another batch at its place",
                after(3, |raw| {
                    raw.splice(..len, batch(3));
                }),
            ),
        ];
        for (what, verdict) in found {
            assert!(verdict.is_err(), "{what} was not found");
        }
    }

    #[test]
    fn a_missing_segment_is_found() {
        for base in [0, 3] {
            let (_dir, dirs) = two_nodes();
            std::fs::remove_file(path(&dirs[1], base)).unwrap();
            assert!(compare(&dirs, GROUP).is_err(), "{base}");
        }
    }
}
