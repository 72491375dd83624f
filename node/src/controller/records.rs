//! What the controller's state is made of, as it is written in snapshots and answers.

use imprint_proto::envelope;
use std::collections::BTreeMap;

envelope! {
    /// A node as it registered itself.
    #[derive(Debug, Clone, PartialEq)]
    pub struct NodeRecord: version 0, compat 0 {
        node_id: u64,
        /// Identity of its volume: another one may not use the node id.
        storage_id: [u8; 16],
        /// Advertised internal RPC address.
        peer_address: String,
        /// Advertised client address by listener name.
        listeners: BTreeMap<String, String>,
        /// Version of its binary, for people.
        version: String,
    }
}

envelope! {
    /// A topic with its partitions, in the order of their index.
    #[derive(Debug, Clone, PartialEq)]
    pub struct TopicRecord: version 0, compat 0 {
        name: String,
        topic_id: u64,
        /// Replicas of each partition.
        replication: u32,
        /// As they were given, canonical text.
        settings: BTreeMap<String, String>,
        partitions: Vec<PartitionRecord>,
        /// Chosen by the node that took the call, so that its second try finds its first one.
        token: [u8; 16],
    }
}

envelope! {
    /// A partition; its id is that of its Raft group and stands in each batch header.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PartitionRecord: version 0, compat 0 {
        partition_id: u64,
        /// The first one is the preferred leader.
        replicas: Vec<ReplicaRecord>,
    }
}

envelope! {
    /// A member of a partition's group and where it lives.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ReplicaRecord: version 0, compat 0 {
        replica_id: u64,
        node_id: u64,
    }
}

envelope! {
    /// The whole state.
    #[derive(Debug, Clone, PartialEq)]
    pub struct StateRecord: version 0, compat 0 {
        next_topic_id: u64,
        next_partition_id: u64,
        next_replica_id: u64,
        nodes: Vec<NodeRecord>,
        topics: Vec<TopicRecord>,
    }
}

impl PartitionRecord {
    /// The replica that lives on that node.
    pub fn replica_on(&self, node: u64) -> Option<&ReplicaRecord> {
        self.replicas.iter().find(|replica| replica.node_id == node)
    }
}
