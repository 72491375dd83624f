//! Every configuration key, declared once: name, kind with its range, default and meaning.
//!
//! The environment variable and the flag follow from the name (`listen.client` is
//! `IMPRINT_LISTEN_CLIENT` and `--listen-client`), and the reference page is generated from this
//! table, so neither can drift.

/// What a key's value looks like, with the range that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Integer {
        min: u64,
        max: u64,
    },
    /// In bytes.
    Size {
        min: u64,
        max: u64,
    },
    /// In microseconds.
    Duration {
        min: u64,
        max: u64,
    },
    Text,
    Choice(&'static [&'static str]),
    Address,
    AddressList,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    pub path: &'static str,
    pub kind: Kind,
    /// As it would be written; empty: none, or derived from other keys as `doc` says.
    pub default: &'static str,
    pub doc: &'static str,
}

impl Key {
    /// The environment variable that sets this key.
    pub fn env(&self) -> String {
        format!("IMPRINT_{}", self.path.replace('.', "_").to_uppercase())
    }

    /// The flag that sets this key; keys without a flag of their own are set by `--set key=value`.
    pub fn flag(&self) -> String {
        format!("--{}", self.path.replace(['.', '_'], "-"))
    }

    /// The allowed range in words.
    pub fn range(&self) -> String {
        use super::units::{format_duration, format_size};
        use std::time::Duration;
        match self.kind {
            Kind::Integer { min, max } => format!("a whole number in {min}..={max}"),
            Kind::Size { min, max } => {
                format!("a size in {}..={}", format_size(min), format_size(max))
            }
            Kind::Duration { min, max } => format!(
                "a duration in {}..={}",
                format_duration(Duration::from_micros(min)),
                format_duration(Duration::from_micros(max))
            ),
            Kind::Text => "text".into(),
            Kind::Choice(of) => format!("one of {}", of.join(", ")),
            Kind::Address => "host:port".into(),
            Kind::AddressList => "a list of host:port".into(),
        }
    }
}

/// The reference page: every key with its variable, range, default and meaning.
pub fn reference() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Generated from the table in `node/src/config/keys.rs`. Flags beat environment variables, which beat the \
         file, which beats the default. `imprint serve --print-config` shows what is in force and where each \
         value came from.\n\n\
         Sizes are whole numbers with an optional unit: none or `B` bytes, `kB` `MB` `GB` `TB` powers of 1000, \
         `KiB` `MiB` `GiB` `TiB` powers of 1024. Durations need a unit: `us`, `ms`, `s`, `m`, `h`.\n\n\
         More client listeners, each with a name and an address of its own, are `[[listener]]` tables with \
         `name`, `listen` and `advertise`, or `IMPRINT_LISTENERS=NAME=LISTEN@ADVERTISE,...`, or `--listener`. \
         What a client is told (leader hints) comes from the listener that it came in on.\n\n\
         | key | environment | allowed | default | meaning |\n|---|---|---|---|---|\n",
    );
    for key in KEYS {
        let default = match key.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let row = [
            format!("`{}`", key.path),
            format!("`{}`", key.env()),
            key.range(),
            default,
            key.doc.to_string(),
        ];
        page.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    page
}

/// The declared key of that name.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The declared name that is nearest to an unknown one, for the error message.
pub fn nearest(path: &str) -> Option<&'static str> {
    KEYS.iter()
        .map(|key| (edit_distance(key.path, path), key.path))
        .min()
        .filter(|(distance, _)| *distance <= 3)
        .map(|(_, path)| path)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;

const fn size(min: u64, max: u64) -> Kind {
    Kind::Size { min, max }
}

const fn duration(min: u64, max: u64) -> Kind {
    Kind::Duration { min, max }
}

const fn key(path: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key {
        path,
        kind,
        default,
        doc,
    }
}

/// All keys but the `[[listener]]` tables, which `written` reads.
pub const KEYS: &[Key] = &[
    // Replica ids given out by the controller start at 1024; below are its own, one a node.
    key(
        "node_id",
        Kind::Integer { min: 1, max: 1023 },
        "1",
        "Number of this node, unique in the cluster and kept for life.",
    ),
    key(
        "data_dir",
        Kind::Text,
        "./imprint-data",
        "Directory of everything this node stores; created if it isn't there. One process at a time.",
    ),
    key(
        "seeds",
        Kind::AddressList,
        "",
        "Internal addresses of the nodes that form the cluster, the same list on every node. Default: this node's advertise.peer, which makes a cluster of one.",
    ),
    key(
        "log_format",
        Kind::Choice(&["text", "json"]),
        "text",
        "Form of the log lines on standard error.",
    ),
    key(
        "log_level",
        Kind::Text,
        "info",
        "error, warn, info, debug or trace, or directives such as info,imprint_raft=debug.",
    ),
    key(
        "listen.client",
        Kind::Address,
        "",
        "Where gRPC clients are accepted. Default: port 7460 on 0.0.0.0 if advertise.client is set to another host than this one, otherwise on 127.0.0.1.",
    ),
    key(
        "listen.peer",
        Kind::Address,
        "",
        "Where other nodes are accepted. Default: port 7461, on the host that listen.client's rule gives for advertise.peer.",
    ),
    key(
        "listen.http",
        Kind::Address,
        "",
        "Where /metrics, /livez and /readyz are served. Default: port 7462 on the host of listen.client. Port 0 chooses a free one.",
    ),
    key(
        "advertise.client",
        Kind::Address,
        "",
        "The address that clients are told to use. Default: listen.client; a wildcard such as 0.0.0.0 is refused.",
    ),
    key(
        "advertise.peer",
        Kind::Address,
        "",
        "The address that other nodes use. Default: listen.peer; a wildcard is refused.",
    ),
    key(
        "raft.heartbeat_interval",
        duration(10 * MS, 10 * SECOND),
        "100ms",
        "How often a leader is heard at least.",
    ),
    key(
        "raft.election_timeout_min",
        duration(50 * MS, 60 * SECOND),
        "500ms",
        "Shortest silence after which a replica stands for election.",
    ),
    key(
        "raft.election_timeout_max",
        duration(50 * MS, 120 * SECOND),
        "1000ms",
        "Longest such silence; the spread avoids split votes.",
    ),
    key(
        "peer.ping_interval",
        duration(10 * MS, 10 * SECOND),
        "100ms",
        "How often each other node is asked for a sign of life.",
    ),
    key(
        "storage.segment_bytes",
        size(64 * KIB, 16 * GIB),
        "128MiB",
        "Default size at which a partition rolls to a new segment; a topic may set its own. Written into each topic when it is created, so changing it changes no topic that is there.",
    ),
    key(
        "storage.retention_check",
        duration(100 * MS, 3600 * SECOND),
        "30s",
        "How often the partitions that this node leads are held against their topics' retention settings. Changed settings are looked at right away.",
    ),
    key(
        "storage.tail_cache_bytes",
        size(64 * KIB, GIB),
        "4MiB",
        "Newest bytes of each partition kept in memory for followers and tailing readers.",
    ),
    key(
        "storage.disk_reserve",
        size(0, 1024 * GIB),
        "",
        "Size of a file that only takes up room and is given back when a write finds no space; 0 for none. Default: a hundredth of the disk, at most 256 MiB.",
    ),
    key(
        "storage.disk_soft_floor",
        size(0, 16 * 1024 * GIB),
        "",
        "Free bytes on the disk below which this node gives leadership away; where too few replicas are above theirs, writes are refused with DISK_LOW. Left again a tenth above. Default: a twentieth of the disk, between 64 MiB and 2 GiB, at most a quarter of the disk.",
    ),
    key(
        "storage.disk_hard_floor",
        size(0, 16 * 1024 * GIB),
        "",
        "Free bytes on the disk below which this node appends no data; reads, trims and deletes go on. Below storage.disk_soft_floor. Left again a tenth above. Default: a fiftieth of the disk, between 32 MiB and 1 GiB, at most an eighth of the disk.",
    ),
    key(
        "storage.slow_sync",
        duration(100 * MS, 60 * SECOND),
        "1s",
        "A write or sync that has been under way for this long makes the node hand leadership over.",
    ),
    key(
        "storage.stuck_sync",
        duration(SECOND, 3600 * SECOND),
        "20s",
        "A write or sync that has been under way for this long ends the process with exit code 13.",
    ),
    key(
        "storage.scrub_bytes_per_second",
        size(0, 10 * GIB),
        "16MiB",
        "The most that is read in a second to find damage in sealed segments before somebody needs them; 0 switches it off.",
    ),
    key(
        "storage.catch_up_bytes_per_second",
        size(0, 100 * GIB),
        "64MiB",
        "The most that is read from disk in a second for followers that are behind, so that they leave room for others; 0 sets no limit.",
    ),
    key(
        "storage.scrub_interval",
        duration(SECOND, 90 * 24 * 3600 * SECOND),
        "7d",
        "Every sealed segment is read again within this time, as far as the rate allows.",
    ),
    key(
        "limits.max_batch_bytes",
        size(256, 64 * MIB),
        "4190208",
        "Largest producer batch. The default is 4 MiB less 4 KiB, so that it passes a default gRPC client with its wrapper.",
    ),
    key(
        "limits.max_poll_bytes",
        size(64 * KIB, 64 * MIB),
        "16MiB",
        "Most bytes of batches in one poll reply; a larger max_bytes is clamped to it.",
    ),
    key(
        "limits.default_poll_bytes",
        size(KIB, 64 * MIB),
        "1MiB",
        "Bytes of batches in a poll reply when the caller names none.",
    ),
    key(
        "limits.max_wait",
        duration(0, 300 * SECOND),
        "30s",
        "Longest wait of a long poll; a longer one is clamped to it.",
    ),
    key(
        "limits.default_deadline",
        duration(100 * MS, 300 * SECOND),
        "5s",
        "Deadline of a call that brings none; long polls aside.",
    ),
    key(
        "limits.max_deadline",
        duration(100 * MS, 600 * SECOND),
        "30s",
        "Latest deadline of a call; a later one is clamped to it, long polls aside.",
    ),
    key(
        "limits.node_bytes",
        size(MIB, 64 * GIB),
        "128MiB",
        "Bytes of batches being appended through this node at a time; over it, sends are refused with RESOURCE_EXHAUSTED.",
    ),
    key(
        "limits.partition_bytes",
        size(MIB, 16 * GIB),
        "16MiB",
        "Bytes of batches being appended to one partition at a time through this node.",
    ),
    key(
        "limits.read_bytes",
        size(MIB, 64 * GIB),
        "128MiB",
        "Bytes that poll replies being built may hold at a time.",
    ),
    key(
        "limits.max_connections",
        Kind::Integer {
            min: 1,
            max: 1_000_000,
        },
        "1024",
        "Client connections on all listeners; more are closed at once.",
    ),
    key(
        "limits.max_streams",
        Kind::Integer {
            min: 1,
            max: 100_000,
        },
        "128",
        "Concurrent calls on one client connection.",
    ),
    key(
        "limits.max_calls",
        Kind::Integer {
            min: 1,
            max: 1_000_000,
        },
        "4096",
        "Concurrent calls on this node; more are refused with RESOURCE_EXHAUSTED.",
    ),
    key(
        "shutdown.grace",
        duration(0, 600 * SECOND),
        "10s",
        "How long calls in flight may take to finish when the node is asked to stop.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_variables_are_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for key in KEYS {
            assert!(seen.insert(key.env()), "{} is declared twice", key.path);
            assert!(
                !key.doc.is_empty() && key.doc.ends_with('.'),
                "{}",
                key.path
            );
        }
    }

    /// With UPDATE_DOCS set, the page is written instead of compared.
    #[test]
    fn the_reference_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, reference()).expect("written");
        }
        let page = std::fs::read_to_string(path).expect("docs/configuration.md");
        assert!(page == reference(), "run the tests once with UPDATE_DOCS=1");
    }

    #[test]
    fn a_typo_finds_its_key() {
        assert_eq!(nearest("node-id"), Some("node_id"));
        assert_eq!(nearest("listen.clients"), Some("listen.client"));
        assert_eq!(nearest("something.else"), None);
    }
}
