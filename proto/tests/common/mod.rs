//! What several test programs share: reading the golden vectors, and the slow model of a batch.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod model;
pub mod sound;

use bytes::Bytes;
use serde_json::Value;
use std::{fs, path::Path};

/// The bytes of a golden file.
pub fn vector_bytes(name: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors")
        .join(name);
    fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .into()
}

/// A golden file of JSON.
pub fn vector(name: &str) -> Value {
    serde_json::from_slice(&vector_bytes(name)).unwrap()
}

/// Bytes out of their hex digits.
pub fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}
