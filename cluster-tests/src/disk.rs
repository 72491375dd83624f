//! The segment files themselves: walked with the public batch codec, compared between data directories.

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

/// The segments of a group in a data directory, in order; the text says what is wrong with one.
pub fn segments(data_dir: &Path, group: u64) -> Result<Vec<SegmentFile>, String> {
    let dir = data_dir.join("groups").join(format!("{group:020}"));
    let entries = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "seg"))
        .collect();
    paths.sort();
    paths.into_iter().map(|path| read(path, group)).collect()
}

fn read(path: PathBuf, group: u64) -> Result<SegmentFile, String> {
    let raw = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let len = walk(&raw, group).map_err(|e| format!("{}: {e}", path.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(SegmentFile {
        name: name.into_owned(),
        sha256: format!("{:x}", Sha256::digest(&raw)),
        exact: len == raw.len(),
        batches: raw[..len].to_vec(),
        path,
    })
}

/// Checks batch after batch; gives the length of what they take. Behind it there may be zeros only.
fn walk(raw: &[u8], group: u64) -> Result<usize, String> {
    let mut at = 0;
    while let Some(head) = raw.get(at..at + HEADER_LEN) {
        if head.iter().all(|byte| *byte == 0) {
            break;
        }
        let header = BatchHeader::decode(head).map_err(|e| format!("at {at}: {e}"))?;
        let len = usize::try_from(header.batch_length).map_err(|e| e.to_string())?;
        let bytes = raw.get(at..at + len).ok_or(format!("at {at}: cut short"))?;
        StampedBatch::verify(Bytes::copy_from_slice(bytes), group)
            .map_err(|e| format!("at {at}: {e}"))?;
        at += len;
    }
    match raw[at..].iter().all(|byte| *byte == 0) {
        true => Ok(at),
        false => Err(format!(
            "something other than zeros stands behind byte {at}"
        )),
    }
}

/// Compares the segments of several data directories: the same names, the same batches, and for all
/// but the last the same file.
pub fn compare(data_dirs: &[PathBuf], group: u64) -> Result<usize, String> {
    let all = data_dirs
        .iter()
        .map(|dir| segments(dir, group))
        .collect::<Result<Vec<_>, _>>()?;
    let first = &all[0];
    for (other, dir) in all.iter().zip(data_dirs).skip(1) {
        if first.len() != other.len() {
            return Err(format!(
                "{} has {} segments, {} has {}",
                data_dirs[0].display(),
                first.len(),
                dir.display(),
                other.len()
            ));
        }
        for (n, (a, b)) in first.iter().zip(other).enumerate() {
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
    Ok(first.len())
}
