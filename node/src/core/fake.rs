//! A cluster in memory for tests: each group is one list of batches, and a test says who leads,
//! who lags, and which answers get lost.

use super::{CONTROLLER, Core, CoreParts};
use crate::{
    backend::*,
    config::NodeConfig,
    controller::{Command, ControllerMachine, NodeRecord},
    forward::CallContext,
    metrics::Metrics,
    reconciler,
};
use async_trait::async_trait;
use bytes::Bytes;
use imprint_proto::{
    batch::{AdmittedBatch, StampedBatch},
    ids::{GroupId, NodeId, ReplicaId},
};
use imprint_raft::seams::{SystemClock, SystemEntropy};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// One group over all nodes.
pub struct FakeGroup {
    pub id: u64,
    pub state: Mutex<GroupState>,
    leader: watch::Sender<Option<u64>>,
}

#[derive(Default)]
pub struct GroupState {
    pub batches: Vec<StampedBatch>,
    pub epoch: u64,
    /// First kept offset; every batch is a segment of its own, the last one active.
    pub start: u64,
    pub roll: Option<RollSettings>,
    /// Stamp of the next batch; 0: one second and the offset.
    pub time_us: u64,
    /// Every trim that was proposed.
    pub trims: Vec<u64>,
    /// Nodes whose commit point stands still.
    pub lagging: BTreeSet<u64>,
    /// Nodes that can't read what they stored.
    pub damaged: BTreeSet<u64>,
    /// The next proposal is answered with this.
    pub fail_next: Option<ProposeError>,
    commits: BTreeMap<u64, watch::Sender<u64>>,
    machines: BTreeMap<u64, ControllerMachine>,
}

impl FakeGroup {
    fn new(id: u64, leader: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::new(GroupState {
                epoch: 1,
                ..GroupState::default()
            }),
            leader: watch::Sender::new(Some(leader)),
        })
    }

    pub fn set_leader(&self, leader: Option<u64>) {
        self.state.lock().epoch += 1;
        self.leader.send_replace(leader);
    }

    pub fn leader(&self) -> Option<u64> {
        *self.leader.borrow()
    }

    fn end(&self) -> u64 {
        self.state.lock().end()
    }

    /// Lets every lagging node catch up.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.lagging.clear();
        let end = state.end();
        state.commits.values().for_each(|commit| {
            commit.send_replace(end);
        });
    }
}

impl GroupState {
    fn end(&self) -> u64 {
        self.batches.last().map_or(0, StampedBatch::next_offset)
    }

    fn kept(&self) -> impl Iterator<Item = &StampedBatch> + Clone {
        let start = self.start;
        self.batches.iter().filter(move |b| b.next_offset() > start)
    }

    fn append(&mut self, leader: u64, batch: AdmittedBatch) -> Proposed {
        let time = match self.time_us {
            0 => 1_000_000 + self.end(),
            time => time,
        };
        let stamped = batch.stamp(self.end(), time).expect("room");
        let mut reply = Bytes::new();
        for (node, machine) in &mut self.machines {
            let answer = machine.apply_batch(&stamped);
            if *node == leader {
                reply = answer;
            }
        }
        self.batches.push(stamped.clone());
        for (node, commit) in &self.commits {
            if !self.lagging.contains(node) {
                commit.send_replace(stamped.next_offset());
            }
        }
        Proposed {
            base_offset: stamped.base_offset(),
            last_offset: stamped.next_offset() - 1,
            timestamp_us: time,
            epoch: self.epoch,
            reply,
        }
    }
}

struct FakeReplica {
    node: u64,
    group: Arc<FakeGroup>,
}

impl FakeReplica {
    fn commit(&self) -> watch::Receiver<u64> {
        self.group.state.lock().commits[&self.node].subscribe()
    }
}

#[async_trait]
impl Replica for FakeReplica {
    fn replica_id(&self) -> ReplicaId {
        ReplicaId(1000 + self.node)
    }

    fn leader(&self) -> Option<NodeId> {
        self.group.leader().map(NodeId)
    }

    fn is_leader(&self) -> bool {
        self.group.leader() == Some(self.node)
    }

    fn epoch(&self) -> u64 {
        self.group.state.lock().epoch
    }

    fn offsets(&self) -> LogOffsets {
        let commit = *self.commit().borrow();
        let end = if self.is_leader() {
            self.group.end()
        } else {
            commit
        };
        LogOffsets {
            start: self.group.state.lock().start,
            commit,
            end,
            synced: end,
        }
    }

    fn size(&self) -> (u64, u32) {
        let state = self.group.state.lock();
        let kept = state.kept();
        let segments = kept.clone().count() as u32;
        (kept.map(StampedBatch::len).sum(), segments)
    }

    fn watch_commit(&self) -> watch::Receiver<u64> {
        self.commit()
    }

    async fn wait_leader(&self, deadline: Instant) -> Option<NodeId> {
        let mut leader = self.group.leader.subscribe();
        let known = leader.wait_for(Option::is_some);
        let known = tokio::time::timeout_at(deadline, known).await.ok()?.ok()?;
        known.map(NodeId)
    }

    async fn propose(
        &self,
        batch: AdmittedBatch,
        expected_offset: Option<u64>,
        _deadline: Instant,
    ) -> Result<Proposed, ProposeError> {
        if !self.is_leader() {
            return Err(ProposeError::NotLeader {
                leader: self.leader(),
            });
        }
        let mut state = self.group.state.lock();
        if let Some(error) = state.fail_next.take() {
            return Err(error);
        }
        let next = state.end();
        match expected_offset {
            Some(expected) if expected != next => {
                Err(ProposeError::OffsetMismatch { expected, next })
            }
            _ => Ok(state.append(self.node, batch)),
        }
    }

    async fn linearize(&self, _deadline: Instant) -> Result<(), LinearizeError> {
        if self.is_leader() {
            return Ok(());
        }
        Err(LinearizeError::NotLeader {
            leader: self.leader(),
        })
    }

    async fn read(
        &self,
        offset: u64,
        below: u64,
        max_bytes: u64,
    ) -> Result<ReadBatches, ReadError> {
        let state = self.group.state.lock();
        if offset < state.start {
            let start = state.start;
            return Err(ReadError::BelowStart { offset, start });
        }
        if state.damaged.contains(&self.node) {
            return Err(ReadError::Corrupt(format!("offset {offset}")));
        }
        let mut read = ReadBatches {
            next_offset: offset,
            ..ReadBatches::default()
        };
        let mut bytes = 0;
        for batch in &state.batches {
            let wanted = batch.next_offset() > offset && batch.next_offset() <= below;
            if wanted && (bytes == 0 || bytes + batch.len() <= max_bytes) {
                bytes += batch.len();
                read.next_offset = batch.next_offset();
                read.pieces.push(batch.to_contiguous());
            }
        }
        read.epochs = vec![(state.epoch, offset)];
        Ok(read)
    }

    async fn offset_for_time(&self, timestamp_us: u64) -> Result<u64, ReadError> {
        let state = self.group.state.lock();
        let found = state
            .batches
            .iter()
            .find(|b| b.base_timestamp() >= timestamp_us);
        Ok(found.map_or_else(|| state.end(), StampedBatch::base_offset))
    }

    fn segments(&self) -> Vec<SegmentSummary> {
        let state = self.group.state.lock();
        let end = state.end();
        let summary = |batch: &StampedBatch| SegmentSummary {
            base_offset: batch.base_offset(),
            end_offset: batch.next_offset(),
            bytes: batch.len(),
            sealed: batch.next_offset() < end,
        };
        state.kept().map(summary).collect()
    }

    async fn stamp_at(&self, offset: u64) -> Result<Option<u64>, ReadError> {
        let state = self.group.state.lock();
        let holds = |batch: &&StampedBatch| batch.next_offset() > offset;
        let found = state.kept().find(holds);
        Ok(found.map(StampedBatch::base_timestamp))
    }

    fn roll_settings(&self) -> RollSettings {
        self.group.state.lock().roll.expect("opened")
    }

    async fn trim(&self, upto: u64, _deadline: Instant) -> Result<u64, ProposeError> {
        let leader = self.leader();
        let mut state = self.group.state.lock();
        if leader != Some(NodeId(self.node)) {
            return Err(ProposeError::NotLeader { leader });
        }
        state.trims.push(upto);
        state.start = state.start.max(upto);
        Ok(state.start)
    }

    async fn change_roll(&self, roll: RollSettings, _: Instant) -> Result<(), ProposeError> {
        self.group.state.lock().roll = Some(roll);
        Ok(())
    }

    async fn digest(&self, upto: u64) -> Result<LogDigest, ReadError> {
        let state = self.group.state.lock();
        let below = state.batches.iter().filter(|b| b.next_offset() <= upto);
        let bytes: Vec<u8> = below.flat_map(|b| b.to_contiguous().to_vec()).collect();
        let digest = bytes
            .iter()
            .fold(7, |sum: u64, b| sum.wrapping_mul(31) + u64::from(*b));
        Ok(LogDigest {
            start_offset: state.start,
            bytes: bytes.len() as u64,
            digest,
            segments: Vec::new(),
        })
    }

    fn damage(&self) -> Vec<DamagedRange> {
        Vec::new()
    }

    async fn step_down(&self) -> bool {
        false
    }

    async fn step_down_to(&self, node: NodeId) -> bool {
        self.group.set_leader(Some(node.0));
        true
    }

    fn voter_nodes(&self) -> Vec<NodeId> {
        let state = self.group.state.lock();
        state.commits.keys().map(|node| NodeId(*node)).collect()
    }
}

/// One node's replicas and its way to the others.
pub struct FakeNode {
    id: u64,
    cluster: Weak<FakeCluster>,
    open: Mutex<BTreeMap<u64, Arc<FakeReplica>>>,
    core: OnceLock<Arc<Core>>,
}

#[async_trait]
impl Replicas for FakeNode {
    fn get(&self, group: GroupId) -> Option<Arc<dyn Replica>> {
        let replica = self.open.lock().get(&group.0).cloned();
        replica.map(|replica| replica as Arc<dyn Replica>)
    }

    fn open_groups(&self) -> Vec<GroupId> {
        let open = self.open.lock();
        open.keys()
            .filter(|id| **id != 0)
            .map(|id| GroupId(*id))
            .collect()
    }

    fn stored_groups(&self) -> Vec<GroupId> {
        self.open_groups()
    }

    fn down(&self) -> Vec<DownReplica> {
        Vec::new()
    }

    async fn open(&self, replica: OpenReplica) -> Result<(), ReplicaError> {
        let cluster = self.cluster.upgrade().expect("cluster");
        let leader = replica.members.values().next().expect("member").0;
        let group = cluster.group_or(replica.group.0, leader.0);
        group.state.lock().roll.get_or_insert(replica.roll);
        self.host(group, None);
        Ok(())
    }

    async fn remove(&self, group: GroupId) -> Result<(), ReplicaError> {
        self.open.lock().remove(&group.0);
        Ok(())
    }
}

impl FakeNode {
    fn host(&self, group: Arc<FakeGroup>, machine: Option<ControllerMachine>) {
        {
            let mut state = group.state.lock();
            let end = state.end();
            state.commits.insert(self.id, watch::Sender::new(end));
            if let Some(machine) = machine {
                state.machines.insert(self.id, machine);
            }
        }
        let replica = FakeReplica {
            node: self.id,
            group: Arc::clone(&group),
        };
        self.open.lock().insert(group.id, Arc::new(replica));
    }
}

#[async_trait]
impl Peers for FakeNode {
    async fn forward(
        &self,
        node: NodeId,
        request: Vec<Bytes>,
        _timeout: Duration,
    ) -> Result<Bytes, PeerError> {
        let cluster = self.cluster.upgrade().expect("cluster");
        if cluster.down.lock().contains(&node.0) {
            let detail = "down".into();
            return Err(PeerError::NotSent { node, detail });
        }
        let core = cluster.core(node.0);
        let answer = core.handle_forwarded(request.concat().into()).await;
        if cluster.lose_answers_of.lock().contains(&node.0) {
            let detail = "lost".into();
            return Err(PeerError::NoAnswer { node, detail });
        }
        Ok(answer.concat().into())
    }

    fn is_alive(&self, node: NodeId) -> bool {
        let cluster = self.cluster.upgrade().expect("cluster");
        !cluster.down.lock().contains(&node.0)
    }
}

impl ClusterView for FakeNode {
    fn cluster_id(&self) -> Option<[u8; 16]> {
        Some([5; 16])
    }

    fn controller_nodes(&self) -> Vec<NodeId> {
        let cluster = self.cluster.upgrade().expect("cluster");
        (1..=cluster.nodes.len() as u64).map(NodeId).collect()
    }

    fn waiting_for(&self) -> String {
        String::new()
    }
}

/// Nodes 1..=n; node 1 leads the controller, each partition's lowest replica leads it.
pub struct FakeCluster {
    pub nodes: Vec<Arc<FakeNode>>,
    pub groups: Mutex<BTreeMap<u64, Arc<FakeGroup>>>,
    pub down: Mutex<BTreeSet<u64>>,
    pub lose_answers_of: Mutex<BTreeSet<u64>>,
}

impl FakeCluster {
    /// A formed cluster whose nodes have all registered.
    pub async fn start(nodes: u64) -> Arc<Self> {
        let cluster = Arc::new_cyclic(|cluster| Self {
            nodes: (1..=nodes)
                .map(|id| {
                    Arc::new(FakeNode {
                        id,
                        cluster: cluster.clone(),
                        open: Mutex::default(),
                        core: OnceLock::new(),
                    })
                })
                .collect(),
            groups: Mutex::default(),
            down: Mutex::default(),
            lose_answers_of: Mutex::default(),
        });
        let controller = cluster.group_or(CONTROLLER.0, 1);
        for node in &cluster.nodes {
            let (machine, view) = ControllerMachine::new();
            node.host(Arc::clone(&controller), Some(machine));
            let core = Core::new(parts(node, nodes, view));
            tokio::spawn(reconciler::run(Arc::clone(&core), 1 << 20));
            assert!(node.core.set(core).is_ok());
        }
        for id in 1..=nodes {
            let command = Command::RegisterNode(NodeRecord {
                node_id: id,
                storage_id: [1; 16],
                peer_address: format!("n{id}:7461"),
                listeners: BTreeMap::from([
                    ("default".into(), format!("n{id}:7460")),
                    ("host".into(), format!("localhost:{}", 7450 + id * 10)),
                ]),
                version: "test".into(),
            });
            let context = context();
            cluster
                .core(id)
                .command(&command, &context)
                .await
                .expect("registered");
        }
        cluster
    }

    fn group_or(&self, id: u64, leader: u64) -> Arc<FakeGroup> {
        let mut groups = self.groups.lock();
        Arc::clone(
            groups
                .entry(id)
                .or_insert_with(|| FakeGroup::new(id, leader)),
        )
    }

    pub fn group(&self, id: u64) -> Arc<FakeGroup> {
        Arc::clone(&self.groups.lock()[&id])
    }

    pub fn core(&self, node: u64) -> Arc<Core> {
        let node = &self.nodes[node as usize - 1];
        Arc::clone(node.core.get().expect("started"))
    }
}

fn parts(
    node: &Arc<FakeNode>,
    nodes: u64,
    view: watch::Receiver<Arc<crate::controller::ControllerState>>,
) -> CoreParts {
    let config = NodeConfig::loopback(NodeId(node.id), "unused".into(), 1, 2, 3);
    CoreParts {
        node_id: NodeId(node.id),
        limits: config.limits,
        segment_bytes: 1 << 20,
        founders: nodes as usize,
        replicas: Arc::clone(node) as Arc<dyn Replicas>,
        peers: Arc::clone(node) as Arc<dyn Peers>,
        cluster: Arc::clone(node) as Arc<dyn ClusterView>,
        controller: view,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
        room: Arc::default(),
        metrics: Metrics::new("test"),
    }
}

/// A call with five seconds, from the default listener.
pub fn context() -> CallContext {
    CallContext::new("default", Duration::from_secs(5))
}

impl FakeNode {
    /// Ids of the partitions that are open here.
    pub fn core_groups(&self) -> BTreeSet<u64> {
        self.open_groups()
            .into_iter()
            .map(|group| group.0)
            .collect()
    }
}
