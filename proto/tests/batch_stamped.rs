//! Stamping, the follower's check, and cutting a run of batches.

mod common;

use bytes::Bytes;
use common::sound::{admit, sealed, sound};
use imprint_proto::batch::{AdmittedBatch, BatchError, StampError, StampedBatch, split_batches};
use imprint_proto::limits::BatchLimits;

#[test]
fn a_batch_whose_offsets_would_wrap_comes_back() {
    let batch = admit(&sound(3)).unwrap();
    let (error, batch) = batch.stamp(u64::MAX - 2, 9).unwrap_err();
    assert_eq!(
        error,
        StampError::OffsetOverflow {
            base_offset: u64::MAX - 2,
            message_count: 3
        }
    );
    let stamped = batch.stamp(u64::MAX - 3, 9).unwrap();
    assert_eq!(stamped.next_offset(), u64::MAX);
}

#[test]
fn stamping_changes_no_byte_that_someone_else_holds() {
    let bytes = Bytes::from(sound(2).encode());
    let before = bytes.to_vec();
    let admitted = AdmittedBatch::admit(bytes.clone(), 5, &BatchLimits::default()).unwrap();
    let first = admitted.clone().stamp(10, 20).unwrap();
    let first_bytes = first.to_contiguous();
    let second = admitted.stamp(30, 40).unwrap();
    assert_eq!(bytes, before);
    assert_eq!(first.to_contiguous(), first_bytes);
    assert_eq!(second.base_offset(), 30);
    let blob_in_place = bytes.slice(256..).as_ptr();
    assert_eq!(first.parts().1.as_ptr(), blob_in_place);
    assert_eq!(second.parts().1.as_ptr(), blob_in_place);
    assert!(
        bytes.try_into_mut().is_err(),
        "shared bytes give no way to write"
    );
}

fn stamped(count: u32, offset: u64, time: u64) -> Bytes {
    let admitted = admit(&sound(count)).unwrap();
    admitted.stamp(offset, time).unwrap().to_contiguous()
}

#[test]
fn a_follower_refuses_each_kind_of_damage() {
    let good = stamped(2, 10, 20);
    let damaged = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        StampedBatch::verify(bytes.into(), 5).unwrap_err()
    };
    assert!(matches!(damaged(0), BatchError::BatchChecksum { .. }));
    assert!(matches!(damaged(8), BatchError::BatchChecksum { .. }));
    assert!(matches!(damaged(32), BatchError::LengthMismatch { .. }));
    assert!(matches!(damaged(40), BatchError::BatchChecksum { .. }));
    assert!(matches!(damaged(48), BatchError::Tiling(_)));
    assert_eq!(damaged(100), BatchError::Reserved { at: 100, value: 1 });
    assert!(matches!(
        damaged(256),
        BatchError::FrameChecksum { index: 0, .. }
    ));
    assert_eq!(
        damaged(256 + 24),
        BatchError::OffsetDelta { index: 0, found: 1 }
    );
    assert!(matches!(
        damaged(good.len() - 1),
        BatchError::FrameChecksum { index: 1, .. }
    ));
    assert_eq!(
        StampedBatch::verify(good.clone(), 6),
        Err(BatchError::WrongPartition {
            expected: 6,
            found: 5
        })
    );
    assert!(StampedBatch::verify_unbound(good).is_ok());
}

#[test]
fn a_swapped_frame_shows_in_the_batch_checksum() {
    let mut other = sound(2);
    other.frames[1].payload = vec![99];
    let other = sealed(other).encode();
    let mut bytes = stamped(2, 10, 20).to_vec();
    bytes[256 + 49..].copy_from_slice(&other[256 + 49..]);
    assert!(matches!(
        StampedBatch::verify(bytes.into(), 5),
        Err(BatchError::BatchChecksum { .. })
    ));
}

#[test]
fn a_chain_follows_on_in_offset_and_time() {
    let batch = StampedBatch::verify(stamped(2, 10, 20), 5).unwrap();
    assert_eq!(batch.verify_chain(10, 20), Ok(()));
    assert_eq!(
        batch.verify_chain(11, 20),
        Err(BatchError::WrongOffset {
            expected: 11,
            found: 10
        })
    );
    assert_eq!(
        batch.verify_chain(10, 21),
        Err(BatchError::TimeBackwards {
            last: 21,
            found: 20
        })
    );
}

#[test]
fn trusted_bytes_are_still_held_to_their_structure() {
    let good = stamped(2, 10, 20);
    let batch = StampedBatch::from_contiguous(good.clone()).unwrap();
    assert_eq!(batch.parts().0.as_ptr(), good.as_ptr());
    assert_eq!(batch.to_contiguous().as_ptr(), good.as_ptr());
    assert_eq!(batch.frames().len(), 2);
    assert!(StampedBatch::from_contiguous(good.slice(..good.len() - 1)).is_err());
    let mut bytes = good.to_vec();
    bytes[256 + 36] = 200;
    assert!(matches!(
        StampedBatch::from_contiguous(bytes.into()),
        Err(BatchError::Tiling(_))
    ));
}

#[test]
fn a_torn_run_ends_with_its_fault() {
    let run = [stamped(1, 10, 20), stamped(2, 11, 20)].concat();
    let torn = Bytes::from(run[..run.len() - 1].to_vec());
    let items: Vec<_> = split_batches(torn).collect();
    assert_eq!(items.len(), 2);
    assert_eq!(items[0].as_ref().unwrap(), &stamped(1, 10, 20));
    assert_eq!(
        items[1],
        Err(BatchError::LengthMismatch {
            batch_length: 354,
            given: 353
        })
    );
    let zeros: Vec<_> = split_batches(Bytes::from(vec![0; 512])).collect();
    assert_eq!(
        zeros,
        [Err(BatchError::LengthBelowHeader { batch_length: 0 })]
    );
}
