//! Which partition a message belongs to.
//!
//! The rule for keys is a contract between clients in any language, so that one key always meets the
//! same partition: **XXH3-64, seed 0, of the key's bytes, modulo the number of partitions**. It holds
//! as long as the number of partitions stays; adding partitions moves keys.

use xxhash_rust::xxh3::xxh3_64;

/// The partition of `key` among `partitions`; 0 if there are none.
pub fn partition_for_key(key: &[u8], partitions: u32) -> u32 {
    let count = u64::from(partitions.max(1));
    // Below `partitions`, a u32.
    (xxh3_64(key) % count) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_fixed() {
        // The empty input's XXH3-64 is published with the algorithm.
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(
            u64::from(partition_for_key(b"", 1000)),
            0x2d06_8005_38d3_94c2 % 1000
        );
    }

    #[test]
    fn keys_spread_and_stay() {
        let mut seen = [0u32; 8];
        for number in 0..8000u32 {
            let key = number.to_be_bytes();
            let partition = partition_for_key(&key, 8);
            assert_eq!(partition, partition_for_key(&key, 8));
            seen[partition as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (800..1200).contains(count)),
            "{seen:?}"
        );
    }
}
