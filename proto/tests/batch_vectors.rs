//! The golden batches, made from the layout text by another program: every field, both checksums
//! and, for each damaged one, the rule that refuses it.

mod common;

use bytes::Bytes;
use common::{from_hex, vector, vector_bytes};
use imprint_proto::batch::{
    AdmissionError, AdmittedBatch, BatchBuilder, BatchError, BatchHeader, FrameView, HeaderKind,
    HeaderValue, Message, StampedBatch, TilingError, UserHeader,
};
use imprint_proto::limits::BatchLimits;
use serde_json::Value;

fn batches() -> Value {
    vector("batch/vectors.json")
}

fn named<'v>(vectors: &'v Value, list: &str, name: &str) -> &'v Value {
    let found = vectors[list]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["name"] == name));
    found.unwrap_or_else(|| panic!("no vector {name}"))
}

fn bytes_of(entry: &Value) -> Bytes {
    let bytes = vector_bytes(&format!("batch/{}", entry["file"].as_str().unwrap()));
    if let Some(size) = entry["size"].as_u64() {
        assert_eq!(bytes.len() as u64, size);
        assert_eq!(bytes, from_hex(entry["hex"].as_str().unwrap()));
    }
    bytes
}

fn hex_u64(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

fn admit(bytes: Bytes) -> Result<AdmittedBatch, AdmissionError> {
    AdmittedBatch::admit(bytes, 0, &BatchLimits::default()).map_err(|(error, _)| error)
}

fn assert_header(header: &BatchHeader, expected: &Value) {
    let field = |name: &str| expected[name].as_u64().unwrap();
    assert_eq!(header.partition_id, field("partition_id"));
    assert_eq!(header.base_offset, field("base_offset"));
    assert_eq!(header.base_timestamp, field("base_timestamp"));
    assert_eq!(header.origin_timestamp, field("origin_timestamp"));
    assert_eq!(header.batch_length, field("batch_length"));
    assert_eq!(header.batch_checksum, hex_u64(&expected["batch_checksum"]));
    assert_eq!(u64::from(header.message_count), field("message_count"));
}

fn assert_frame(frame: &FrameView<'_>, header: &BatchHeader, expected: &Value) {
    let field = |name: &str| expected[name].as_u64().unwrap();
    let id = u128::from_str_radix(expected["id"].as_str().unwrap(), 16).unwrap();
    assert_eq!(frame.len_bytes() as u64, field("length"));
    assert_eq!(frame.checksum, hex_u64(&expected["checksum"]));
    assert_eq!(frame.computed_checksum(), frame.checksum);
    assert_eq!(frame.id, id);
    assert_eq!(u64::from(frame.offset_delta), field("offset_delta"));
    assert_eq!(u64::from(frame.timestamp_delta), field("timestamp_delta"));
    assert_eq!(
        frame.payload,
        from_hex(expected["payload_hex"].as_str().unwrap())
    );
    assert_eq!(
        frame.user_headers,
        from_hex(expected["user_headers_hex"].as_str().unwrap())
    );
    assert_eq!(frame.offset(header.base_offset), field("resolved_offset"));
    assert_eq!(header.base_timestamp, field("resolved_timestamp"));
    assert_eq!(
        frame.origin_timestamp(header.origin_timestamp),
        field("resolved_origin_timestamp")
    );
    let headers: Vec<_> = frame.headers().map(Result::unwrap).collect();
    let expected = expected["user_headers"].as_array().unwrap();
    assert_eq!(headers.len(), expected.len());
    for (header, expected) in headers.iter().zip(expected) {
        assert_eq!(header.key_kind.name(), expected["key_kind"].as_str());
        assert_eq!(header.value_kind.name(), expected["value_kind"].as_str());
        assert_eq!(header.key, from_hex(expected["key_hex"].as_str().unwrap()));
        assert_eq!(
            header.value,
            from_hex(expected["value_hex"].as_str().unwrap())
        );
    }
}

#[test]
fn every_good_vector_decodes_to_its_fields() {
    let vectors = batches();
    for entry in vectors["vectors"].as_array().unwrap() {
        let bytes = bytes_of(entry);
        let partition = entry["header"]["partition_id"].as_u64().unwrap();
        let batch = StampedBatch::verify(bytes.clone(), partition).unwrap();
        assert_header(batch.header(), &entry["header"]);
        assert_eq!(batch.to_contiguous(), bytes);
        assert_eq!(batch.header().encode()[..], bytes[..256]);
        let frames = entry["frames"].as_array().unwrap();
        assert_eq!(batch.frames().len(), frames.len());
        for (frame, expected) in batch.frames().zip(frames) {
            assert_frame(&frame, batch.header(), expected);
        }
    }
}

#[test]
fn stamping_a_producer_vector_gives_the_stamped_vector() {
    let vectors = batches();
    for name in [
        "one_message",
        "three_messages_user_headers",
        "empty_payload",
    ] {
        let sent = named(&vectors, "vectors", &format!("{name}_producer"));
        let stamped = named(&vectors, "vectors", &format!("{name}_stamped"));
        let field = |name: &str| stamped["header"][name].as_u64().unwrap();
        let admitted = AdmittedBatch::admit(
            bytes_of(sent),
            field("partition_id"),
            &BatchLimits::default(),
        );
        let batch = admitted
            .unwrap()
            .stamp(field("base_offset"), field("base_timestamp"))
            .unwrap();
        assert_eq!(batch.to_contiguous(), bytes_of(stamped), "{name}");
    }
}

#[test]
fn a_stamped_vector_is_not_admitted_again() {
    let vectors = batches();
    for name in [
        "one_message",
        "three_messages_user_headers",
        "empty_payload",
    ] {
        let entry = named(&vectors, "vectors", &format!("{name}_stamped"));
        let field = |name: &str| entry["header"][name].as_u64().unwrap();
        assert_eq!(
            admit(bytes_of(entry)).unwrap_err(),
            AdmissionError::AlreadyStamped {
                partition_id: field("partition_id"),
                base_offset: field("base_offset"),
                base_timestamp: field("base_timestamp"),
            }
        );
    }
}

/// The error kinds behind the rules that have more than one.
fn assert_kind(name: &str, error: &AdmissionError) {
    match name {
        "short_header" => assert_eq!(*error, AdmissionError::TooShort { len: 255 }),
        "length_below_header" => assert_eq!(
            *error,
            AdmissionError::LengthBelowHeader { batch_length: 255 }
        ),
        "reserved_first" => assert_eq!(*error, AdmissionError::Reserved { at: 52, value: 2 }),
        "reserved_last" => assert_eq!(*error, AdmissionError::Reserved { at: 255, value: 1 }),
        "frame_reserved" => assert_eq!(
            *error,
            AdmissionError::Tiling(TilingError::Reserved { index: 0, value: 1 })
        ),
        "truncated" => assert_eq!(
            *error,
            AdmissionError::LengthMismatch {
                batch_length: 314,
                given: 313
            }
        ),
        "trailing_byte" => assert_eq!(
            *error,
            AdmissionError::LengthMismatch {
                batch_length: 314,
                given: 315
            }
        ),
        "flipped_payload" => {
            assert!(matches!(
                error,
                AdmissionError::FrameChecksum { index: 0, .. }
            ));
        }
        "flipped_batch_checksum" => {
            assert!(matches!(error, AdmissionError::BatchChecksum { .. }));
        }
        "count_plus_one" => assert_eq!(
            *error,
            AdmissionError::Tiling(TilingError::TooFewFrames {
                message_count: 2,
                found: 1
            })
        ),
        "count_zero" | "empty_batch" => assert_eq!(*error, AdmissionError::NoMessages),
        "payload_length_max" => assert_eq!(
            *error,
            AdmissionError::Tiling(TilingError::BodyCut {
                index: 0,
                payload_length: u32::MAX,
                user_headers_length: 0,
                left: 10,
            })
        ),
        unknown => panic!("vector {unknown} is new: say which error it is"),
    }
}

#[test]
fn every_bad_vector_is_refused_by_its_rule() {
    let vectors = batches();
    for entry in vectors["negatives"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        let bytes = bytes_of(entry);
        let (error, back) =
            AdmittedBatch::admit(bytes.clone(), 0, &BatchLimits::default()).unwrap_err();
        assert_eq!(
            u64::from(error.rule()),
            entry["admission_rule"].as_u64().unwrap(),
            "{name}"
        );
        assert_kind(name, &error);
        assert_eq!(back, bytes, "{name}: the bytes come back");
        assert!(StampedBatch::verify(bytes, 0).is_err(), "{name}");
    }
}

#[test]
fn a_batch_of_no_messages_decodes_and_is_refused() {
    let vectors = batches();
    let bytes = bytes_of(named(&vectors, "negatives", "empty_batch"));
    assert_eq!(BatchHeader::decode(&bytes).unwrap().message_count, 0);
    assert_eq!(
        BatchHeader::decode_checked(&bytes),
        Err(BatchError::NoMessages)
    );
}

#[test]
fn the_builder_writes_the_producer_vectors() {
    let vectors = batches();
    for name in [
        "one_message",
        "three_messages_user_headers",
        "empty_payload",
    ] {
        let entry = named(&vectors, "vectors", &format!("{name}_producer"));
        let mut builder = BatchBuilder::new(BatchLimits::default());
        for frame in entry["frames"].as_array().unwrap() {
            push_frame(&mut builder, frame);
        }
        assert_eq!(builder.len_bytes(), entry["size"].as_u64().unwrap());
        assert_eq!(
            builder.build().unwrap().into_bytes(),
            bytes_of(entry),
            "{name}"
        );
    }
}

fn push_frame(builder: &mut BatchBuilder, frame: &Value) {
    let block = from_hex(frame["user_headers_hex"].as_str().unwrap());
    let headers: Vec<UserHeader<'_>> = imprint_proto::batch::user_headers::iter(&block)
        .map(|header| header.unwrap().decoded())
        .collect();
    let payload = from_hex(frame["payload_hex"].as_str().unwrap());
    let message = Message {
        id: u128::from_str_radix(frame["id"].as_str().unwrap(), 16).unwrap(),
        origin_timestamp_us: frame["resolved_origin_timestamp"].as_u64().unwrap(),
        payload: &payload,
        headers: &headers,
    };
    builder.push(message).unwrap();
}

#[test]
fn typed_headers_of_the_vector_decode_to_values() {
    let vectors = batches();
    let entry = named(&vectors, "vectors", "three_messages_user_headers_producer");
    let batch = admit(bytes_of(entry)).unwrap();
    let second = batch.frames().nth(1).unwrap();
    let headers: Vec<_> = second
        .headers()
        .map(|header| header.unwrap().decoded())
        .collect();
    assert_eq!(
        headers,
        [
            UserHeader::new("attempt", HeaderValue::Uint32(3)),
            UserHeader::new("urgent", HeaderValue::Bool(true)),
            UserHeader {
                key: HeaderValue::Uint16(7),
                value: HeaderValue::Raw(&[0, 255, 0]),
            },
        ]
    );
    assert_eq!(HeaderKind::UINT16.name(), Some("uint16"));
}
