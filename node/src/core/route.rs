//! To the leader, wherever it is, until the deadline.
//!
//! A try ends in an answer, in a failure that nothing came of (then another try, at the node that
//! the failure points to, or after a pause at the next one), or in any other failure (then that is
//! the answer). Which failures are which is `Reason::is_safe_to_retry`, decided where they arise.

use super::{Core, FORWARDS_PER_NODE, lookup::Found};
use crate::{
    backend::{LinearizeError, PeerError, ProposeError, ReadError, Replica},
    failure::{Failure, Reason},
    forward::{CallContext, ForwardReply, MAX_HOPS, encode_request, ops::Op},
};
use bytes::Bytes;
use imprint_proto::ids::{GroupId, NodeId};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// The first pause when nobody knows a leader; an election takes a few of them.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Added to the time that another node has for a call, so that its own answer of "deadline" still
/// arrives.
const ANSWER_GRACE: Duration = Duration::from_millis(20);

/// Whether a forwarded call changes something: decides what a missing answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
    /// Changes something, and when it is carried out again, nothing more.
    Repeats,
}

/// One call to be carried out at a group's leader.
pub(super) struct LeaderCall<'a> {
    pub group: GroupId,
    /// Where replicas are, the preferred leader first.
    pub nodes: &'a [NodeId],
    pub context: &'a CallContext,
    pub op: Op,
    pub effect: Effect,
    /// What is sent to another node, made only when it is.
    pub body: &'a (dyn Fn() -> Bytes + Sync),
}

impl Core {
    /// Carries a call out at the leader: with `local` if that is this node, else by forwarding;
    /// `decode` reads a forwarded answer.
    pub(super) async fn at_leader<T, F>(
        &self,
        call: LeaderCall<'_>,
        local: impl Fn(Arc<dyn Replica>) -> F,
        decode: impl Fn(Bytes) -> Result<T, Failure>,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut pause = PAUSE_MIN;
        let mut tries = 0;
        loop {
            let target = self.leader_guess(call.group, call.nodes, tries);
            let result = match target {
                Some(node) if node == self.node_id() => match self.open_replica(call.group) {
                    Ok(replica) => local(replica).await,
                    Err(failure) => Err(failure),
                },
                Some(node) => self.pass_on(node, &call).await.and_then(&decode),
                None => Err(Failure::no_leader(format!("group {}", call.group))),
            };
            let failure = match result {
                Ok(answer) => {
                    if let Some(node) = target {
                        self.hints.lock().insert(call.group, node);
                    }
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            // A forwarded call is tried once: the node that took the client's call goes on trying.
            if !worth_another_try(&failure) || call.context.hops_left < MAX_HOPS {
                return Err(finish(failure, call.group));
            }
            let pointed_on = self.note_failure(call.group, target, &failure);
            tries += 1;
            if pointed_on && tries < call.nodes.len() * 2 {
                continue;
            }
            if Instant::now() + pause >= call.context.deadline {
                return Err(finish(failure, call.group));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The node to try: the local replica's leader, the last one heard of, or each replica in turn.
    fn leader_guess(&self, group: GroupId, nodes: &[NodeId], tries: usize) -> Option<NodeId> {
        let local = self.replica(group).and_then(|replica| {
            let leads = replica.is_leader().then(|| self.node_id());
            leads.or_else(|| replica.leader().filter(|node| *node != self.node_id()))
        });
        local
            .or_else(|| self.hints.lock().get(&group).copied())
            .or_else(|| {
                let alive =
                    |node: &&NodeId| **node == self.node_id() || self.parts.peers.is_alive(**node);
                let alive: Vec<NodeId> = nodes.iter().filter(alive).copied().collect();
                alive.get(tries % alive.len().max(1)).copied()
            })
    }

    /// Remembers where a failure points to; true if that is somewhere new.
    fn note_failure(&self, group: GroupId, target: Option<NodeId>, failure: &Failure) -> bool {
        let mut hints = self.hints.lock();
        match failure.leader {
            Some(leader) if Some(leader) != target => {
                hints.insert(group, leader);
                true
            }
            _ => {
                hints.remove(&group);
                false
            }
        }
    }

    /// Notes the leader of a group that isn't hosted here.
    pub(super) fn remember_leader(&self, group: GroupId, leader: NodeId) {
        self.hints.lock().insert(group, leader);
    }

    async fn pass_on(&self, node: NodeId, call: &LeaderCall<'_>) -> Result<Bytes, Failure> {
        if call.context.hops_left == 0 {
            let message = format!("node {} does not lead group {}", self.node_id(), call.group);
            return Err(Failure::new(Reason::NotLeader, message).with_leader(Some(node)));
        }
        self.forward(node, call.op, call.context, call.effect, (call.body)())
            .await
    }

    /// Has another node carry out a call.
    pub(super) async fn forward(
        &self,
        node: NodeId,
        op: Op,
        context: &CallContext,
        effect: Effect,
        body: Bytes,
    ) -> Result<Bytes, Failure> {
        let left = context.left();
        if left.is_zero() {
            let message = "the deadline passed before the call was passed on";
            return Err(Failure::new(Reason::DeadlineExceeded, message));
        }
        let _place = self.forward_place(node, context).await?;
        let request = encode_request(op, context, body);
        self.metrics().forwarded(op);
        let answer = self
            .parts
            .peers
            .forward(node, request, left + ANSWER_GRACE)
            .await;
        match answer.map(ForwardReply::decode) {
            Ok(Ok(ForwardReply(result))) => result,
            Ok(Err(error)) => Err(match effect {
                Effect::Reads | Effect::Repeats => {
                    Failure::internal(format!("node {node}: {error}"))
                }
                Effect::Writes => Failure::outcome_unknown(format!("node {node}: {error}")),
            }),
            Err(error @ PeerError::NotSent { .. }) => {
                Err(Failure::new(Reason::PeerUnreachable, error.to_string()))
            }
            Err(error @ PeerError::NoAnswer { .. }) => Err(match effect {
                Effect::Reads | Effect::Repeats => {
                    Failure::new(Reason::PeerUnreachable, error.to_string())
                }
                Effect::Writes => unknown_outcome(error.to_string(), context.left().is_zero()),
            }),
        }
    }

    /// Waits until there is room for one more forwarded call to that node.
    async fn forward_place(
        &self,
        node: NodeId,
        context: &CallContext,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let places = {
            let mut forwards = self.forwards.lock();
            let fresh = || Arc::new(Semaphore::new(FORWARDS_PER_NODE));
            Arc::clone(forwards.entry(node).or_insert_with(fresh))
        };
        match tokio::time::timeout_at(context.deadline, places.acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Failure::new(
                Reason::OverloadedCalls,
                format!("too many calls are being passed on to node {node}"),
            )),
        }
    }

    /// Where to read a partition from: here if hosted, else its leader as far as known, else any
    /// living replica.
    pub(super) fn read_target(&self, found: &Found, tries: usize) -> Option<NodeId> {
        if tries == 0 && self.replica(found.group()).is_some() {
            return Some(self.node_id());
        }
        self.leader_guess(found.group(), &found.nodes(), tries)
    }
}

fn worth_another_try(failure: &Failure) -> bool {
    let elsewhere = !matches!(
        failure.reason,
        Reason::OverloadedBytes
            | Reason::OverloadedCalls
            | Reason::DiskLow
            | Reason::DeadlineExceeded
            | Reason::NotReady
    );
    failure.is_safe_to_retry() && elsewhere
}

/// Between nodes a replica says "not I"; a client hears that no leader could be reached.
fn finish(failure: Failure, group: GroupId) -> Failure {
    match failure.reason {
        Reason::NotLeader => Failure {
            reason: Reason::NoLeader,
            message: format!(
                "no leader of group {group} took the call: {}",
                failure.message
            ),
            ..failure
        },
        _ => failure,
    }
}

pub(super) fn unknown_outcome(detail: String, deadline: bool) -> Failure {
    let mut failure = Failure::outcome_unknown(detail);
    if deadline {
        failure.reason = Reason::OutcomeUnknownDeadline;
    }
    failure
}

/// What a proposal's failure means for the caller.
pub(super) fn propose_failure(error: ProposeError) -> Failure {
    let message = error.to_string();
    match error {
        ProposeError::NotLeader { leader } => {
            Failure::new(Reason::NotLeader, message).with_leader(leader)
        }
        ProposeError::OffsetMismatch { expected, next } => {
            Failure::new(Reason::OffsetMismatch, message)
                .with_fact("expected-offset", expected)
                .with_fact("next-offset", next)
        }
        ProposeError::Refused(_) => Failure::new(Reason::AppendRefused, message),
        ProposeError::NoRoom => Failure::new(Reason::DiskLowHere, message),
        ProposeError::Unknown { detail, deadline } => unknown_outcome(detail, deadline),
    }
}

pub(super) fn linearize_failure(error: LinearizeError) -> Failure {
    let message = error.to_string();
    match error {
        LinearizeError::NotLeader { leader } => {
            Failure::new(Reason::NotLeader, message).with_leader(leader)
        }
        LinearizeError::NotConfirmed(_) => Failure::new(Reason::NotConfirmed, message),
    }
}

/// A damaged log is an error that says so, never an empty answer.
pub(super) fn read_failure(error: ReadError) -> Failure {
    let message = error.to_string();
    match error {
        ReadError::BelowStart { start, .. } => {
            Failure::new(Reason::OffsetOutOfRange, message).with_range(start, start)
        }
        ReadError::Corrupt(_) => Failure::new(Reason::Corrupt, message),
        ReadError::Io(_) => Failure::internal(message),
    }
}
