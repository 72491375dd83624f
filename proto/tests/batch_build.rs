//! The builder and user headers: limits on the producer's side, and every kind of value.

use imprint_proto::batch::{
    AdmittedBatch, BatchBuilder, BuildError, HeaderKind, HeaderValue, Message, UserHeader,
    user_headers,
};
use imprint_proto::limits::BatchLimits;

#[test]
fn the_builder_stops_at_each_limit_and_stays_usable() {
    let limits = BatchLimits {
        max_batch_bytes: 256 + 2 * 58,
        max_messages: 2,
        ..BatchLimits::default()
    };
    let ten = Message {
        payload: &[7; 10],
        ..Message::default()
    };
    let eleven = Message {
        payload: &[7; 11],
        ..Message::default()
    };
    let mut builder = BatchBuilder::new(limits);
    builder.push(ten).unwrap();
    let full = builder.push(eleven).unwrap_err();
    assert_eq!(
        full,
        BuildError::BatchFull {
            bytes: 373,
            limit: 372
        }
    );
    assert!(full.is_full());
    builder.push(ten).unwrap();
    assert_eq!(
        builder.push(ten),
        Err(BuildError::TooManyMessages { limit: 2 })
    );
    let batch = builder.build().unwrap();
    assert!(AdmittedBatch::admit(batch.into_bytes(), 5, &limits).is_ok());
}

#[test]
fn the_builder_counts_headers_towards_the_batch() {
    let headers = [UserHeader::text("key", "value")];
    let message = Message {
        headers: &headers,
        ..Message::default()
    };
    let limits = |max_batch_bytes| BatchLimits {
        max_batch_bytes,
        ..BatchLimits::default()
    };
    assert!(
        BatchBuilder::new(limits(256 + 48 + 18))
            .push(message)
            .is_ok()
    );
    let mut builder = BatchBuilder::new(limits(256 + 48 + 17));
    assert_eq!(
        builder.push(message),
        Err(BuildError::BatchFull {
            bytes: 322,
            limit: 321
        })
    );
    assert_eq!(builder.len_bytes(), 256);
}

#[test]
fn the_builder_checks_headers_as_admission_does() {
    for value in [
        HeaderValue::Raw(&[]),
        HeaderValue::Raw(&[1; 256]),
        HeaderValue::Other(HeaderKind(0), &[1]),
        HeaderValue::Other(HeaderKind::INT64, &[1]),
    ] {
        let headers = [UserHeader::new("key", value)];
        let message = Message {
            headers: &headers,
            ..Message::default()
        };
        let error = BatchBuilder::new(BatchLimits::default())
            .push(message)
            .unwrap_err();
        assert!(matches!(error, BuildError::UserHeaders(_)), "{value:?}");
        assert!(!error.is_full());
    }
}

#[test]
fn a_batch_spans_what_32_bits_of_microseconds_hold() {
    let at = |origin_timestamp_us| Message {
        origin_timestamp_us,
        ..Message::default()
    };
    let latest = 1_000 + u64::from(u32::MAX);
    let mut builder = BatchBuilder::new(BatchLimits::default());
    builder.push(at(latest)).unwrap();
    builder.push(at(1_000)).unwrap();
    let span_us = u64::from(u32::MAX) + 1;
    assert_eq!(builder.push(at(999)), Err(BuildError::TimeSpan { span_us }));
    assert_eq!(
        builder.push(at(latest + 1)),
        Err(BuildError::TimeSpan { span_us })
    );
    let bytes = builder.build().unwrap().into_bytes();
    let batch = AdmittedBatch::admit(bytes, 5, &BatchLimits::default()).unwrap();
    let times = batch.frames().map(|frame| frame.origin_timestamp(1_000));
    assert_eq!(times.collect::<Vec<_>>(), [latest, 1_000]);
}

#[test]
fn a_batch_of_no_messages_is_not_built() {
    let empty = BatchBuilder::new(BatchLimits::default());
    assert!(empty.is_empty());
    assert_eq!(empty.build(), Err(BuildError::NoMessages));
}

#[test]
fn every_kind_of_value_survives() {
    let values = [
        HeaderValue::Raw(&[0, 255]),
        HeaderValue::String("héllo"),
        HeaderValue::Bool(true),
        HeaderValue::Int8(i8::MIN),
        HeaderValue::Int16(i16::MIN),
        HeaderValue::Int32(i32::MIN),
        HeaderValue::Int64(i64::MIN),
        HeaderValue::Int128(i128::MIN),
        HeaderValue::Uint8(u8::MAX),
        HeaderValue::Uint16(u16::MAX),
        HeaderValue::Uint32(u32::MAX),
        HeaderValue::Uint64(u64::MAX),
        HeaderValue::Uint128(u128::MAX),
        HeaderValue::Float32(-0.5),
        HeaderValue::Float64(1e300),
        HeaderValue::Other(HeaderKind(16), &[1]),
        HeaderValue::Other(HeaderKind::STRING, &[0xff]),
        HeaderValue::Other(HeaderKind::BOOL, &[2]),
    ];
    let headers: Vec<_> = values
        .iter()
        .map(|value| UserHeader::new("k", *value))
        .collect();
    let mut block = Vec::new();
    user_headers::encode_into(&headers, &mut block);
    let read: Vec<_> = user_headers::iter(&block)
        .map(|header| header.unwrap().decoded())
        .collect();
    assert_eq!(read, headers);
}

#[test]
fn a_header_is_found_by_its_name_only() {
    let headers = [
        UserHeader {
            key: HeaderValue::Raw(b"name"),
            value: HeaderValue::Uint8(1),
        },
        UserHeader::new("name", HeaderValue::Uint8(2)),
        UserHeader::new("name", HeaderValue::Uint8(3)),
    ];
    let mut block = Vec::new();
    user_headers::encode_into(&headers, &mut block);
    assert_eq!(user_headers::find(&block, "name").unwrap().value, [2]);
    assert_eq!(user_headers::find(&block, "nam"), None);
    block.truncate(10);
    assert_eq!(user_headers::find(&block, "name"), None);
}
