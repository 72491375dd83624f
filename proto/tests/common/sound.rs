//! Sound batches to damage one rule at a time, and admitting them.

use super::model::{ModelBatch, ModelFrame};
use imprint_proto::batch::{AdmissionError, AdmittedBatch};
use imprint_proto::limits::BatchLimits;

/// A batch of one-byte messages, checksums right.
pub fn sound(count: u32) -> ModelBatch {
    let frames = (0..count).map(|index| ModelFrame {
        id: u128::from(index) + 1,
        offset_delta: index,
        timestamp_delta: index,
        payload: vec![index as u8],
        ..ModelFrame::default()
    });
    sealed(ModelBatch {
        origin_timestamp: 1_700_000_000_000_000,
        frames: frames.collect(),
        ..ModelBatch::default()
    })
}

/// The batch with its length, count and checksums made right.
pub fn sealed(mut batch: ModelBatch) -> ModelBatch {
    batch.message_count = batch.frames.len() as u32;
    batch.batch_length = batch.encode().len() as u64;
    batch.seal();
    batch
}

pub fn admit_under(
    batch: &ModelBatch,
    limits: &BatchLimits,
) -> Result<AdmittedBatch, AdmissionError> {
    AdmittedBatch::admit(batch.encode().into(), 5, limits).map_err(|(error, _)| error)
}

pub fn admit(batch: &ModelBatch) -> Result<AdmittedBatch, AdmissionError> {
    admit_under(batch, &BatchLimits::default())
}

pub fn refusal(batch: &ModelBatch) -> AdmissionError {
    admit(batch).unwrap_err()
}
