//! `imprint dev`: a whole cluster on loopback in one process.
//!
//! The addresses go to standard output as one line, ready to paste; everything else is talk and goes
//! to standard error.

use crate::{
    config::{HostPort, LogConfig, LogFormat, NodeConfig},
    file_limit, logging,
    node::{Node, NodeError, RunningNode, Seams},
    serve::{LAST_WAIT, StopSignals, with_sources},
};
use imprint_proto::ids::NodeId;
use imprint_raft::{
    disk::{Io, RealDisk, RealOffload},
    seams::{SystemClock, SystemEntropy, TcpNet},
};
use std::{
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};
use tokio::time::Instant;

/// Flags of `imprint dev`.
#[derive(Debug, Clone, clap::Args)]
pub struct DevArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub nodes: u16,
    /// Directory to keep the data in; without it a temporary one that is removed at the end
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Choose free ports instead of 7460, 7470, 7480
    #[arg(long)]
    pub ephemeral: bool,
    /// error, warn, info, debug, trace, or directives
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: String,
}

/// Ports of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub client: u16,
    pub peer: u16,
    pub http: u16,
}

/// The first node's ports; each further node has them 10 higher.
const FIRST: Ports = Ports {
    client: 7460,
    peer: 7461,
    http: 7462,
};

/// 7460 and on, or whatever is free.
pub fn ports(nodes: u16, ephemeral: bool) -> io::Result<Vec<Ports>> {
    if !ephemeral {
        let at = |i| Ports {
            client: FIRST.client + 10 * i,
            peer: FIRST.peer + 10 * i,
            http: FIRST.http + 10 * i,
        };
        return Ok((0..nodes).map(at).collect());
    }
    // All are held until the last one is chosen, so that none is given out twice.
    let held: Vec<TcpListener> = (0..3 * nodes)
        .map(|_| TcpListener::bind(("127.0.0.1", 0)))
        .collect::<io::Result<_>>()?;
    let free: Vec<u16> = held
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.port()))
        .collect::<io::Result<_>>()?;
    Ok(free
        .chunks_exact(3)
        .map(|three| Ports {
            client: three[0],
            peer: three[1],
            http: three[2],
        })
        .collect())
}

/// Configurations of a cluster on loopback, node `i` in `data/node-i`.
pub fn configs(data: &Path, ports: &[Ports]) -> Vec<NodeConfig> {
    let seeds: Vec<HostPort> = ports
        .iter()
        .map(|ports| HostPort::new("127.0.0.1", ports.peer))
        .collect();
    (1u64..)
        .zip(ports)
        .map(|(id, ports)| {
            let dir = data.join(format!("node-{id}"));
            let mut config =
                NodeConfig::loopback(NodeId(id), dir, ports.client, ports.peer, ports.http);
            config.seeds.clone_from(&seeds);
            config
        })
        .collect()
}

/// Nodes of one cluster in this process.
pub struct DevCluster {
    pub nodes: Vec<RunningNode>,
}

impl DevCluster {
    /// Starts a node for each configuration and waits until all are ready. On the real disk and
    /// network; a failed write or sync is logged and stops the partitions that it concerns.
    pub async fn start(configs: Vec<NodeConfig>) -> Result<Self, Arc<NodeError>> {
        let mut nodes = Vec::new();
        for config in configs {
            nodes.push(Node::start(config, seams()).await.map_err(Arc::new)?);
        }
        let ready = nodes.iter().map(RunningNode::wait_ready);
        for ready in futures_util::future::join_all(ready).await {
            ready?;
        }
        Ok(Self { nodes })
    }

    /// Client addresses with commas between.
    pub fn servers(&self) -> String {
        let clients = self.nodes.iter().flat_map(|node| &node.addresses().clients);
        let addresses: Vec<String> = clients.map(|(_, address)| address.to_string()).collect();
        addresses.join(",")
    }

    /// Stops all nodes in good order.
    pub async fn shutdown(self) {
        let stops = self.nodes.into_iter().map(RunningNode::shutdown);
        futures_util::future::join_all(stops).await;
    }
}

fn seams() -> Seams {
    let offload = RealOffload::new(tokio::runtime::Handle::current());
    Seams {
        io: Io::new(Arc::new(RealDisk), Arc::new(offload), Arc::new(SystemClock)),
        net: Arc::new(TcpNet),
        entropy: Arc::new(SystemEntropy),
        open_meta: crate::node::open_sled,
    }
}

/// Runs a cluster until it is asked to stop. Blocking; builds its own runtime, so it must be called
/// outside of one.
pub fn run(args: DevArgs) -> ExitCode {
    logging::start(&LogConfig {
        format: LogFormat::Text,
        level: args.log_level.clone(),
    });
    file_limit::raise();
    let data = match DataDir::make(args.data.clone()) {
        Ok(data) => data,
        Err(error) => return complain(&format!("no directory for the data: {error}")),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(dev(&args, &data));
            runtime.shutdown_timeout(LAST_WAIT);
            code
        }
        Err(error) => complain(&format!("the runtime can't be started: {error}")),
    }
}

fn complain(what: &str) -> ExitCode {
    eprintln!("imprint dev: {what}");
    ExitCode::FAILURE
}

async fn dev(args: &DevArgs, data: &DataDir) -> ExitCode {
    let started = Instant::now();
    let mut stop = match StopSignals::listen() {
        Ok(stop) => stop,
        Err(error) => return complain(&format!("signals can't be listened to: {error}")),
    };
    let ports = match ports(args.nodes, args.ephemeral) {
        Ok(ports) => ports,
        Err(error) => return complain(&format!("no free ports: {error}")),
    };
    let starting = DevCluster::start(configs(&data.path, &ports));
    let cluster = tokio::select! {
        cluster = starting => cluster,
        () = stop.asked() => return ExitCode::SUCCESS,
    };
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => return complain(&with_sources(error.as_ref())),
    };
    announce(&cluster, data, started);
    stop.asked().await;
    cluster.shutdown().await;
    ExitCode::SUCCESS
}

fn announce(cluster: &DevCluster, data: &DataDir, started: Instant) {
    let servers = cluster.servers();
    println!("{servers}");
    let kept = if data.temporary {
        "removed at the end"
    } else {
        "kept"
    };
    eprintln!(
        "{} nodes ready after {:.2} s; data in {} ({kept})",
        cluster.nodes.len(),
        started.elapsed().as_secs_f64(),
        data.path.display(),
    );
    if let Some(node) = cluster.nodes.first() {
        eprintln!("metrics: http://{}/metrics", node.addresses().http);
    }
    eprintln!("try: imprint topic create hello --server {servers}");
}

/// Where the data goes.
struct DataDir {
    path: PathBuf,
    temporary: bool,
}

impl DataDir {
    fn make(given: Option<PathBuf>) -> io::Result<Self> {
        if let Some(path) = given {
            std::fs::create_dir_all(&path)?;
            return Ok(Self {
                path,
                temporary: false,
            });
        }
        let name = format!("imprint-dev-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Not `create_dir_all`: what is there already is not ours to remove.
        std::fs::create_dir(&path)?;
        Ok(Self {
            path,
            temporary: true,
        })
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            eprintln!("imprint dev: {} is left: {error}", self.path.display());
        }
    }
}
