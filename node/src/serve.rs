//! `imprint serve`: one node as a process of its own.
//!
//! | exit | meaning |
//! |---:|---|
//! | 0 | asked to stop, stopped in good order |
//! | 1 | anything not below, such as a port that is taken |
//! | 2 | the configuration can't be used, or the process may not open the files that the node needs |
//! | 10 | the data directory can't be used: damaged, in use, or another node's |
//! | 11 | a write or sync failed while running, or the file system went read-only; what was acknowledged is safe on a majority. A full disk is no such failure |
//! | 12 | the cluster refuses this node |
//! | 13 | a write or sync did not return for too long: the disk is stuck |
//! | 130 | stopped at once by a second signal |

pub use crate::config::ServeArgs;
use crate::{
    config::{self, NodeConfig},
    file_limit::{self, Need},
    formation::FormationError,
    logging,
    node::{Node, NodeError, RunningNode, Seams, StorageError},
    room::monitor,
};
use imprint_raft::{
    disk::{Io, RealDisk, RealOffload},
    rpc::RpcConfig,
    seams::{SystemClock, SystemEntropy, TcpNet},
};
use std::{collections::BTreeMap, io, process::ExitCode, sync::Arc, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often the disk is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

const EXIT_FAILED: u8 = 1;
const EXIT_CONFIG: u8 = 2;
const EXIT_DATA_DIR: u8 = 10;
const EXIT_DISK: i32 = 11;
const EXIT_REFUSED: u8 = 12;
const EXIT_STUCK: i32 = 13;
const EXIT_INTERRUPTED: i32 = 130;

/// Longest wait for blocking threads once a node has stopped.
pub(crate) const LAST_WAIT: Duration = Duration::from_secs(2);

/// Runs a node until it is asked to stop. Blocking; builds its own runtime, so it must be called
/// outside of one.
pub fn run(args: ServeArgs) -> ExitCode {
    let env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let (config, written) = match config::load(&args, &env) {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    if args.print_config {
        print!("{}", config::print(&config, &written));
        return ExitCode::SUCCESS;
    }
    logging::start(&config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(serve(config));
            // All is closed and synced: a blocking thread that still reads must not hold the process.
            runtime.shutdown_timeout(LAST_WAIT);
            code
        }
        Err(error) => {
            tracing::error!(%error, "the runtime can't be started");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// The real world; a failed write or sync ends the process, since nothing more can be promised.
fn seams() -> Seams {
    let offload = RealOffload::new(tokio::runtime::Handle::current());
    let io = Io::new(Arc::new(RealDisk), Arc::new(offload), Arc::new(SystemClock));
    Seams {
        io: io.with_fatal_hook(Arc::new(|_| std::process::exit(EXIT_DISK))),
        net: Arc::new(TcpNet),
        entropy: Arc::new(SystemEntropy),
        open_meta: crate::node::open_sled,
    }
}

/// A disk that never answers is a dead disk, and a node that waits for it is a zombie. A thread of its own, since the disk
/// may hold all of the runtime's.
fn watch_for_stuck_disk(io: Io, limit: Duration) -> io::Result<()> {
    let watch = move || {
        loop {
            std::thread::sleep(LOOK_EVERY);
            if let Some(reason) = monitor::stuck(&io, limit) {
                tracing::error!(%reason, "the node ends");
                std::process::exit(EXIT_STUCK);
            }
        }
    };
    let thread = std::thread::Builder::new().name("disk-watch".into());
    thread.spawn(watch).map(drop)
}

async fn serve(config: NodeConfig) -> ExitCode {
    let mut stop = match StopSignals::listen() {
        Ok(stop) => stop,
        Err(error) => {
            tracing::error!(%error, "signals can't be listened to");
            return ExitCode::from(EXIT_FAILED);
        }
    };
    tracing::info!(
        node = config.node_id.0,
        version = crate::node::VERSION,
        data_dir = %config.data_dir.display(),
        "starting"
    );
    let seams = seams();
    let connections = config.limits.max_connections + RpcConfig::default().max_connections;
    let need = Need::of(seams.io.disk.as_ref(), &config.data_dir, connections);
    if let Err(error) = file_limit::check(file_limit::raise(), need) {
        tracing::error!(%error, "the node ends");
        return ExitCode::from(EXIT_CONFIG);
    }
    if let Err(error) = watch_for_stuck_disk(seams.io.clone(), config.storage.stuck_sync) {
        tracing::error!(%error, "the disk can't be watched");
        return ExitCode::from(EXIT_FAILED);
    }
    let node = match Node::start(config, seams).await {
        Ok(node) => node,
        Err(error) => return failed(&error),
    };
    announce(&node);
    tokio::select! {
        () = stop.asked() => {}
        error = node.failed() => {
            node.shutdown().await;
            return failed(&error);
        }
    }
    tokio::spawn(async move {
        stop.asked().await;
        std::process::exit(EXIT_INTERRUPTED);
    });
    node.shutdown().await;
    ExitCode::SUCCESS
}

fn announce(node: &RunningNode) {
    let addresses = node.addresses();
    for (listener, address) in &addresses.clients {
        tracing::info!(%listener, %address, "clients");
    }
    let (peer, http) = (&addresses.peer, &addresses.http);
    tracing::info!(%peer, %http, "nodes and pages");
}

fn failed(error: &NodeError) -> ExitCode {
    tracing::error!(error = %with_sources(error), "the node ends");
    ExitCode::from(match error {
        NodeError::Storage(StorageError::Floors(_)) => EXIT_CONFIG,
        NodeError::Storage(_) | NodeError::Formation(FormationError::Damaged { .. }) => {
            EXIT_DATA_DIR
        }
        NodeError::Formation(_) | NodeError::Refused(_) => EXIT_REFUSED,
        NodeError::Listen { .. } | NodeError::Replication(_) => EXIT_FAILED,
    })
}

/// An error with what caused it, each once.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// SIGTERM and SIGINT.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Completes with the next signal.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
