//! The controller's state and the one function that changes it.

use super::{
    command::{Answer, Command, CreateTopic, UpdateTopic, Verdict},
    place::Load,
    records::{NodeRecord, PartitionRecord, ReplicaRecord, StateRecord, TopicRecord, roll_record},
    settings,
};
use imprint_proto::ids::{GroupId, NodeId};
use std::{collections::BTreeMap, sync::Arc};

/// Replica ids below this are the controller group's own, one a node.
pub const FIRST_REPLICA_ID: u64 = 1024;
/// Group 0 is the controller's.
pub const FIRST_PARTITION_ID: u64 = 1;
/// Replicas of a partition when nobody says how many.
const DEFAULT_REPLICATION: usize = 3;

/// Nodes, topics, and the counters from which ids are given out. Cloning is cheap enough to hand
/// each version to watchers: topics are shared.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerState {
    pub nodes: BTreeMap<NodeId, NodeRecord>,
    pub topics: BTreeMap<String, Arc<TopicRecord>>,
    next_topic_id: u64,
    next_partition_id: u64,
    next_replica_id: u64,
}

impl Default for ControllerState {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            topics: BTreeMap::new(),
            next_topic_id: 1,
            next_partition_id: FIRST_PARTITION_ID,
            next_replica_id: FIRST_REPLICA_ID,
        }
    }
}

impl ControllerState {
    /// Applies a command and says what came of it. Deterministic; a refusal changes nothing.
    pub fn apply(&mut self, command: Command) -> Answer {
        match command {
            Command::RegisterNode(node) => self.register_node(node),
            Command::CreateTopic(create) => self.create_topic(create),
            Command::DeleteTopic { name } => self.delete_topic(&name),
            Command::UpdateTopic(update) => self.update_topic(&update),
        }
    }

    fn register_node(&mut self, node: NodeRecord) -> Answer {
        let known = self.nodes.get(&NodeId(node.node_id));
        if known.is_some_and(|known| known.storage_id != node.storage_id) {
            return Answer::refused(
                Verdict::AlreadyExists,
                format!(
                    "node {} is registered with another storage id: its data directory was lost or \
                     replaced, or two nodes use one id",
                    node.node_id
                ),
            );
        }
        self.nodes.insert(NodeId(node.node_id), node);
        Answer::done()
    }

    fn create_topic(&mut self, create: CreateTopic) -> Answer {
        if let Some(topic) = self.topics.get(&create.name) {
            if topic.token == create.token {
                return Answer::topic(topic.as_ref().clone());
            }
            let reason = format!("topic {:?} is there already", create.name);
            return Answer::refused(Verdict::AlreadyExists, reason);
        }
        let checked = settings::check_name(&create.name)
            .and_then(|()| settings::check_partitions(create.partitions))
            .and_then(|()| settings::canonical("settings", &create.settings));
        let settings = match checked {
            Ok(settings) => settings,
            Err(refusal) => return Answer::invalid(refusal),
        };
        let replication = match create.replication {
            0 => DEFAULT_REPLICATION.min(self.nodes.len()),
            given => usize::try_from(given).unwrap_or(usize::MAX),
        };
        if replication == 0 || replication > self.nodes.len() {
            let reason = format!(
                "replication {replication} is asked for, {} nodes are registered",
                self.nodes.len()
            );
            return Answer::refused(Verdict::NotEnoughNodes, reason);
        }
        let topic = self.place_topic(create, replication, settings);
        self.topics
            .insert(topic.name.clone(), Arc::new(topic.clone()));
        Answer::topic(topic)
    }

    fn place_topic(
        &mut self,
        create: CreateTopic,
        replication: usize,
        settings: BTreeMap<String, String>,
    ) -> TopicRecord {
        let mut load = self.load();
        let partitions = (0..create.partitions)
            .map(|_| {
                let nodes = load.place(replication);
                let replicas = nodes.into_iter().map(|node_id| ReplicaRecord {
                    replica_id: take(&mut self.next_replica_id),
                    node_id,
                });
                let replicas = replicas.collect();
                PartitionRecord {
                    partition_id: take(&mut self.next_partition_id),
                    replicas,
                }
            })
            .collect();
        TopicRecord {
            name: create.name,
            topic_id: take(&mut self.next_topic_id),
            replication: u32::try_from(replication).unwrap_or(u32::MAX),
            first_roll: Some(roll_record(&settings)),
            settings,
            partitions,
            token: create.token,
        }
    }

    fn load(&self) -> Load {
        let mut load = Load::new(self.nodes.keys().map(|node| node.0));
        for partition in self.topics.values().flat_map(|topic| &topic.partitions) {
            load.count(partition.replicas.iter().map(|replica| replica.node_id));
        }
        load
    }

    fn update_topic(&mut self, update: &UpdateTopic) -> Answer {
        let Some(topic) = self.topics.get(&update.name) else {
            return Answer::topic_not_found(&update.name);
        };
        let change = match settings::Change::check(&update.set, &update.unset) {
            Ok(change) => change,
            Err(refusal) => return Answer::invalid(refusal),
        };
        let mut topic = topic.as_ref().clone();
        // The logs began with what the settings said until now.
        topic.first_roll.get_or_insert(roll_record(&topic.settings));
        topic.settings = change.apply(&topic.settings);
        let name = topic.name.clone();
        self.topics.insert(name, Arc::new(topic.clone()));
        Answer::topic(topic)
    }

    fn delete_topic(&mut self, name: &str) -> Answer {
        match self.topics.remove(name) {
            Some(topic) => Answer::topic(topic.as_ref().clone()),
            None => Answer::topic_not_found(name),
        }
    }

    /// True when the group was given out and is in no topic any more. Ids are never reused, so this
    /// stays true, whatever is applied later.
    pub fn was_deleted(&self, group: GroupId) -> bool {
        (FIRST_PARTITION_ID..self.next_partition_id).contains(&group.0)
            && !self.partitions().any(|(_, p)| p.partition_id == group.0)
    }

    /// All partitions with their topics.
    pub fn partitions(&self) -> impl Iterator<Item = (&Arc<TopicRecord>, &PartitionRecord)> {
        self.topics
            .values()
            .flat_map(|topic| topic.partitions.iter().map(move |p| (topic, p)))
    }

    /// A node's advertised client address for callers of that listener.
    pub fn client_address(&self, node: NodeId, listener: &str) -> Option<String> {
        let listeners = &self.nodes.get(&node)?.listeners;
        listeners
            .get(listener)
            .or_else(|| listeners.get(crate::config::DEFAULT_LISTENER))
            .cloned()
    }

    pub(super) fn to_record(&self) -> StateRecord {
        StateRecord {
            next_topic_id: self.next_topic_id,
            next_partition_id: self.next_partition_id,
            next_replica_id: self.next_replica_id,
            nodes: self.nodes.values().cloned().collect(),
            topics: self.topics.values().map(|t| t.as_ref().clone()).collect(),
        }
    }

    pub(super) fn from_record(record: StateRecord) -> Self {
        let nodes = record.nodes.into_iter();
        let topics = record.topics.into_iter();
        Self {
            nodes: nodes.map(|node| (NodeId(node.node_id), node)).collect(),
            topics: topics.map(|t| (t.name.clone(), Arc::new(t))).collect(),
            next_topic_id: record.next_topic_id,
            next_partition_id: record.next_partition_id,
            next_replica_id: record.next_replica_id,
        }
    }
}

fn take(counter: &mut u64) -> u64 {
    let taken = *counter;
    *counter += 1;
    taken
}
