//! What the controller's state is made of, as it is written in snapshots and answers.

use crate::backend::RollSettings;
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
    pub struct TopicRecord: version 1, compat 0 {
        name: String,
        topic_id: u64,
        /// Replicas of each partition.
        replication: u32,
        /// As they were given, canonical text.
        settings: BTreeMap<String, String>,
        partitions: Vec<PartitionRecord>,
        /// Chosen by the node that took the call, so that its second try finds its first one.
        token: [u8; 16],
        /// Where segments ended when the topic was made, so what its logs begin with; later changes
        /// stand in the logs. `None`: made before this was kept, and its settings never changed.
        #[since(1)]
        first_roll: Option<RollRecord> = None,
    }
}

envelope! {
    /// Where segments end.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct RollRecord: version 0, compat 0 {
        /// 0: each node's own default, for topics from before it was written out.
        segment_bytes: u64,
        segment_span_us: Option<u64>,
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

impl TopicRecord {
    /// What the topic's logs begin with. `default_segment_bytes` is for topics that don't say.
    pub fn first_roll(&self, default_segment_bytes: u64) -> RollSettings {
        let first = self
            .first_roll
            .unwrap_or_else(|| roll_record(&self.settings));
        RollSettings {
            segment_bytes: match first.segment_bytes {
                0 => default_segment_bytes,
                bytes => bytes,
            },
            segment_span_us: first.segment_span_us,
        }
    }
}

/// What settings say about where segments end.
pub(super) fn roll_record(settings: &BTreeMap<String, String>) -> RollRecord {
    let roll = super::settings::roll(settings);
    RollRecord {
        segment_bytes: roll.map_or(0, |roll| roll.segment_bytes),
        segment_span_us: roll.and_then(|roll| roll.segment_span_us),
    }
}

impl PartitionRecord {
    /// The replica that lives on that node.
    pub fn replica_on(&self, node: u64) -> Option<&ReplicaRecord> {
        self.replicas.iter().find(|replica| replica.node_id == node)
    }
}
