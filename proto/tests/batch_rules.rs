//! Each admission rule on its own, each limit at its value and one above, and the order between
//! rules.

mod common;

use bytes::Bytes;
use common::model::ModelBatch;
use common::sound::{admit, admit_under, refusal, sealed, sound};
use imprint_proto::batch::{
    AdmissionError, AdmittedBatch, BatchError, BatchHeader, HeaderKind, HeadersError, TilingError,
    peek_length,
};
use imprint_proto::limits::{BatchLimits, CEILING_MAX_BATCH_BYTES};
use std::error::Error as _;

fn with_headers(block: &[u8]) -> ModelBatch {
    let mut batch = sound(1);
    batch.frames[0].user_headers = block.to_vec();
    sealed(batch)
}

fn tlv(kind: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    out
}

fn pair(key: &[u8], value: &[u8]) -> Vec<u8> {
    [tlv(2, key), tlv(1, value)].concat()
}

#[test]
fn a_sound_batch_is_admitted_and_bound_to_its_partition() {
    let batch = admit(&sound(3)).unwrap();
    assert_eq!(batch.partition_id(), 5);
    assert_eq!(batch.message_count(), 3);
    assert_eq!(batch.batch_length(), 256 + 3 * 49);
    assert_eq!(
        batch
            .frames()
            .map(|frame| frame.payload[0])
            .collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[test]
fn a_refused_batch_gives_its_bytes_back() {
    let bytes = Bytes::from(vec![1; 400]);
    let (_, back) = AdmittedBatch::admit(bytes.clone(), 5, &BatchLimits::default()).unwrap_err();
    assert_eq!(back.as_ptr(), bytes.as_ptr());
}

#[test]
fn rule_3_the_batch_is_no_longer_than_the_limit() {
    let batch = sound(2);
    let limits = |max_batch_bytes| BatchLimits {
        max_batch_bytes,
        ..BatchLimits::default()
    };
    assert!(admit_under(&batch, &limits(batch.batch_length)).is_ok());
    assert_eq!(
        admit_under(&batch, &limits(batch.batch_length - 1)).unwrap_err(),
        AdmissionError::TooLarge {
            batch_length: 354,
            limit: 353
        }
    );
}

#[test]
fn rule_3_no_setting_lifts_the_ceiling() {
    let limits = BatchLimits {
        max_batch_bytes: u64::MAX,
        ..BatchLimits::default()
    };
    assert_eq!(limits.batch_bytes(), CEILING_MAX_BATCH_BYTES);
    let mut header = BatchHeader {
        batch_length: CEILING_MAX_BATCH_BYTES,
        message_count: 1,
        ..BatchHeader::default()
    };
    assert_eq!(peek_length(&header.encode()), Ok(CEILING_MAX_BATCH_BYTES));
    header.batch_length += 1;
    assert_eq!(
        peek_length(&header.encode()),
        Err(BatchError::TooLarge {
            batch_length: CEILING_MAX_BATCH_BYTES + 1,
            ceiling: CEILING_MAX_BATCH_BYTES
        })
    );
}

#[test]
fn rule_5_the_messages_are_no_more_than_the_limit() {
    let limits = BatchLimits {
        max_messages: 3,
        ..BatchLimits::default()
    };
    assert!(admit_under(&sound(3), &limits).is_ok());
    assert_eq!(
        admit_under(&sound(4), &limits).unwrap_err(),
        AdmissionError::TooManyMessages {
            message_count: 4,
            limit: 3
        }
    );
}

#[test]
fn rule_6_a_frame_header_that_does_not_fit() {
    let mut bytes = sound(2).encode();
    bytes.truncate(256 + 49 + 47);
    bytes[32..40].copy_from_slice(&352_u64.to_le_bytes());
    let (error, _) = AdmittedBatch::admit(bytes.into(), 5, &BatchLimits::default()).unwrap_err();
    assert_eq!(
        error,
        AdmissionError::Tiling(TilingError::HeaderCut {
            index: 1,
            at: 49,
            left: 47
        })
    );
}

#[test]
fn rule_6_lengths_that_wrap_in_32_bits() {
    let mut bytes = sound(1).encode();
    bytes[256 + 32..256 + 40].fill(0xff);
    let (error, _) = AdmittedBatch::admit(bytes.into(), 5, &BatchLimits::default()).unwrap_err();
    assert_eq!(
        error,
        AdmissionError::Tiling(TilingError::BodyCut {
            index: 0,
            payload_length: u32::MAX,
            user_headers_length: u32::MAX,
            left: 1
        })
    );
}

#[test]
fn rule_6_more_frames_than_counted() {
    let mut batch = sound(2);
    batch.message_count = 1;
    assert_eq!(
        refusal(&batch),
        AdmissionError::Tiling(TilingError::BytesLeft {
            message_count: 1,
            left: 49
        })
    );
}

#[test]
fn rule_6_a_count_that_nothing_backs_costs_no_memory() {
    let mut batch = sound(1);
    batch.message_count = u32::MAX;
    let limits = BatchLimits {
        max_messages: u32::MAX,
        ..BatchLimits::default()
    };
    assert_eq!(
        admit_under(&batch, &limits).unwrap_err(),
        AdmissionError::Tiling(TilingError::TooFewFrames {
            message_count: u32::MAX,
            found: 1
        })
    );
}

#[test]
fn rule_7_offsets_count_from_zero() {
    let mut batch = sound(3);
    batch.frames[2].offset_delta = 1;
    batch.seal();
    assert_eq!(
        refusal(&batch),
        AdmissionError::OffsetDelta { index: 2, found: 1 }
    );
}

#[test]
fn rule_8_names_both_checksums() {
    let mut batch = sound(3);
    let computed = batch.frames[1].checksum;
    batch.frames[1].checksum = 7;
    assert_eq!(
        refusal(&batch),
        AdmissionError::FrameChecksum {
            index: 1,
            stored: 7,
            computed
        }
    );
}

#[test]
fn rule_9_some_message_is_the_earliest() {
    let mut batch = sound(2);
    batch.frames[0].timestamp_delta = 3;
    batch.seal();
    assert_eq!(refusal(&batch), AdmissionError::NoEarliest { least: 1 });
    batch.frames[1].timestamp_delta = 0;
    batch.seal();
    assert!(admit(&batch).is_ok());
}

fn headers_refusal(block: &[u8]) -> HeadersError {
    let AdmissionError::UserHeaders { index: 0, source } = refusal(&with_headers(block)) else {
        panic!("refused by another rule");
    };
    source
}

#[test]
fn rule_10_each_way_a_block_is_malformed() {
    let good = pair(b"key", b"value");
    let cases = [
        (
            [good.clone(), vec![2, 0, 0]].concat(),
            HeadersError::FieldHeaderCut { at: 18, left: 3 },
        ),
        (tlv(0, b"x"), HeadersError::KindZero { at: 0 }),
        (
            vec![2, 255, 255, 255, 255, 1],
            HeadersError::FieldTooLong {
                at: 0,
                len: u32::MAX,
                limit: 255,
            },
        ),
        (
            vec![2, 9, 0, 0, 0, 1],
            HeadersError::FieldCut {
                at: 0,
                len: 9,
                left: 1,
            },
        ),
        (tlv(2, b""), HeadersError::FieldEmpty { at: 0 }),
        (
            [tlv(2, b"k"), tlv(1, b"")].concat(),
            HeadersError::FieldEmpty { at: 6 },
        ),
        (
            [good.clone(), tlv(2, b"odd")].concat(),
            HeadersError::KeyWithoutValue { at: 18 },
        ),
        (
            [tlv(2, b"k"), tlv(6, &[0; 3])].concat(),
            HeadersError::WrongSize {
                at: 6,
                kind: HeaderKind::INT32,
                expected: 4,
                len: 3,
            },
        ),
    ];
    for (block, expected) in cases {
        assert_eq!(headers_refusal(&block), expected);
    }
    assert!(admit(&with_headers(&good)).is_ok());
}

#[test]
fn rule_10_every_kind_has_its_natural_size_or_none() {
    let sizes = [1, 1, 2, 4, 8, 16, 1, 2, 4, 8, 16, 4, 8];
    for (kind, size) in (3_u8..).zip(sizes) {
        for len in 1..=17 {
            let block = [tlv(2, b"k"), tlv(kind, &vec![0; len])].concat();
            let admitted = admit(&with_headers(&block)).is_ok();
            assert_eq!(admitted, len == size, "kind {kind} with {len} bytes");
        }
    }
    for kind in [1, 2, 16, 200, 255] {
        let block = [tlv(kind, b"any size"), tlv(kind, b"kept")].concat();
        let batch = admit(&with_headers(&block)).unwrap();
        let header = batch
            .frames()
            .next()
            .unwrap()
            .headers()
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(
            (header.key_kind, header.value),
            (HeaderKind(kind), &b"kept"[..])
        );
    }
}

#[test]
fn rule_10_keys_and_values_up_to_255_bytes() {
    assert!(admit(&with_headers(&pair(&[b'k'; 255], &[b'v'; 255]))).is_ok());
    let limit = 255;
    assert_eq!(
        headers_refusal(&pair(&[b'k'; 256], b"v")),
        HeadersError::FieldTooLong {
            at: 0,
            len: 256,
            limit
        }
    );
    assert_eq!(
        headers_refusal(&pair(b"k", &[b'v'; 256])),
        HeadersError::FieldTooLong {
            at: 6,
            len: 256,
            limit
        }
    );
}

#[test]
fn rule_10_a_block_up_to_100_000_bytes() {
    // 390 pairs of 256 bytes and one of 160.
    let mut block = pair(b"k", &[0; 245]).repeat(390);
    block.extend(pair(b"k", &[0; 149]));
    assert_eq!(block.len(), 100_000);
    assert!(admit(&with_headers(&block)).is_ok());
    block.truncate(390 * 256);
    block.extend(pair(b"k", &[0; 150]));
    assert_eq!(
        headers_refusal(&block),
        HeadersError::BlockTooLong {
            len: 100_001,
            limit: 100_000
        }
    );
}

#[test]
fn rule_11_and_12_tell_damage_from_a_batch_sent_again() {
    let mut batch = sound(1);
    batch.base_offset = 8;
    assert!(matches!(
        refusal(&batch),
        AdmissionError::BatchChecksum { .. }
    ));
    batch.seal();
    assert_eq!(
        refusal(&batch),
        AdmissionError::AlreadyStamped {
            partition_id: 0,
            base_offset: 8,
            base_timestamp: 0
        }
    );
}

#[test]
fn the_lowest_rule_speaks_whichever_frame_breaks_it() {
    let mut batch = sound(4);
    batch.frames[0].user_headers = vec![0];
    batch = sealed(batch);
    batch.batch_checksum ^= 1;
    assert_eq!(refusal(&batch).rule(), 10);
    batch
        .frames
        .iter_mut()
        .for_each(|frame| frame.timestamp_delta += 1);
    batch.seal();
    assert_eq!(refusal(&batch).rule(), 9);
    batch.frames[1].checksum ^= 1;
    assert_eq!(refusal(&batch).rule(), 8);
    batch.frames[2].offset_delta = 9;
    assert_eq!(refusal(&batch).rule(), 7);
    batch.frames[3].reserved = 1;
    assert_eq!(refusal(&batch).rule(), 6);
}

#[test]
fn the_reason_is_a_source_and_not_said_twice() {
    let error = refusal(&with_headers(&[0]));
    let source = error.source().unwrap().to_string();
    assert!(!error.to_string().contains(&source));
}
