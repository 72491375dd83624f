//! What a node does for its callers, apart from how they call: look up, route, append, poll,
//! administer, compare.
//!
//! [`Core`] is shared by the gRPC services, by the handler of forwarded calls and by the HTTP pages.
//! Requests and answers are the messages of the public contract; whatever reaches a method here has
//! passed no check yet, and every method checks what it uses before it acts.
//!
//! Invariants:
//! * A write is repeated inside the node only after a failure that says that nothing was done.
//! * Nothing above the commit point of the serving replica leaves the node.
//! * Every call ends by its deadline.

mod admin;
mod append;
mod control;
mod describe;
mod handle;
mod inspect;
mod lookup;
mod poll;
mod position;
mod room;
mod route;
mod text;
mod trim;
mod verify;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use crate::{
    backend::{ClusterView, Peers, Replicas},
    config::{Limits, NodeConfig},
    controller::ControllerState,
    forward::CallContext,
    metrics::Metrics,
    permits::{AppendBudgets, Budget},
    retention::RetentionState,
    room::RoomBoard,
};
use imprint_proto::{
    ids::{GroupId, NodeId},
    limits::BatchLimits,
    v1,
};
use imprint_raft::seams::{Clock, Entropy};
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};
use tokio::sync::{Semaphore, watch};

/// The group that holds the controller's state.
pub const CONTROLLER: GroupId = GroupId(0);

/// Forwarded calls in flight to one node. The receiver reads 256 calls of a connection before it
/// stops to; the rest is for replication.
const FORWARDS_PER_NODE: usize = 128;
/// Long polls among them, over all nodes; further ones ask again and again without waiting there.
const REMOTE_WAITS: usize = 64;
const _: () = assert!(REMOTE_WAITS < FORWARDS_PER_NODE);

/// What [`Core`] is made of.
pub struct CoreParts {
    pub node_id: NodeId,
    pub limits: Limits,
    /// For topics that don't set their own.
    pub segment_bytes: u64,
    /// Nodes that form the cluster; topics wait until all have registered.
    pub founders: usize,
    pub replicas: Arc<dyn Replicas>,
    pub peers: Arc<dyn Peers>,
    pub cluster: Arc<dyn ClusterView>,
    pub controller: watch::Receiver<Arc<ControllerState>>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
    pub metrics: Arc<Metrics>,
    /// Room on every node's disk.
    pub room: Arc<RoomBoard>,
}

/// Everything that serving a call needs; one per node.
pub struct Core {
    pub(crate) parts: CoreParts,
    pub(crate) budgets: AppendBudgets,
    pub(crate) retention: RetentionState,
    read_budget: Arc<Budget>,
    /// Leaders of partitions that are not hosted here, as last heard.
    hints: Mutex<HashMap<GroupId, NodeId>>,
    /// Forwarded calls in flight to each node: they share its connection with replication, which
    /// must not wait behind them.
    forwards: Mutex<HashMap<NodeId, Arc<Semaphore>>>,
    /// Long polls that wait on another node.
    remote_waits: Semaphore,
    /// Turns true once, when the node stops taking calls.
    stopping: watch::Sender<bool>,
    /// One look at the controller's leader at a time.
    refreshing: tokio::sync::Mutex<()>,
}

impl Core {
    pub fn new(parts: CoreParts) -> Arc<Self> {
        let limits = &parts.limits;
        Arc::new(Self {
            budgets: AppendBudgets::new(limits.node_bytes, limits.partition_bytes),
            retention: RetentionState::default(),
            read_budget: Budget::new(limits.read_bytes),
            hints: Mutex::new(HashMap::new()),
            forwards: Mutex::new(HashMap::new()),
            remote_waits: Semaphore::new(REMOTE_WAITS),
            stopping: watch::Sender::new(false),
            refreshing: tokio::sync::Mutex::new(()),
            parts,
        })
    }

    pub fn node_id(&self) -> NodeId {
        self.parts.node_id
    }

    pub fn limits(&self) -> &Limits {
        &self.parts.limits
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.metrics
    }

    /// The newest applied state of the controller.
    pub fn controller(&self) -> Arc<ControllerState> {
        Arc::clone(&self.parts.controller.borrow())
    }

    /// From now on writes are refused and waiting polls answer at once.
    pub fn stop_taking_calls(&self) {
        self.stopping.send_replace(true);
    }

    /// Turns true when the node stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Drops what is remembered of a partition that is no more.
    pub(crate) fn forget(&self, group: GroupId) {
        self.budgets.forget(group.0);
        self.retention.forget(group);
        self.hints.lock().remove(&group);
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Bytes of batches that are being appended through this node.
    pub fn append_bytes_in_flight(&self) -> u64 {
        self.budgets.used()
    }

    /// A node as the caller is told of it.
    fn node_ref(&self, node: NodeId, context: &CallContext) -> v1::NodeRef {
        v1::NodeRef {
            node_id: node.0,
            address: self
                .controller()
                .client_address(node, &context.listener)
                .unwrap_or_default(),
        }
    }
}

/// The limits that batches are checked against on a node with this configuration.
pub fn batch_limits(limits: &Limits) -> BatchLimits {
    BatchLimits {
        max_batch_bytes: limits.max_batch_bytes,
        ..BatchLimits::default()
    }
}

/// The settings that a node's configuration gives to [`CoreParts`].
pub fn founders(config: &NodeConfig) -> usize {
    config.seeds.len()
}
