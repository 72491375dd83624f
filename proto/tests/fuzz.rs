//! The fuzz targets on damaged copies of the golden vectors: the same inputs in every run, on a
//! stable compiler, with the memory counted that decoding holds.

mod common;

#[path = "targets/batch_admission.rs"]
mod batch_admission;
#[path = "targets/envelope.rs"]
mod envelope;
#[path = "targets/frame.rs"]
mod frame;

use common::{from_hex, model, vector, vector_bytes};
use imprint_corpus::memory::{Counting, peak_of};
use imprint_corpus::target::{self, assert_modest};
use imprint_proto::batch::AdmittedBatch;
use imprint_proto::envelope::Kind;
use imprint_proto::frame::{Compression, decompress};
use imprint_proto::limits::BatchLimits;
use std::path::Path;

#[global_allocator]
static COUNTING: Counting = Counting;

fn batches() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/batch");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".bin")).collect();
    names.sort();
    let read = |name| vector_bytes(&format!("batch/{name}")).to_vec();
    names.into_iter().map(read).collect()
}

#[test]
fn damaged_batches() {
    target::run("batch_admission", &batches(), 50_000, |input| {
        batch_admission::run(input);
        let bytes = bytes::Bytes::copy_from_slice(input);
        let limits = BatchLimits::default();
        let (_, held) = peak_of(|| AdmittedBatch::admit(bytes, 3, &limits).is_ok());
        assert_modest("admission", input.len(), held);
    });
}

#[test]
fn damaged_envelopes() {
    let vectors = vector("rpc.json");
    let entries = vectors["envelopes"].as_array().unwrap().iter();
    let seeds: Vec<_> = entries
        .map(|entry| from_hex(entry["hex"].as_str().unwrap()))
        .collect();
    target::run("envelope", &seeds, 50_000, envelope::run);
    for kind in [
        Kind::of::<envelope::Node>(),
        Kind::of::<envelope::Mixed>(),
        Kind::of::<envelope::Message>(),
    ] {
        target::mutants_of_kind(&kind, seeds.clone(), 30_000);
    }
}

#[test]
fn damaged_frames() {
    let vectors = vector("rpc.json");
    let of = |entry: &serde_json::Value, field: &str| {
        from_hex(entry[field].as_str().unwrap_or_default())
    };
    let lists = ["frames", "frame_negatives"];
    let entries = lists
        .iter()
        .flat_map(|list| vectors[list].as_array().unwrap());
    let mut seeds: Vec<_> = entries
        .map(|entry| [of(entry, "header_hex"), of(entry, "payload_hex")].concat())
        .collect();
    // What claims to be small and is not, and what is as large as it says.
    for len in [100, frame::LIMIT as usize, 4 * frame::LIMIT as usize] {
        seeds.push(zstd::encode_all(&vec![7; len][..], 1).unwrap());
    }
    target::run("frame", &seeds, 10_000, |input| {
        frame::run(input);
        let bytes = bytes::Bytes::copy_from_slice(input);
        let (_, held) = peak_of(|| decompress(bytes, Compression::Zstd, frame::LIMIT).is_ok());
        // The output while it grows; what zstd itself keeps is bounded by the greatest window.
        assert!(held <= 4 * frame::LIMIT as usize, "held {held}");
    });
}
