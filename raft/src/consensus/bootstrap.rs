//! A new group's first step: writing the first membership, once, by one of its members.
//!
//! Why wait for the others? The first membership is followed by an election at once. If the other
//! members haven't opened their replicas yet, it fails, and the next try is an election timeout
//! away; a topic's creation would take a second instead of some milliseconds.
//!
//! Every member may write the first membership, since all write the same bytes at the same
//! position; the delays only keep them from campaigning against each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imprint_proto::envelope;
use imprint_proto::ids::NodeId;
use openraft::errors::InitializeError;

use super::codec::{GroupStateMessage, GroupStateReply};
use super::group::Group;
use super::types::ReplicaNode;
use crate::rpc::{CallOptions, Class, PeerTable, methods};

const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// The wait between two rounds of asking; doubles up to [`ASK_INTERVAL_MAX`].
const ASK_INTERVAL: Duration = Duration::from_millis(5);
const ASK_INTERVAL_MAX: Duration = Duration::from_millis(250);

pub(crate) struct Bootstrap {
    pub(crate) group: Arc<Group>,
    pub(crate) members: BTreeMap<u64, (NodeId, String)>,
    pub(crate) peers: Arc<PeerTable>,
    pub(crate) own_node: NodeId,
}

impl Bootstrap {
    /// Waits for the others, then initialises the group unless somebody else has.
    pub(crate) async fn run(self, delay: Duration) {
        let mut interval = ASK_INTERVAL;
        tokio::time::sleep(delay).await;
        while !self.is_done().await {
            if self.majority_open().await {
                self.initialize().await;
                return;
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 2).min(ASK_INTERVAL_MAX);
        }
    }

    /// True when the group has a log or a vote, or has stopped.
    async fn is_done(&self) -> bool {
        self.group.raft().is_initialized().await.unwrap_or(true)
    }

    async fn majority_open(&self) -> bool {
        let asks = self
            .members
            .values()
            .map(|(node, _)| self.is_open_on(*node));
        let open = futures_util::future::join_all(asks).await;
        let count = open.into_iter().filter(|open| *open).count();
        count > self.members.len() / 2
    }

    async fn is_open_on(&self, node: NodeId) -> bool {
        if node == self.own_node {
            return true;
        }
        let Some(peer) = self.peers.get(node) else {
            return false;
        };
        let message = GroupStateMessage {
            groups: vec![self.group.id()],
        };
        let options = CallOptions {
            timeout: ASK_TIMEOUT,
            class: Class::Urgent,
            compress: false,
        };
        let parts = vec![envelope::encode(&message)];
        match peer.call(methods::GROUP_STATE, parts.into(), options).await {
            Ok(reply) => envelope::decode::<GroupStateReply>(reply)
                .is_ok_and(|reply| reply.open.first() == Some(&true)),
            Err(_) => false,
        }
    }

    async fn initialize(&self) {
        let members: BTreeMap<u64, ReplicaNode> = self
            .members
            .iter()
            .map(|(replica, (node, address))| {
                let node = ReplicaNode {
                    node_id: node.0,
                    address: address.clone(),
                };
                (*replica, node)
            })
            .collect();
        match self.group.raft().initialize(members).await {
            Ok(()) => tracing::info!(group = self.group.id(), "wrote the first membership"),
            // Another member was faster: its log or vote has arrived meanwhile.
            Err(e) if matches!(e.api_error(), Some(InitializeError::NotAllowed(_))) => {}
            Err(error) => {
                tracing::error!(group = self.group.id(), %error, "could not write the first membership");
            }
        }
    }
}
