//! What fuzzers, and tests in their stead, do with an input; each panics where something fails that
//! must hold.

use crate::memory;
use crate::mutate::{Dice, is_sealed, mutant, reseal};
use bytes::Bytes;
use imprint_proto::envelope::{Decoder, Kind, Shape};

/// Bytes that a decoder may hold for each byte of its input, over [`ALLOWED_AT_ALL`].
///
/// A value is larger than its bytes: an empty string is four bytes and becomes 24, and a list that
/// grows is there twice while it moves. A type that needs more shows as a failure; it then needs
/// another shape rather than another bound, since a peer's frame may be as long as frames get.
pub const ALLOWED_PER_BYTE: usize = 16;

/// Bytes that a decoder may hold whatever its input: a map of one entry takes room for eleven.
pub const ALLOWED_AT_ALL: usize = 4096;

/// Reads an input as a type: what is read is a value like any other.
pub fn kind(kind: &Kind, input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let (read, held) = memory::peak_of(|| (kind.rewrite)(bytes));
    assert_modest(kind.name, input.len(), held);
    if let Ok(written) = read {
        assert_eq!(
            (kind.rewrite)(written.clone()).as_ref(),
            Ok(&written),
            "{}: what was read can't be written and read",
            kind.name
        );
    }
}

/// Gives an input to a decoder; whether it understood it.
pub fn decoder(decoder: &Decoder, input: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(input);
    let (understood, held) = memory::peak_of(|| (decoder.read)(bytes));
    assert_modest(decoder.name, input.len(), held);
    understood
}

/// Panics where a decoder held more for an input of `len` bytes than it may.
pub fn assert_modest(name: &str, len: usize, held: usize) {
    let allowed = ALLOWED_AT_ALL + len * ALLOWED_PER_BYTE;
    assert!(
        held <= allowed,
        "{name}: held {held} bytes for an input of {len}, allowed are {allowed}"
    );
}

/// A fuzzer's input: its first byte says who reads the rest.
pub fn any(kinds: &[Kind], decoders: &[Decoder], input: &[u8]) {
    let Some((who, rest)) = input.split_first() else {
        return;
    };
    match usize::from(*who) % (kinds.len() + decoders.len()) {
        at if at < kinds.len() => kind(&kinds[at], rest),
        at => {
            let of = &decoders[at - kinds.len()];
            decoder(of, rest);
            let mut mended = rest.to_vec();
            if reseal(&mut mended) {
                decoder(of, &mended);
            }
        }
    }
}

/// Damaged copies of a type's own specimens and of the seeds given, so many.
pub fn mutants_of_kind(of: &Kind, seeds: Vec<Vec<u8>>, rounds: usize) {
    let specimens = Shape::ALL.map(|shape| (of.specimen)(shape, of.version).to_vec());
    let seeds = [seeds, specimens.to_vec()].concat();
    run(of.name, &seeds, rounds, |input| kind(of, input));
}

/// Damaged copies of what a decoder understands, so many; first what it understands.
pub fn mutants_of_decoder(of: &Decoder, rounds: usize) {
    let seeds: Vec<Vec<u8>> = (of.seeds)().iter().map(|seed| seed.to_vec()).collect();
    for seed in &seeds {
        assert!(decoder(of, seed), "{}: {seed:02x?} is refused", of.name);
    }
    // Behind a checksum, damage is only reached where the checksum is made right again.
    let sealed = seeds.iter().any(|seed| is_sealed(seed));
    run(of.name, &seeds, rounds, |input| {
        decoder(of, input);
        let mut mended = input.to_vec();
        if sealed && reseal(&mut mended) {
            decoder(of, &mended);
        }
    });
}

/// Runs a target over damaged copies of seeds; where it panics, says with which input.
pub fn run(name: &str, seeds: &[Vec<u8>], rounds: usize, target: impl Fn(&[u8])) {
    let seed = name
        .bytes()
        .fold(0_u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut dice = Dice::new(seed);
    for round in 0..rounds {
        let input = mutant(seeds, &mut dice);
        let told = Told {
            name,
            round,
            input: &input,
        };
        target(&input);
        std::mem::forget(told);
    }
}

/// Prints the input on the way out of a panic.
struct Told<'a> {
    name: &'a str,
    round: usize,
    input: &'a [u8],
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let input = crate::hex::to_hex(self.input);
        eprintln!("{}, mutant {}: {input}", self.name, self.round);
    }
}
