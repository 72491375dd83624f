//! From names to groups and nodes.

use super::{CONTROLLER, Core};
use crate::{
    backend::Replica,
    controller::{PartitionRecord, TopicRecord},
    failure::{Failure, Reason},
    forward::{
        CallContext,
        ops::{Op, ReplicaQuery},
    },
};
use bytes::Bytes;
use imprint_proto::ids::{GroupId, NodeId};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A partition that exists, with its topic.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub topic: Arc<TopicRecord>,
    pub index: u32,
}

impl Found {
    pub fn partition(&self) -> &PartitionRecord {
        // `find` and `all_partitions` only make indices that are there.
        &self.topic.partitions[self.index as usize]
    }

    pub fn group(&self) -> GroupId {
        GroupId(self.partition().partition_id)
    }

    /// The nodes that have a replica, the preferred leader first.
    pub fn nodes(&self) -> Vec<NodeId> {
        let replicas = self.partition().replicas.iter();
        replicas.map(|replica| NodeId(replica.node_id)).collect()
    }
}

/// The partitions of a topic, in order.
pub(super) fn all_partitions(topic: &Arc<TopicRecord>) -> Vec<Found> {
    let count = u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX);
    (0..count)
        .map(|index| Found {
            topic: Arc::clone(topic),
            index,
        })
        .collect()
}

/// A look at the controller's leader may take this long before an unknown name is called unknown.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

impl Core {
    /// The topic of that name. One that isn't known here yet is looked for after catching up with
    /// the controller, so that "not found" is never only this node's delay.
    pub(super) async fn find_topic(
        &self,
        name: &str,
        context: &CallContext,
    ) -> Result<Arc<TopicRecord>, Failure> {
        if let Some(topic) = self.controller().topics.get(name) {
            return Ok(Arc::clone(topic));
        }
        self.check_formed()?;
        self.catch_up_with_controller(context).await?;
        match self.controller().topics.get(name) {
            Some(topic) => Ok(Arc::clone(topic)),
            None => Err(Failure::topic_not_found(name)),
        }
    }

    pub(super) async fn find(
        &self,
        topic: &str,
        partition: u32,
        context: &CallContext,
    ) -> Result<Found, Failure> {
        let topic = self.find_topic(topic, context).await?;
        if partition as usize >= topic.partitions.len() {
            let partitions = topic.partitions.len();
            return Err(Failure::partition_not_found(
                &topic.name,
                partition,
                partitions,
            ));
        }
        Ok(Found {
            topic,
            index: partition,
        })
    }

    pub(super) fn check_formed(&self) -> Result<(), Failure> {
        if self.parts.cluster.cluster_id().is_some() {
            return Ok(());
        }
        let waiting = self.parts.cluster.waiting_for();
        let message = format!("the cluster isn't formed yet: {waiting}");
        Err(Failure::new(Reason::NotReady, message))
    }

    pub(super) fn check_not_stopping(&self) -> Result<(), Failure> {
        if self.is_stopping() {
            let message = format!("node {} is shutting down", self.node_id());
            return Err(Failure::new(Reason::ShuttingDown, message));
        }
        Ok(())
    }

    /// The replica of a partition on this node, if it is open.
    pub(super) fn replica(&self, group: GroupId) -> Option<Arc<dyn Replica>> {
        self.parts.replicas.get(group)
    }

    /// As `replica`, for the metrics page.
    pub(crate) fn replica_for_metrics(&self, group: GroupId) -> Option<Arc<dyn Replica>> {
        self.replica(group)
    }

    pub(super) fn open_replica(&self, group: GroupId) -> Result<Arc<dyn Replica>, Failure> {
        self.replica(group).ok_or_else(|| {
            let node = self.node_id();
            let down = self.parts.replicas.down();
            let message = match down.iter().find(|down| down.group == group) {
                Some(down) => format!(
                    "node {node}'s replica of group {group} is damaged and waits for its repair: {}",
                    down.state
                ),
                None => format!("node {node} has no open replica of group {group}"),
            };
            Failure::new(Reason::ReplicaNotOpen, message)
        })
    }

    /// Waits until this node has applied what the controller's leader had committed when asked.
    pub(super) async fn catch_up_with_controller(
        &self,
        context: &CallContext,
    ) -> Result<(), Failure> {
        let _one_at_a_time = self.refreshing.lock().await;
        let deadline = context.deadline.min(Instant::now() + REFRESH_TIMEOUT);
        let context = CallContext {
            deadline,
            ..context.clone()
        };
        let nodes = self.parts.cluster.controller_nodes();
        let state = self
            .describe_at_leader(CONTROLLER, &nodes, &context, Op::ReadIndex)
            .await?;
        let local = self.open_replica(CONTROLLER)?;
        let mut commit = local.watch_commit();
        let caught_up = commit.wait_for(|commit| *commit >= state.commit);
        match tokio::time::timeout_at(deadline, caught_up).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Failure::new(
                Reason::NotReady,
                format!(
                    "node {} has not caught up with the controller yet",
                    self.node_id()
                ),
            )),
        }
    }

    /// The body of a question about one replica.
    pub(super) fn replica_query(group: GroupId, upto: u64, leader_only: bool) -> Bytes {
        imprint_proto::envelope::encode(&ReplicaQuery {
            partition_id: group.0,
            upto,
            leader_only,
            details: false,
        })
    }
}
