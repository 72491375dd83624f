//! The partitions of a topic, described: every replica, and what retention deletes next.

use super::{
    Core,
    inspect::{QUESTIONS_AT_A_TIME, decode_state, state_of},
    lookup::{Found, all_partitions},
    route::Effect,
};
use crate::{
    backend::Replica,
    failure::Failure,
    forward::{
        CallContext,
        ops::{DamageWire, Op, ReplicaDetails, ReplicaQuery, ReplicaState},
    },
    retention::{NextDeletion, Retention},
};
use futures_util::{StreamExt, stream};
use imprint_proto::{
    envelope,
    ids::{GroupId, NodeId},
    v1,
};

impl Core {
    /// Every replica of a topic's partitions.
    pub async fn describe_partitions(
        &self,
        request: v1::DescribePartitionsRequest,
        context: &CallContext,
    ) -> Result<v1::DescribePartitionsResponse, Failure> {
        self.check_formed()?;
        let topic = self.find_topic(&request.topic, context).await?;
        let wanted = all_partitions(&topic);
        let asks: Vec<_> = wanted
            .iter()
            .map(|found| self.describe(found, context))
            .collect();
        let partitions = stream::iter(asks)
            .buffered(QUESTIONS_AT_A_TIME)
            .collect()
            .await;
        Ok(v1::DescribePartitionsResponse { partitions })
    }

    async fn describe(&self, found: &Found, context: &CallContext) -> v1::PartitionDescription {
        let nodes = found.nodes();
        let asks = nodes
            .iter()
            .map(|node| self.details_at(found, *node, context));
        let states = futures_util::future::join_all(asks).await;
        // The newest epoch knows best who leads.
        let best = states
            .iter()
            .flatten()
            .filter(|state| state.leader != 0)
            .max_by_key(|state| state.epoch);
        let leader_node = best.map_or(0, |state| state.leader);
        let replicas = found.partition().replicas.iter().zip(&states);
        let mut description = v1::PartitionDescription {
            index: found.index,
            partition_id: found.group().0,
            leader_node,
            leader_epoch: best.map_or(0, |state| state.epoch),
            replicas: replicas
                .map(|(replica, state)| {
                    describe_replica(replica.replica_id, replica.node_id, state)
                })
                .collect(),
            ..v1::PartitionDescription::default()
        };
        let leads = nodes
            .iter()
            .zip(&states)
            .find(|(node, _)| node.0 == leader_node);
        if let Some((_, Ok(leader))) = leads {
            describe_log(&mut description, leader);
        }
        description
    }

    async fn details_at(
        &self,
        found: &Found,
        node: NodeId,
        context: &CallContext,
    ) -> Result<ReplicaState, Failure> {
        if node == self.node_id() {
            let replica = self.open_replica(found.group())?;
            return Ok(self.detailed_state(found.group(), replica.as_ref()).await);
        }
        let query = ReplicaQuery {
            partition_id: found.group().0,
            upto: 0,
            leader_only: false,
            details: true,
        };
        // The question is about that node's replica, so it isn't passed on from there.
        let context = CallContext {
            hops_left: 1,
            ..context.clone()
        };
        let body = envelope::encode(&query);
        let answer = self
            .forward(node, Op::Describe, &context, Effect::Reads, body)
            .await?;
        decode_state(answer)
    }

    /// How a replica on this node stands; with the details where it leads.
    pub(super) async fn detailed_state(
        &self,
        group: GroupId,
        replica: &dyn Replica,
    ) -> ReplicaState {
        // First what takes time, so that the offsets aren't older than what is said about them.
        let details = match replica.is_leader() {
            true => Some(self.details(group, replica).await),
            false => None,
        };
        ReplicaState {
            details,
            ..state_of(replica)
        }
    }

    async fn details(&self, group: GroupId, replica: &dyn Replica) -> ReplicaDetails {
        let log = replica.offsets();
        let oldest_us = match log.start < log.commit {
            true => replica.stamp_at(log.start).await,
            false => Ok(None),
        };
        let state = self.controller();
        let mut partitions = state.partitions();
        let topic = partitions.find(|(_, partition)| partition.partition_id == group.0);
        let retention = topic.map_or_else(Retention::default, |(topic, _)| {
            Retention::of(&topic.settings)
        });
        let now = self.retention.now(self.parts.clock.as_ref());
        let look = self.retention.look(group, replica, retention, now).await;
        let next = look.map_or_else(
            |error| NextDeletion {
                why_not: format!("the log can't be looked at: {error}"),
                ..NextDeletion::default()
            },
            |decision| decision.next,
        );
        ReplicaDetails {
            // What can't be read is told by what is served and by the scrub, not here.
            oldest_us: oldest_us.unwrap_or_default(),
            next_upto: next.up_to_offset,
            next_bytes: next.bytes,
            next_due_us: next.due_us,
            next_bytes_missing: next.bytes_missing,
            next_why_not: next.why_not,
        }
    }
}

fn describe_log(description: &mut v1::PartitionDescription, leader: &ReplicaState) {
    description.start_offset = leader.start;
    description.commit_offset = leader.commit;
    description.end_offset = leader.end;
    description.bytes = leader.bytes;
    description.segments = leader.segments;
    let Some(details) = &leader.details else {
        return;
    };
    description.oldest_timestamp_us = details.oldest_us;
    description.next_deletion = Some(v1::NextDeletion {
        up_to_offset: details.next_upto,
        bytes: details.next_bytes,
        due_timestamp_us: details.next_due_us,
        bytes_missing: details.next_bytes_missing,
        why_not: details.next_why_not.clone(),
    });
}

fn describe_replica(
    replica_id: u64,
    node_id: u64,
    state: &Result<ReplicaState, Failure>,
) -> v1::ReplicaDescription {
    let unknown = v1::ReplicaDescription {
        replica_id,
        node_id,
        ..v1::ReplicaDescription::default()
    };
    match state {
        Ok(state) => v1::ReplicaDescription {
            reachable: true,
            start_offset: state.start,
            commit_offset: state.commit,
            end_offset: state.end,
            synced_offset: state.synced,
            bytes: state.bytes,
            segments: state.segments,
            damaged: state.damaged.iter().map(damaged_range).collect(),
            ..unknown
        },
        Err(failure) => v1::ReplicaDescription {
            reachable: false,
            error: failure.to_string(),
            ..unknown
        },
    }
}

fn damaged_range(range: &DamageWire) -> v1::DamagedRange {
    v1::DamagedRange {
        from_offset: range.from_offset,
        to_offset: range.to_offset,
        found: range.found.clone(),
    }
}
