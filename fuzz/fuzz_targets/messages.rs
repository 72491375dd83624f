//! Every message between nodes and every record in an envelope, and what is made of them: the first
//! byte says which. See `corpus/src/target.rs`, which stable builds run too.

#![no_main]

use imprint_corpus::memory::Counting;
use imprint_corpus::target;
use imprint_proto::envelope::{Decoder, Kind};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

#[global_allocator]
static COUNTING: Counting = Counting;

static READERS: LazyLock<(Vec<Kind>, Vec<Decoder>)> = LazyLock::new(|| {
    let kinds = [
        imprint_raft::envelopes::all(),
        imprint_node::envelopes::all(),
    ];
    let decoders = [
        imprint_raft::envelopes::decoders(),
        imprint_node::envelopes::decoders(),
    ];
    (kinds.concat(), decoders.concat())
});

fuzz_target!(|data: &[u8]| target::any(&READERS.0, &READERS.1, data));
