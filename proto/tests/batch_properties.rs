//! The batch codec held against the slow model: whatever is built is admitted, whatever is damaged
//! is refused by the same rule, and what was admitted and stamped verifies.

mod common;

use bytes::Bytes;
use common::model::{self, ModelBatch, frame_starts, overwrite, reseal};
use imprint_proto::batch::{
    AdmittedBatch, BatchBuilder, HeaderKind, HeaderValue, Message, StampedBatch, UserHeader,
    split_batches,
};
use imprint_proto::limits::BatchLimits;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Small limits, so that random batches come near them.
const LIMITS: BatchLimits = BatchLimits {
    max_batch_bytes: 1200,
    max_messages: 5,
    max_user_headers_bytes: 60,
    max_header_field_bytes: 12,
};

#[derive(Clone, Debug)]
struct OwnedMessage {
    id: u128,
    time: u64,
    payload: Vec<u8>,
    headers: Vec<(OwnedField, OwnedField)>,
}

#[derive(Clone, Debug)]
struct OwnedField {
    kind: u8,
    data: Vec<u8>,
}

impl OwnedField {
    fn value(&self) -> HeaderValue<'_> {
        HeaderValue::Other(HeaderKind(self.kind), &self.data)
    }
}

fn field() -> impl Strategy<Value = OwnedField> {
    (1_u8..=20, vec(any::<u8>(), 16), 1_usize..=12).prop_map(|(kind, mut data, len)| {
        let len = HeaderKind(kind).fixed_len().map_or(len, |len| len as usize);
        data.truncate(len);
        OwnedField { kind, data }
    })
}

fn message() -> impl Strategy<Value = OwnedMessage> {
    (
        any::<u128>(),
        1_700_000_000_000_000..1_700_000_000_000_009_u64,
        vec(any::<u8>(), 0..40),
        vec((field(), field()), 0..3),
    )
        .prop_map(|(id, time, payload, headers)| OwnedMessage {
            id,
            time,
            payload,
            headers,
        })
}

fn with_message<R>(message: &OwnedMessage, with: impl FnOnce(Message<'_>) -> R) -> R {
    let headers: Vec<_> = message
        .headers
        .iter()
        .map(|(key, value)| UserHeader {
            key: key.value(),
            value: value.value(),
        })
        .collect();
    with(Message {
        id: message.id,
        origin_timestamp_us: message.time,
        payload: &message.payload,
        headers: &headers,
    })
}

/// What fits of the messages, as a batch, and which ones it were.
fn build(messages: &[OwnedMessage]) -> Option<(Bytes, Vec<OwnedMessage>)> {
    let mut builder = BatchBuilder::new(LIMITS);
    let mut taken = Vec::new();
    for message in messages {
        let before = (builder.len_bytes(), builder.count());
        match with_message(message, |message| builder.push(message)) {
            Ok(()) => taken.push(message.clone()),
            Err(_) => assert_eq!(before, (builder.len_bytes(), builder.count())),
        }
    }
    Some((builder.build().ok()?.into_bytes(), taken))
}

fn batch() -> impl Strategy<Value = (Bytes, Vec<OwnedMessage>)> {
    vec(message(), 1..7).prop_filter_map("nothing fits", |messages| build(&messages))
}

/// One way to damage a batch.
#[derive(Clone, Debug)]
enum Damage {
    FlipBit(Index, u8),
    SetHeaderField(usize, u64),
    SetFrameField(Index, usize, u64),
    Cut(Index),
    Append(Vec<u8>),
    RemoveByte(Index),
    SwapFrames(Index, Index),
}

fn small_or_any() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..4, 250_u64..1300, any::<u64>(), Just(u64::MAX)]
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), 0_u8..8).prop_map(|(at, bit)| Damage::FlipBit(at, bit)),
        (0_usize..8, small_or_any()).prop_map(|(f, value)| Damage::SetHeaderField(f, value)),
        (any::<Index>(), 0_usize..6, small_or_any())
            .prop_map(|(frame, f, value)| Damage::SetFrameField(frame, f, value)),
        any::<Index>().prop_map(Damage::Cut),
        vec(any::<u8>(), 1..60).prop_map(Damage::Append),
        vec(any::<u8>(), 1000..1300).prop_map(Damage::Append),
        any::<Index>().prop_map(Damage::RemoveByte),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Damage::SwapFrames(a, b)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::FlipBit(at, bit) => {
                let at = at.index(bytes.len().max(1));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::SetHeaderField(6, value) => overwrite(bytes, 48, &(*value as u32).to_le_bytes()),
            Self::SetHeaderField(7, value) => overwrite(bytes, 200, &value.to_le_bytes()),
            Self::SetHeaderField(field, value) => {
                overwrite(bytes, field * 8, &value.to_le_bytes());
            }
            Self::SetFrameField(frame, field, value) => set_frame(bytes, frame, *field, *value),
            Self::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Self::Append(more) => bytes.extend(more),
            Self::RemoveByte(at) => {
                if !bytes.is_empty() {
                    bytes.remove(at.index(bytes.len()));
                }
            }
            Self::SwapFrames(a, b) => swap_frames(bytes, a, b),
        }
    }
}

fn set_frame(bytes: &mut [u8], frame: &Index, field: usize, value: u64) {
    let starts = frame_starts(bytes);
    if starts.is_empty() {
        return;
    }
    let start = starts[frame.index(starts.len())];
    match field {
        0 => overwrite(bytes, start, &value.to_le_bytes()),
        1..=4 => overwrite(bytes, start + 20 + 4 * field, &(value as u32).to_le_bytes()),
        _ => overwrite(bytes, start + 40, &value.to_le_bytes()),
    }
}

fn swap_frames(bytes: &mut Vec<u8>, a: &Index, b: &Index) {
    let starts = frame_starts(bytes);
    if starts.is_empty() {
        return;
    }
    let ends = starts[1..].iter().copied().chain([bytes.len()]);
    let mut frames: Vec<Vec<u8>> = starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| bytes[start..end].to_vec())
        .collect();
    let (a, b) = (a.index(frames.len()), b.index(frames.len()));
    frames.swap(a, b);
    bytes.truncate(256);
    frames.iter().for_each(|frame| bytes.extend(frame));
}

fn assert_same(batch: &AdmittedBatch, expected: &ModelBatch) {
    assert_eq!(batch.header().origin_timestamp, expected.origin_timestamp);
    assert_eq!(batch.header().batch_checksum, expected.batch_checksum);
    assert_eq!(batch.batch_length(), expected.batch_length);
    assert_eq!(batch.message_count(), expected.message_count);
    assert_eq!(batch.frames().len(), expected.frames.len());
    for (frame, expected) in batch.frames().zip(&expected.frames) {
        assert_eq!(frame.checksum, expected.checksum);
        assert_eq!(frame.id, expected.id);
        assert_eq!(frame.offset_delta, expected.offset_delta);
        assert_eq!(frame.timestamp_delta, expected.timestamp_delta);
        assert_eq!(frame.payload, expected.payload);
        assert_eq!(frame.user_headers, expected.user_headers);
    }
}

fn assert_admission_agrees(bytes: Bytes) {
    match (
        AdmittedBatch::admit(bytes.clone(), 9, &LIMITS),
        model::admit(&bytes, &LIMITS),
    ) {
        (Ok(batch), Ok(expected)) => {
            assert_same(&batch, &expected);
            assert_eq!(
                expected.encode(),
                bytes,
                "the model's encoding is the bytes"
            );
            let stamped = batch.stamp(70, 80).unwrap();
            StampedBatch::verify(stamped.to_contiguous(), 9).unwrap();
        }
        (Err((error, back)), Err(rule)) => {
            assert_eq!(error.rule(), rule, "{error:?}");
            assert_eq!(back, bytes);
        }
        (admitted, expected) => panic!("{admitted:?} against the model's {expected:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_built_is_admitted_and_holds_the_messages((bytes, messages) in batch()) {
        assert_admission_agrees(bytes.clone());
        let batch = AdmittedBatch::admit(bytes, 9, &LIMITS).unwrap();
        prop_assert_eq!(batch.frames().len(), messages.len());
        for (frame, message) in batch.frames().zip(&messages) {
            prop_assert_eq!(frame.id, message.id);
            prop_assert_eq!(frame.payload, &message.payload[..]);
            let origin = batch.header().origin_timestamp;
            prop_assert_eq!(frame.origin_timestamp(origin), message.time);
            let headers: Vec<_> = frame.headers().map(Result::unwrap).collect();
            prop_assert_eq!(headers.len(), message.headers.len());
            for (header, (key, value)) in headers.iter().zip(&message.headers) {
                prop_assert_eq!((header.key_kind.0, header.key), (key.kind, &key.data[..]));
                prop_assert_eq!((header.value_kind.0, header.value), (value.kind, &value.data[..]));
                let decoded = header.decoded();
                prop_assert_eq!(decoded.key.kind().0, key.kind);
                prop_assert_eq!(decoded.value.kind().0, value.kind);
            }
        }
    }

    #[test]
    fn typed_values_write_the_bytes_they_were_decoded_from((bytes, _) in batch()) {
        let batch = AdmittedBatch::admit(bytes, 9, &LIMITS).unwrap();
        for frame in batch.frames() {
            let decoded: Vec<_> = frame.headers().map(|header| header.unwrap().decoded()).collect();
            let mut block = Vec::new();
            imprint_proto::batch::user_headers::encode_into(&decoded, &mut block);
            prop_assert_eq!(&block[..], frame.user_headers);
        }
    }

    #[test]
    fn damage_is_judged_as_the_model_judges_it(
        (bytes, _) in batch(),
        damages in vec(damage(), 1..4),
        resealed in any::<bool>(),
    ) {
        let mut bytes = bytes.to_vec();
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        if resealed {
            reseal(&mut bytes);
        }
        assert_admission_agrees(bytes.into());
    }

    #[test]
    fn random_bytes_are_judged_as_the_model_judges_them(
        bytes in vec(prop_oneof![4 => Just(0_u8), 1 => any::<u8>()], 0..600),
    ) {
        assert_admission_agrees(bytes.clone().into());
        let verified = StampedBatch::verify(bytes.clone().into(), 0).is_ok();
        prop_assert_eq!(verified, model::verify(&bytes, 0).is_some());
    }

    #[test]
    fn a_follower_takes_exactly_what_the_model_takes(
        (bytes, _) in batch(),
        offset in prop_oneof![0_u64..1000, (u64::MAX - 6)..=u64::MAX],
        time in any::<u64>(),
        damages in vec(damage(), 0..3),
        resealed in any::<bool>(),
    ) {
        let admitted = AdmittedBatch::admit(bytes, 9, &LIMITS).unwrap();
        let count = u64::from(admitted.message_count());
        let stamped = match admitted.stamp(offset, time) {
            Ok(stamped) => stamped,
            Err(_) => {
                prop_assert!(offset.checked_add(count).is_none());
                return Ok(());
            }
        };
        prop_assert_eq!(stamped.next_offset(), offset + count);
        let mut bytes = stamped.to_contiguous().to_vec();
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        if resealed {
            reseal(&mut bytes);
        }
        let verified = StampedBatch::verify(bytes.clone().into(), 9);
        prop_assert_eq!(verified.is_ok(), model::verify(&bytes, 9).is_some());
        if let Ok(batch) = verified {
            prop_assert_eq!(&batch.to_contiguous()[..], &bytes[..]);
            prop_assert_eq!(&StampedBatch::from_contiguous(bytes.into()).unwrap(), &batch);
        }
    }

    #[test]
    fn a_run_of_batches_splits_into_what_it_was_made_of(
        batches in vec(batch(), 0..4),
        tail in vec(any::<u8>(), 0..300),
    ) {
        let mut run = Vec::new();
        batches.iter().for_each(|(bytes, _)| run.extend_from_slice(bytes));
        let whole: Result<Vec<_>, _> = split_batches(run.clone().into()).collect();
        let expected: Vec<_> = batches.iter().map(|(bytes, _)| bytes.clone()).collect();
        prop_assert_eq!(&whole.unwrap(), &expected);
        run.extend(&tail);
        let items: Vec<_> = split_batches(run.into()).collect();
        for (item, bytes) in items.iter().zip(&expected) {
            prop_assert_eq!(item.as_ref().unwrap(), bytes);
        }
        prop_assert!(items.iter().rev().skip(1).all(Result::is_ok));
    }
}
