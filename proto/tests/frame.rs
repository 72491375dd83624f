//! The frame header against its golden bytes and at random; payload checksums; compression.

mod common;

use bytes::Bytes;
use common::{from_hex, vector};
use imprint_proto::frame::{
    CompressError, Compression, FRAME_HEADER_LEN, FrameError, FrameHeader, compress, decompress,
    payload_checksum, payload_checksum_parts,
};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

fn header_bytes(entry: &Value) -> [u8; FRAME_HEADER_LEN] {
    from_hex(entry["header_hex"].as_str().unwrap())
        .try_into()
        .unwrap()
}

#[test]
fn the_checksums_are_the_ones_meant() {
    let vectors = vector("rpc.json");
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(vectors["crc32c_check"]["value"], "e3069283");
    assert_eq!(payload_checksum(b""), 0xef46_db37_51d8_e999);
    assert_eq!(vectors["xxh64_empty"], "ef46db3751d8e999");
}

#[test]
fn every_vector_is_written_and_read() {
    let vectors = vector("rpc.json");
    for entry in vectors["frames"].as_array().unwrap() {
        let payload = Bytes::from(from_hex(entry["payload_hex"].as_str().unwrap()));
        let field = |name: &str| entry[name].as_u64().unwrap() as u32;
        let header = FrameHeader::for_payload(
            Compression::None,
            field("meta"),
            field("correlation_id"),
            std::slice::from_ref(&payload),
        );
        assert_eq!(
            u64::from(header.version),
            entry["version"].as_u64().unwrap()
        );
        assert_eq!(
            format!("{:016x}", header.payload_checksum),
            entry["payload_checksum"].as_str().unwrap()
        );
        assert_eq!(header.encode(), header_bytes(entry));
        let read = FrameHeader::decode(&header_bytes(entry)).unwrap();
        assert_eq!(read, header);
        assert_eq!(read.check_payload(&payload), Ok(()));
    }
}

#[test]
fn every_damaged_vector_is_refused_as_it_says() {
    let vectors = vector("rpc.json");
    for entry in vectors["frame_negatives"].as_array().unwrap() {
        let error = FrameHeader::decode(&header_bytes(entry)).unwrap_err();
        if entry["expect"].as_str().unwrap().contains("505") {
            assert_eq!(
                error,
                FrameError::Version {
                    found: 3,
                    correlation_id: 1,
                    payload_size: 12,
                    checksum_holds: true
                }
            );
        } else {
            assert!(
                matches!(error, FrameError::HeaderChecksum { .. }),
                "{}",
                entry["name"]
            );
        }
    }
}

#[test]
fn a_compression_that_is_not_known_is_refused() {
    let mut bytes = FrameHeader::for_payload(Compression::Zstd, 1, 2, &[]).encode();
    assert_eq!(
        FrameHeader::decode(&bytes).unwrap().compression,
        Compression::Zstd
    );
    bytes[5] = 2;
    let crc = crc32c::crc32c(&bytes[5..]).to_le_bytes();
    bytes[1..5].copy_from_slice(&crc);
    assert_eq!(
        FrameHeader::decode(&bytes),
        Err(FrameError::Compression { found: 2 })
    );
}

#[test]
fn a_payload_may_have_the_limit_and_not_one_byte_more() {
    let header = FrameHeader::for_payload(Compression::None, 1, 2, &[Bytes::from(vec![0; 10])]);
    assert_eq!(header.check_size(10), Ok(()));
    assert_eq!(
        header.check_size(9),
        Err(FrameError::TooLarge {
            payload_size: 10,
            limit: 9
        })
    );
}

#[test]
fn short_or_dense_payloads_are_sent_as_they_are() {
    let short = vec![Bytes::from(vec![0; 1023])];
    assert_eq!(
        compress(short, 1024).unwrap().compression,
        Compression::None
    );
    let long = vec![Bytes::from(vec![0; 1024])];
    assert_eq!(compress(long, 1024).unwrap().compression, Compression::Zstd);
    let dense: Vec<u8> = (0..300_u64)
        .flat_map(|n| payload_checksum(&n.to_le_bytes()).to_le_bytes())
        .collect();
    let sent = compress(vec![dense.clone().into()], 1024).unwrap();
    assert_eq!(sent.compression, Compression::None);
    assert_eq!(sent.parts, [Bytes::from(dense)]);
}

#[test]
fn a_payload_that_grows_beyond_the_limit_is_stopped() {
    let sent = compress(vec![Bytes::from(vec![0; 1 << 20])], 0).unwrap();
    let packed = sent.parts[0].clone();
    assert!(packed.len() < 1000);
    let whole = decompress(packed.clone(), sent.compression, 1 << 20).unwrap();
    assert_eq!(whole, vec![0; 1 << 20]);
    assert!(matches!(
        decompress(packed.clone(), sent.compression, (1 << 20) - 1),
        Err(CompressError::TooLarge { limit: 1_048_575 })
    ));
    assert!(matches!(
        decompress(packed.slice(..packed.len() - 1), sent.compression, 1 << 20),
        Err(CompressError::Zstd(_))
    ));
}

fn header() -> impl Strategy<Value = FrameHeader> {
    (any::<bool>(), any::<[u32; 3]>(), any::<u64>()).prop_map(
        |(zstd, numbers, payload_checksum)| FrameHeader {
            version: 2,
            compression: if zstd {
                Compression::Zstd
            } else {
                Compression::None
            },
            payload_size: numbers[0],
            meta: numbers[1],
            correlation_id: numbers[2],
            payload_checksum,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_header_reads_back(header in header()) {
        let bytes = header.encode();
        prop_assert_eq!(FrameHeader::decode(&bytes), Ok(header));
        prop_assert_eq!(FrameHeader::decode_front(&bytes[..25]), None);
        prop_assert_eq!(FrameHeader::decode_front(&[&bytes[..], b"more"].concat()), Some(Ok(header)));
    }

    #[test]
    fn every_flipped_bit_shows(header in header(), at in 0_usize..FRAME_HEADER_LEN, bit in 0_u8..8) {
        let mut bytes = header.encode();
        bytes[at] ^= 1 << bit;
        let error = FrameHeader::decode(&bytes).unwrap_err();
        let version_kind = matches!(error, FrameError::Version { checksum_holds: true, .. });
        let checksum_kind = matches!(error, FrameError::HeaderChecksum { .. });
        prop_assert_eq!((version_kind, checksum_kind), (at == 0, at != 0));
    }

    #[test]
    fn random_headers_that_read_write_themselves(mut bytes in any::<[u8; FRAME_HEADER_LEN]>(), mend in any::<bool>()) {
        if mend {
            (bytes[0], bytes[5]) = (2, bytes[5] % 3);
            let crc = crc32c::crc32c(&bytes[5..]).to_le_bytes();
            bytes[1..5].copy_from_slice(&crc);
        }
        if let Ok(header) = FrameHeader::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn parts_are_summed_and_sent_as_one(parts in vec(vec(any::<u8>(), 0..50), 0..5)) {
        let whole = parts.concat();
        let parts: Vec<Bytes> = parts.into_iter().map(Bytes::from).collect();
        prop_assert_eq!(payload_checksum_parts(&parts), payload_checksum(&whole));
        let header = FrameHeader::for_payload(Compression::None, 1, 2, &parts);
        prop_assert_eq!(header.payload_size as usize, whole.len());
        let sent = compress(parts, 20).unwrap();
        let received = Bytes::from(sent.parts.concat());
        prop_assert_eq!(&decompress(received, sent.compression, 250).unwrap()[..], &whole[..]);
    }

    #[test]
    fn damaged_payloads_never_panic(bytes in vec(any::<u8>(), 0..100), flip in any::<(u16, u8)>()) {
        let _ = decompress(bytes.into(), Compression::Zstd, 4096);
        let mut packed = compress(vec![Bytes::from(vec![7; 5000])], 0).unwrap().parts.concat();
        let at = usize::from(flip.0) % packed.len();
        packed[at] ^= flip.1;
        if let Ok(read) = decompress(packed.into(), Compression::Zstd, 8192) {
            prop_assert!(read.len() <= 8192);
        }
    }
}
