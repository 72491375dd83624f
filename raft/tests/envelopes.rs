//! The types that this crate sends and stores: their corpus, what versions make of one another, and
//! damaged bytes.

use imprint_corpus::{Corpus, compat, memory::Counting, target};
use imprint_raft::envelopes::{all, decoders};

#[global_allocator]
static COUNTING: Counting = Counting;

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), all())
}

#[test]
fn every_type_of_the_source_is_listed() {
    corpus().assert_all_listed();
}

#[test]
fn every_version_of_every_type_is_kept_and_reads_as_ever() {
    corpus().assert_kept();
}

/// Failures of a mixed cluster: a field without a semantic default, and an incompatible message.
#[test]
fn every_type_reads_older_and_newer_writers_or_refuses_them() {
    compat::assert_all(&all());
}

#[test]
fn damaged_bytes_of_every_type_neither_panic_nor_take_memory() {
    let seeds = corpus().seeds();
    for (place, kind) in all().iter().enumerate() {
        let own = seeds.iter().filter(|(of, _)| *of == place);
        target::mutants_of_kind(kind, own.map(|(_, seed)| seed.clone()).collect(), 4_000);
    }
}

#[test]
fn damaged_messages_neither_panic_nor_take_memory() {
    for decoder in &decoders() {
        target::mutants_of_decoder(decoder, 20_000);
    }
}
