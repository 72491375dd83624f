//! From what was written to what may be used. Collects every problem instead of stopping at the
//! first; where a value is bad, a default stands in so that the other checks still say something
//! useful, and the result is thrown away by the caller.

use super::{
    ConfigError, DEFAULT_LISTENER, HostPort, Limits, Listener, LogConfig, LogFormat, NodeConfig,
    Origin, RaftConfig, StorageConfig, Written,
    keys::{self, Kind},
    units,
    written::{Entry, Text},
};
use imprint_proto::ids::NodeId;
use std::{path::PathBuf, time::Duration};

const CLIENT_PORT: u16 = 7460;
const PEER_PORT: u16 = 7461;
const HTTP_PORT: u16 = 7462;

pub(super) fn check(written: &Written, problems: &mut Vec<ConfigError>) -> NodeConfig {
    let mut reader = Reader { written, problems };
    let listeners = reader.listeners();
    let peer = reader.listener("peer", "listen.peer", "advertise.peer", PEER_PORT);
    let http = reader
        .address("listen.http")
        .unwrap_or_else(|| HostPort::new(listeners[0].listen.host.clone(), HTTP_PORT));
    let seeds = reader.seeds(&peer);
    let config = NodeConfig {
        node_id: NodeId(reader.integer("node_id")),
        data_dir: reader.data_dir(),
        seeds,
        listeners,
        peer,
        http,
        log: reader.log(),
        raft: reader.raft(),
        storage: StorageConfig {
            segment_bytes: reader.size("storage.segment_bytes"),
            tail_cache_bytes: reader.size("storage.tail_cache_bytes"),
            retention_check: reader.duration("storage.retention_check"),
            disk_reserve: reader.optional_size("storage.disk_reserve"),
            disk_soft_floor: reader.optional_size("storage.disk_soft_floor"),
            disk_hard_floor: reader.optional_size("storage.disk_hard_floor"),
            slow_sync: reader.duration("storage.slow_sync"),
            stuck_sync: reader.duration("storage.stuck_sync"),
            scrub_bytes_per_second: reader.size("storage.scrub_bytes_per_second"),
            scrub_interval: reader.duration("storage.scrub_interval"),
            catch_up_bytes_per_second: reader.size("storage.catch_up_bytes_per_second"),
        },
        limits: reader.limits(),
        shutdown_grace: reader.duration("shutdown.grace"),
    };
    reader.contradictions(&config);
    config
}

struct Reader<'a> {
    written: &'a Written,
    problems: &'a mut Vec<ConfigError>,
}

impl Reader<'_> {
    fn entry(&self, path: &str) -> Option<Entry> {
        self.written.entries.get(path).cloned().or_else(|| {
            let default = keys::find(path)?.default;
            (!default.is_empty()).then(|| Entry {
                text: Text::One(default.to_string()),
                origin: Origin::Default,
            })
        })
    }

    fn refuse(&mut self, path: &str, problem: impl Into<String>) {
        let entry = self.entry(path);
        let value = match entry.as_ref().map(|entry| &entry.text) {
            Some(Text::One(text)) => text.clone(),
            Some(Text::Many(items)) => items.join(","),
            None => String::new(),
        };
        self.problems.push(ConfigError::Value {
            key: path.to_string(),
            value,
            allowed: keys::find(path).map(keys::Key::range).unwrap_or_default(),
            problem: problem.into(),
            origin: entry.map_or(Origin::Default, |entry| entry.origin),
        });
    }

    /// The text of a key that takes one value.
    fn text(&mut self, path: &str) -> Option<String> {
        match self.entry(path)?.text {
            Text::One(text) => Some(text),
            Text::Many(_) => {
                self.refuse(path, "is a list where one value is expected");
                None
            }
        }
    }

    fn integer(&mut self, path: &str) -> u64 {
        let Some(text) = self.text(path) else {
            return 0;
        };
        match text.parse::<u64>() {
            Ok(value) => self.within(path, value),
            Err(_) => {
                self.refuse(path, "is not a whole number");
                self.fallback(path)
            }
        }
    }

    fn size(&mut self, path: &str) -> u64 {
        let Some(text) = self.text(path) else {
            return 0;
        };
        match units::parse_size(&text) {
            Ok(value) => self.within(path, value),
            Err(error) => {
                self.refuse(path, format!("is {error}"));
                self.fallback(path)
            }
        }
    }

    /// A size that follows from something else unless it is written.
    fn optional_size(&mut self, path: &str) -> Option<u64> {
        self.entry(path)?;
        Some(self.size(path))
    }

    fn duration(&mut self, path: &str) -> Duration {
        let Some(text) = self.text(path) else {
            return Duration::ZERO;
        };
        let micros = match units::parse_duration(&text) {
            Ok(value) => self.within(path, u64::try_from(value.as_micros()).unwrap_or(u64::MAX)),
            Err(error) => {
                self.refuse(path, format!("is {error}"));
                self.fallback(path)
            }
        };
        Duration::from_micros(micros)
    }

    fn within(&mut self, path: &str, value: u64) -> u64 {
        if let Some(
            Kind::Integer { min, max } | Kind::Size { min, max } | Kind::Duration { min, max },
        ) = keys::find(path).map(|key| key.kind)
            && !(min..=max).contains(&value)
        {
            self.refuse(path, "is out of range");
        }
        value
    }

    /// The smallest allowed value, only to go on checking.
    fn fallback(&self, path: &str) -> u64 {
        match keys::find(path).map(|key| key.kind) {
            Some(
                Kind::Integer { min, .. } | Kind::Size { min, .. } | Kind::Duration { min, .. },
            ) => min,
            _ => 0,
        }
    }

    fn address(&mut self, path: &str) -> Option<HostPort> {
        let text = self.text(path)?;
        match text.parse() {
            Ok(address) => Some(address),
            Err(error) => {
                self.refuse(path, format!("is {error}"));
                None
            }
        }
    }

    fn data_dir(&mut self) -> PathBuf {
        let text = self.text("data_dir").unwrap_or_default();
        if text.is_empty() {
            self.refuse("data_dir", "is empty");
        }
        PathBuf::from(text)
    }

    /// Listen and advertise of one purpose, with the defaults that `keys` documents.
    fn listener(&mut self, name: &str, listen: &str, advertise: &str, port: u16) -> Listener {
        let advertised = self.address(advertise);
        let listening = self.address(listen).unwrap_or_else(|| {
            let remote = advertised.as_ref().is_some_and(|a| !a.is_loopback());
            HostPort::new(if remote { "0.0.0.0" } else { "127.0.0.1" }, port)
        });
        if let Some(address) = &advertised {
            if address.is_wildcard() {
                self.refuse(advertise, "is a wildcard, which nobody can dial");
            } else if address.port == 0 {
                self.refuse(advertise, "has port 0, which nobody can dial");
            }
        } else if listening.is_wildcard() {
            let problem = format!("must be set, since {listen} is the wildcard {listening}");
            self.refuse(advertise, problem);
        }
        Listener {
            name: name.to_string(),
            advertise: advertised.unwrap_or_else(|| listening.clone()),
            listen: listening,
        }
    }

    fn listeners(&mut self) -> Vec<Listener> {
        let first = self.listener(
            DEFAULT_LISTENER,
            "listen.client",
            "advertise.client",
            CLIENT_PORT,
        );
        let mut listeners = vec![first];
        for written in &self.written.listeners {
            let mut refuse = |field: &str, value: &str, problem: String, allowed: &str| {
                self.problems.push(ConfigError::Value {
                    key: format!("listener.{field}"),
                    value: value.to_string(),
                    allowed: allowed.to_string(),
                    problem,
                    origin: written.origin.clone(),
                });
            };
            let name = written.name.as_str();
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || !name.chars().all(plain) {
                let problem = "is not a listener name".to_string();
                refuse("name", name, problem, "letters, digits, '-' and '_'");
            }
            if listeners.iter().any(|l| l.name == name) {
                let problem = "names two listeners".to_string();
                refuse(
                    "name",
                    name,
                    problem,
                    "each name once, \"default\" is taken",
                );
            }
            let mut parse = |field: &str, text: &str| -> HostPort {
                let fallback = HostPort::new("127.0.0.1", 0);
                match text.parse::<HostPort>() {
                    Ok(a) if field == "advertise" && (a.is_wildcard() || a.port == 0) => {
                        let problem = "is an address that nobody can dial".to_string();
                        refuse(
                            field,
                            text,
                            problem,
                            "host:port, neither 0.0.0.0 nor port 0",
                        );
                        a
                    }
                    Ok(address) => address,
                    Err(error) => {
                        refuse(field, text, format!("is {error}"), "host:port");
                        fallback
                    }
                }
            };
            listeners.push(Listener {
                name: name.to_string(),
                listen: parse("listen", &written.listen),
                advertise: parse("advertise", &written.advertise),
            });
        }
        listeners
    }

    fn seeds(&mut self, peer: &Listener) -> Vec<HostPort> {
        let items = match self.entry("seeds").map(|entry| entry.text) {
            Some(Text::Many(items)) if !items.is_empty() => items,
            Some(Text::One(item)) => vec![item],
            _ => return vec![peer.advertise.clone()],
        };
        let mut seeds: Vec<HostPort> = Vec::new();
        for item in items {
            match item.parse::<HostPort>() {
                Ok(seed) if seed.is_wildcard() || seed.port == 0 => {
                    self.refuse("seeds", format!("has {item:?}, which nobody can dial"));
                }
                Ok(seed) if seeds.contains(&seed) => {
                    self.refuse("seeds", format!("has {item:?} twice"));
                }
                Ok(seed) => seeds.push(seed),
                Err(error) => self.refuse("seeds", format!("has {item:?}, which is {error}")),
            }
        }
        seeds
    }

    fn log(&mut self) -> LogConfig {
        let format = match self.text("log_format").as_deref() {
            Some("json") => LogFormat::Json,
            Some("text") => LogFormat::Text,
            _ => {
                self.refuse("log_format", "is not a log format");
                LogFormat::Text
            }
        };
        let level = self.text("log_level").unwrap_or_default();
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&level) {
            self.refuse("log_level", format!("is not a level: {error}"));
        }
        LogConfig { format, level }
    }

    fn raft(&mut self) -> RaftConfig {
        RaftConfig {
            heartbeat_interval: self.duration("raft.heartbeat_interval"),
            election_timeout_min: self.duration("raft.election_timeout_min"),
            election_timeout_max: self.duration("raft.election_timeout_max"),
            ping_interval: self.duration("peer.ping_interval"),
        }
    }

    fn limits(&mut self) -> Limits {
        let mut count = |path: &str| usize::try_from(self.integer(path)).unwrap_or(usize::MAX);
        let (max_connections, max_calls) =
            (count("limits.max_connections"), count("limits.max_calls"));
        let max_streams = u32::try_from(count("limits.max_streams")).unwrap_or(u32::MAX);
        Limits {
            max_batch_bytes: self.size("limits.max_batch_bytes"),
            max_poll_bytes: self.size("limits.max_poll_bytes"),
            default_poll_bytes: self.size("limits.default_poll_bytes"),
            max_wait: self.duration("limits.max_wait"),
            default_deadline: self.duration("limits.default_deadline"),
            max_deadline: self.duration("limits.max_deadline"),
            node_bytes: self.size("limits.node_bytes"),
            partition_bytes: self.size("limits.partition_bytes"),
            read_bytes: self.size("limits.read_bytes"),
            max_connections,
            max_streams,
            max_calls,
        }
    }

    /// Values that are fine alone and not together.
    fn contradictions(&mut self, config: &NodeConfig) {
        let raft = &config.raft;
        if raft.election_timeout_max <= raft.election_timeout_min {
            let than = units::format_duration(raft.election_timeout_min);
            let problem = format!("is not above raft.election_timeout_min ({than})");
            self.refuse("raft.election_timeout_max", problem);
        }
        if raft.election_timeout_min < raft.heartbeat_interval * 2 {
            let than = units::format_duration(raft.heartbeat_interval);
            let problem = format!("is less than twice raft.heartbeat_interval ({than})");
            self.refuse("raft.election_timeout_min", problem);
        }
        let limits = &config.limits;
        for (path, value, least, other) in [
            (
                "limits.partition_bytes",
                limits.partition_bytes,
                limits.max_batch_bytes,
                "limits.max_batch_bytes",
            ),
            (
                "limits.node_bytes",
                limits.node_bytes,
                limits.partition_bytes,
                "limits.partition_bytes",
            ),
            (
                "limits.max_poll_bytes",
                limits.max_poll_bytes,
                limits.default_poll_bytes,
                "limits.default_poll_bytes",
            ),
            (
                "limits.read_bytes",
                limits.read_bytes,
                limits.max_poll_bytes,
                "limits.max_poll_bytes",
            ),
        ] {
            if value < least {
                let least = units::format_size(least);
                self.refuse(path, format!("is below {other} ({least})"));
            }
        }
        if limits.max_deadline < limits.default_deadline {
            let than = units::format_duration(limits.default_deadline);
            self.refuse(
                "limits.max_deadline",
                format!("is below limits.default_deadline ({than})"),
            );
        }
        self.disk_contradictions(&config.storage);
        self.port_clashes(config);
    }

    fn disk_contradictions(&mut self, storage: &StorageConfig) {
        if let (Some(soft), Some(hard)) = (storage.disk_soft_floor, storage.disk_hard_floor)
            && soft <= hard
        {
            let than = units::format_size(hard);
            let problem = format!("is not above storage.disk_hard_floor ({than})");
            self.refuse("storage.disk_soft_floor", problem);
        }
        if storage.stuck_sync <= storage.slow_sync {
            let than = units::format_duration(storage.slow_sync);
            let problem = format!("is not above storage.slow_sync ({than})");
            self.refuse("storage.stuck_sync", problem);
        }
    }

    fn port_clashes(&mut self, config: &NodeConfig) {
        let mut seen: Vec<(&HostPort, &str)> = Vec::new();
        let clients = config
            .listeners
            .iter()
            .map(|l| (&l.listen, l.name.as_str()));
        let others = [
            (&config.peer.listen, "listen.peer"),
            (&config.http, "listen.http"),
        ];
        for (address, purpose) in clients.chain(others) {
            let clash = seen
                .iter()
                .find(|(other, _)| address.port != 0 && *other == address);
            if let Some((_, other)) = clash {
                let other = match *other {
                    DEFAULT_LISTENER => "listen.client",
                    other => other,
                };
                let key = if purpose.starts_with("listen.") {
                    purpose
                } else {
                    "listen.client"
                };
                self.refuse(key, format!("({address}) is also used by {other}"));
            }
            seen.push((address, purpose));
        }
    }
}
