//! Bytes of what is more than one envelope: a record with its kind and numbers, a command with its body.
//!
//! Their layout stands in code and not in a declaration, so there is no version that could tell two
//! layouts apart. What was written once must be understood for good, and what is written now is on
//! file: a change of the bytes shows as new lines in a review. One file per decoder, a line per seed.

use crate::hex::{from_hex, to_hex};
use bytes::Bytes;
use imprint_proto::envelope::Decoder;
use std::fs;
use std::path::{Path, PathBuf};

fn path(dir: &Path, decoder: &Decoder) -> PathBuf {
    let words = decoder
        .name
        .replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    dir.join(format!("{words}.txt"))
}

fn kept(path: &Path) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let bad = |line| panic!("{}: {line:?} is not understood", path.display());
    let lines = text.lines();
    lines
        .map(|line| from_hex(line).unwrap_or_else(|| bad(line)))
        .collect()
}

/// Adds the seeds that are not there yet.
pub fn grow(dir: &Path, decoders: &[Decoder]) {
    fs::create_dir_all(dir).expect("the corpus has a directory");
    for decoder in decoders {
        let path = path(dir, decoder);
        let mut lines = kept(&path);
        for seed in (decoder.seeds)() {
            if !lines.iter().any(|line| line[..] == seed[..]) {
                lines.push(seed.into());
            }
        }
        let text: String = lines.iter().map(|line| to_hex(line) + "\n").collect();
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// All that is wrong, in words.
pub fn faults(dir: &Path, decoders: &[Decoder]) -> Vec<String> {
    let mut faults = Vec::new();
    for decoder in decoders {
        let lines = kept(&path(dir, decoder));
        for seed in (decoder.seeds)() {
            if !lines.iter().any(|line| line[..] == seed[..]) {
                let hex = to_hex(&seed);
                faults.push(format!(
                    "{}: writes bytes that are not on file: {hex}",
                    decoder.name
                ));
            }
        }
        for line in lines {
            if !(decoder.read)(Bytes::copy_from_slice(&line)) {
                let hex = to_hex(&line);
                faults.push(format!(
                    "{}: does not understand any more {hex}",
                    decoder.name
                ));
            }
        }
    }
    faults
}
