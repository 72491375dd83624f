//! Moving the start of partitions up on request.
//!
//! The leader decides, because only it knows the commit point: a start above it could pass messages
//! that are still being acknowledged. What is asked for by time or count becomes an offset there.
//! Carrying a trim out twice changes nothing more, so an answer that got lost is asked for again.

use super::{
    Core,
    inspect::QUESTIONS_AT_A_TIME,
    lookup::Found,
    position,
    route::{Effect, LeaderCall, linearize_failure, propose_failure},
};
use crate::{
    backend::{LogOffsets, Replica},
    failure::{Failure, Reason},
    forward::{CallContext, ops::Op},
    metrics::TrimCause,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use imprint_proto::v1;
use prost::Message;
use std::sync::Arc;

impl Core {
    /// Moves the start of one partition up.
    pub async fn trim_partition(
        &self,
        request: v1::TrimPartitionRequest,
        context: &CallContext,
    ) -> Result<v1::TrimPartitionResponse, Failure> {
        self.check_not_stopping()?;
        self.check_formed()?;
        check_given(request.before.as_ref())?;
        let found = self
            .find(&request.topic, request.partition, context)
            .await?;
        let nodes = found.nodes();
        let call = LeaderCall {
            group: found.group(),
            nodes: &nodes,
            context,
            op: Op::Trim,
            effect: Effect::Repeats,
            body: &|| request.encode_to_vec().into(),
        };
        let local = |replica: Arc<dyn Replica>| self.trim_here(replica, &found, &request, context);
        self.at_leader(call, local, decode_response).await
    }

    async fn trim_here(
        &self,
        replica: Arc<dyn Replica>,
        found: &Found,
        request: &v1::TrimPartitionRequest,
        context: &CallContext,
    ) -> Result<v1::TrimPartitionResponse, Failure> {
        if !replica.is_leader() {
            let message = format!(
                "node {} does not lead partition {}",
                self.node_id(),
                found.group()
            );
            return Err(Failure::new(Reason::NotLeader, message).with_leader(replica.leader()));
        }
        let before = position::resolve(request.before.as_ref(), replica.as_ref()).await?;
        let log = self.log_with(replica.as_ref(), before, context).await?;
        let start = log.start.max(before);
        if start > log.start && !request.dry_run {
            let passed = replica.segments();
            let passed = passed
                .iter()
                .filter(|segment| segment.sealed && segment.end_offset <= start);
            let (segments, bytes) = passed.fold((0, 0), |(n, sum), s| (n + 1, sum + s.bytes));
            replica
                .trim(before, context.deadline)
                .await
                .map_err(propose_failure)?;
            self.metrics().trimmed(TrimCause::Request, segments, bytes);
            tracing::info!(
                topic = found.topic.name,
                partition = found.index,
                from = log.start,
                to = start,
                "trimmed on request"
            );
        }
        Ok(v1::TrimPartitionResponse {
            start_offset: start,
            end_offset: replica.offsets().end,
            previous_start_offset: log.start,
        })
    }

    /// The log's offsets, in which `before` is at or below the commit point.
    async fn log_with(
        &self,
        replica: &dyn Replica,
        before: u64,
        context: &CallContext,
    ) -> Result<LogOffsets, Failure> {
        let log = replica.offsets();
        if before <= log.commit {
            return Ok(log);
        }
        // A leader that was just elected may not know yet what is committed.
        let confirmed = replica.linearize(context.deadline).await;
        confirmed.map_err(linearize_failure)?;
        let log = replica.offsets();
        if before <= log.commit {
            return Ok(log);
        }
        let message = format!(
            "can't trim before offset {before}: the log is {} to {}, committed below {}",
            log.start, log.end, log.commit
        );
        Err(Failure::new(Reason::OffsetOutOfRange, message).with_range(log.start, log.end))
    }

    /// Moves the start of several partitions up, or of all; each by itself.
    pub async fn trim_topic(
        &self,
        request: v1::TrimTopicRequest,
        context: &CallContext,
    ) -> Result<v1::TrimTopicResponse, Failure> {
        self.check_not_stopping()?;
        check_given(request.before.as_ref())?;
        let wanted = self
            .chosen_partitions(&request.topic, &request.partitions, context)
            .await?;
        let trims: Vec<_> = wanted
            .iter()
            .map(|found| {
                let request = v1::TrimPartitionRequest {
                    topic: request.topic.clone(),
                    partition: found.index,
                    before: request.before,
                    dry_run: request.dry_run,
                };
                async move {
                    let result = self.trim_partition(request, context).await;
                    trimmed(found.index, result)
                }
            })
            .collect();
        let partitions = stream::iter(trims)
            .buffered(QUESTIONS_AT_A_TIME)
            .collect()
            .await;
        Ok(v1::TrimTopicResponse { partitions })
    }
}

/// Nobody trims by leaving a field out.
fn check_given(before: Option<&v1::Position>) -> Result<(), Failure> {
    if before.is_some_and(|before| before.at.is_some()) {
        return Ok(());
    }
    let problem = "has to be given";
    Err(Failure::field(Reason::InvalidArgument, "before", problem))
}

fn decode_response(bytes: Bytes) -> Result<v1::TrimPartitionResponse, Failure> {
    v1::TrimPartitionResponse::decode(bytes).map_err(Failure::internal)
}

fn trimmed(
    partition: u32,
    result: Result<v1::TrimPartitionResponse, Failure>,
) -> v1::TrimmedPartition {
    match result {
        Ok(done) => v1::TrimmedPartition {
            partition,
            start_offset: done.start_offset,
            end_offset: done.end_offset,
            previous_start_offset: done.previous_start_offset,
            ..v1::TrimmedPartition::default()
        },
        Err(failure) => {
            let (start, end) = failure.range.unwrap_or_default();
            v1::TrimmedPartition {
                partition,
                start_offset: start,
                end_offset: end,
                previous_start_offset: start,
                reason: failure.reason.name().to_string(),
                error: failure.message,
            }
        }
    }
}
