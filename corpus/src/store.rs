//! A crate's corpus: its directory, its checks, and how it grows.
//!
//! | what is found | what follows |
//! |---|---|
//! | a declared type that is not on the crate's list, or not declared | fails |
//! | a type or a version without entries | fails; added with `UPDATE_CORPUS=1` |
//! | this version's values are other bytes than the entries | fails, always: raise the version |
//! | this version's fields are others than the entry names | fails, always: raise the version |
//! | older bytes mean something else than this version's entry says | fails, always |
//! | bytes of a reader's message that it does not understand any more | fails, always |
//! | bytes of a message that are not on file | fails; added with `UPDATE_CORPUS=1` |
//! | entries of a type that is gone | fails, until somebody says by deleting them that none is left anywhere |
//!
//! Growing writes what is missing at the end of files and never changes a line that is there.

use crate::declared;
use crate::file::{Block, parse, reads};
use crate::messages;
use bytes::Bytes;
use imprint_proto::envelope::{Decoder, FieldInfo, Kind, Shape};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Set to 1, it adds what is missing.
pub const UPDATE: &str = "UPDATE_CORPUS";

/// The bytes of a value that ends before every field that has a default.
const SHORTEST: &str = "shortest";

/// The corpus of one crate.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Every type of the crate.
    pub kinds: Vec<Kind>,
    /// Every reader of more than one envelope.
    pub decoders: Vec<Decoder>,
    /// The crate's directory: `src` and `corpus` are in it.
    pub crate_dir: PathBuf,
}

impl Corpus {
    /// Of the crate that says `env!("CARGO_MANIFEST_DIR")`.
    pub fn new(crate_dir: &str, kinds: Vec<Kind>, decoders: Vec<Decoder>) -> Self {
        Self {
            kinds,
            decoders,
            crate_dir: crate_dir.into(),
        }
    }

    fn dir(&self) -> PathBuf {
        self.crate_dir.join("corpus")
    }

    /// Panics where the crate's list is not the types that its source declares.
    pub fn assert_all_listed(&self) {
        let listed: BTreeSet<String> = self.kinds.iter().map(|kind| kind.name.to_owned()).collect();
        assert_eq!(listed.len(), self.kinds.len(), "a type is listed twice");
        let declared = declared::types_below(&self.crate_dir.join("src"));
        let missing: Vec<_> = declared.difference(&listed).collect();
        let gone: Vec<_> = listed.difference(&declared).collect();
        assert!(missing.is_empty(), "declared and not listed: {missing:?}");
        assert!(gone.is_empty(), "listed and not declared: {gone:?}");
    }

    /// Panics with all that is wrong; adds what is missing first if the environment asks for it.
    pub fn assert_kept(&self) {
        if std::env::var(UPDATE).is_ok_and(|value| value == "1") {
            self.grow();
        }
        let faults = self.faults();
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }

    /// All that is wrong, in words.
    pub fn faults(&self) -> Vec<String> {
        let kinds = self.kinds.iter();
        let mut faults: Vec<String> = kinds.flat_map(|kind| self.faults_of(kind)).collect();
        faults.extend(self.orphans());
        faults.extend(messages::faults(&self.messages(), &self.decoders));
        faults
    }

    /// Bytes of all types and all versions, with the type's place in the list.
    pub fn seeds(&self) -> Vec<(usize, Vec<u8>)> {
        let mut seeds = Vec::new();
        for (place, kind) in self.kinds.iter().enumerate() {
            for (_, blocks) in self.blocks(kind) {
                let entries = blocks.into_iter().flat_map(|block| block.entries);
                seeds.extend(entries.map(|(_, bytes)| (place, bytes)));
            }
        }
        seeds
    }

    fn messages(&self) -> PathBuf {
        self.dir().join("messages")
    }

    fn path(&self, name: &str, version: u8) -> PathBuf {
        self.dir().join(format!("{name}.v{version}.txt"))
    }

    fn blocks_of(&self, name: &str, version: u8) -> Vec<Block> {
        let path = self.path(name, version);
        match fs::read_to_string(&path) {
            Ok(text) => parse(&text).unwrap_or_else(|bad| panic!("{}: {bad}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }

    /// All blocks of a type, by version.
    fn blocks(&self, kind: &Kind) -> Vec<(u8, Vec<Block>)> {
        let versions = 0..=kind.version;
        versions
            .map(|version| (version, self.blocks_of(kind.name, version)))
            .collect()
    }

    fn faults_of(&self, kind: &Kind) -> Vec<String> {
        let mut faults = Vec::new();
        let present = present_block(kind, kind.version);
        let all = self.blocks(kind);
        let mut blocks = all.iter().flat_map(|(version, blocks)| {
            let numbered = blocks.iter();
            numbered.map(move |block| (*version, block))
        });
        let Some((_, kept)) = blocks.clone().find(|(_, block)| block.key == present.key) else {
            return vec![format!(
                "{}: no entry for [{}]; {UPDATE}=1 adds it",
                kind.name, present.key
            )];
        };
        faults.extend(changes(kind, kept, &present));
        for version in older_versions(kind) {
            if !blocks.clone().any(|(found, _)| found == version) {
                faults.push(format!(
                    "{}: no entry for version {version}; {UPDATE}=1 adds it",
                    kind.name
                ));
            }
        }
        for (version, block) in blocks.by_ref() {
            if block.key != present.key {
                faults.extend(misread(kind, version, block, kept));
            }
        }
        faults
    }

    /// Files of types that the crate does not have, or not in that version yet.
    fn orphans(&self) -> Vec<String> {
        let known: BTreeSet<PathBuf> = self
            .kinds
            .iter()
            .flat_map(|kind| (0..=kind.version).map(|version| self.path(kind.name, version)))
            .collect();
        let Ok(entries) = fs::read_dir(self.dir()) else {
            return Vec::new();
        };
        let paths = entries.map(|entry| entry.expect("a directory entry").path());
        paths
            .filter(|path| path.is_file() && !known.contains(path))
            .map(|path| {
                let name = path.file_name().map(Path::new).unwrap_or(&path).display();
                format!("{name}: of no type that there is; delete it only if no such bytes are left anywhere")
            })
            .collect()
    }

    /// Adds what is missing, oldest versions first. Panics where this version refuses older bytes
    /// that it does not give up: there is nothing true to add then.
    pub fn grow(&self) {
        messages::grow(&self.messages(), &self.decoders);
        for kind in &self.kinds {
            for version in older_versions(kind) {
                if self.blocks_of(kind.name, version).is_empty() {
                    self.append(kind, version, &present_block(kind, version));
                }
            }
            let mut block = present_block(kind, kind.version);
            let all = self.blocks(kind);
            let older: Vec<&Block> = all.iter().flat_map(|(_, blocks)| blocks).collect();
            if older.iter().any(|known| known.key == block.key) {
                continue;
            }
            for (version, blocks) in &all {
                for old in blocks {
                    let readings = readings(kind, *version, old);
                    let refused = readings.iter().find(|(_, bytes)| bytes.is_empty());
                    if let Some((entry, _)) = refused.filter(|_| *version >= kind.compat) {
                        panic!("{}: `{entry}`: is refused", kind.name);
                    }
                    block.entries.extend(readings);
                }
            }
            self.append(kind, kind.version, &block);
        }
    }

    fn append(&self, kind: &Kind, version: u8, block: &Block) {
        let path = self.path(kind.name, version);
        let mut text = fs::read_to_string(&path).unwrap_or_default();
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&block.render());
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The versions before this one that had fewer fields: their bytes can still be made.
fn older_versions(kind: &Kind) -> BTreeSet<u8> {
    let since = kind.fields.iter().map(|field| field.since);
    let before = since.filter_map(|since| since.checked_sub(1));
    before.filter(|version| *version >= kind.compat).collect()
}

/// A block as this build would write it.
fn present_block(kind: &Kind, version: u8) -> Block {
    let mut key = format!("version {version}, compat {}", kind.compat.min(version));
    for (place, (name, version)) in (kind.nested)().into_iter().enumerate() {
        let mark = if place == 0 { ';' } else { ',' };
        let _ = write!(key, "{mark} {name} {version}");
    }
    let shapes = Shape::ALL.iter();
    let mut entries: Vec<(String, Vec<u8>)> = shapes
        .map(|shape| {
            (
                shape.label().to_owned(),
                (kind.specimen)(*shape, version).into(),
            )
        })
        .collect();
    if version == kind.version {
        let shortest = shortest(kind);
        entries.push((SHORTEST.to_owned(), shortest.clone()));
        entries.push((reads(SHORTEST, SHORTEST), rewritten(kind, &shortest)));
    }
    Block {
        key,
        fields: fields_text(kind.fields, version),
        entries,
    }
}

/// The fields of a version: their names, types and order.
fn fields_text(fields: &[FieldInfo], version: u8) -> String {
    let known = fields.iter().filter(|field| field.since <= version);
    let texts = known.map(|field| {
        let ty: String = field.ty.split_whitespace().collect();
        match field.since {
            0 => format!("{} {ty}", field.name),
            since => format!("{} {ty} since {since}", field.name),
        }
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// The shortest body that this version reads: every field from the first one on that has a default,
/// as all that follow it have, is absent.
fn shortest(kind: &Kind) -> Vec<u8> {
    let whole = (kind.specimen)(Shape::Defaults, kind.version);
    let body = &whole[HEADER..];
    let cuts = (0..=body.len()).map(|len| {
        let size = u32::try_from(len).expect("specimens are short");
        [&whole[..2], &size.to_le_bytes(), &body[..len]].concat()
    });
    cuts.into_iter()
        .find(|cut| (kind.rewrite)(Bytes::copy_from_slice(cut)).is_ok())
        .expect("a type reads what it writes")
}

const HEADER: usize = imprint_proto::envelope::HEADER_LEN;

/// What bytes mean to this build, as it would write it; nothing where it refuses them.
fn rewritten(kind: &Kind, bytes: &[u8]) -> Vec<u8> {
    let read = (kind.rewrite)(Bytes::copy_from_slice(bytes));
    read.map_or_else(|_| Vec::new(), Into::into)
}

fn readings(kind: &Kind, version: u8, old: &Block) -> Vec<(String, Vec<u8>)> {
    let entries = old.written();
    entries
        .map(|(name, bytes)| {
            let key = format!("v{version} {}", old.key);
            (reads(&key, name), rewritten(kind, bytes))
        })
        .collect()
}

/// Where this build's bytes or fields are not those that were checked in for its version.
fn changes(kind: &Kind, kept: &Block, present: &Block) -> Vec<String> {
    let mut faults = Vec::new();
    let name = kind.name;
    if kept.fields != present.fields {
        faults.push(format!(
            "{name}: the fields of version {} were\n  {}\nand are\n  {}\n: append fields and raise the version",
            kind.version, kept.fields, present.fields
        ));
    }
    for (entry, bytes) in &present.entries {
        if kept.entry(entry) != Some(&bytes[..]) {
            faults.push(format!(
                "{name}: `{entry}` of version {} are other bytes than before: raise the version",
                kind.version
            ));
        }
    }
    for (entry, bytes) in kept.written().filter(|(entry, _)| entry != SHORTEST) {
        if rewritten(kind, bytes) != *bytes {
            faults.push(format!("{name}: `{entry}` is not written as it was read"));
        }
    }
    faults
}

/// Where older bytes do not mean what the entry of this version says.
fn misread(kind: &Kind, version: u8, old: &Block, kept: &Block) -> Vec<String> {
    let mut faults = Vec::new();
    for (entry, now) in readings(kind, version, old) {
        match kept.entry(&entry) {
            None => faults.push(format!("{}: `{entry}` is missing", kind.name)),
            Some(then) if then != now => faults.push(format!(
                "{}: `{entry}`: old bytes mean something else than they did; a default has changed",
                kind.name
            )),
            Some([]) if version >= kind.compat => faults.push(format!(
                "{}: `{entry}`: bytes of a version that is not given up are refused",
                kind.name
            )),
            Some(_) => {}
        }
    }
    faults
}
