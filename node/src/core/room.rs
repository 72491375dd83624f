//! Whether there is room for a write on the disks that it would reach.

use super::Core;
use crate::{
    backend::Replica,
    config::format_size,
    failure::{Failure, Reason},
    room::{Verdict, judge},
};
use imprint_proto::{ids::NodeId, v1};
use imprint_raft::disk::SpaceLevel;
use std::time::Duration;

/// Somebody has to make room first: asking more often helps nobody.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Core {
    /// What this node, as the leader of a group with replicas on `nodes`, does with a write.
    pub(crate) fn judge_room(&self, nodes: &[NodeId]) -> Verdict {
        let own = self.node_id();
        let board = &self.parts.room;
        let levels: Vec<SpaceLevel> = nodes.iter().map(|n| board.of(own, *n).level).collect();
        judge(board.own().level, &levels)
    }

    /// Refuses a write to replicas on `nodes` of which too few have room. Any node may say so: where disks are full to the last
    /// byte, there may be no leader who could.
    pub(super) fn check_room_of(&self, nodes: &[NodeId]) -> Result<(), Failure> {
        match self.judge_room(nodes) {
            Verdict::Refuse => Err(self.disk_low(Reason::DiskLow, nodes)),
            Verdict::Take | Verdict::HandOver => Ok(()),
        }
    }

    /// Refuses a write for which there is no room.
    pub(super) fn check_room(&self, replica: &dyn Replica) -> Result<(), Failure> {
        let nodes = replica.voter_nodes();
        match self.judge_room(&nodes) {
            Verdict::Take => Ok(()),
            Verdict::HandOver => Err(self.disk_low(Reason::DiskLowHere, &[self.node_id()])),
            Verdict::Refuse => Err(self.disk_low(Reason::DiskLow, &nodes)),
        }
    }

    /// Names the one of `nodes` that is shortest of room.
    fn disk_low(&self, reason: Reason, nodes: &[NodeId]) -> Failure {
        let own = self.node_id();
        let rooms = nodes.iter().map(|n| (*n, self.parts.room.of(own, *n)));
        let short = rooms.filter(|(_, room)| room.level != SpaceLevel::Enough);
        let worst = short.max_by_key(|(_, room)| (room.level, u64::MAX - room.free_bytes));
        let (node, room) = worst.unwrap_or((own, self.parts.room.own()));
        let (free, floor) = (room.free_bytes, room.soft_bytes);
        let message = format!(
            "the disk of node {node} is {}: {free} bytes are free, writes need {floor} (storage.disk_soft_floor, {})",
            room.level.name(),
            format_size(floor),
        );
        let mut failure = Failure::new(reason, message)
            .with_fact("node", node)
            .with_fact("free-bytes", free)
            .with_fact("floor-bytes", floor);
        if reason == Reason::DiskLow {
            failure.retry_after = Some(RETRY_AFTER);
        }
        failure
    }

    /// Which disks are short or slow, as a sentence.
    pub(super) fn disk_trouble(&self) -> Option<String> {
        let own = self.node_id();
        let state = self.controller();
        let trouble: Vec<String> = state
            .nodes
            .keys()
            .filter_map(|node| {
                let room = self.parts.room.of(own, *node);
                if room.level != SpaceLevel::Enough {
                    let (level, free) = (room.level.name(), room.free_bytes);
                    Some(format!(
                        "the disk of node {node} is {level}, {free} bytes are free"
                    ))
                } else {
                    room.slow
                        .then(|| format!("the disk of node {node} is slow"))
                }
            })
            .collect();
        (!trouble.is_empty()).then(|| trouble.join("; "))
    }

    /// A node's disk, for the status.
    pub(super) fn disk_status(&self, node: NodeId) -> v1::DiskStatus {
        let room = self.parts.room.of(self.node_id(), node);
        v1::DiskStatus {
            state: room.level.name().to_owned(),
            free_bytes: room.free_bytes,
            total_bytes: room.total_bytes,
            soft_floor_bytes: room.soft_bytes,
            slow: room.slow,
        }
    }
}
