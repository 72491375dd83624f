//! The golden envelopes and encodings, and one test per known weak spot of such formats.

mod common;

use bytes::Bytes;
use common::{from_hex, vector};
use imprint_proto::envelope::{
    EnvelopeError, Field, decode, decode_checked, encode, encode_checked,
};
use imprint_proto::{envelope, envelope_enum};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

envelope! {
    /// The example type as its first version had it.
    #[derive(Clone, Debug, PartialEq)]
    pub struct StatusV0: version 0, compat 0 {
        id: i32,
        alive: bool = false,
    }
}

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct StatusV1: version 1, compat 0 {
        id: i32,
        alive: bool = false,
        /// `None`: the node did not say.
        #[since(1)]
        disk_free_bytes: Option<u64> = None,
    }
}

envelope! {
    /// A reader that gave up on version 0.
    #[derive(Clone, Debug, PartialEq)]
    pub struct StatusV1Only: version 1, compat 1 {
        id: i32,
        alive: bool = false,
        /// `None`: the node did not say.
        #[since(1)]
        disk_free_bytes: Option<u64> = None,
    }
}

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Parent: version 0, compat 0 {
        child: StatusV0,
    }
}

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct OneString: version 0, compat 0 {
        text: String,
    }
}

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Numbers: version 0, compat 0 {
        numbers: Vec<u16>,
    }
}

envelope_enum! {
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub enum Closed: closed {
        One = 1,
        Two = 2,
    }
}

envelope_enum! {
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub enum Open: open {
        One = 1,
    }
}

/// What a vector's reader makes of its bytes: the fields as the vector writes them.
fn read(entry: &Value) -> Result<Value, EnvelopeError> {
    let bytes = Bytes::from(from_hex(entry["hex"].as_str().unwrap()));
    let reader = (&entry["reader"][0], &entry["reader"][1]);
    let reader = (reader.0.as_u64().unwrap(), reader.1.as_u64().unwrap());
    match (entry["type"].as_str(), reader) {
        (Some("parent{child: node_status}"), _) => decode::<Parent>(bytes).map(|_| Value::Null),
        (Some("one string"), _) => decode::<OneString>(bytes).map(|_| Value::Null),
        (Some("vector<u16>"), _) => decode::<Numbers>(bytes).map(|_| Value::Null),
        (None, (0, 0)) => decode::<StatusV0>(bytes)
            .map(|status| serde_json::json!({"id": status.id, "alive": status.alive})),
        (None, (1, 0)) if entry["checksum"] == true => {
            decode_checked::<StatusV1>(bytes).map(|status| fields(&status))
        }
        (None, (1, 0)) => decode::<StatusV1>(bytes).map(|status| fields(&status)),
        (None, (1, 1)) => decode::<StatusV1Only>(bytes).map(|_| Value::Null),
        unknown => panic!("no reader for {unknown:?}"),
    }
}

fn fields(status: &StatusV1) -> Value {
    serde_json::json!({
        "id": status.id,
        "alive": status.alive,
        "disk_free_bytes": status.disk_free_bytes,
    })
}

#[test]
fn every_vector_is_accepted_or_refused_by_its_rule() {
    let vectors = vector("rpc.json");
    for entry in vectors["envelopes"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        match (read(entry), entry["reject"].as_str()) {
            (Ok(value), None) => assert_eq!(value, entry["accept"], "{name}"),
            (Err(error), Some(rule)) => {
                assert_eq!(error.rule().label().to_uppercase(), rule, "{name}: {error}");
            }
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
}

#[test]
fn the_writer_writes_the_accepted_vectors() {
    let old = StatusV0 { id: 7, alive: true };
    assert_eq!(encode(&old), from_hex("0000050000000700000001"));
    let mut new = StatusV1 {
        id: 7,
        alive: true,
        disk_free_bytes: Some(5_000_000_000),
    };
    assert_eq!(
        encode(&new),
        from_hex("01000e00000007000000010100f2052a01000000")
    );
    assert_eq!(
        encode_checked(&new),
        from_hex("01000e00000072f8493007000000010100f2052a01000000")
    );
    new.disk_free_bytes = None;
    assert_eq!(encode(&new), from_hex("010006000000070000000100"));
}

fn written(value: &impl Field) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

#[test]
fn each_encoding_is_the_vector() {
    let vectors = vector("rpc.json");
    let expected = |name: &str| from_hex(vectors["encodings"][name].as_str().unwrap());
    assert_eq!(written(&"abc".to_owned()), expected("string_abc"));
    assert_eq!(written(&Bytes::from("abc")), expected("string_abc"));
    assert_eq!(written(&vec![1_u16, 2]), expected("vec_u16_1_2"));
    assert_eq!(
        written(&BTreeMap::from([(1_u8, true)])),
        expected("map_u8_bool_1_true")
    );
    assert_eq!(written(&Closed::Two), expected("enum_2"));
    assert_eq!(
        written(&Duration::from_millis(150)),
        expected("duration_150ms")
    );
    assert_eq!(written(&None::<u64>), expected("optional_u64_none"));
    assert_eq!(written(&Some(5_u64)), expected("optional_u64_5"));
    assert_eq!(
        vectors["encodings"].as_object().unwrap().len(),
        7,
        "none left out"
    );
}

/// A plain envelope of version 0 around a body.
fn around(body: &[u8]) -> Bytes {
    let mut out = vec![0, 0];
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
    out.into()
}

#[test]
fn a_header_that_is_cut() {
    for len in 0..6 {
        assert_eq!(
            decode::<StatusV0>(vec![0; len].into()),
            Err(EnvelopeError::HeaderCut {
                ty: "StatusV0",
                needed: 6,
                left: len
            })
        );
    }
    assert_eq!(
        decode_checked::<StatusV0>(vec![0; 9].into()),
        Err(EnvelopeError::HeaderCut {
            ty: "StatusV0",
            needed: 10,
            left: 9
        })
    );
}

#[test]
fn a_nested_header_that_is_cut_spills() {
    assert_eq!(
        decode::<Parent>(around(&[0, 0, 1])),
        Err(EnvelopeError::Spill {
            ty: "Parent",
            field: "child",
            needed: 6,
            left: 3
        })
    );
}

#[test]
fn a_child_never_reads_beyond_itself() {
    // The child's size ends it after its id and one byte of what would be a string's length; the
    // parent has more bytes, which are not the child's.
    envelope! {
        #[derive(Debug, PartialEq)]
        pub struct Holder: version 0, compat 0 { child: OneString, after: u64 }
    }
    let mut body = vec![0, 0, 5, 0, 0, 0, 4, 0, 0, 0, b'a'];
    body.extend([b'b'; 8]);
    assert_eq!(
        decode::<Holder>(around(&body)),
        Err(EnvelopeError::Spill {
            ty: "OneString",
            field: "text",
            needed: 4,
            left: 1
        })
    );
}

#[test]
fn what_a_child_does_not_know_is_skipped_and_the_parent_reads_on() {
    envelope! {
        #[derive(Debug, PartialEq)]
        pub struct Holder: version 0, compat 0 { child: StatusV0, after: u8 }
    }
    let body = [9, 0, 7, 0, 0, 0, 3, 0, 0, 0, 1, 0xaa, 0xbb, 77];
    assert_eq!(
        decode::<Holder>(around(&body)),
        Ok(Holder {
            child: StatusV0 { id: 3, alive: true },
            after: 77
        })
    );
}

#[test]
fn a_field_without_a_default_may_not_be_missing() {
    assert_eq!(
        decode::<StatusV0>(around(&[])),
        Err(EnvelopeError::FieldMissing {
            ty: "StatusV0",
            field: "id"
        })
    );
}

#[test]
fn lengths_of_four_gib_spill_without_underflow() {
    for len in [u32::MAX, u32::MAX - 1, 1 << 31] {
        let mut body = len.to_le_bytes().to_vec();
        body.extend(b"abc");
        assert_eq!(
            decode::<OneString>(around(&body)),
            Err(EnvelopeError::Spill {
                ty: "OneString",
                field: "text",
                needed: u64::from(len),
                left: 3
            })
        );
    }
}

#[test]
fn a_count_is_held_against_the_least_that_its_items_take() {
    let count_of = |count: u32, bytes: usize| {
        let mut body = count.to_le_bytes().to_vec();
        body.resize(4 + bytes, 0);
        decode::<Numbers>(around(&body)).map(|read| read.numbers.len())
    };
    assert_eq!(count_of(3, 6), Ok(3));
    assert_eq!(
        count_of(3, 5),
        Err(EnvelopeError::Spill {
            ty: "Numbers",
            field: "numbers",
            needed: 6,
            left: 5
        })
    );
    assert_eq!(
        count_of(u32::MAX, 5),
        Err(EnvelopeError::Spill {
            ty: "Numbers",
            field: "numbers",
            needed: 2 * u64::from(u32::MAX),
            left: 5
        })
    );
}

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Odd: version 0, compat 0 {
        flag: bool = false,
        mark: Option<u8> = None,
        closed: Closed = Closed::One,
        open: Open = Open::One,
        lasting: Duration = Duration::ZERO,
        map: BTreeMap<u8, u8> = BTreeMap::new(),
        text: String = String::new(),
    }
}

/// The bytes of a valid `Odd` with those from `at` on replaced.
fn odd(at: usize, with: &[u8]) -> Result<Odd, EnvelopeError> {
    let mut body = vec![1, 0];
    body.extend([1, 0, 0, 0]);
    body.extend([1, 0, 0, 0]);
    body.extend([0; 8]);
    body.extend([2, 0, 0, 0, 1, 1, 2, 2]);
    body.extend([1, 0, 0, 0, b'x']);
    body[at..at + with.len()].copy_from_slice(with);
    decode(around(&body))
}

#[test]
fn only_values_with_a_meaning_are_read() {
    let ty = "Odd";
    assert!(odd(0, &[1]).is_ok());
    assert_eq!(
        odd(0, &[2]),
        Err(EnvelopeError::NotBool {
            ty,
            field: "flag",
            value: 2
        })
    );
    assert_eq!(
        odd(1, &[255]),
        Err(EnvelopeError::NotBool {
            ty,
            field: "mark",
            value: 255
        })
    );
    assert_eq!(
        odd(2, &[3]),
        Err(EnvelopeError::UnknownVariant {
            ty,
            field: "closed",
            value: 3
        })
    );
    assert_eq!(odd(6, &[3]).unwrap().open, Open::Other(3));
    assert_eq!(
        odd(10, &[0xff; 8]),
        Err(EnvelopeError::NegativeDuration {
            ty,
            field: "lasting",
            nanos: -1
        })
    );
    assert_eq!(
        odd(24, &[1]),
        Err(EnvelopeError::MapOrder { ty, field: "map" })
    );
    assert_eq!(
        odd(24, &[0]),
        Err(EnvelopeError::MapOrder { ty, field: "map" })
    );
    assert_eq!(
        odd(30, &[0xff]),
        Err(EnvelopeError::NotUtf8 { ty, field: "text" })
    );
}

#[test]
fn a_type_that_contains_itself_ends_before_the_stack() {
    envelope! {
        #[derive(Debug, PartialEq)]
        pub struct Tree: version 0, compat 0 { children: Vec<Tree> }
    }
    let tree = |depth| {
        (1..depth).fold(Tree { children: vec![] }, |tree, _| Tree {
            children: vec![tree],
        })
    };
    assert_eq!(decode(encode(&tree(32))), Ok(tree(32)));
    assert_eq!(
        decode::<Tree>(encode(&tree(33))),
        Err(EnvelopeError::TooDeep {
            ty: "Tree",
            limit: 32
        })
    );
}

#[test]
fn a_byte_string_shares_the_buffer_and_cannot_write_to_it() {
    envelope! {
        #[derive(Debug, PartialEq)]
        pub struct Blob: version 0, compat 0 { bytes: Bytes }
    }
    let sent = encode(&Blob {
        bytes: Bytes::from_static(b"shared"),
    });
    let first = decode::<Blob>(sent.clone()).unwrap();
    let second = decode::<Blob>(sent.clone()).unwrap();
    assert_eq!(first.bytes.as_ptr(), sent[10..].as_ptr());
    let kept = first.bytes.try_into_mut().unwrap_err();
    let mut copy = bytes::BytesMut::from(&kept[..]);
    copy.fill(0);
    assert_eq!(second.bytes, "shared");
    assert_eq!(&sent[10..], b"shared");
}
