//! Batches: the crate against the slow model that its tests use.
//!
//! Each input is judged twice, as it is and with its length and checksums made right, so that the
//! rules behind the checksums are reached.

use super::model;
use bytes::Bytes;
use imprint_proto::batch::{AdmittedBatch, StampedBatch, split_batches};
use imprint_proto::limits::BatchLimits;

const LIMITS: BatchLimits = BatchLimits {
    max_batch_bytes: 2048,
    max_messages: 16,
    max_user_headers_bytes: 200,
    max_header_field_bytes: 32,
};

pub fn run(data: &[u8]) {
    judge(Bytes::copy_from_slice(data));
    let mut mended = data.to_vec();
    model::reseal(&mut mended);
    judge(mended.into());
}

fn judge(bytes: Bytes) {
    for piece in split_batches(bytes.clone()).flatten() {
        let _ = StampedBatch::verify_unbound(piece);
    }
    let verified = StampedBatch::verify(bytes.clone(), 0);
    assert_eq!(verified.is_ok(), model::verify(&bytes, 0).is_some());
    let admitted = AdmittedBatch::admit(bytes.clone(), 3, &LIMITS);
    match (admitted, model::admit(&bytes, &LIMITS)) {
        (Ok(batch), Ok(expected)) => {
            assert_eq!(expected.encode(), bytes);
            follow(batch, &bytes);
        }
        (Err((error, back)), Err(rule)) => {
            assert_eq!(error.rule(), rule);
            assert_eq!(back, bytes);
        }
        (admitted, expected) => panic!("{admitted:?} against the model's {expected:?}"),
    }
}

/// The rest of an admitted batch's way.
fn follow(batch: AdmittedBatch, sent: &Bytes) {
    for frame in batch.frames() {
        assert!(frame.headers().all(|header| header.is_ok()));
    }
    let stamped = batch.stamp(41, 42).expect("the offsets do not wrap");
    let bytes = stamped.to_contiguous();
    assert_eq!(bytes[256..], sent[256..]);
    assert_eq!(StampedBatch::verify(bytes, 3).as_ref(), Ok(&stamped));
}
