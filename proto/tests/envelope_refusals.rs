//! Every way in which an envelope's bytes can be wrong: each is refused with its own error and
//! counted under its own rule, once, and under no other.
//!
//! One test, since the counters are the process's.

use bytes::Bytes;
use imprint_proto::envelope::{
    EnvelopeError, Rule, decode, decode_checked, decode_checked_prefix, decode_prefix, encode,
    encode_checked, refused,
};
use imprint_proto::{envelope, envelope_enum, envelope_union};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

envelope_enum! {
    #[derive(Debug, PartialEq)]
    pub enum Closed: closed { One = 1 }
}
envelope_enum! {
    #[derive(Debug, PartialEq)]
    pub enum Open: open { One = 1 }
}
envelope! { #[derive(Debug)] pub struct Flag: version 0, compat 0 { value: bool } }
envelope! { #[derive(Debug)] pub struct Maybe: version 0, compat 0 { value: Option<u64> } }
envelope! { #[derive(Debug)] pub struct Shut: version 0, compat 0 { value: Closed } }
envelope! { #[derive(Debug)] pub struct Ajar: version 0, compat 0 { value: Open } }
envelope! { #[derive(Debug)] pub struct Text: version 2, compat 1 { value: String } }
envelope! { #[derive(Debug)] pub struct Blob: version 0, compat 0 { value: Bytes } }
envelope! { #[derive(Debug)] pub struct List: version 0, compat 0 { value: Vec<u32> } }
envelope! { #[derive(Debug)] pub struct Map: version 0, compat 0 { value: BTreeMap<u8, bool> } }
envelope! { #[derive(Debug)] pub struct Set: version 0, compat 0 { value: BTreeSet<u8> } }
envelope! { #[derive(Debug)] pub struct Lasting: version 0, compat 0 { value: Duration } }
envelope! { #[derive(Debug)] pub struct Parent: version 0, compat 0 { child: Text, after: u64 } }
envelope! { #[derive(Debug)] pub struct Tree: version 0, compat 0 { children: Vec<Tree> } }
envelope_union! {
    #[derive(Debug)]
    pub enum Either: version 0, compat 0 { 1 => Flag(Flag), 2 => List(List) }
}

fn around(versions: [u8; 2], body: &[u8]) -> Bytes {
    let size = (body.len() as u32).to_le_bytes();
    [&versions[..], &size, body].concat().into()
}

fn plain(body: &[u8]) -> Bytes {
    around([0, 0], body)
}

fn text(body: &[u8]) -> Result<(), EnvelopeError> {
    decode::<Text>(around([1, 1], body)).map(drop)
}

fn sized(len: u32, bytes: &[u8]) -> Vec<u8> {
    [&len.to_le_bytes(), bytes].concat()
}

/// A child of a parent: its header says `size`, its body is `body`, and the parent has more.
fn child(size: u32, body: &[u8]) -> Result<(), EnvelopeError> {
    let bytes = [&[1, 1][..], &size.to_le_bytes(), body, &[9; 8]].concat();
    decode::<Parent>(plain(&bytes)).map(drop)
}

fn deep() -> Bytes {
    let leaf = Tree { children: vec![] };
    let tree = (0..40).fold(leaf, |tree, _| Tree {
        children: vec![tree],
    });
    encode(&tree)
}

type Case = (&'static str, Rule, fn() -> Result<(), EnvelopeError>);

/// Reads the case's bytes; as functions, so that each is counted when its turn comes.
const CASES: &[Case] = &[
    ("a header that is cut", Rule::HeaderCut, || {
        decode::<Flag>(vec![0; 5].into()).map(drop)
    }),
    ("a checked header that is cut", Rule::HeaderCut, || {
        decode_checked::<Flag>(vec![0; 9].into()).map(drop)
    }),
    (
        "R1: a size beyond the buffer",
        Rule::SizeExceedsBuffer,
        || decode::<Flag>(vec![0, 0, 2, 0, 0, 0, 1].into()).map(drop),
    ),
    ("R1: of a prefix", Rule::SizeExceedsBuffer, || {
        decode_prefix::<Flag>(vec![0, 0, 255, 255, 255, 255, 1].into()).map(drop)
    }),
    ("R1: of a nested one", Rule::SizeExceedsBuffer, || {
        child(u32::MAX, &[])
    }),
    (
        "R2: a child across its parent's end",
        Rule::CrossesParent,
        || {
            // The buffer goes on behind the parent: only the parent's end is in the way.
            let child = [1, 1, 9, 0, 0, 0, 0, 0, 0, 0];
            let parent = [&plain(&child)[..], &[0; 50]].concat();
            decode_prefix::<Parent>(parent.into()).map(drop)
        },
    ),
    (
        "R3: the writer's compat is newer",
        Rule::WriterTooNew,
        || decode::<Text>(around([3, 3], &sized(0, &[]))).map(drop),
    ),
    (
        "R4: the writer is older than compat",
        Rule::WriterTooOld,
        || decode::<Text>(around([0, 0], &sized(0, &[]))).map(drop),
    ),
    (
        "R3 comes before what the body holds",
        Rule::WriterTooNew,
        || decode::<Flag>(around([1, 1], &[2])).map(drop),
    ),
    ("a body that is not its CRC's", Rule::Checksum, || {
        let mut bytes = encode_checked(&Flag { value: true }).to_vec();
        bytes[10] = 0;
        decode_checked::<Flag>(bytes.into()).map(drop)
    }),
    ("a CRC that is not its body's", Rule::Checksum, || {
        let mut bytes = encode_checked(&Flag { value: true }).to_vec();
        bytes[6] ^= 1;
        decode_checked_prefix::<Flag>(bytes.into()).map(drop)
    }),
    ("R5: a number over its scope's end", Rule::Spill, || {
        decode::<Lasting>(plain(&[1; 7])).map(drop)
    }),
    ("R5: a string's length over its end", Rule::Spill, || {
        text(&[1, 0])
    }),
    ("R5: an overlong string", Rule::Spill, || {
        text(&sized(4, b"abc"))
    }),
    ("R5: a string that would underflow", Rule::Spill, || {
        text(&sized(u32::MAX, b"abc"))
    }),
    ("R5: overlong bytes", Rule::Spill, || {
        decode::<Blob>(plain(&sized(u32::MAX - 3, b"abc"))).map(drop)
    }),
    ("R5: more items than bytes", Rule::Spill, || {
        decode::<List>(plain(&sized(2, &[0; 7]))).map(drop)
    }),
    ("R5: four billion items", Rule::Spill, || {
        decode::<List>(plain(&sized(u32::MAX, &[0; 8]))).map(drop)
    }),
    ("R5: more pairs than bytes", Rule::Spill, || {
        decode::<Map>(plain(&sized(2, &[0; 3]))).map(drop)
    }),
    ("R5: more members than bytes", Rule::Spill, || {
        decode::<Set>(plain(&sized(4, &[1, 2, 3]))).map(drop)
    }),
    ("R5: an optional without its value", Rule::Spill, || {
        decode::<Maybe>(plain(&[1, 0, 0])).map(drop)
    }),
    (
        "R5: a child that takes its parent's bytes",
        Rule::Spill,
        || child(5, &[4, 0, 0, 0, b'a']),
    ),
    ("R5: a parent whose child took all", Rule::Spill, || {
        let body = [&[1, 1, 4, 0, 0, 0, 0, 0, 0, 0][..], &[9; 7]].concat();
        decode::<Parent>(plain(&body)).map(drop)
    }),
    ("R6: bytes behind the envelope", Rule::BytesLeft, || {
        let bytes = [&encode(&Flag { value: true })[..], &[0]].concat();
        decode::<Flag>(bytes.into()).map(drop)
    }),
    ("R6: bytes behind a checked one", Rule::BytesLeft, || {
        let bytes = [&encode_checked(&Flag { value: true })[..], &[0]].concat();
        decode_checked::<Flag>(bytes.into()).map(drop)
    }),
    (
        "a field without a default that is missing",
        Rule::FieldMissing,
        || decode::<Flag>(plain(&[])).map(drop),
    ),
    ("a bool of 2", Rule::NotBool, || {
        decode::<Flag>(plain(&[2])).map(drop)
    }),
    ("a bool of 255", Rule::NotBool, || {
        decode::<Flag>(plain(&[255])).map(drop)
    }),
    ("an optional's mark of 2", Rule::NotBool, || {
        decode::<Maybe>(plain(&[2, 0, 0, 0, 0, 0, 0, 0, 0])).map(drop)
    }),
    ("a bool of 2 in a map", Rule::NotBool, || {
        decode::<Map>(plain(&sized(1, &[1, 2]))).map(drop)
    }),
    (
        "a closed enum's unknown value",
        Rule::UnknownVariant,
        || decode::<Shut>(plain(&2_i32.to_le_bytes())).map(drop),
    ),
    (
        "a closed enum's value below zero",
        Rule::UnknownVariant,
        || decode::<Shut>(plain(&i32::MIN.to_le_bytes())).map(drop),
    ),
    ("a union's unknown message", Rule::UnknownVariant, || {
        decode::<Either>(plain(&[3, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1])).map(drop)
    }),
    ("a string that is not UTF-8", Rule::NotUtf8, || {
        text(&sized(2, &[0xc3, 0x28]))
    }),
    ("map keys out of order", Rule::MapOrder, || {
        decode::<Map>(plain(&sized(2, &[2, 0, 1, 0]))).map(drop)
    }),
    ("a map's key twice", Rule::MapOrder, || {
        decode::<Map>(plain(&sized(2, &[1, 0, 1, 1]))).map(drop)
    }),
    ("a set's member twice", Rule::MapOrder, || {
        decode::<Set>(plain(&sized(2, &[1, 1]))).map(drop)
    }),
    ("a duration below zero", Rule::NegativeDuration, || {
        decode::<Lasting>(plain(&(-1_i64).to_le_bytes())).map(drop)
    }),
    ("envelopes in envelopes without end", Rule::TooDeep, || {
        decode::<Tree>(deep()).map(drop)
    }),
];

#[test]
fn each_fault_is_its_own_error_and_its_own_counter() {
    for (name, rule, read) in CASES {
        let before: Vec<_> = refused().collect();
        let error = read().expect_err(name);
        assert_eq!(error.rule(), *rule, "{name}: {error}");
        let after: Vec<_> = refused().collect();
        for ((counted, before), (_, after)) in before.into_iter().zip(after) {
            let expected = before + u64::from(counted == *rule);
            assert_eq!(after, expected, "{name}: counter {}", counted.label());
        }
    }
    for rule in Rule::ALL {
        let tried = CASES.iter().any(|(_, tried, _)| tried == rule);
        assert!(tried, "no case for {}", rule.label());
    }
    let labels: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.label()).collect();
    assert_eq!(
        labels.len(),
        Rule::ALL.len(),
        "two rules share a counter's name"
    );
    what_is_not_a_fault_is_not_counted();
}

fn what_is_not_a_fault_is_not_counted() {
    let before: Vec<_> = refused().collect();
    let ajar = decode::<Ajar>(plain(&7_i32.to_le_bytes())).unwrap();
    assert_eq!(ajar.value, Open::Other(7));
    decode_prefix::<Flag>(vec![0, 0, 1, 0, 0, 0, 1, 99].into()).unwrap();
    decode::<Flag>(around([9, 0], &[1, 99])).unwrap();
    assert_eq!(refused().collect::<Vec<_>>(), before);
}
