//! Commands to the controller, from any node.

use super::{
    CONTROLLER, Core,
    route::{Effect, LeaderCall, propose_failure},
};
use crate::{
    backend::Replica,
    controller::{Answer, Command, Verdict, batch_for},
    failure::{Failure, Reason},
    forward::{CallContext, ops::Op},
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The pause before a command whose outcome is unknown is given once more.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Core {
    /// Has the controller carry out a command; a refusal is an `Ok` with its verdict.
    pub async fn command(
        &self,
        command: &Command,
        context: &CallContext,
    ) -> Result<Answer, Failure> {
        self.check_formed()?;
        let nodes = self.parts.cluster.controller_nodes();
        let bytes = command.encode();
        let call = LeaderCall {
            group: CONTROLLER,
            nodes: &nodes,
            context,
            op: Op::Control,
            effect: Effect::Writes,
            body: &|| bytes.clone(),
        };
        let local = |replica: Arc<dyn Replica>| {
            let bytes = bytes.clone();
            async move { self.command_here(replica, bytes, context).await }
        };
        let answer = self.at_leader(call, local, Ok).await?;
        Answer::decode(answer).map_err(Failure::outcome_unknown)
    }

    /// As [`Core::command`], for commands that find their own first effect when they are given
    /// twice: an unknown outcome is tried again until the deadline.
    pub async fn repeatable_command(
        &self,
        command: &Command,
        context: &CallContext,
    ) -> Result<Answer, Failure> {
        loop {
            let result = self.command(command, context).await;
            let unknown = matches!(
                &result,
                Err(failure) if matches!(
                    failure.reason,
                    Reason::OutcomeUnknown | Reason::OutcomeUnknownDeadline
                )
            );
            if !unknown || Instant::now() + AGAIN_AFTER >= context.deadline {
                return result;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// Proposes at this node's replica of the controller.
    pub(super) async fn command_here(
        &self,
        replica: Arc<dyn Replica>,
        command: Bytes,
        context: &CallContext,
    ) -> Result<Bytes, Failure> {
        let batch = batch_for(command, self.parts.clock.now_micros())
            .map_err(|error| Failure::new(Reason::InvalidArgument, error.to_string()))?;
        let proposed = replica
            .propose(batch, None, context.deadline)
            .await
            .map_err(propose_failure)?;
        Ok(proposed.reply)
    }
}

/// The failure that a refusal is to the caller.
pub(super) fn refusal(answer: Answer) -> Failure {
    let reason = match answer.verdict {
        Verdict::AlreadyExists => Reason::TopicExists,
        Verdict::NotFound => Reason::TopicNotFound,
        Verdict::Invalid => {
            return Failure::field(Reason::InvalidArgument, &answer.field, answer.reason);
        }
        Verdict::NotEnoughNodes => Reason::NotEnoughNodes,
        Verdict::Unknown => Reason::Unsupported,
        Verdict::Done => Reason::Internal,
    };
    Failure::new(reason, answer.reason)
}
