//! Damaged copies of good inputs: the same ones for the same seed, on every machine.

use imprint_proto::envelope::CHECKED_HEADER_LEN;

/// SplitMix64: small, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below a limit; 0 where that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Sizes and counts that decoders get wrong.
const NUMBERS: [u32; 10] = [
    0,
    1,
    2,
    127,
    255,
    1 << 16,
    1 << 24,
    1 << 31,
    u32::MAX - 1,
    u32::MAX,
];

/// Longer inputs are cut: damage in them shows nothing that damage in shorter ones does not.
const MAX_LEN: usize = 4096;

/// A damaged copy of one of the seeds.
pub fn mutant(seeds: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = seeds[dice.below(seeds.len())].clone();
    for _ in 0..=dice.below(4) {
        damage(&mut bytes, seeds, dice);
    }
    bytes.truncate(MAX_LEN);
    bytes
}

/// Makes the size and the checksum of a checksummed envelope right, so that what is behind them is
/// reached; whether there was room for them.
pub fn reseal(bytes: &mut [u8]) -> bool {
    let Some((header, body)) = bytes.split_at_mut_checked(CHECKED_HEADER_LEN) else {
        return false;
    };
    header[2..6].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[6..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    true
}

/// Whether bytes are a checksummed envelope.
pub fn is_sealed(bytes: &[u8]) -> bool {
    let mut resealed = bytes.to_vec();
    reseal(&mut resealed) && resealed == bytes
}

fn damage(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(bytes.len());
    match dice.below(10) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
        1 if !bytes.is_empty() => bytes[at] = dice.next() as u8,
        2 if !bytes.is_empty() => bytes[at] = dice.below(3) as u8,
        3 if at + 4 <= bytes.len() => {
            let number = NUMBERS[dice.below(NUMBERS.len())];
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        4 if at + 4 <= bytes.len() => {
            let left = (bytes.len() - at - 4) as u32;
            bytes[at..at + 4].copy_from_slice(&left.to_le_bytes());
        }
        5 => bytes.truncate(at),
        8 => {
            // As many of the smallest items as fit: the most that a list can take for its bytes.
            let items = dice.below(MAX_LEN / 4);
            bytes.truncate(at);
            bytes.extend_from_slice(&(items as u32).to_le_bytes());
            bytes.resize(bytes.len() + 4 * items, 0);
        }
        6 => {
            let other = &seeds[dice.below(seeds.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[dice.below(other.len())..]);
        }
        7 => {
            let end = (at + dice.below(16)).min(bytes.len());
            let copy = bytes[at.min(end)..end].to_vec();
            bytes.splice(at..at, copy);
        }
        _ if bytes.len() >= 6 => {
            // The outermost envelope's size as it is now, so that what is inside is reached.
            let size = (bytes.len() - 6) as u32;
            bytes[2..6].copy_from_slice(&size.to_le_bytes());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksummed_envelope_is_known_and_mended() {
        let sealed = imprint_proto::envelope::encode_checked(&Number { number: 7 });
        assert!(is_sealed(&sealed));
        let mut damaged = sealed.to_vec();
        damaged[11] ^= 1;
        assert!(!is_sealed(&damaged));
        assert!(reseal(&mut damaged) && is_sealed(&damaged));
        assert!(imprint_proto::envelope::decode_checked::<Number>(damaged.into()).is_ok());
        assert!(!reseal(&mut [0; 9]));
    }

    imprint_proto::envelope! { struct Number: version 0, compat 0 { number: u32 } }

    #[test]
    fn the_same_seed_gives_the_same_mutants_and_they_differ() {
        let seeds = vec![vec![7; 40], vec![], (0..100).collect()];
        let make = |seed| {
            let mut dice = Dice::new(seed);
            (0..500)
                .map(|_| mutant(&seeds, &mut dice))
                .collect::<Vec<_>>()
        };
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        let mutants: std::collections::BTreeSet<_> = make(1).into_iter().collect();
        assert!(mutants.len() > 350, "{}", mutants.len());
    }
}
