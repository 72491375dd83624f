//! The meta store after damage to its files: it always opens, and what it then holds is what was written, or a damaged
//! value that says so, or nothing. A reader who rebuilds what is missing ends with everything.

use std::fs;
use std::path::{Path, PathBuf};

use imprint_raft::meta::{MetaError, MetaStore, SledMeta};

const KEYS: u8 = 60;

fn value(key: u8) -> Vec<u8> {
    vec![key; 40 + usize::from(key) * 10]
}

fn fill(store: &SledMeta) {
    for key in 0..KEYS {
        store.put(&[key], &value(key)).unwrap();
    }
    store.flush().unwrap();
}

/// All values are right, missing or known to be damaged; then they are put again and all are right.
fn check_and_rebuild(store: &SledMeta, case: &str) {
    for key in 0..KEYS {
        match store.get(&[key]) {
            Ok(Some(found)) => assert_eq!(found, value(key), "{case}: key {key}"),
            Ok(None) | Err(MetaError::Damaged { .. }) => {}
            Err(error) => panic!("{case}: key {key}: {error:?}"),
        }
    }
    fill(store);
    for key in 0..KEYS {
        assert_eq!(store.get(&[key]).unwrap().unwrap(), value(key), "{case}");
    }
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Numbers that look random and are the same every time.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

type Damage = fn(u64, Vec<u8>) -> Option<Vec<u8>>;

fn damages() -> [(&'static str, Damage); 8] {
    [
        ("absent", |_, _| None),
        ("empty", |_, _| Some(Vec::new())),
        ("one byte", |_, _| Some(vec![1])),
        ("random", |seed, bytes| {
            Some(noise(seed, bytes.len().min(200_000)))
        }),
        ("zeros", |_, bytes| Some(vec![0; bytes.len()])),
        ("cut by half", |_, mut bytes| {
            bytes.truncate(bytes.len() / 2);
            Some(bytes)
        }),
        ("a scrambled stretch", |seed, mut bytes| {
            let at = usize::try_from(seed).unwrap_or(0) * 97 % bytes.len().max(1);
            let end = bytes.len().min(at + 64);
            let scrambled = noise(seed, end - at);
            bytes[at..end].copy_from_slice(&scrambled);
            Some(bytes)
        }),
        ("one bit", |seed, mut bytes| {
            let at = usize::try_from(seed).unwrap_or(0) * 131 % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 4;
            }
            Some(bytes)
        }),
    ]
}

#[test]
fn whatever_happens_to_a_file_of_it_the_store_opens_and_tells_no_lies() {
    let origin = tempfile::tempdir().unwrap();
    fill(&SledMeta::open(origin.path()).unwrap());
    let files = files_below(origin.path());
    assert!(files.len() >= 2, "{files:?}");
    let mut seed = 0;
    for (what, damage) in damages() {
        for file in &files {
            for _ in 0..if what == "one bit" || what.starts_with("a scr") {
                4
            } else {
                1
            } {
                seed += 1;
                let copy = tempfile::tempdir().unwrap();
                copy_tree(origin.path(), copy.path());
                let target = copy.path().join(file.strip_prefix(origin.path()).unwrap());
                let case = format!("{what}: {} ({seed})", target.display());
                match damage(seed, fs::read(&target).unwrap()) {
                    Some(bytes) => fs::write(&target, bytes).unwrap(),
                    None => fs::remove_file(&target).unwrap(),
                }
                let store =
                    SledMeta::open(copy.path()).unwrap_or_else(|error| panic!("{case}: {error:?}"));
                check_and_rebuild(&store, &case);
                assert_eq!(
                    store.rebuilt(),
                    copy.path().join("quarantine").exists(),
                    "{case}"
                );
                let was_rebuilt = store.rebuilt();
                drop(store);
                let again = SledMeta::open(copy.path()).unwrap();
                // What the first start had no reason to read, the second may come across.
                assert!(
                    !(was_rebuilt && again.rebuilt()),
                    "{case}: a new one is good"
                );
                check_and_rebuild(&again, &case);
            }
        }
    }
}

#[test]
fn files_of_another_kind_in_its_place_do_not_keep_it_from_opening() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("meta"),
        b"a file where the directory should be",
    )
    .unwrap();
    let store = SledMeta::open(dir.path()).unwrap();
    assert!(store.rebuilt());
    check_and_rebuild(&store, "a file in its place");
}
