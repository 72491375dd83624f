//! The types that this crate sends and stores: their corpus, what versions make of one another, and
//! damaged bytes.

use imprint_corpus::{Corpus, compat, memory::Counting, target};
use imprint_raft::envelopes::{all, decoders};

#[global_allocator]
static COUNTING: Counting = Counting;

fn corpus() -> Corpus {
    Corpus::new(env!("CARGO_MANIFEST_DIR"), all(), decoders())
}

#[test]
fn every_type_of_the_source_is_listed() {
    corpus().assert_all_listed();
}

#[test]
fn every_version_of_every_type_is_kept_and_reads_as_ever() {
    corpus().assert_kept();
}

#[test]
fn a_field_appended_later_means_the_same_to_old_and_new_readers() {
    for kind in &all() {
        compat::assert_old_and_new_readers_agree(kind);
        compat::assert_skips_what_a_later_version_appends(kind);
    }
}

#[test]
fn a_message_that_breaks_with_this_version_is_refused() {
    for kind in &all() {
        compat::assert_refuses_what_is_not_for_it(kind);
    }
}

#[test]
fn a_message_that_is_cut_or_followed_by_more_is_refused() {
    for kind in &all() {
        compat::assert_refuses_cuts_and_leftovers(kind);
    }
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
