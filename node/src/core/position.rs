//! From what a caller calls a position to an offset.

use super::route::read_failure;
use crate::{
    backend::{LogOffsets, Replica},
    failure::{Failure, Reason},
};
use imprint_proto::v1::{self, position::At};

/// Whether the caller named the offset itself.
pub(super) fn is_named(position: Option<&v1::Position>) -> bool {
    matches!(
        position.and_then(|position| position.at),
        Some(At::Offset(_))
    )
}

/// Resolves a position on this replica. An offset is taken as it is; whether it is within the log
/// is the poll's business.
pub(super) async fn resolve(
    position: Option<&v1::Position>,
    replica: &dyn Replica,
) -> Result<u64, Failure> {
    let LogOffsets { start, commit, .. } = replica.offsets();
    match position.and_then(|position| position.at) {
        None => Ok(start),
        Some(At::First(true)) => Ok(start),
        Some(At::First(false)) => Err(Failure::field(
            Reason::InvalidArgument,
            "position.first",
            "can only be true",
        )),
        Some(At::Offset(offset)) => Ok(offset),
        Some(At::Last(count)) => Ok(commit.saturating_sub(count).max(start)),
        Some(At::TimestampUs(time)) => {
            let offset = replica.offset_for_time(time).await.map_err(read_failure)?;
            Ok(offset.clamp(start, commit.max(start)))
        }
    }
}
