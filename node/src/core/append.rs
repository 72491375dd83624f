//! One batch from a client to the log.
//!
//! ```text
//! SendRequest ─▶ find partition ─▶ size and permits ─▶ at the leader: admission ─▶ propose
//! ```
//!
//! The batch is checked once, on the leader's node; a node that passes it on looks at its size only.

use super::{
    Core, batch_limits,
    lookup::Found,
    route::{Effect, LeaderCall, propose_failure, unknown_outcome},
};
use crate::{
    backend::Replica,
    controller::settings,
    failure::{Failure, Reason},
    forward::{CallContext, ops::Op},
    permits::AppendPermit,
};
use bytes::Bytes;
use imprint_proto::{
    batch::{AdmissionError, AdmittedBatch},
    limits::BatchLimits,
    v1,
};
use prost::Message;
use std::sync::Arc;

impl Core {
    /// Appends one batch and answers when it is committed.
    pub async fn send(
        &self,
        request: v1::SendRequest,
        context: &CallContext,
    ) -> Result<v1::SendResponse, Failure> {
        self.check_not_stopping()?;
        self.check_formed()?;
        let found = self
            .find(&request.topic, request.partition, context)
            .await?;
        let limits = self.limits_of(&found);
        check_size(&request.batch, &limits)?;
        self.check_room_of(&found.nodes())?;
        let partition = found.partition().partition_id;
        let permit = Arc::new(self.budgets.take(partition, request.batch.len() as u64)?);
        let nodes = found.nodes();
        let call = LeaderCall {
            group: found.group(),
            nodes: &nodes,
            context,
            op: Op::Send,
            effect: Effect::Writes,
            body: &|| request.encode_to_vec().into(),
        };
        let local = |replica: Arc<dyn Replica>| {
            self.append_here(replica, &request, partition, &limits, &permit, context)
        };
        self.at_leader(call, local, decode_response).await
    }

    /// A topic may allow less than the node, never more.
    fn limits_of(&self, found: &Found) -> BatchLimits {
        let mut limits = batch_limits(self.limits());
        if let Some(bytes) = settings::number(&found.topic.settings, "max_batch_bytes") {
            limits.max_batch_bytes = limits.max_batch_bytes.min(bytes);
        }
        limits
    }

    async fn append_here(
        &self,
        replica: Arc<dyn Replica>,
        request: &v1::SendRequest,
        partition: u64,
        limits: &BatchLimits,
        permit: &Arc<AppendPermit>,
        context: &CallContext,
    ) -> Result<v1::SendResponse, Failure> {
        if !replica.is_leader() {
            let message = format!(
                "node {} does not lead partition {partition}",
                self.node_id()
            );
            return Err(Failure::new(Reason::NotLeader, message).with_leader(replica.leader()));
        }
        self.check_room(replica.as_ref())?;
        let batch = AdmittedBatch::admit(request.batch.clone(), partition, limits)
            .map_err(|(error, _)| admission_failure(&error))?;
        let (bytes, messages) = (batch.batch_length(), batch.message_count());
        let (expected, deadline) = (request.expected_offset, context.deadline);
        let permit = Arc::clone(permit);
        // A task of its own: when the caller goes away the batch may still be in the log's queue,
        // and its permit must not be given back before that is over.
        let proposal = tokio::spawn(async move {
            let result = replica.propose(batch, expected, deadline).await;
            drop(permit);
            result
        });
        let proposed = match proposal.await {
            Ok(result) => result.map_err(propose_failure)?,
            Err(error) => return Err(unknown_outcome(error.to_string(), false)),
        };
        self.metrics().appended(bytes, messages);
        Ok(v1::SendResponse {
            base_offset: proposed.base_offset,
            last_offset: proposed.last_offset,
            base_timestamp_us: proposed.timestamp_us,
            leader_epoch: proposed.epoch,
            durability: v1::Durability::MajoritySynced as i32,
            served_by: Some(self.node_ref(self.node_id(), context)),
        })
    }
}

fn decode_response(bytes: Bytes) -> Result<v1::SendResponse, Failure> {
    // The other node has answered "done": an answer that can't be read hides a success.
    v1::SendResponse::decode(bytes).map_err(Failure::outcome_unknown)
}

fn check_size(batch: &Bytes, limits: &BatchLimits) -> Result<(), Failure> {
    let (length, limit) = (batch.len() as u64, limits.max_batch_bytes);
    if length <= limit {
        return Ok(());
    }
    let problem = format!("{length} bytes, the limit is {limit}");
    let failure = Failure::field(Reason::BatchTooLarge, "batch", problem);
    Err(failure
        .with_fact("limit", limit)
        .with_fact("length", length))
}

/// What a broken rule of the batch layout means for the caller.
pub(super) fn admission_failure(error: &AdmissionError) -> Failure {
    let reason = match error {
        AdmissionError::TooLarge { .. } | AdmissionError::TooManyMessages { .. } => {
            Reason::BatchTooLarge
        }
        AdmissionError::FrameChecksum { .. } | AdmissionError::BatchChecksum { .. } => {
            Reason::BatchChecksum
        }
        AdmissionError::AlreadyStamped { .. } => Reason::BatchStamped,
        _ => Reason::BatchMalformed,
    };
    let problem = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    Failure::field(reason, "batch", problem).with_fact("rule", error.rule())
}
