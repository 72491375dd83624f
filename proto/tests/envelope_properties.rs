//! Envelopes at random: the bytes are those of a slow writer that follows the table of encodings,
//! reading gives the value back, damage never panics, and old and new versions read each other.

use bytes::Bytes;
use imprint_proto::envelope::{
    Envelope, Rule, decode, decode_checked, decode_checked_prefix, decode_prefix, encode,
    encode_checked,
};
use imprint_proto::ids::{NodeId, Offset, StorageId};
use imprint_proto::{envelope, envelope_enum, envelope_union};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

envelope_enum! {
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub enum Colour: closed { Red = 3, Green = -4 }
}

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Inner: version 3, compat 1 {
        name: String,
        /// 0: not weighed.
        #[since(2)]
        weight: f64 = 0.0,
    }
}

envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Everything: version 2, compat 0 {
        small: (u8, i16),
        big: u128,
        node: NodeId,
        storage: StorageId,
        colour: Colour,
        blob: Bytes,
        inner: Inner,
        list: Vec<Inner>,
        map: BTreeMap<String, Vec<u32>>,
        set: BTreeSet<Offset>,
        maybe: Option<Option<bool>>,
        lasting: Duration,
    }
}

envelope_union! {
    #[derive(Clone, Debug, PartialEq)]
    pub enum Either: version 0, compat 0 {
        1 => Left(Inner),
        7 => Right(Everything),
    }
}

fn inner() -> impl Strategy<Value = Inner> {
    (".{0,6}", -1e9..1e9).prop_map(|(name, weight)| Inner { name, weight })
}

fn everything() -> impl Strategy<Value = Everything> {
    let first = (
        any::<(u8, i16)>(),
        any::<u128>(),
        any::<u64>(),
        any::<[u8; 16]>(),
        any::<bool>(),
        vec(any::<u8>(), 0..9),
    );
    let second = (
        inner(),
        vec(inner(), 0..3),
        btree_map(".{0,3}", vec(any::<u32>(), 0..3), 0..3),
        btree_set(any::<u64>(), 0..3),
        any::<Option<Option<bool>>>(),
        0..=i64::MAX as u64,
    );
    (first, second).prop_map(|(first, second)| Everything {
        small: first.0,
        big: first.1,
        node: NodeId(first.2),
        storage: StorageId(first.3),
        colour: if first.4 { Colour::Red } else { Colour::Green },
        blob: first.5.into(),
        inner: second.0,
        list: second.1,
        map: second.2,
        set: second.3.into_iter().map(Offset).collect(),
        maybe: second.4,
        lasting: Duration::from_nanos(second.5),
    })
}

/// The slow writer: concatenates what the table of encodings says, piece by piece.
fn slow_inner(value: &Inner) -> Vec<u8> {
    let mut body = sized(value.name.as_bytes());
    body.extend(value.weight.to_le_bytes());
    enveloped([3, 1], body)
}

fn slow_everything(value: &Everything) -> Vec<u8> {
    let colour: i32 = if value.colour == Colour::Red { 3 } else { -4 };
    let maybe = match value.maybe {
        None => vec![0],
        Some(None) => vec![1, 0],
        Some(Some(flag)) => vec![1, 1, u8::from(flag)],
    };
    let map = value.map.iter().map(|(key, numbers)| {
        let numbers = numbers.iter().map(|number| number.to_le_bytes().to_vec());
        [sized(key.as_bytes()), counted(numbers.collect())].concat()
    });
    let set = value
        .set
        .iter()
        .map(|offset| offset.0.to_le_bytes().to_vec());
    let body = [
        vec![value.small.0],
        value.small.1.to_le_bytes().to_vec(),
        value.big.to_le_bytes().to_vec(),
        value.node.0.to_le_bytes().to_vec(),
        value.storage.0.to_vec(),
        colour.to_le_bytes().to_vec(),
        sized(&value.blob),
        slow_inner(&value.inner),
        counted(value.list.iter().map(slow_inner).collect()),
        counted(map.collect()),
        counted(set.collect()),
        maybe,
        (value.lasting.as_nanos() as i64).to_le_bytes().to_vec(),
    ];
    enveloped([2, 0], body.concat())
}

fn enveloped(versions: [u8; 2], body: Vec<u8>) -> Vec<u8> {
    [versions.to_vec(), sized(&body)].concat()
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

fn counted(items: Vec<Vec<u8>>) -> Vec<u8> {
    [(items.len() as u32).to_le_bytes().to_vec(), items.concat()].concat()
}

/// What may be read from damaged bytes is a value like any other.
fn assert_harmless<T: Envelope + Debug>(bytes: Bytes) {
    for value in [decode::<T>(bytes.clone()), decode_checked::<T>(bytes)]
        .into_iter()
        .flatten()
    {
        let again = encode(&value);
        assert_eq!(encode(&decode::<T>(again.clone()).unwrap()), again);
    }
}

// Three versions of one type, as three releases know it.
envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct V0: version 0, compat 0 { id: u32 }
}
envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct V1: version 1, compat 0 { id: u32, /** As nobody named it. */ #[since(1)] name: String = "unnamed".to_owned() }
}
envelope! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct V2: version 2, compat 0 {
        id: u32,
        /// As nobody named it.
        #[since(1)]
        name: String = "unnamed".to_owned(),
        /// What everything was tagged with before there were tags.
        #[since(2)]
        tags: Vec<u8> = vec![9],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_bytes_are_the_slow_writers_and_read_back(value in everything()) {
        let bytes = encode(&value);
        prop_assert_eq!(&bytes[..], &slow_everything(&value)[..]);
        prop_assert_eq!(&decode::<Everything>(bytes).unwrap(), &value);
        prop_assert_eq!(&decode_checked::<Everything>(encode_checked(&value)).unwrap(), &value);
        let either = Either::Right(value);
        prop_assert_eq!(decode::<Either>(encode(&either)).unwrap(), either);
    }

    #[test]
    fn every_flipped_bit_of_a_body_shows_under_a_checksum(
        value in everything(), at in any::<Index>(), bit in 0_u8..8,
    ) {
        let mut bytes = encode_checked(&value).to_vec();
        let at = 6 + at.index(bytes.len() - 6);
        bytes[at] ^= 1 << bit;
        prop_assert_eq!(decode_checked::<Everything>(bytes.into()).unwrap_err().rule(), Rule::Checksum);
    }

    #[test]
    fn damage_never_panics_and_what_reads_is_a_value(
        value in everything(),
        flips in vec((any::<Index>(), any::<u8>()), 1..4),
        cut in any::<Option<Index>>(),
        patch_size in any::<bool>(),
    ) {
        let mut bytes = encode(&value).to_vec();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if patch_size && bytes.len() >= 6 {
            let size = (bytes.len() - 6) as u32;
            bytes[2..6].copy_from_slice(&size.to_le_bytes());
        }
        assert_harmless::<Everything>(bytes.clone().into());
        assert_harmless::<Either>(bytes.into());
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(prop_oneof![2 => 0_u8..4, 1 => any::<u8>()], 0..200)) {
        assert_harmless::<Everything>(bytes.clone().into());
        assert_harmless::<Inner>(bytes.clone().into());
        assert_harmless::<Either>(bytes.into());
    }

    #[test]
    fn a_prefix_leaves_what_follows(value in everything(), after in vec(any::<u8>(), 0..20)) {
        let bytes = [&encode(&value)[..], &after].concat();
        let (read, rest) = decode_prefix::<Everything>(bytes.into()).unwrap();
        prop_assert_eq!(&read, &value);
        prop_assert_eq!(&rest[..], &after[..]);
        let bytes = [&encode_checked(&value)[..], &after].concat();
        let (read, rest) = decode_checked_prefix::<Everything>(bytes.into()).unwrap();
        prop_assert_eq!(&read, &value);
        prop_assert_eq!(&rest[..], &after[..]);
    }

    #[test]
    fn releases_read_one_another(id in any::<u32>(), name in ".{0,5}", tags in vec(any::<u8>(), 0..4)) {
        let old = encode(&V0 { id });
        let middle = encode(&V1 { id, name: name.clone() });
        let new = encode(&V2 { id, name: name.clone(), tags: tags.clone() });
        for bytes in [&old, &middle, &new] {
            prop_assert_eq!(decode::<V0>(bytes.clone()).unwrap(), V0 { id });
        }
        let unnamed = V1 { id, name: "unnamed".to_owned() };
        prop_assert_eq!(decode::<V1>(old.clone()).unwrap(), unnamed);
        prop_assert_eq!(decode::<V1>(new.clone()).unwrap(), V1 { id, name: name.clone() });
        let untagged = V2 { id, name: name.clone(), tags: vec![9] };
        prop_assert_eq!(decode::<V2>(middle).unwrap(), untagged);
        prop_assert_eq!(decode::<V2>(old).unwrap().name, "unnamed");
        prop_assert_eq!(decode::<V2>(new).unwrap(), V2 { id, name, tags });
    }
}

#[test]
fn a_union_refuses_a_number_that_it_does_not_know() {
    let mut bytes = encode(&Either::Left(Inner {
        name: String::new(),
        weight: 0.0,
    }))
    .to_vec();
    bytes[6] = 2;
    let error = decode::<Either>(bytes.into()).unwrap_err();
    assert_eq!(error.rule(), Rule::UnknownVariant);
    assert_eq!(error.to_string(), "Either.tag: unknown value 2");
}
