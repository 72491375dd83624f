//! Configuration in two types: what was written ([`Written`]) and what may be used ([`NodeConfig`]).
//!
//! Sources, the later beating the earlier: default, TOML file, `IMPRINT_*` environment, flags. All
//! problems are found in one go and each names the key, the value, what is allowed and where it was
//! written. A [`NodeConfig`] that `load` returned is free of contradictions; everything behind it
//! may assume so. `dev` and simulations build theirs directly.

mod args;
mod check;
pub mod keys;
mod print;
pub mod units;
mod written;

pub use args::ServeArgs;
pub use print::print;
pub use units::HostPort;
pub(crate) use units::{format_duration, format_size};
pub use written::{Origin, Written};

use imprint_proto::ids::NodeId;
use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

/// Name of the listener that `listen.client` and `advertise.client` describe.
pub const DEFAULT_LISTENER: &str = "default";

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    pub node_id: NodeId,
    pub data_dir: PathBuf,
    /// Internal addresses of the forming nodes, in the order written; never empty.
    pub seeds: Vec<HostPort>,
    /// Client listeners; the first is the default one. Never empty, names unique.
    pub listeners: Vec<Listener>,
    pub peer: Listener,
    pub http: HostPort,
    pub log: LogConfig,
    pub raft: RaftConfig,
    pub storage: StorageConfig,
    pub limits: Limits,
    /// How long calls in flight may take to finish at shutdown.
    pub shutdown_grace: Duration,
}

/// A place to accept connections and the address that others are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    pub name: String,
    pub listen: HostPort,
    /// Port 0 stands for the port that listening chose.
    pub advertise: HostPort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone)]
pub struct LogConfig {
    pub format: LogFormat,
    /// Level or directives, already parsed once.
    pub level: String,
}

/// Timings of elections and liveness.
#[derive(Debug, Clone)]
pub struct RaftConfig {
    pub heartbeat_interval: Duration,
    pub election_timeout_min: Duration,
    pub election_timeout_max: Duration,
    pub ping_interval: Duration,
}

#[derive(Debug, Clone)]
pub struct StorageConfig {
    pub segment_bytes: u64,
    pub tail_cache_bytes: u64,
    /// How often the partitions led here are held against their retention settings.
    pub retention_check: Duration,
    /// Unless written, these follow from the size of the disk.
    pub disk_reserve: Option<u64>,
    pub disk_soft_floor: Option<u64>,
    pub disk_hard_floor: Option<u64>,
    pub slow_sync: Duration,
    pub stuck_sync: Duration,
    pub scrub_bytes_per_second: u64,
    pub scrub_interval: Duration,
    pub catch_up_bytes_per_second: u64,
}

/// Bounds of what clients may ask for and hold; bytes unless the name says otherwise.
#[derive(Debug, Clone)]
pub struct Limits {
    pub max_batch_bytes: u64,
    pub max_poll_bytes: u64,
    pub default_poll_bytes: u64,
    pub max_wait: Duration,
    pub default_deadline: Duration,
    pub max_deadline: Duration,
    pub node_bytes: u64,
    pub partition_bytes: u64,
    pub read_bytes: u64,
    pub max_connections: usize,
    pub max_streams: u32,
    pub max_calls: usize,
}

/// One thing wrong with what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{path}: {problem}")]
    File { path: String, problem: String },
    #[error("{origin}: unknown key {key}{}", hint.map(|hint| format!(", did you mean {hint}?")).unwrap_or_default())]
    Unknown {
        key: String,
        hint: Option<&'static str>,
        origin: Origin,
    },
    #[error("{origin}: {key} = {value:?} {problem}; allowed: {allowed}")]
    Value {
        key: String,
        value: String,
        allowed: String,
        problem: String,
        origin: Origin,
    },
}

impl ConfigError {
    fn unknown(path: &str, origin: Origin) -> Self {
        let lower = path.to_lowercase();
        let hint = match lower.strip_prefix("imprint_") {
            Some(rest) => keys::KEYS
                .iter()
                .map(|key| key.path)
                .find(|key| key.replace('.', "_").starts_with(rest) || rest.starts_with(*key)),
            None => keys::nearest(&lower),
        };
        Self::Unknown {
            key: path.to_string(),
            hint,
            origin,
        }
    }
}

/// Everything wrong with a configuration, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Gathers file, environment and flags and checks them.
///
/// `env` is the process environment (only `IMPRINT_*` is looked at).
pub fn load(
    args: &ServeArgs,
    env: &BTreeMap<String, String>,
) -> Result<(NodeConfig, Written), ConfigErrors> {
    let mut problems = Vec::new();
    let written = Written::gather(args, env, &mut problems);
    let config = check::check(&written, &mut problems);
    if problems.is_empty() {
        Ok((config, written))
    } else {
        Err(ConfigErrors(problems))
    }
}

impl NodeConfig {
    /// A loopback node for `dev`, tests and simulations: defaults, the given addresses, no reserve on the disk.
    pub fn loopback(node_id: NodeId, data_dir: PathBuf, client: u16, peer: u16, http: u16) -> Self {
        let mut problems = Vec::new();
        let mut config = check::check(&Written::default(), &mut problems);
        debug_assert!(problems.is_empty(), "the defaults contradict each other");
        let at = |name: &str, port| Listener {
            name: name.to_string(),
            listen: HostPort::new("127.0.0.1", port),
            advertise: HostPort::new("127.0.0.1", port),
        };
        config.node_id = node_id;
        config.data_dir = data_dir;
        config.listeners = vec![at(DEFAULT_LISTENER, client)];
        config.peer = at("peer", peer);
        config.http = HostPort::new("127.0.0.1", http);
        config.seeds = vec![config.peer.advertise.clone()];
        config.storage.disk_reserve = Some(0);
        config
    }

    /// The address that callers of the listener of that name are told, of the first if there is none.
    pub fn advertised(&self, listener: &str) -> &HostPort {
        let named = self.listeners.iter().find(|l| l.name == listener);
        &named.unwrap_or(&self.listeners[0]).advertise
    }
}

#[cfg(test)]
mod tests;
