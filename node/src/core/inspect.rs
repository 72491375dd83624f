//! How replicas and the cluster stand.

use super::{
    CONTROLLER, Core,
    lookup::{Found, all_partitions},
    route::{Effect, linearize_failure},
};
use crate::{
    backend::{DamagedRange, Replica},
    failure::{Failure, Reason},
    forward::{
        CallContext,
        ops::{DamageWire, Op, ReplicaState},
    },
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use imprint_proto::{
    envelope,
    ids::{GroupId, NodeId},
    v1,
};
use std::{fmt::Write as _, sync::Arc};
use tokio::time::Instant;

/// Questions to other nodes on behalf of one call, at a time.
pub(super) const QUESTIONS_AT_A_TIME: usize = 32;
/// Problems that one answer lists.
const MAX_PROBLEMS: usize = 100;

pub(super) fn decode_state(bytes: Bytes) -> Result<ReplicaState, Failure> {
    envelope::decode(bytes).map_err(Failure::internal)
}

/// How a replica on this node stands.
pub(super) fn state_of(replica: &dyn Replica) -> ReplicaState {
    let log = replica.offsets();
    let (bytes, segments) = replica.size();
    ReplicaState {
        replica_id: replica.replica_id().0,
        leader: replica.leader().map_or(0, |node| node.0),
        epoch: replica.epoch(),
        start: log.start,
        commit: log.commit,
        end: log.end,
        synced: log.synced,
        bytes,
        segments,
        details: None,
        damaged: replica.damage().into_iter().map(damage_wire).collect(),
    }
}

fn damage_wire(range: DamagedRange) -> DamageWire {
    DamageWire {
        from_offset: range.from_offset,
        to_offset: range.to_offset,
        found: range.found,
    }
}

fn join(ranges: &[DamagedRange]) -> String {
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    ranges.join("; ")
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Core {
    /// The leader's state, from the leader; with [`Op::ReadIndex`] only once it is confirmed.
    pub(super) async fn leader_state(
        &self,
        replica: Arc<dyn Replica>,
        op: Op,
        deadline: Instant,
    ) -> Result<ReplicaState, Failure> {
        if !replica.is_leader() {
            let message = format!("node {} does not lead the group", self.node_id());
            return Err(Failure::new(Reason::NotLeader, message).with_leader(replica.leader()));
        }
        if op == Op::ReadIndex {
            replica
                .linearize(deadline)
                .await
                .map_err(linearize_failure)?;
        }
        Ok(state_of(replica.as_ref()))
    }

    /// The state of the replica on that node, whether it leads or not.
    pub(super) async fn state_at(
        &self,
        found: &Found,
        node: NodeId,
        context: &CallContext,
    ) -> Result<ReplicaState, Failure> {
        if node == self.node_id() {
            return Ok(state_of(self.open_replica(found.group())?.as_ref()));
        }
        let body = Self::replica_query(found.group(), 0, false);
        // The question is about that node's replica, so it isn't passed on from there.
        let context = CallContext {
            hops_left: 1,
            ..context.clone()
        };
        let answer = self
            .forward(node, Op::Describe, &context, Effect::Reads, body)
            .await?;
        decode_state(answer)
    }

    /// The partitions of a topic that were named, or all of them.
    pub(super) async fn chosen_partitions(
        &self,
        topic: &str,
        partitions: &[u32],
        context: &CallContext,
    ) -> Result<Vec<Found>, Failure> {
        self.check_formed()?;
        let topic = self.find_topic(topic, context).await?;
        let mut wanted = all_partitions(&topic);
        if partitions.is_empty() {
            return Ok(wanted);
        }
        let count = topic.partitions.len();
        let missing = partitions.iter().find(|index| **index as usize >= count);
        if let Some(index) = missing {
            return Err(Failure::partition_not_found(&topic.name, *index, count));
        }
        wanted.retain(|found| partitions.contains(&found.index));
        Ok(wanted)
    }

    /// Start, commit point and end of partitions.
    pub async fn get_offsets(
        &self,
        request: v1::GetOffsetsRequest,
        context: &CallContext,
    ) -> Result<v1::GetOffsetsResponse, Failure> {
        let wanted = self
            .chosen_partitions(&request.topic, &request.partitions, context)
            .await?;
        let asks: Vec<_> = wanted
            .iter()
            .map(|found| self.offsets_of(found, request.at_node, context))
            .collect();
        let answers: Vec<_> = stream::iter(asks)
            .buffered(QUESTIONS_AT_A_TIME)
            .collect()
            .await;
        Ok(v1::GetOffsetsResponse {
            partitions: answers.into_iter().collect::<Result<_, _>>()?,
        })
    }

    async fn offsets_of(
        &self,
        found: &Found,
        at_node: Option<u64>,
        context: &CallContext,
    ) -> Result<v1::PartitionOffsets, Failure> {
        let state = match at_node.map(NodeId) {
            Some(node) if !found.nodes().contains(&node) => {
                let message = format!("node {node} has no replica of partition {}", found.group());
                return Err(Failure::new(Reason::NotAReplica, message));
            }
            Some(node) => self.state_at(found, node, context).await?,
            None => {
                self.describe_at_leader(found.group(), &found.nodes(), context, Op::Describe)
                    .await?
            }
        };
        Ok(v1::PartitionOffsets {
            partition: found.index,
            start_offset: state.start,
            commit_offset: state.commit,
            end_offset: state.end,
        })
    }

    /// How the cluster stands, as this node sees it. Works without a leader and before formation.
    pub fn status(&self, listener: &str) -> v1::GetStatusResponse {
        let state = self.controller();
        let not_ready = self
            .readiness()
            .err()
            .or_else(|| self.dead_nodes())
            .or_else(|| self.disk_trouble());
        let leaderless = self
            .parts
            .replicas
            .open_groups()
            .into_iter()
            .filter_map(|group| self.replica(group))
            .filter(|replica| replica.leader().is_none());
        let controller = self.replica(CONTROLLER);
        v1::GetStatusResponse {
            cluster_id: self
                .parts
                .cluster
                .cluster_id()
                .map(|id| hex(&id))
                .unwrap_or_default(),
            answered_by: self.node_id().0,
            controller_leader: controller
                .and_then(|replica| replica.leader())
                .map_or(0, |node| node.0),
            nodes: state
                .nodes
                .values()
                .map(|node| v1::NodeStatus {
                    node_id: node.node_id,
                    client_address: state
                        .client_address(NodeId(node.node_id), listener)
                        .unwrap_or_default(),
                    peer_address: node.peer_address.clone(),
                    alive: self.is_alive(NodeId(node.node_id)),
                    version: node.version.clone(),
                    disk: Some(self.disk_status(NodeId(node.node_id))),
                })
                .collect(),
            topics: state.topics.len() as u64,
            partitions: state.partitions().count() as u64,
            partitions_without_leader: leaderless.count() as u64,
            ready: not_ready.is_none(),
            not_ready_reason: not_ready.unwrap_or_default(),
            problems: self.problems(),
        }
    }

    /// What an operator should know of this node though the cluster works.
    fn problems(&self) -> Vec<String> {
        let replicas = &self.parts.replicas;
        let down = replicas.down();
        let mut problems: Vec<String> = down
            .iter()
            .map(|down| {
                let ranges = join(&down.damage);
                format!(
                    "{} is closed: {ranges}; {}",
                    self.named(down.group),
                    down.state
                )
            })
            .collect();
        let mut open = replicas.open_groups();
        open.push(CONTROLLER);
        for group in open {
            let damage = self
                .replica(group)
                .map(|replica| replica.damage())
                .unwrap_or_default();
            if !damage.is_empty() {
                let ranges = join(&damage);
                problems.push(format!(
                    "{} is damaged, being repaired: {ranges}",
                    self.named(group)
                ));
            }
        }
        problems.truncate(MAX_PROBLEMS);
        problems
    }

    /// Damaged ranges of open replicas, and replicas that are closed because of damage.
    pub(crate) fn damage_for_metrics(&self) -> (u64, u64) {
        let replicas = &self.parts.replicas;
        let mut open = replicas.open_groups();
        open.push(CONTROLLER);
        let open = open.into_iter().filter_map(|group| self.replica(group));
        let ranges: usize = open.map(|replica| replica.damage().len()).sum();
        (ranges as u64, replicas.down().len() as u64)
    }

    /// A group as people know it.
    fn named(&self, group: GroupId) -> String {
        let node = self.node_id();
        let state = self.controller();
        let found = state.topics.values().find_map(|topic| {
            let mut partitions = topic.partitions.iter();
            let index = partitions.position(|partition| partition.partition_id == group.0)?;
            Some(format!("node {node}'s replica of {}/{index}", topic.name))
        });
        found.unwrap_or_else(|| format!("node {node}'s replica of group {group}"))
    }

    pub(crate) fn is_alive(&self, node: NodeId) -> bool {
        node == self.node_id() || self.parts.peers.is_alive(node)
    }

    fn dead_nodes(&self) -> Option<String> {
        let state = self.controller();
        let dead: Vec<String> = state
            .nodes
            .keys()
            .filter(|node| !self.is_alive(**node))
            .map(ToString::to_string)
            .collect();
        (!dead.is_empty()).then(|| format!("no sign of life from node {}", dead.join(", ")))
    }

    /// Whether a write through this node would work now, else why not.
    pub fn readiness(&self) -> Result<(), String> {
        if self.is_stopping() {
            return Err("the node is shutting down".into());
        }
        self.check_formed().map_err(|failure| failure.message)?;
        let controller = self
            .replica(CONTROLLER)
            .ok_or("the controller's replica isn't open yet")?;
        let nodes = self.parts.cluster.controller_nodes();
        let alive = nodes.iter().filter(|node| self.is_alive(**node)).count();
        if alive <= nodes.len() / 2 {
            let all = nodes.len();
            return Err(format!(
                "no majority: {alive} of {all} nodes give a sign of life"
            ));
        }
        match controller.leader() {
            None => return Err("the controller has no leader".into()),
            Some(leader) if !self.is_alive(leader) => {
                return Err(format!(
                    "the controller's leader, node {leader}, gives no sign of life"
                ));
            }
            Some(_) => {}
        }
        let state = self.controller();
        if !state.nodes.contains_key(&self.node_id()) {
            return Err("this node hasn't registered with the controller yet".into());
        }
        if state.nodes.len() < self.parts.founders {
            let (known, all) = (state.nodes.len(), self.parts.founders);
            return Err(format!("{known} of {all} nodes have registered"));
        }
        let groups = self.parts.replicas.open_groups();
        let led = |group: &_| self.replica(*group).is_some_and(|r| r.leader().is_some());
        if !groups.is_empty() && !groups.iter().any(led) {
            return Err("no partition of this node has a leader".into());
        }
        Ok(())
    }
}
