//! One node, as `serve`, `dev` and a simulation run it.
//!
//! ```text
//! data directory ─▶ peers, formation ─▶ groups ─▶ core ─▶ internal RPC, gRPC, HTTP
//!                                                └▶ boot: form, open the controller, register
//! ```
//!
//! Listening comes first and never waits for the cluster: a node that isn't part of one yet answers
//! every call with NOT_READY and the reason. Everything that a node has is in [`RunningNode`];
//! dropping it ends the node like a crash, [`RunningNode::shutdown`] ends it in good order.

mod boot;
mod dispatch;
mod replication;
mod stop;
mod storage;

use crate::{
    config::{HostPort, NodeConfig},
    core::{Core, CoreParts},
    formation::{Formation, FormationError, FormationParts},
    grpc, http,
    metrics::{Metrics, NodeCollector, RpcCollector},
    room::{RoomBoard, monitor::Monitor},
};
pub(crate) use imprint_raft::disk::offloaded;
use imprint_raft::{
    consensus::{Groups, GroupsConfig, RaftDispatcher, ScrubConfig},
    disk::Io,
    meta::{MetaError, MetaStore, SledMeta},
    quarantine,
    rpc::{Hello, HelloSource, PeerTable, Refusal, RpcConfig, RpcServer, TableParts},
    seams::{Entropy, Listener, Net},
};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use storage::Storage;
pub use storage::StorageError;
use tokio::{sync::Semaphore, sync::watch, task::JoinSet};

/// Version of this binary.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Logical versions of the cluster that this binary can run in.
const LOGICAL_VERSIONS: (u32, u32) = (1, 1);

/// The outside world, as a node sees it.
#[derive(Clone)]
pub struct Seams {
    /// Disk, clock, and where blocking work runs.
    pub io: Io,
    pub net: Arc<dyn Net>,
    pub entropy: Arc<dyn Entropy>,
    /// Opens the store of what can be rebuilt, given the data directory. May block.
    pub open_meta: OpenMeta,
}

/// See [`Seams::open_meta`].
pub type OpenMeta = fn(&std::path::Path) -> Result<Arc<dyn MetaStore>, MetaError>;

/// sled, in the data directory.
pub fn open_sled(data_dir: &std::path::Path) -> Result<Arc<dyn MetaStore>, MetaError> {
    Ok(Arc::new(SledMeta::open(data_dir)?))
}

/// Between two looks at the quarantine.
const QUARANTINE_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes what has been set aside for long enough, and warns if it is much; now and every day.
async fn look_after_quarantine(io: Io, data: PathBuf) {
    loop {
        let (look_io, look_data) = (io.clone(), data.clone());
        let looked = offloaded(&io, move || quarantine::look_after(&look_io, &look_data)).await;
        if let Err(error) = looked {
            tracing::warn!(%error, "could not look through the quarantine");
        }
        tokio::time::sleep(QUARANTINE_EVERY).await;
    }
}

/// Why a node did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory can't be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The cluster that was found doesn't take this node.
    #[error(transparent)]
    Formation(#[from] FormationError),
    #[error("can't listen on {address} for {purpose}: {source}")]
    Listen {
        address: HostPort,
        purpose: String,
        source: io::Error,
    },
    /// The controller knows this node id with another data directory.
    #[error("the cluster refuses this node: {0}")]
    Refused(String),
    #[error("replication can't be started: {0}")]
    Replication(String),
}

/// Where a node is reached; ports as the system chose them.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Advertised client address by listener name, the default one first.
    pub clients: Vec<(String, HostPort)>,
    pub peer: HostPort,
    pub http: HostPort,
}

/// A node that runs.
pub struct RunningNode {
    addresses: Addresses,
    core: Arc<Core>,
    groups: Arc<Groups>,
    peers: Arc<PeerTable>,
    config: NodeConfig,
    /// Turns true when the client-facing servers are to end.
    close: watch::Sender<bool>,
    servers: JoinSet<()>,
    /// Tasks that live as long as the node.
    background: JoinSet<()>,
    failed: watch::Receiver<Option<Arc<NodeError>>>,
    rpc: RpcServer,
    storage: Storage,
    io: Io,
}

/// Starts nodes.
pub struct Node;

impl Node {
    /// Opens the data directory, listens, and begins to form or find the cluster. Returns as soon as
    /// the node answers calls; [`RunningNode::wait_ready`] waits for more.
    pub async fn start(config: NodeConfig, seams: Seams) -> Result<RunningNode, NodeError> {
        let storage = Storage::open(&config, &seams).await?;
        let bound = Bound::listen(&config, seams.net.as_ref()).await?;
        let formation_cell: Arc<OnceLock<Arc<Formation>>> = Arc::default();
        let hello = hello(&config, &storage, &bound.addresses, &formation_cell);
        let peers = peer_table(&config, &seams, Arc::clone(&hello), &formation_cell);
        let formation = Formation::open(FormationParts {
            identity: storage.identity.clone(),
            seeds: config.seeds.iter().map(ToString::to_string).collect(),
            address: bound.addresses.peer.to_string(),
            peers: Arc::clone(&peers),
            io: seams.io.clone(),
            data_dir: config.data_dir.clone(),
            entropy: Arc::clone(&seams.entropy),
            meta: Arc::clone(&storage.meta),
        })?;
        let room: Arc<RoomBoard> = Arc::default();
        peers.set_ping_hook(Arc::clone(&room) as _);
        // Set once, right here.
        let _ = formation_cell.set(Arc::clone(&formation));
        let groups = Groups::new(
            config.node_id,
            groups_config(&config),
            Arc::clone(&peers),
            seams.io.clone(),
            config.data_dir.clone(),
            Arc::clone(&storage.state),
        )
        .map_err(NodeError::Replication)?;
        let (machine, view) = crate::controller::ControllerMachine::new();
        let core = Core::new(CoreParts {
            node_id: config.node_id,
            limits: config.limits.clone(),
            segment_bytes: config.storage.segment_bytes,
            founders: crate::core::founders(&config),
            replicas: Arc::new(replication::RaftReplicas {
                groups: Arc::clone(&groups),
                state: Arc::clone(&storage.state),
                io: seams.io.clone(),
                peers: Arc::clone(&peers),
            }),
            peers: Arc::new(replication::RaftPeers(Arc::clone(&peers))),
            cluster: Arc::new(replication::Formed(Arc::clone(&formation))),
            controller: view,
            clock: Arc::clone(&seams.io.clock),
            entropy: Arc::clone(&seams.entropy),
            metrics: Metrics::new(VERSION),
            room: Arc::clone(&room),
        });
        let metrics = Arc::clone(core.metrics());
        seams
            .io
            .watch
            .observe_syncs(move |took| metrics.synced(took));
        let io = seams.io.clone();
        let repairs = Arc::clone(&groups);
        let counts = Box::new(move || {
            let mut counts = replication::disk_counts(&io);
            counts.extend(replication::repair_counts(&repairs));
            counts
        });
        let collector = NodeCollector::new(Arc::downgrade(&core), counts);
        core.metrics().add_collector(Box::new(collector));
        core.metrics()
            .add_collector(Box::new(RpcCollector::new(&peers)));
        let dispatcher = dispatch::NodeDispatcher {
            raft: RaftDispatcher::new(Arc::clone(&groups)),
            formation: Arc::clone(&formation),
            hello,
            core: Arc::new(OnceLock::from(Arc::clone(&core))),
        };
        let rpc = RpcServer::serve(bound.peer, Arc::new(dispatcher), Arc::clone(&peers));
        let close = watch::Sender::new(false);
        let servers = serve_clients(&config, &core, bound.clients, bound.http, &close);
        let (failed_tx, failed) = watch::channel(None);
        let mut background = JoinSet::new();
        background.spawn(Arc::clone(&groups).run());
        background.spawn(Arc::clone(&groups).repair());
        background.spawn(Arc::clone(&groups).scrub(Arc::clone(&storage.meta)));
        background.spawn(Arc::clone(&formation).discover());
        let monitor = Monitor {
            io: seams.io.clone(),
            dir: config.data_dir.clone(),
            floors: storage.floors,
            core: Arc::clone(&core),
            slow_sync: config.storage.slow_sync,
        };
        background.spawn(monitor.run());
        background.spawn(look_after_quarantine(
            seams.io.clone(),
            config.data_dir.clone(),
        ));
        let boot = boot::Boot {
            config: config.clone(),
            addresses: bound.addresses.clone(),
            core: Arc::clone(&core),
            groups: Arc::clone(&groups),
            formation,
            storage_id: storage.identity.storage_id.0,
        };
        background.spawn(async move {
            if let Err(error) = boot.run(machine).await {
                tracing::error!(%error, "this node can't be part of the cluster");
                failed_tx.send_replace(Some(Arc::new(error)));
            }
            // Kept open, so that nobody takes the end of booting for a failure.
            failed_tx.closed().await;
        });
        Ok(RunningNode {
            addresses: bound.addresses,
            core,
            groups,
            peers,
            config,
            close,
            servers,
            background,
            failed,
            rpc,
            storage,
            io: seams.io,
        })
    }
}

impl RunningNode {
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// What the node serves its callers with; for in-process callers and tests.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Waits until a write through this node would work, or until it can't be.
    pub async fn wait_ready(&self) -> Result<(), Arc<NodeError>> {
        let mut failed = self.failed.clone();
        loop {
            if let Some(error) = failed.borrow_and_update().clone() {
                return Err(error);
            }
            if self.core.readiness().is_ok() {
                return Ok(());
            }
            let pause = std::time::Duration::from_millis(10);
            let _ = tokio::time::timeout(pause, failed.changed()).await;
        }
    }

    /// Completes when the node can't go on; the process should say why and end.
    pub async fn failed(&self) -> Arc<NodeError> {
        let mut failed = self.failed.clone();
        match failed.wait_for(Option::is_some).await {
            Ok(error) => match error.clone() {
                Some(error) => error,
                None => std::future::pending().await,
            },
            Err(_) => std::future::pending().await,
        }
    }
}

/// Listening sockets, with the addresses that others are told.
struct Bound {
    addresses: Addresses,
    clients: Vec<(String, Box<dyn Listener>)>,
    peer: Box<dyn Listener>,
    http: Box<dyn Listener>,
}

impl Bound {
    async fn listen(config: &NodeConfig, net: &dyn Net) -> Result<Self, NodeError> {
        let peer = bind(net, &config.peer.listen, "other nodes").await?;
        let http = bind(net, &config.http, "metrics and health").await?;
        let mut clients = Vec::new();
        let mut advertised = Vec::new();
        for listener in &config.listeners {
            let purpose = format!("clients ({})", listener.name);
            let bound = bind(net, &listener.listen, &purpose).await?;
            let address = with_port(&listener.advertise, bound.as_ref());
            advertised.push((listener.name.clone(), address));
            clients.push((listener.name.clone(), bound));
        }
        let addresses = Addresses {
            clients: advertised,
            peer: with_port(&config.peer.advertise, peer.as_ref()),
            http: with_port(&config.http, http.as_ref()),
        };
        Ok(Self {
            addresses,
            clients,
            peer,
            http,
        })
    }
}

async fn bind(
    net: &dyn Net,
    address: &HostPort,
    purpose: &str,
) -> Result<Box<dyn Listener>, NodeError> {
    net.listen(&address.to_string())
        .await
        .map_err(|source| NodeError::Listen {
            address: address.clone(),
            purpose: purpose.to_string(),
            source,
        })
}

/// Port 0 stands for the one that listening chose.
fn with_port(address: &HostPort, listener: &dyn Listener) -> HostPort {
    let port = match address.port {
        0 => listener.local_addr().map_or(0, |bound| bound.port()),
        port => port,
    };
    HostPort::new(address.host.clone(), port)
}

fn groups_config(config: &NodeConfig) -> GroupsConfig {
    GroupsConfig {
        heartbeat_interval: config.raft.heartbeat_interval,
        election_timeout_min: config.raft.election_timeout_min,
        election_timeout_max: config.raft.election_timeout_max,
        tail_cache_bytes: config.storage.tail_cache_bytes,
        catch_up_bytes_per_second: config.storage.catch_up_bytes_per_second,
        scrub: ScrubConfig {
            bytes_per_second: config.storage.scrub_bytes_per_second,
            interval: config.storage.scrub_interval,
        },
        ..GroupsConfig::default()
    }
}

fn hello(
    config: &NodeConfig,
    storage: &Storage,
    addresses: &Addresses,
    formation: &Arc<OnceLock<Arc<Formation>>>,
) -> HelloSource {
    let hello = Hello {
        cluster_id: None,
        node_id: config.node_id,
        storage_id: storage.identity.storage_id.0,
        incarnation: storage.identity.incarnation,
        earliest_version: LOGICAL_VERSIONS.0,
        latest_version: LOGICAL_VERSIONS.1,
        peer_address: addresses.peer.to_string(),
        client_address: addresses
            .clients
            .first()
            .map(|(_, address)| address.to_string())
            .unwrap_or_default(),
        seeds_hash: storage::hash_of_seeds(&config.seeds),
    };
    let formation = Arc::clone(formation);
    Arc::new(move || Hello {
        cluster_id: formation.get().and_then(|formation| formation.cluster_id()),
        ..hello.clone()
    })
}

fn peer_table(
    config: &NodeConfig,
    seams: &Seams,
    hello: HelloSource,
    formation: &Arc<OnceLock<Arc<Formation>>>,
) -> Arc<PeerTable> {
    let formation = Arc::clone(formation);
    PeerTable::new(TableParts {
        net: Arc::clone(&seams.net),
        node_id: config.node_id,
        hello,
        check: Arc::new(move |theirs| match formation.get() {
            Some(formation) => formation.check_hello(theirs).map_err(Refusal),
            None => Ok(()),
        }),
        config: RpcConfig {
            ping_interval: config.raft.ping_interval,
            ..RpcConfig::default()
        },
    })
}

fn serve_clients(
    config: &NodeConfig,
    core: &Arc<Core>,
    clients: Vec<(String, Box<dyn Listener>)>,
    pages: Box<dyn Listener>,
    close: &watch::Sender<bool>,
) -> JoinSet<()> {
    let mut servers = JoinSet::new();
    let connections = Arc::new(Semaphore::new(config.limits.max_connections));
    let calls = Arc::new(Semaphore::new(config.limits.max_calls));
    for (name, listener) in clients {
        let parts = grpc::ServerParts {
            core: Arc::clone(core),
            connections: Arc::clone(&connections),
            calls: Arc::clone(&calls),
        };
        let mut closed = close.subscribe();
        servers.spawn(async move {
            let stop = async move {
                let _ = closed.wait_for(|closed| *closed).await;
            };
            if let Err(error) = grpc::serve(parts, &name, listener, stop).await {
                tracing::error!(listener = %name, %error, "the gRPC server ended");
            }
        });
    }
    let mut closed = close.subscribe();
    let core = Arc::clone(core);
    servers.spawn(async move {
        let stop = async move {
            let _ = closed.wait_for(|closed| *closed).await;
        };
        http::serve(core, pages, stop).await;
    });
    servers
}
