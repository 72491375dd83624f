//! A few nodes in one process, each with its own directory and its own sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::batch::{AdmittedBatch, BatchBuilder, Message};
use imprint_proto::ids::NodeId;
use imprint_proto::limits::BatchLimits;
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::{
    Group, GroupSpec, Groups, GroupsConfig, Machine, NoMachine, OpenGroupError, RaftDispatcher,
};
use crate::disk::{Io, RealDisk, RealOffload};
use crate::rpc::{
    ConnInfo, Dispatcher, Hello, PeerTable, Refusal, Replier, RpcConfig, RpcServer, TableParts,
    status,
};
use crate::seams::{Net, SystemClock, TcpNet};
use crate::statelog::StateLog;

/// Small, so that a few messages of some kilobytes fill one.
pub(super) const SEGMENT_BYTES: u64 = 64 << 10;

pub(super) fn real_io() -> Io {
    let offload = RealOffload::new(tokio::runtime::Handle::current());
    Io::new(Arc::new(RealDisk), Arc::new(offload), Arc::new(SystemClock))
}

pub(super) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// An admitted batch of one message.
pub(super) fn batch(group: u64, payload: &[u8]) -> AdmittedBatch {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    builder
        .push(Message {
            id: 1,
            origin_timestamp_us: 1,
            payload,
            headers: &[],
        })
        .expect("within the limits");
    let bytes = builder.build().expect("one message").into_bytes();
    AdmittedBatch::admit(bytes, group, &BatchLimits::default()).expect("a builder's batch")
}

pub(super) struct TestNode {
    pub(super) groups: Arc<Groups>,
    pub(super) peers: Arc<PeerTable>,
    address: String,
    background: tokio::task::JoinSet<()>,
    _server: RpcServer,
}

struct TestDispatcher {
    hello: Hello,
    raft: RaftDispatcher,
}

impl Dispatcher for TestDispatcher {
    fn hello(&self, _theirs: &Hello) -> Result<Hello, Refusal> {
        Ok(self.hello.clone())
    }

    fn dispatch(&self, conn: ConnInfo, method: u32, payload: Bytes, reply: Replier) {
        if let Err((_, reply)) = self.raft.dispatch(&conn, method, payload, reply) {
            reply.error(status::NOT_FOUND, "no such method");
        }
    }
}

impl TestNode {
    async fn start(id: u64, dir: &Path, io: Io, config: GroupsConfig) -> TestNode {
        let listener = TcpNet.listen("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let hello = Hello {
            cluster_id: Some([7; 16]),
            node_id: NodeId(id),
            storage_id: [id as u8; 16],
            incarnation: 1,
            earliest_version: 1,
            latest_version: 1,
            peer_address: address.clone(),
            client_address: String::new(),
            seeds_hash: 0,
        };
        let own = hello.clone();
        let peers = PeerTable::new(TableParts {
            net: Arc::new(TcpNet),
            node_id: NodeId(id),
            hello: Arc::new(move || own.clone()),
            check: Arc::new(|_| Ok(())),
            config: RpcConfig::default(),
        });
        let open_io = io.clone();
        let state_dir = dir.join("state");
        let state = tokio::task::spawn_blocking(move || StateLog::open(open_io, &state_dir))
            .await
            .expect("opening does not panic")
            .expect("a state log");
        let groups = Groups::new(
            NodeId(id),
            config,
            Arc::clone(&peers),
            io,
            dir.to_owned(),
            state,
        )
        .expect("consistent timing");
        let mut background = tokio::task::JoinSet::new();
        background.spawn(Arc::clone(&groups).run());
        background.spawn(Arc::clone(&groups).repair());
        let dispatcher = TestDispatcher {
            hello,
            raft: RaftDispatcher::new(Arc::clone(&groups)),
        };
        let server = RpcServer::serve(listener, Arc::new(dispatcher), Arc::clone(&peers));
        TestNode {
            groups,
            peers,
            address,
            background,
            _server: server,
        }
    }
}

/// Nodes 1..=n, all knowing each other.
pub(super) struct TestCluster {
    pub(super) nodes: BTreeMap<u64, TestNode>,
    ios: BTreeMap<u64, Io>,
    config: GroupsConfig,
    dir: TempDir,
}

/// Makes the state of a group's replica on a node.
pub(super) type MakeMachine = fn(u64) -> Box<dyn Machine>;

impl TestCluster {
    pub(super) async fn start(n: u64, config: GroupsConfig) -> TestCluster {
        let io = |_| real_io();
        Self::start_on(n, config, io).await
    }

    /// As [`TestCluster::start`], each node with the I/O that `io` gives for its id.
    pub(super) async fn start_on(
        n: u64,
        config: GroupsConfig,
        io: impl Fn(u64) -> Io,
    ) -> TestCluster {
        let dir = TempDir::new().expect("a temporary directory");
        let mut cluster = TestCluster {
            nodes: BTreeMap::new(),
            ios: (1..=n).map(|id| (id, io(id))).collect(),
            config,
            dir,
        };
        for id in 1..=n {
            cluster.start_node(id).await;
        }
        cluster
    }

    /// Starts a node, again if it was stopped, and makes it known to the others.
    pub(super) async fn start_node(&mut self, id: u64) {
        let path = self.dir.path().join(id.to_string());
        let node = TestNode::start(id, &path, self.ios[&id].clone(), self.config.clone()).await;
        self.nodes.insert(id, node);
        self.heal(id);
    }

    /// Nothing passes between this node and the others any more.
    pub(super) fn cut_off(&self, id: u64) {
        for (other, node) in self.nodes.iter().filter(|(other, _)| **other != id) {
            node.peers.remove(NodeId(id));
            if let Some(node) = self.nodes.get(&id) {
                node.peers.remove(NodeId(*other));
            }
        }
    }

    /// Ends what [`TestCluster::cut_off`] began.
    pub(super) fn heal(&self, id: u64) {
        for (other, node) in self.nodes.iter().filter(|(other, _)| **other != id) {
            node.peers.remove(NodeId(id));
            node.peers.add(NodeId(id), self.nodes[&id].address.clone());
            let back = &self.nodes[&id].peers;
            back.add(NodeId(*other), node.address.clone());
        }
    }

    /// Ends a node's replicas and starts the node anew, at another address, on the same directory with the I/O given.
    pub(super) async fn restart(&mut self, id: u64, config: GroupsConfig, io: Io) {
        self.ios.insert(id, io);
        self.config = config;
        self.start_node(id).await;
    }

    /// Ends a node at once. Its files stay.
    pub(super) async fn kill(&mut self, id: u64) {
        let mut node = self.nodes.remove(&id).expect("it runs");
        node.background.abort_all();
        for group in node.groups.all() {
            group.stop().await;
        }
        node.peers.close();
    }

    /// Starts a node again on its files.
    pub(super) async fn revive(&mut self, id: u64, io: Io) {
        let path = self.dir.path().join(id.to_string());
        let node = TestNode::start(id, &path, io, self.config.clone()).await;
        for (other, peer) in &self.nodes {
            node.peers.add(NodeId(*other), peer.address.clone());
            peer.peers.add(NodeId(id), node.address.clone());
        }
        self.nodes.insert(id, node);
    }

    /// Stops a node; its files stay as its disk has them.
    pub(super) async fn stop(&mut self, id: u64) {
        if let Some(node) = self.nodes.get(&id) {
            node.groups.shutdown().await;
            node.peers.close();
        }
    }

    /// Opens a node's replica of a group.
    pub(super) async fn open_on(&self, id: u64, group_id: u64) -> Arc<Group> {
        let spec = self.spec(group_id, id);
        let opened = self.nodes[&id].groups.open_group(spec).await;
        opened.expect("its own replica")
    }

    pub(super) fn spec(&self, group_id: u64, node: u64) -> GroupSpec {
        GroupSpec {
            group_id,
            replica_id: 100 + node,
            members: self
                .nodes
                .iter()
                .map(|(id, n)| (100 + id, (NodeId(*id), n.address.clone())))
                .collect(),
            bootstrap_delay: Some(Duration::from_secs(if node == 1 { 0 } else { 3 })),
            machine: Box::new(NoMachine),
            segment_bytes: SEGMENT_BYTES,
            segment_span_us: None,
        }
    }

    /// Opens a group's replica on every node and waits for its leader.
    pub(super) async fn open_group(&self, group_id: u64) -> BTreeMap<u64, Arc<Group>> {
        self.open_group_with(group_id, |_| Box::new(NoMachine))
            .await
    }

    /// Opens a group's replica on one node.
    pub(super) async fn open_replica(
        &self,
        group_id: u64,
        node: u64,
        machine: MakeMachine,
    ) -> Result<Arc<Group>, OpenGroupError> {
        let spec = GroupSpec {
            machine: machine(node),
            ..self.spec(group_id, node)
        };
        self.nodes[&node].groups.open_group(spec).await
    }

    /// As [`TestCluster::open_group`], with a state beside the log.
    pub(super) async fn open_group_with(
        &self,
        group_id: u64,
        machine: MakeMachine,
    ) -> BTreeMap<u64, Arc<Group>> {
        let mut replicas = BTreeMap::new();
        for id in self.nodes.keys() {
            let group = self.open_replica(group_id, *id, machine).await;
            replicas.insert(*id, group.expect("the replica opens"));
        }
        for group in replicas.values() {
            group.wait_leader(deadline()).await.expect("a leader");
        }
        replicas
    }

    /// Another replica id on node 1's files.
    pub(super) fn foreign_spec(&self, group_id: u64) -> GroupSpec {
        GroupSpec {
            replica_id: 999,
            ..self.spec(group_id, 1)
        }
    }
}

/// The replica that leads.
pub(super) fn leader(replicas: &BTreeMap<u64, Arc<Group>>) -> Arc<Group> {
    let leading = replicas.values().find(|group| group.is_leader());
    Arc::clone(leading.expect("one replica leads"))
}
