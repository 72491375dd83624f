//! The effective configuration as TOML that can be used again, each value with its origin.

use super::{
    NodeConfig, Origin, Written,
    keys::{KEYS, Key},
    units::{format_duration, format_size},
};
use crate::config::LogFormat;
use std::fmt::Write as _;

/// Writes `config` as a TOML file; comments say where each value came from.
pub fn print(config: &NodeConfig, written: &Written) -> String {
    let mut out = String::new();
    let mut section = "";
    for key in KEYS {
        let (table, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        if table != section {
            let _ = writeln!(out, "\n[{table}]");
            section = table;
        }
        let origin = written
            .entries
            .get(key.path)
            .map_or(Origin::Default, |entry| entry.origin.clone());
        let _ = match derived(config, key) {
            Some(None) => writeln!(out, "# {name} follows from the size of the disk"),
            Some(Some(bytes)) => writeln!(out, "{name} = {:?} # {origin}", format_size(bytes)),
            None => writeln!(out, "{name} = {} # {origin}", value(config, key)),
        };
    }
    for (listener, from) in config.listeners.iter().skip(1).zip(&written.listeners) {
        let _ = writeln!(
            out,
            "\n[[listener]] # {}\nname = {:?}\nlisten = \"{}\"\nadvertise = \"{}\"",
            from.origin, listener.name, listener.listen, listener.advertise
        );
    }
    out
}

/// What was written for a key that otherwise follows from the disk; `None` for all other keys.
fn derived(config: &NodeConfig, key: &Key) -> Option<Option<u64>> {
    match key.path {
        "storage.disk_reserve" => Some(config.storage.disk_reserve),
        "storage.disk_soft_floor" => Some(config.storage.disk_soft_floor),
        "storage.disk_hard_floor" => Some(config.storage.disk_hard_floor),
        _ => None,
    }
}

fn value(config: &NodeConfig, key: &Key) -> String {
    let limits = &config.limits;
    let text = match key.path {
        "node_id" => return config.node_id.0.to_string(),
        "limits.max_connections" => return limits.max_connections.to_string(),
        "limits.max_streams" => return limits.max_streams.to_string(),
        "limits.max_calls" => return limits.max_calls.to_string(),
        "seeds" => {
            let seeds: Vec<String> = config.seeds.iter().map(ToString::to_string).collect();
            return format!("{seeds:?}");
        }
        "data_dir" => config.data_dir.display().to_string(),
        "listen.client" => config.listeners[0].listen.to_string(),
        "advertise.client" => config.listeners[0].advertise.to_string(),
        "listen.peer" => config.peer.listen.to_string(),
        "advertise.peer" => config.peer.advertise.to_string(),
        "listen.http" => config.http.to_string(),
        "log_format" => match config.log.format {
            LogFormat::Text => "text".into(),
            LogFormat::Json => "json".into(),
        },
        "log_level" => config.log.level.clone(),
        "raft.heartbeat_interval" => format_duration(config.raft.heartbeat_interval),
        "raft.election_timeout_min" => format_duration(config.raft.election_timeout_min),
        "raft.election_timeout_max" => format_duration(config.raft.election_timeout_max),
        "peer.ping_interval" => format_duration(config.raft.ping_interval),
        "storage.segment_bytes" => format_size(config.storage.segment_bytes),
        "storage.retention_check" => format_duration(config.storage.retention_check),
        "storage.tail_cache_bytes" => format_size(config.storage.tail_cache_bytes),
        "storage.slow_sync" => format_duration(config.storage.slow_sync),
        "storage.stuck_sync" => format_duration(config.storage.stuck_sync),
        "storage.scrub_bytes_per_second" => format_size(config.storage.scrub_bytes_per_second),
        "storage.catch_up_bytes_per_second" => {
            format_size(config.storage.catch_up_bytes_per_second)
        }
        "storage.scrub_interval" => format_duration(config.storage.scrub_interval),
        "limits.max_batch_bytes" => format_size(limits.max_batch_bytes),
        "limits.max_poll_bytes" => format_size(limits.max_poll_bytes),
        "limits.default_poll_bytes" => format_size(limits.default_poll_bytes),
        "limits.max_wait" => format_duration(limits.max_wait),
        "limits.default_deadline" => format_duration(limits.default_deadline),
        "limits.max_deadline" => format_duration(limits.max_deadline),
        "limits.node_bytes" => format_size(limits.node_bytes),
        "limits.partition_bytes" => format_size(limits.partition_bytes),
        "limits.read_bytes" => format_size(limits.read_bytes),
        "shutdown.grace" => format_duration(config.shutdown_grace),
        other => {
            debug_assert!(false, "{other} has no printed value");
            String::new()
        }
    };
    toml::Value::String(text).to_string()
}
