//! Makes this node hold what the controller's state gives to it: opens the replicas of partitions
//! that are placed here, removes those of topics that were deleted.
//!
//! Why is removing safe while a restarted node still replays an old state? Because a group is
//! removed only where the state says that its id was given out and is in no topic any more; ids are
//! never reused, so that can't become untrue later. A group that the state doesn't know at all is
//! left alone.
//!
//! What to do is a plain function ([`plan`]); doing it is repeated until it has worked.

use crate::{
    backend::{OpenReplica, Replicas},
    controller::ControllerState,
    core::{CONTROLLER, Core},
};
use futures_util::{StreamExt, stream};
use imprint_proto::ids::{GroupId, NodeId, ReplicaId};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Replicas that are opened at a time: each reads the tail of its log.
const OPENS_AT_A_TIME: usize = 8;
/// What failed is tried again after this long, doubling up to the maximum.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// A restarted node that knows of later entries waits this long for them before it acts on an
/// older state; acting earlier is only wasteful.
const REPLAY_PATIENCE: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub open: Vec<OpenReplica>,
    pub remove: Vec<GroupId>,
}

/// What a node has, and what it sees of the others.
pub struct Present<'a> {
    pub node: NodeId,
    pub open: &'a [GroupId],
    /// Groups with something stored, open or not.
    pub stored: &'a [GroupId],
    /// For topics from before theirs were written out.
    pub segment_bytes: u64,
    pub is_alive: &'a (dyn Fn(NodeId) -> bool + Sync),
}

/// Compares what the state gives to a node with what it has.
///
/// The first living replica of a new partition founds its group. Nodes may disagree on who that is;
/// all of them would write the same.
pub fn plan(state: &ControllerState, present: &Present<'_>) -> Plan {
    let Present {
        node,
        open,
        stored,
        segment_bytes,
        is_alive,
    } = *present;
    let is_open: BTreeSet<GroupId> = open.iter().copied().collect();
    let held: BTreeSet<GroupId> = open.iter().chain(stored).copied().collect();
    let mut to_open = Vec::new();
    for (topic, partition) in state.partitions() {
        let group = GroupId(partition.partition_id);
        let Some(own) = partition.replica_on(node.0) else {
            continue;
        };
        if is_open.contains(&group) {
            continue;
        }
        let members = partition.replicas.iter().map(|replica| {
            let node = NodeId(replica.node_id);
            let known = state.nodes.get(&node);
            let address = known.map(|known| known.peer_address.clone());
            (
                ReplicaId(replica.replica_id),
                (node, address.unwrap_or_default()),
            )
        });
        let first = partition
            .replicas
            .iter()
            .find(|replica| is_alive(NodeId(replica.node_id)));
        to_open.push(OpenReplica {
            group,
            replica: ReplicaId(own.replica_id),
            members: members.collect(),
            preferred: first.is_some_and(|first| first.node_id == node.0),
            roll: topic.first_roll(segment_bytes),
        });
    }
    Plan {
        open: to_open,
        remove: held
            .into_iter()
            .filter(|group| state.was_deleted(*group))
            .collect(),
    }
}

/// Follows the state until the node stops taking calls. `segment_bytes` is for topics
/// from before theirs were written out.
pub async fn run(core: Arc<Core>, segment_bytes: u64) {
    wait_replayed(&core).await;
    let mut states = core.parts.controller.clone();
    let mut stopping = core.stopping();
    let mut pause = RETRY_AFTER;
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        let mut retry = Duration::MAX;
        if apply(&core, &state, segment_bytes).await {
            pause = RETRY_AFTER;
        } else {
            retry = pause;
            pause = (pause * 2).min(RETRY_AFTER_MAX);
        }
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            changed = states.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(retry) => {}
        }
    }
}

async fn wait_replayed(core: &Core) {
    let Some(replica) = core.parts.replicas.get(CONTROLLER) else {
        return;
    };
    let end = replica.offsets().end;
    let mut commit = replica.watch_commit();
    let replayed = commit.wait_for(|commit| *commit >= end);
    // Without a majority the rest may never come; what is known must be served all the same.
    let _ = tokio::time::timeout_at(Instant::now() + REPLAY_PATIENCE, replayed).await;
}

/// True when all of it worked.
async fn apply(core: &Core, state: &ControllerState, segment_bytes: u64) -> bool {
    let replicas = &core.parts.replicas;
    let present = Present {
        node: core.node_id(),
        open: &replicas.open_groups(),
        stored: &replicas.stored_groups(),
        segment_bytes,
        is_alive: &|node| core.is_alive(node),
    };
    let plan = plan(state, &present);
    let mut clean = true;
    for group in plan.remove {
        clean &= remove(core, group).await;
    }
    let opens: Vec<_> = plan
        .open
        .into_iter()
        .map(|replica| open(replicas.as_ref(), replica))
        .collect();
    let opened: Vec<bool> = stream::iter(opens)
        .buffer_unordered(OPENS_AT_A_TIME)
        .collect()
        .await;
    clean && opened.into_iter().all(|opened| opened)
}

async fn open(replicas: &dyn Replicas, replica: OpenReplica) -> bool {
    let group = replica.group;
    match replicas.open(replica).await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(group = group.0, %error, "a partition's replica did not open");
            false
        }
    }
}

async fn remove(core: &Core, group: GroupId) -> bool {
    match core.parts.replicas.remove(group).await {
        Ok(()) => {
            core.forget(group);
            tracing::info!(group = group.0, "removed a deleted partition's replica");
            true
        }
        Err(error) => {
            tracing::warn!(group = group.0, %error, "a deleted partition's replica did not go");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{Command, CreateTopic, NodeRecord};
    use std::collections::BTreeMap;

    fn plan_with(state: &ControllerState, open: &[GroupId], stored: &[GroupId]) -> Plan {
        let present = Present {
            node: NodeId(1),
            open,
            stored,
            segment_bytes: 7,
            is_alive: &|node| node != NodeId(3),
        };
        plan(state, &present)
    }

    fn state() -> ControllerState {
        let mut state = ControllerState::default();
        for id in 1..=3 {
            state.apply(Command::RegisterNode(NodeRecord {
                node_id: id,
                storage_id: [1; 16],
                peer_address: format!("n{id}:7461"),
                listeners: BTreeMap::new(),
                version: String::new(),
            }));
        }
        state.apply(Command::CreateTopic(CreateTopic {
            name: "t".into(),
            partitions: 3,
            replication: 2,
            settings: BTreeMap::from([("segment_bytes".into(), "1MiB".into())]),
            token: [0; 16],
        }));
        state
    }

    #[test]
    fn opens_what_is_placed_here() {
        let state = state();
        let all = plan_with(&state, &[], &[]);
        assert_eq!(all.open.len(), 2);
        assert!(all.remove.is_empty());
        let first = &all.open[0];
        assert_eq!(first.members.len(), 2);
        assert_eq!(first.members[&first.replica], (NodeId(1), "n1:7461".into()));
        assert_eq!(first.roll.segment_bytes, 1 << 20);
        assert!(first.preferred);
        let rest = plan_with(&state, &[first.group], &[]);
        assert_eq!(rest.open, all.open[1..]);
    }

    #[test]
    fn removes_only_what_was_deleted_for_good() {
        let mut state = state();
        let open = [GroupId(0), GroupId(1), GroupId(9)];
        assert_eq!(plan_with(&state, &open, &[]).remove, []);
        state.apply(Command::DeleteTopic { name: "t".into() });
        let gone = plan_with(&state, &open, &[GroupId(2)]);
        assert_eq!(gone.remove, [GroupId(1), GroupId(2)]);
        let empty = ControllerState::default();
        assert_eq!(plan_with(&empty, &open, &[]), Plan::default());
    }
}
