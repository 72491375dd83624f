//! One file of a corpus: the bytes of one version of one type.
//!
//! ```text
//! [version 1, compat 0; Inner 0]
//! fields: id u32; inner Inner; name String since 1
//! defaults = 0100...
//! full = 0100...
//! edge = 0100...
//! reads version 0, compat 0; Inner 0 / full = 0100...
//! ```
//!
//! A block is of one version of the type and of everything inside of it: when something inside gets
//! a new version, the file gets another block. `reads` lines say what older blocks' bytes mean to
//! the version of this block, as that version writes them: so a default that changes shows.

use crate::hex::{from_hex, to_hex};
use std::fmt::Write as _;

/// A version of a type, with the versions of what is inside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What stands in the brackets.
    pub key: String,
    pub fields: String,
    /// Names and bytes, in order.
    pub entries: Vec<(String, Vec<u8>)>,
}

impl Block {
    pub fn render(&self) -> String {
        let mut text = format!("[{}]\nfields: {}\n", self.key, self.fields);
        for (name, bytes) in &self.entries {
            let _ = writeln!(text, "{name} = {}", to_hex(bytes));
        }
        text
    }

    pub fn entry(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.entries.iter();
        entries
            .find(|(known, _)| known == name)
            .map(|(_, bytes)| &bytes[..])
    }

    /// The entries that are bytes of this version, as against what older bytes read as.
    pub fn written(&self) -> impl Iterator<Item = &(String, Vec<u8>)> {
        let entries = self.entries.iter();
        entries.filter(|(name, _)| !name.starts_with(READS))
    }
}

const READS: &str = "reads ";

/// The name of the entry that says what an entry of an older block reads as.
pub fn reads(older: &str, entry: &str) -> String {
    format!("{READS}{older} / {entry}")
}

/// The blocks of a file; says which line is not understood.
pub fn parse(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let bad = || format!("line {}: {line:?} is not understood", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(key) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            blocks.push(Block {
                key: key.to_owned(),
                fields: String::new(),
                entries: Vec::new(),
            });
            continue;
        }
        let block = blocks.last_mut().ok_or_else(bad)?;
        if let Some(fields) = line.strip_prefix("fields: ") {
            block.fields = fields.to_owned();
        } else {
            let (name, hex) = line.split_once(" = ").ok_or_else(bad)?;
            let bytes = from_hex(hex).ok_or_else(bad)?;
            block.entries.push((name.to_owned(), bytes));
        }
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_survive_as_text() {
        let block = |key: &str| Block {
            key: key.to_owned(),
            fields: "id u32".to_owned(),
            entries: vec![
                ("full".to_owned(), vec![1, 2]),
                (reads("v", "full"), vec![3]),
            ],
        };
        let blocks = [block("version 0"), block("version 1; Inner 2")];
        let text = blocks.each_ref().map(Block::render).concat();
        assert_eq!(parse(&text).as_deref(), Ok(&blocks[..]));
        assert_eq!(blocks[0].written().count(), 1);
        assert_eq!(blocks[0].entry("full"), Some(&[1, 2][..]));
        for bad in ["full = 00", "[a]\nfull", "[a]\nfull = 0"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
