//! Each check of the corpus finds what it is there for: one release after another of one small crate,
//! first as they should be and then each with one fault.

use bytes::Bytes;
use imprint_corpus::memory::{Counting, peak_of};
use imprint_corpus::{Corpus, compat, target};
use imprint_proto::envelope::{Decoder, EnvelopeError, Kind};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tempfile::TempDir;

#[global_allocator]
static COUNTING: Counting = Counting;

/// The releases, each with a type of the same name.
macro_rules! release {
    ($release:ident { $($body:tt)* }) => {
        mod $release {
            imprint_proto::envelope! { pub struct Inner: version 0, compat 0 { number: u16 } }
            imprint_proto::envelope! { $($body)* }
            pub fn kinds() -> Vec<imprint_proto::envelope::Kind> {
                use imprint_proto::envelope::Kind;
                vec![Kind::of::<Inner>(), Kind::of::<Note>()]
            }
        }
    };
}

release!(first { pub struct Note: version 0, compat 0 { id: u32, inner: Inner } });
release!(second { pub struct Note: version 1, compat 0 {
    id: u32,
    inner: Inner,
    /// 7: as it always was.
    #[since(1)]
    weight: u8 = 7,
} });
release!(other_default { pub struct Note: version 1, compat 0 {
    id: u32,
    inner: Inner,
    /// 8: as it never was.
    #[since(1)]
    weight: u8 = 8,
} });
release!(no_new_version { pub struct Note: version 0, compat 0 { id: u32, inner: Inner, weight: u8 = 7 } });
release!(other_type { pub struct Note: version 0, compat 0 { id: u64, inner: Inner } });
release!(other_name { pub struct Note: version 0, compat 0 { key: u32, inner: Inner } });
release!(broken { pub struct Note: version 2, compat 2 { inner: Inner } });
release!(dropped { pub struct Note: version 1, compat 1 { id: u32 } });

mod newer_inside {
    imprint_proto::envelope! { pub struct Inner: version 1, compat 0 {
        number: u16,
        /// False: nobody asked.
        #[since(1)]
        asked: bool = false,
    } }
    imprint_proto::envelope! { pub struct Note: version 0, compat 0 { id: u32, inner: Inner } }
}

/// A crate's directory, with the corpus of the releases given, in their order.
fn grown(releases: &[Vec<Kind>]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for kinds in releases {
        corpus(&dir, kinds.clone()).grow();
    }
    dir
}

fn corpus(dir: &TempDir, kinds: Vec<Kind>) -> Corpus {
    Corpus::new(dir.path().to_str().unwrap(), kinds, vec![])
}

fn faults(dir: &TempDir, kinds: Vec<Kind>) -> String {
    corpus(dir, kinds).faults().join("\n")
}

fn files(dir: &TempDir) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir.path().join("corpus")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn releases_that_append_fields_have_no_faults_and_keep_old_entries() {
    let dir = grown(&[first::kinds()]);
    assert_eq!(faults(&dir, first::kinds()), "");
    let before = files(&dir);
    assert_eq!(before.len(), 2);
    corpus(&dir, first::kinds()).grow();
    assert_eq!(files(&dir), before, "there was nothing to add");
    corpus(&dir, second::kinds()).grow();
    assert_eq!(faults(&dir, second::kinds()), "");
    let after = files(&dir);
    assert_eq!(after.len(), 3);
    assert!(
        before.iter().all(|file| after.contains(file)),
        "an old entry changed"
    );
}

#[test]
fn a_missing_entry_is_found() {
    assert!(faults(&TempDir::new().unwrap(), first::kinds()).contains("Note: no entry"));
    let dir = grown(&[first::kinds()]);
    assert!(
        faults(&dir, second::kinds()).contains("Note: no entry for [version 1, compat 0; Inner 0]")
    );
    fs::remove_file(dir.path().join("corpus/Inner.v0.txt")).unwrap();
    assert!(faults(&dir, first::kinds()).contains("Inner: no entry"));
    // A release whose type has an older version, of which nothing was kept.
    let dir = grown(&[second::kinds()]);
    assert_eq!(faults(&dir, second::kinds()), "");
    fs::remove_file(dir.path().join("corpus/Note.v0.txt")).unwrap();
    assert!(faults(&dir, second::kinds()).contains("Note: no entry for version 0"));
}

#[test]
fn bytes_and_fields_that_change_without_a_version_are_found_and_growing_mends_nothing() {
    for (kinds, words) in [
        (no_new_version::kinds(), "the fields of version 0 were"),
        (
            no_new_version::kinds(),
            "`full` of version 0 are other bytes",
        ),
        (
            other_type::kinds(),
            "`defaults` of version 0 are other bytes",
        ),
        (other_name::kinds(), "the fields of version 0 were"),
    ] {
        let dir = grown(&[first::kinds()]);
        let before = files(&dir);
        corpus(&dir, kinds.clone()).grow();
        assert_eq!(files(&dir), before);
        let found = faults(&dir, kinds);
        assert!(found.contains(words), "{words} is not in\n{found}");
    }
}

#[test]
fn a_default_that_changes_its_meaning_is_found() {
    let dir = grown(&[first::kinds(), second::kinds()]);
    let found = faults(&dir, other_default::kinds());
    assert!(
        found.contains("old bytes mean something else than they did"),
        "{found}"
    );
}

#[test]
fn old_bytes_that_are_not_read_any_more_are_found_unless_they_are_given_up() {
    let dir = grown(&[first::kinds()]);
    let kinds = || {
        let [inner, note] = [0, 1].map(|at| first::kinds()[at]);
        // Reads what it writes, and of older bytes nothing.
        let rewrite = |bytes: Bytes| match bytes[0] {
            0 => Err(EnvelopeError::TooDeep {
                ty: "Note",
                limit: 0,
            }),
            _ => Ok(bytes),
        };
        vec![
            inner,
            Kind {
                version: 1,
                rewrite,
                ..note
            },
        ]
    };
    assert!(panics(|| corpus(&dir, kinds()).grow()).contains("is refused"));
    let given_up = grown(&[first::kinds(), dropped::kinds()]);
    assert_eq!(faults(&given_up, dropped::kinds()), "");
}

#[test]
fn entries_of_a_type_that_is_gone_are_found() {
    let dir = grown(&[first::kinds()]);
    let found = faults(&dir, first::kinds()[..1].to_vec());
    assert!(found.contains("Note.v0.txt: of no type"), "{found}");
    let dir = grown(&[first::kinds(), second::kinds()]);
    assert!(faults(&dir, first::kinds()).contains("Note.v1.txt: of no type"));
}

#[test]
fn a_new_version_inside_of_a_type_gets_a_block_of_its_own() {
    let kinds = || {
        vec![
            Kind::of::<newer_inside::Inner>(),
            Kind::of::<newer_inside::Note>(),
        ]
    };
    let dir = grown(&[first::kinds()]);
    let before = fs::read_to_string(dir.path().join("corpus/Note.v0.txt")).unwrap();
    assert!(faults(&dir, kinds()).contains("Note: no entry for [version 0, compat 0; Inner 1]"));
    corpus(&dir, kinds()).grow();
    assert_eq!(faults(&dir, kinds()), "");
    let after = fs::read_to_string(dir.path().join("corpus/Note.v0.txt")).unwrap();
    assert!(after.starts_with(&before) && after.len() > before.len());
}

#[test]
fn messages_that_change_or_are_not_understood_any_more_are_found() {
    let dir = TempDir::new().unwrap();
    let decoder = Decoder {
        name: "a message",
        read: |bytes| bytes.starts_with(b"se"),
        seeds: || vec![Bytes::from_static(b"seed")],
    };
    let of = |decoder| Corpus {
        decoders: vec![decoder],
        ..corpus(&dir, vec![])
    };
    assert!(of(decoder).faults()[0].contains("not on file: 73656564"));
    of(decoder).grow();
    assert!(of(decoder).faults().is_empty());
    let seeds = || vec![Bytes::from_static(b"sent")];
    let writes_others = Decoder { seeds, ..decoder };
    assert!(of(writes_others).faults()[0].contains("not on file"));
    of(writes_others).grow();
    assert!(of(writes_others).faults().is_empty());
    let read = |bytes: Bytes| bytes.starts_with(b"sen");
    let forgot = Decoder {
        read,
        ..writes_others
    };
    assert!(of(forgot).faults()[0].contains("does not understand any more 73656564"));
}

#[test]
fn a_type_that_is_not_listed_is_found() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("src")).unwrap();
    let declare = |name: &str| {
        let text =
            format!("envelope! {{\n    pub struct {name}: version 0, compat 0 {{ id: u32 }}\n}}\n");
        fs::write(dir.path().join(format!("src/{name}.rs")), text).unwrap();
    };
    declare("Inner");
    declare("Note");
    corpus(&dir, first::kinds()).assert_all_listed();
    declare("Forgotten");
    assert!(panics(|| corpus(&dir, first::kinds()).assert_all_listed()).contains("Forgotten"));
    fs::remove_file(dir.path().join("src/Forgotten.rs")).unwrap();
    fs::remove_file(dir.path().join("src/Note.rs")).unwrap();
    assert!(panics(|| corpus(&dir, first::kinds()).assert_all_listed()).contains("Note"));
}

/// What something says when it panics; fails where it does not.
fn panics(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it should panic");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .expect("a panic with words")
}

#[test]
fn readers_that_take_what_is_not_for_them_are_found() {
    compat::assert_all(&first::kinds());
    compat::assert_all(&second::kinds());
    compat::assert_all(&broken::kinds());
    let note = || second::kinds()[1];
    let anything = Kind {
        rewrite: Ok,
        ..note()
    };
    panics(|| compat::assert_refuses_what_is_not_for_it(&anything));
    panics(|| compat::assert_refuses_cuts_and_leftovers(&anything));
    panics(|| compat::assert_skips_what_a_later_version_appends(&anything));
    // Old bytes of which the fields have moved.
    let moved = Kind {
        specimen: first::kinds()[0].specimen,
        ..note()
    };
    panics(|| compat::assert_old_and_new_readers_agree(&moved));
}

#[test]
fn a_decoder_that_takes_memory_or_loses_what_it_read_is_found() {
    let note = first::kinds()[1];
    target::mutants_of_kind(&note, vec![], 2000);
    let greedy = Kind {
        rewrite: |bytes| {
            let taken = vec![0_u8; 1 << 20];
            Ok(bytes.slice(..bytes.len().min(taken.len())))
        },
        ..note
    };
    assert!(panics(|| target::mutants_of_kind(&greedy, vec![], 1)).contains("held"));
    let forgetful = Kind {
        rewrite: |bytes| Ok(Bytes::from([&bytes[..], &[0]].concat())),
        ..note
    };
    assert!(
        panics(|| target::mutants_of_kind(&forgetful, vec![], 1))
            .contains("can't be written and read")
    );
    let picky = Decoder {
        name: "picky",
        read: |_| false,
        seeds: || vec![Bytes::from_static(b"seed")],
    };
    assert!(panics(|| target::mutants_of_decoder(&picky, 1)).contains("is refused"));
}

#[test]
fn memory_is_counted_while_it_is_held() {
    let ((), held) = peak_of(|| {
        drop(vec![0_u8; 1000]);
        drop(vec![0_u8; 300]);
    });
    assert_eq!(held, 1000);
    let (kept, held) = peak_of(|| (vec![0_u8; 1000], vec![0_u8; 300]));
    assert_eq!(held, 1300);
    let ((), held) = peak_of(|| drop(kept));
    assert_eq!(held, 0, "giving back what was held before is not holding");
}
