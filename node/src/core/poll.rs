//! Reading committed batches, at once or when there are some.
//!
//! Any replica serves, only below its own commit point. The answer holds whole batches as they are
//! stored, from the one that has the asked offset; nothing is cut or encoded again. What is damaged
//! here is served by another replica, unless this one was asked for by name.
//!
//! | asked offset | on the leader | on another replica |
//! |---|---|---|
//! | below start | OUT_OF_RANGE | OUT_OF_RANGE |
//! | start ..= commit | read, or wait | read, or wait |
//! | above commit, ..= end | wait | wait |
//! | above end | OUT_OF_RANGE | the leader is asked: OUT_OF_RANGE, or wait for this replica |

use super::{
    Core,
    lookup::Found,
    position,
    route::{Effect, LeaderCall, linearize_failure, read_failure},
};
use crate::{
    backend::{ReadBatches, ReadError, Replica},
    failure::{Failure, Reason},
    forward::{CallContext, ops::Op},
};
use bytes::{Bytes, BytesMut};
use imprint_proto::{ids::NodeId, v1};
use prost::Message;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The pause before another replica is tried when one did not answer.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two questions of a poll that may not wait on the other node.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Kept from the deadline, so that an empty answer arrives before it.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);

impl Core {
    /// Reads batches; waits for some if the request says so.
    pub async fn poll(
        &self,
        request: v1::PollRequest,
        context: &CallContext,
    ) -> Result<v1::PollResponse, Failure> {
        self.check_formed()?;
        let found = self
            .find(&request.topic, request.partition, context)
            .await?;
        if let Some(node) = request.at_node {
            return self.poll_at(NodeId(node), &found, request, context).await;
        }
        let mut tries = 0;
        let mut damaged_at = Vec::new();
        let mut target = self.read_target(&found, tries);
        loop {
            let result = match target {
                Some(node) if node == self.node_id() => {
                    self.poll_here(&found, &request, context).await
                }
                Some(node) => self.poll_there(node, &request, context).await,
                None => Err(Failure::no_leader(format!("partition {}", found.group()))),
            };
            let failure = match result {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            tries += 1;
            if failure.reason == Reason::Corrupt {
                // A hole here is no hole elsewhere; when all have it, that is the answer.
                damaged_at.extend(target);
                target = found
                    .nodes()
                    .into_iter()
                    .find(|node| !damaged_at.contains(node));
                if target.is_none() {
                    return Err(failure);
                }
                continue;
            }
            let elsewhere = matches!(
                failure.reason,
                Reason::PeerUnreachable | Reason::ReplicaNotOpen | Reason::NoLeader
            );
            if !elsewhere || Instant::now() + PAUSE >= context.deadline {
                return Err(failure);
            }
            tokio::time::sleep(PAUSE).await;
            target = self.read_target(&found, tries);
        }
    }

    async fn poll_at(
        &self,
        node: NodeId,
        found: &Found,
        request: v1::PollRequest,
        context: &CallContext,
    ) -> Result<v1::PollResponse, Failure> {
        if !found.nodes().contains(&node) {
            let message = format!("node {node} has no replica of partition {}", found.group());
            return Err(Failure::new(Reason::NotAReplica, message));
        }
        if node == self.node_id() {
            return self.poll_here(found, &request, context).await;
        }
        self.poll_there(node, &request, context).await
    }

    async fn poll_there(
        &self,
        node: NodeId,
        request: &v1::PollRequest,
        context: &CallContext,
    ) -> Result<v1::PollResponse, Failure> {
        let mut request = v1::PollRequest {
            at_node: Some(node.0),
            ..request.clone()
        };
        if request.max_wait_ms == 0 {
            return self.ask_poll(node, &request, context).await;
        }
        if let Ok(_waits_there) = self.remote_waits.try_acquire() {
            return self.ask_poll(node, &request, context).await;
        }
        let until = self.wanted(&request, context).until;
        request.max_wait_ms = 0;
        loop {
            let answer = self.ask_poll(node, &request, context).await?;
            let enough =
                !answer.batches.is_empty() && answer.batches.len() >= request.min_bytes as usize;
            if enough || Instant::now() + ASK_AGAIN_AFTER >= until || self.is_stopping() {
                return Ok(answer);
            }
            // From where the first answer pointed to: "the end" must not move while waiting.
            request.position = Some(v1::Position {
                at: Some(v1::position::At::Offset(answer.position_offset)),
            });
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    async fn ask_poll(
        &self,
        node: NodeId,
        request: &v1::PollRequest,
        context: &CallContext,
    ) -> Result<v1::PollResponse, Failure> {
        let body = request.encode_to_vec().into();
        let answer = self
            .forward(node, Op::Poll, context, Effect::Reads, body)
            .await?;
        v1::PollResponse::decode(answer)
            .map_err(|error| Failure::internal(format!("node {node} answered {error}")))
    }

    /// Serves a poll from this node's replica.
    pub(super) async fn poll_here(
        &self,
        found: &Found,
        request: &v1::PollRequest,
        context: &CallContext,
    ) -> Result<v1::PollResponse, Failure> {
        let replica = self.open_replica(found.group())?;
        if request.linearizable {
            self.confirm(found, replica.as_ref(), context).await?;
        }
        let want = self.wanted(request, context);
        let mut permit = self.read_budget.take(want.max_bytes).ok_or_else(|| {
            let message = "too many bytes of poll answers are being built on this node";
            Failure::new(Reason::OverloadedBytes, message)
        })?;
        let (offset, read) = loop {
            let offset = position::resolve(request.position.as_ref(), replica.as_ref()).await?;
            let read = self
                .read_within(found, replica.as_ref(), offset, &want, context)
                .await;
            match read {
                // A trim came between: only an offset that the caller named can be out of range.
                Err(failure)
                    if failure.reason == Reason::OffsetOutOfRange
                        && !position::is_named(request.position.as_ref())
                        && offset < replica.offsets().start => {}
                read => break (offset, read?),
            }
        };
        let batches = concat(&read.pieces);
        permit.shrink_to(batches.len() as u64);
        self.metrics().polled(batches.len() as u64);
        let log = replica.offsets();
        Ok(v1::PollResponse {
            batches,
            start_offset: log.start,
            commit_offset: log.commit,
            end_offset: log.end,
            next_offset: read.next_offset,
            position_offset: offset,
            epochs: epochs(&read),
            served_by: Some(self.node_ref(self.node_id(), context)),
        })
    }

    async fn read_within(
        &self,
        found: &Found,
        replica: &dyn Replica,
        offset: u64,
        want: &Wanted,
        context: &CallContext,
    ) -> Result<ReadBatches, Failure> {
        self.check_within(found, replica, offset, context).await?;
        self.read_when_there(replica, offset, want).await
    }

    /// After this, the replica shows everything that was acknowledged before the call.
    async fn confirm(
        &self,
        found: &Found,
        replica: &dyn Replica,
        context: &CallContext,
    ) -> Result<(), Failure> {
        if replica.is_leader() {
            match replica.linearize(context.deadline).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let failure = linearize_failure(error);
                    if failure.reason != Reason::NotLeader {
                        return Err(failure);
                    }
                }
            }
        }
        let leader = self
            .describe_at_leader(found.group(), &found.nodes(), context, Op::ReadIndex)
            .await?;
        let mut commit = replica.watch_commit();
        let caught_up = commit.wait_for(|commit| *commit >= leader.commit);
        match tokio::time::timeout_at(context.deadline, caught_up).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Failure::new(
                Reason::NotConfirmed,
                format!(
                    "this replica has not reached the leader's commit point {} in time",
                    leader.commit
                ),
            )),
        }
    }

    async fn check_within(
        &self,
        found: &Found,
        replica: &dyn Replica,
        offset: u64,
        context: &CallContext,
    ) -> Result<(), Failure> {
        let log = replica.offsets();
        let outside = |start, end| out_of_range(offset, start, end);
        if offset < log.start {
            return Err(outside(log.start, log.end));
        }
        if offset <= log.end {
            return Ok(());
        }
        if replica.is_leader() {
            return Err(outside(log.start, log.end));
        }
        // This replica may only be behind: the leader knows. If it can't be asked, waiting is the
        // honest answer, since nothing shows that the position is wrong.
        let asked = self
            .describe_at_leader(found.group(), &found.nodes(), context, Op::Describe)
            .await;
        match asked {
            Ok(leader) if offset > leader.end => Err(outside(leader.start, leader.end)),
            _ => Ok(()),
        }
    }

    fn wanted(&self, request: &v1::PollRequest, context: &CallContext) -> Wanted {
        let limits = self.limits();
        let max_bytes = match u64::from(request.max_bytes) {
            0 => limits.default_poll_bytes,
            given => given.min(limits.max_poll_bytes),
        };
        let wait = Duration::from_millis(u64::from(request.max_wait_ms)).min(limits.max_wait);
        let latest = context
            .deadline
            .checked_sub(ANSWER_MARGIN)
            .unwrap_or(context.deadline);
        Wanted {
            max_bytes,
            min_bytes: u64::from(request.min_bytes).min(max_bytes),
            until: (Instant::now() + wait).min(latest),
        }
    }

    /// Reads what is below the commit point; while that is too little, waits for more until the
    /// time is up or the node stops.
    async fn read_when_there(
        &self,
        replica: &dyn Replica,
        offset: u64,
        want: &Wanted,
    ) -> Result<ReadBatches, Failure> {
        let mut commit = replica.watch_commit();
        let mut stopping = self.stopping.subscribe();
        let mut read = nothing(offset);
        loop {
            let below = *commit.borrow_and_update();
            if below > offset && below > read.next_offset {
                read = replica
                    .read(offset, below, want.max_bytes)
                    .await
                    .map_err(|error| match error {
                        ReadError::BelowStart { offset, start } => {
                            out_of_range(offset, start, replica.offsets().end)
                        }
                        error => read_failure(error),
                    })?;
            }
            let bytes: u64 = read.pieces.iter().map(|piece| piece.len() as u64).sum();
            let full = read.next_offset < below;
            if bytes > 0 && (bytes >= want.min_bytes || full) {
                return Ok(read);
            }
            let more = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => false,
                changed = tokio::time::timeout_at(want.until, commit.changed()) => {
                    matches!(changed, Ok(Ok(())))
                }
            };
            if !more {
                return Ok(read);
            }
        }
    }

    /// How a group's leader stands; with [`Op::ReadIndex`], after it has confirmed that it leads.
    pub(super) async fn describe_at_leader(
        &self,
        group: imprint_proto::ids::GroupId,
        nodes: &[NodeId],
        context: &CallContext,
        op: Op,
    ) -> Result<crate::forward::ops::ReplicaState, Failure> {
        let call = LeaderCall {
            group,
            nodes,
            context,
            op,
            effect: Effect::Reads,
            body: &|| Self::replica_query(group, 0, true),
        };
        let local = |replica: Arc<dyn Replica>| self.leader_state(replica, op, context.deadline);
        self.at_leader(call, local, super::inspect::decode_state)
            .await
    }
}

fn out_of_range(offset: u64, start: u64, end: u64) -> Failure {
    let message = format!("offset {offset} is outside of the log, {start} to {end}");
    Failure::new(Reason::OffsetOutOfRange, message).with_range(start, end)
}

/// What a poll asks for, within the limits.
struct Wanted {
    max_bytes: u64,
    min_bytes: u64,
    until: Instant,
}

fn nothing(offset: u64) -> ReadBatches {
    ReadBatches {
        pieces: Vec::new(),
        next_offset: offset,
        epochs: Vec::new(),
    }
}

/// One piece is passed on without a copy.
fn concat(pieces: &[Bytes]) -> Bytes {
    match pieces {
        [] => Bytes::new(),
        [one] => one.clone(),
        many => {
            let mut all = BytesMut::with_capacity(many.iter().map(Bytes::len).sum());
            for piece in many {
                all.extend_from_slice(piece);
            }
            all.freeze()
        }
    }
}

fn epochs(read: &ReadBatches) -> Vec<v1::EpochRange> {
    read.epochs
        .iter()
        .map(|(epoch, start_offset)| v1::EpochRange {
            epoch: *epoch,
            start_offset: *start_offset,
        })
        .collect()
}
