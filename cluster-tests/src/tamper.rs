//! What a bad disk, a careless hand or a crash at the wrong moment does to the files of a stopped node.
//!
//! Every function changes real bytes and panics if there is nothing to change: a fault that was not
//! injected would prove nothing.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What may happen to a small file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// Nothing is left in it.
    Empty,
    /// Its first byte is left.
    OneByte,
    /// As long as it was, with other bytes.
    Random,
    /// It is gone.
    Absent,
}

impl Harm {
    /// Each of them.
    pub const ALL: [Harm; 4] = [Harm::Empty, Harm::OneByte, Harm::Random, Harm::Absent];

    /// Does it to a file.
    pub fn strike(self, path: &Path) {
        let old = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let done = match self {
            Harm::Empty => fs::write(path, []),
            Harm::OneByte => fs::write(path, &old[..1.min(old.len())]),
            Harm::Random => fs::write(path, noise(old.len().max(64))),
            Harm::Absent => fs::remove_file(path),
        };
        done.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// Bytes that follow from their number only.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ len as u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// Flips the lowest bit of the byte at `at`.
pub fn flip_bit(path: &Path, at: u64) {
    let file = open(path);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)
        .unwrap_or_else(|e| panic!("{} at {at}: {e}", path.display()));
    byte[0] ^= 1;
    file.write_all_at(&byte, at).expect("a writable file");
}

/// Writes bytes at a position.
pub fn write_at(path: &Path, at: u64, bytes: &[u8]) {
    open(path).write_all_at(bytes, at).expect("a writable file");
}

/// Ends a file at `len`, or extends it with zeros.
pub fn set_len(path: &Path, len: u64) {
    open(path).set_len(len).expect("a writable file");
}

fn open(path: &Path) -> File {
    let file = File::options().read(true).write(true).open(path);
    file.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files below a directory, sorted.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("a readable directory").path()) {
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Copies a directory with everything in it.
pub fn copy_dir(from: &Path, to: &Path) {
    for file in files_below(from) {
        let target = to.join(file.strip_prefix(from).expect("below it"));
        fs::create_dir_all(target.parent().expect("below it")).expect("a writable directory");
        fs::copy(&file, &target).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
    }
}
