//! Envelopes: damaged or made-up bytes never panic, and what they read as is a value like any other.

use bytes::Bytes;
use imprint_proto::envelope::{Envelope, decode, decode_checked, decode_prefix, encode};
use imprint_proto::{envelope, envelope_enum, envelope_union};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

envelope_enum! {
    #[derive(Debug)]
    pub enum Closed: closed { One = 1, Two = 2 }
}

envelope_enum! {
    #[derive(Debug)]
    pub enum Open: open { One = 1 }
}

envelope! {
    #[derive(Debug)]
    pub struct Node: version 1, compat 0 {
        name: String,
        children: Vec<Node>,
        /// Empty: there was none.
        #[since(1)]
        blob: Bytes = Bytes::new(),
    }
}

envelope! {
    #[derive(Debug)]
    pub struct Mixed: version 3, compat 1 {
        closed: Closed,
        open: Open,
        flag: Option<bool>,
        lasting: Duration,
        map: BTreeMap<u16, Node>,
        /// Empty: there was none.
        #[since(2)]
        set: BTreeSet<u64> = BTreeSet::new(),
        /// Empty: there were none.
        #[since(3)]
        pairs: Vec<([u8; 16], i128)> = Vec::new(),
    }
}

envelope_union! {
    #[derive(Debug)]
    pub enum Message: version 0, compat 0 {
        1 => Node(Node),
        2 => Mixed(Mixed),
    }
}

pub fn run(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    read::<Node>(&bytes);
    read::<Mixed>(&bytes);
    read::<Message>(&bytes);
}

fn read<T: Envelope>(bytes: &Bytes) {
    let prefix = decode_prefix::<T>(bytes.clone())
        .ok()
        .map(|(value, _)| value);
    let whole = decode::<T>(bytes.clone()).ok();
    let checked = decode_checked::<T>(bytes.clone()).ok();
    for value in [prefix, whole, checked].into_iter().flatten() {
        let written = encode(&value);
        let again = decode::<T>(written.clone()).expect("what was read can be written and read");
        assert_eq!(encode(&again), written);
    }
}
