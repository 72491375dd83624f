//! The receiving side of forwarded calls: the same methods, on the node that was asked.

use super::{Core, inspect::state_of};
use crate::{
    failure::{Failure, Reason},
    forward::{
        CallContext, ForwardReply, ForwardRequest,
        ops::{Op, ReplicaQuery},
    },
};
use bytes::Bytes;
use imprint_proto::{envelope, ids::GroupId, v1};
use prost::Message;
use std::sync::Arc;

impl Core {
    /// Carries out what another node passed on; the parts are the bytes of the answer.
    pub async fn handle_forwarded(self: Arc<Self>, request: Bytes) -> Vec<Bytes> {
        let result = match ForwardRequest::decode(request) {
            Ok(ForwardRequest {
                op: Some(op),
                context,
                ..
            }) if context.left().is_zero() => Err(Failure::new(
                Reason::DeadlineExceeded,
                format!(
                    "the deadline passed before node {} looked at a forwarded {}",
                    self.node_id(),
                    op.label()
                ),
            )),
            Ok(ForwardRequest {
                op: Some(op),
                context,
                body,
            }) => self.carry_out(op, body, &context).await,
            Ok(ForwardRequest { op: None, .. }) => Err(Failure::new(
                Reason::Unsupported,
                format!("node {} doesn't know this operation", self.node_id()),
            )),
            Err(error) => Err(Failure::internal(error)),
        };
        ForwardReply(result).encode()
    }

    async fn carry_out(
        &self,
        op: Op,
        body: Bytes,
        context: &CallContext,
    ) -> Result<Bytes, Failure> {
        let unreadable = |error: &dyn std::fmt::Display| {
            Failure::internal(format!("a forwarded {} can't be read: {error}", op.label()))
        };
        match op {
            Op::Send => {
                let request = v1::SendRequest::decode(body).map_err(|e| unreadable(&e))?;
                let answer = self.send(request, context).await?;
                Ok(answer.encode_to_vec().into())
            }
            Op::Poll => {
                let request = v1::PollRequest::decode(body).map_err(|e| unreadable(&e))?;
                let answer = self.poll(request, context).await?;
                Ok(answer.encode_to_vec().into())
            }
            Op::Trim => {
                let request = v1::TrimPartitionRequest::decode(body).map_err(|e| unreadable(&e))?;
                let answer = self.trim_partition(request, context).await?;
                Ok(answer.encode_to_vec().into())
            }
            Op::Control => self.control_here(body, context).await,
            Op::Describe | Op::ReadIndex | Op::Digest => {
                let query: ReplicaQuery = envelope::decode(body).map_err(|e| unreadable(&e))?;
                self.answer_query(op, &query, context).await
            }
        }
    }

    async fn control_here(&self, command: Bytes, context: &CallContext) -> Result<Bytes, Failure> {
        self.check_formed()?;
        let replica = self.open_replica(super::CONTROLLER)?;
        self.command_here(replica, command, context).await
    }

    async fn answer_query(
        &self,
        op: Op,
        query: &ReplicaQuery,
        context: &CallContext,
    ) -> Result<Bytes, Failure> {
        let replica = self.open_replica(GroupId(query.partition_id))?;
        match op {
            Op::Digest => {
                let digest = self.digest_here(replica.as_ref(), query.upto).await?;
                Ok(digest.encode_to_vec().into())
            }
            _ if op == Op::ReadIndex || query.leader_only => {
                let state = self.leader_state(replica, op, context.deadline).await?;
                Ok(envelope::encode(&state))
            }
            _ if query.details => {
                let group = GroupId(query.partition_id);
                let state = self.detailed_state(group, replica.as_ref()).await;
                Ok(envelope::encode(&state))
            }
            _ => Ok(envelope::encode(&state_of(replica.as_ref()))),
        }
    }
}
