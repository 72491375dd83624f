//! Room on the disks: what this node has, what the others say they have, and what follows for writes.
//!
//! | level | below | this node, as a leader | this node, as a follower |
//! |---|---|---|---|
//! | enough | | takes writes unless too few of the replicas have room | appends |
//! | low | the soft floor | hands over, and refuses until it has; if too few replicas have room, every leader refuses | appends |
//! | full | the hard floor, or a write found no space | the same | refuses data; control entries, reads and trims go on |
//!
//! "Too few" is when the replicas with room are no majority. A level is left only a tenth above its floor, so that nothing
//! flutters. Nodes tell each other with their pings. The controller's own group is never held up: it is small, and deleting
//! topics makes room.
//!
//! Decisions are plain functions here; [`monitor`] looks at the disk and carries them out. Nothing here knows files.

pub(crate) mod monitor;

use crate::config::{StorageConfig, format_size};
use bytes::Bytes;
use imprint_proto::{envelope, ids::NodeId};
use imprint_raft::{
    disk::{Space, SpaceLevel},
    rpc::PingHook,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Largest default reserve; on small disks it is a hundredth.
const RESERVE_MAX: u64 = 256 * MIB;

/// From where on a disk is short, bytes that are free, and what is kept in reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Floors {
    pub soft_bytes: u64,
    pub hard_bytes: u64,
    pub reserve_bytes: u64,
}

/// Why the floors can't be used on this disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {}, the disk has {} in all", format_size(*.value), format_size(*.total))]
pub struct FloorsError {
    pub key: &'static str,
    pub value: u64,
    pub total: u64,
}

impl Floors {
    /// What the operator wrote, else what suits a disk of this size: 5 % and 2 %, within bounds that make sense on a laptop
    /// and on a large array.
    ///
    /// # Errors
    /// A value is not below the size of the disk.
    pub fn resolve(config: &StorageConfig, total: u64) -> Result<Self, FloorsError> {
        let soft = (total / 20).clamp(64 * MIB, 2 * GIB).min(total / 4);
        let hard = (total / 50).clamp(32 * MIB, GIB).min(total / 8);
        let (soft_bytes, hard_bytes) = match (config.disk_soft_floor, config.disk_hard_floor) {
            (Some(soft), Some(hard)) => (soft, hard),
            (Some(soft), None) => (soft, hard.min(soft / 2)),
            (None, Some(hard)) => (soft.max(hard.saturating_mul(2)).min(total), hard),
            (None, None) => (soft, hard),
        };
        let floors = Self {
            soft_bytes,
            hard_bytes,
            reserve_bytes: config.disk_reserve.unwrap_or(RESERVE_MAX.min(total / 100)),
        };
        let checks = [
            ("storage.disk_soft_floor", config.disk_soft_floor),
            ("storage.disk_hard_floor", config.disk_hard_floor),
            ("storage.disk_reserve", config.disk_reserve),
        ];
        for (key, value) in checks {
            if let Some(value) = value.filter(|value| *value >= total) {
                return Err(FloorsError { key, value, total });
            }
        }
        Ok(floors)
    }

    /// The level after `free_bytes` were found at level `now`.
    pub fn next_level(&self, now: SpaceLevel, free_bytes: u64) -> SpaceLevel {
        let below = |floor: u64, level| {
            let stays = now >= level && free_bytes < left_above(floor);
            free_bytes < floor || stays
        };
        if below(self.hard_bytes, SpaceLevel::Full) {
            SpaceLevel::Full
        } else if below(self.soft_bytes, SpaceLevel::Low) {
            SpaceLevel::Low
        } else {
            SpaceLevel::Enough
        }
    }

    /// Whether the reserve can be made without making the disk short.
    pub fn has_room_for_reserve(&self, free_bytes: u64) -> bool {
        let needed = left_above(self.soft_bytes).saturating_add(self.reserve_bytes);
        self.reserve_bytes > 0 && free_bytes >= needed
    }
}

/// A level is left at this many free bytes.
fn left_above(floor: u64) -> u64 {
    floor.saturating_add(floor / 10)
}

/// What a leader does with a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Take,
    /// Only a minority is short, this node with it: another one should lead.
    HandOver,
    /// The replicas with room are no majority.
    Refuse,
}

/// Decides for a group that this node leads: its own level and those of all its replicas, its own among them.
pub fn judge(own: SpaceLevel, replicas: &[SpaceLevel]) -> Verdict {
    let with_room = replicas
        .iter()
        .filter(|l| **l == SpaceLevel::Enough)
        .count();
    if with_room * 2 <= replicas.len() {
        Verdict::Refuse
    } else if own == SpaceLevel::Enough {
        Verdict::Take
    } else {
        Verdict::HandOver
    }
}

/// One node's disk as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeRoom {
    pub level: SpaceLevel,
    pub free_bytes: u64,
    pub total_bytes: u64,
    pub soft_bytes: u64,
    /// A sync there takes longer than it should.
    pub slow: bool,
}

envelope! {
    /// What a node says of its disk with each ping.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct RoomNote: version 0, compat 0 {
        level: u8,
        free_bytes: u64,
        total_bytes: u64,
        soft_bytes: u64,
        slow: bool,
    }
}

/// What is known of every node's disk. Bounded by the nodes that this one exchanges pings with.
#[derive(Debug, Default)]
pub struct RoomBoard {
    own: Mutex<NodeRoom>,
    hard_bytes: Mutex<u64>,
    waiting: AtomicU64,
    peers: Mutex<BTreeMap<NodeId, NodeRoom>>,
}

impl RoomBoard {
    /// This node's disk.
    pub fn own(&self) -> NodeRoom {
        *self.own.lock()
    }

    /// This node's hard floor, bytes.
    pub fn hard_bytes(&self) -> u64 {
        *self.hard_bytes.lock()
    }

    /// How many logs and files wait for room, as of the last look.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting as u64, Ordering::Relaxed);
    }

    /// What another node said last.
    pub fn peer(&self, node: NodeId) -> Option<NodeRoom> {
        self.peers.lock().get(&node).copied()
    }

    /// Notes what was found on this node's disk.
    pub fn found(&self, level: SpaceLevel, space: Space, floors: &Floors) {
        *self.hard_bytes.lock() = floors.hard_bytes;
        let mut own = self.own.lock();
        own.level = level;
        own.free_bytes = space.free_bytes;
        own.total_bytes = space.total_bytes;
        own.soft_bytes = floors.soft_bytes;
    }

    #[cfg(test)]
    pub(crate) fn set_own(&self, room: NodeRoom) {
        *self.own.lock() = room;
    }

    pub(crate) fn set_level(&self, level: SpaceLevel) {
        self.own.lock().level = level;
    }

    pub(crate) fn set_slow(&self, slow: bool) {
        self.own.lock().slow = slow;
    }

    /// Notes what another node says.
    pub fn heard(&self, node: NodeId, room: NodeRoom) {
        self.peers.lock().insert(node, room);
    }

    /// The disk of `node`, where `own_id` is this one. One that has said nothing counts as having room.
    pub fn of(&self, own_id: NodeId, node: NodeId) -> NodeRoom {
        if node == own_id {
            self.own()
        } else {
            self.peer(node).unwrap_or_default()
        }
    }

    fn note(&self) -> Bytes {
        let own = self.own();
        envelope::encode(&RoomNote {
            level: own.level as u8,
            free_bytes: own.free_bytes,
            total_bytes: own.total_bytes,
            soft_bytes: own.soft_bytes,
            slow: own.slow,
        })
    }

    fn take(&self, from: NodeId, received: Bytes) {
        // A node of a version that says nothing, or something else, counts as having room.
        let Ok(note) = envelope::decode::<RoomNote>(received) else {
            return;
        };
        let room = NodeRoom {
            level: SpaceLevel::from_number(note.level),
            free_bytes: note.free_bytes,
            total_bytes: note.total_bytes,
            soft_bytes: note.soft_bytes,
            slow: note.slow,
        };
        self.heard(from, room);
    }
}

impl PingHook for RoomBoard {
    fn ping(&self, _to: NodeId) -> Bytes {
        self.note()
    }

    fn answer(&self, from: NodeId, received: Bytes) -> Bytes {
        self.take(from, received);
        self.note()
    }

    fn answered(&self, from: NodeId, received: Bytes) {
        self.take(from, received);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SpaceLevel::{Enough, Full, Low};

    fn config(soft: Option<u64>, hard: Option<u64>, reserve: Option<u64>) -> StorageConfig {
        let mut config =
            crate::config::NodeConfig::loopback(NodeId(1), "/nowhere".into(), 1, 2, 3).storage;
        (config.disk_soft_floor, config.disk_hard_floor) = (soft, hard);
        config.disk_reserve = reserve;
        config
    }

    #[test]
    fn levels_are_left_above_their_floors_only() {
        let floors = Floors {
            soft_bytes: 1000,
            hard_bytes: 500,
            reserve_bytes: 0,
        };
        for (now, free, next) in [
            (Enough, 1000, Enough),
            (Enough, 999, Low),
            (Low, 1099, Low),
            (Low, 1100, Enough),
            (Enough, 499, Full),
            (Full, 549, Full),
            (Full, 550, Low),
            (Full, 1099, Low),
            (Full, 1100, Enough),
        ] {
            assert_eq!(floors.next_level(now, free), next, "{now:?} at {free}");
        }
    }

    #[test]
    fn defaults_suit_the_size_of_the_disk() {
        let none = config(None, None, None);
        for (total, soft, hard, reserve) in [
            (64 * MIB, 16 * MIB, 8 * MIB, 64 * MIB / 100),
            (100 * GIB, 2 * GIB, GIB, RESERVE_MAX),
            (100_000 * GIB, 2 * GIB, GIB, RESERVE_MAX),
        ] {
            let floors = Floors::resolve(&none, total).expect("defaults");
            let found = (floors.soft_bytes, floors.hard_bytes, floors.reserve_bytes);
            assert_eq!(found, (soft, hard, reserve), "{total}");
        }
    }

    #[test]
    fn a_single_floor_moves_the_other_and_one_that_the_disk_cannot_have_is_refused() {
        let soft = Floors::resolve(&config(Some(MIB), None, Some(0)), GIB).expect("fits");
        assert!(soft.hard_bytes < soft.soft_bytes);
        let hard = Floors::resolve(&config(None, Some(200 * MIB), None), GIB).expect("fits");
        assert!(hard.hard_bytes < hard.soft_bytes);
        let refused = Floors::resolve(&config(Some(2 * GIB), None, None), GIB);
        let text = refused.expect_err("larger than the disk").to_string();
        assert!(text.contains("storage.disk_soft_floor") && text.contains("1GiB"));
    }

    #[test]
    fn a_group_goes_on_while_a_majority_has_room() {
        for (own, replicas, verdict) in [
            (Enough, vec![Enough, Enough, Enough], Verdict::Take),
            (Enough, vec![Enough, Full, Enough], Verdict::Take),
            (Low, vec![Low, Enough, Enough], Verdict::HandOver),
            (Enough, vec![Enough, Low, Full], Verdict::Refuse),
            (Low, vec![Low, Low, Low], Verdict::Refuse),
            (Low, vec![Low], Verdict::Refuse),
            (Full, vec![Full, Enough], Verdict::Refuse),
        ] {
            assert_eq!(judge(own, &replicas), verdict, "{own:?} {replicas:?}");
        }
    }

    #[test]
    fn nodes_tell_each_other_with_their_pings() {
        let (a, b) = (RoomBoard::default(), RoomBoard::default());
        let space = Space {
            free_bytes: 7,
            total_bytes: 100,
        };
        a.found(Full, space, &Floors::default());
        let answer = b.answer(NodeId(1), a.ping(NodeId(2)));
        a.answered(NodeId(2), answer);
        assert_eq!(b.peer(NodeId(1)), Some(a.own()));
        assert_eq!(a.peer(NodeId(2)), Some(b.own()));
        b.answer(
            NodeId(3),
            Bytes::from_static(b"something of a later version"),
        );
        assert_eq!(b.of(NodeId(2), NodeId(3)).level, Enough);
    }
}
