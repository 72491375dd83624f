//! What the node counts, per node: no registry is global, so that several nodes in one process
//! each have their own. What is the process's own (memory, files, refused envelopes) is read from it.
//!
//! Counters are updated where the thing happens; gauges that mirror state (offsets, leaders, memory)
//! are read when the page is asked for, by [`collect::NodeCollector`].

mod collect;
mod envelopes;
mod process;
mod rpc;

pub use collect::NodeCollector;
pub use rpc::RpcCollector;

use crate::forward::ops::Op;
use parking_lot::RwLock;
use prometheus_client::{
    collector::Collector,
    encoding::{EncodeLabelSet, prometheus_text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};
use std::{sync::Arc, time::Duration};

/// `Content-Type` of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    method: String,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    reason: &'static str,
}

/// Why a partition's start moved up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimCause {
    Retention,
    Request,
}

impl TrimCause {
    const fn label(self) -> &'static str {
        match self {
            Self::Retention => "retention",
            Self::Request => "request",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Trim {
    cause: &'static str,
}

/// A histogram without its own type of constructor.
type Latencies = Family<Call, Histogram, fn() -> Histogram>;

/// 100 µs to about 26 s, each twice the one before.
fn latency_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 19))
}

/// The counters of one node.
pub struct Metrics {
    registry: RwLock<Registry>,
    appends: Counter,
    append_bytes: Counter,
    append_messages: Counter,
    polls: Counter,
    poll_bytes: Counter,
    latencies: Latencies,
    forwarded: Family<Operation, Counter>,
    refused: Family<Refusal, Counter>,
    trims: Family<Trim, Counter>,
    trimmed_segments: Family<Trim, Counter>,
    trimmed_bytes: Family<Trim, Counter>,
    calls_in_flight: Gauge,
    connections: Gauge,
    syncs: Histogram,
    slow_disk: Counter,
}

impl Metrics {
    pub fn new(version: &str) -> Arc<Self> {
        let metrics = Self {
            registry: RwLock::new(Registry::with_prefix("imprint")),
            appends: Counter::default(),
            append_bytes: Counter::default(),
            append_messages: Counter::default(),
            polls: Counter::default(),
            poll_bytes: Counter::default(),
            latencies: Family::new_with_constructor(latency_buckets),
            forwarded: Family::default(),
            refused: Family::default(),
            trims: Family::default(),
            trimmed_segments: Family::default(),
            trimmed_bytes: Family::default(),
            calls_in_flight: Gauge::default(),
            connections: Gauge::default(),
            syncs: latency_buckets(),
            slow_disk: Counter::default(),
        };
        metrics.register(version);
        Arc::new(metrics)
    }

    fn register(&self, version: &str) {
        let mut registry = self.registry.write();
        let build = Info::new(vec![("version", version.to_string())]);
        registry.register("build", "Version of the binary", build);
        let counters = [
            (
                "appends",
                "Batches appended by this node as leader",
                &self.appends,
            ),
            ("append_bytes", "Bytes of those batches", &self.append_bytes),
            (
                "append_messages",
                "Messages in those batches",
                &self.append_messages,
            ),
            (
                "polls",
                "Polls answered from a replica of this node",
                &self.polls,
            ),
            (
                "poll_bytes",
                "Bytes of batches in those answers",
                &self.poll_bytes,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "call_duration_seconds",
            "Time from a gRPC call's head to its answer, by method and code",
            self.latencies.clone(),
        );
        registry.register(
            "forwarded_calls",
            "Calls passed on to another node, by operation",
            self.forwarded.clone(),
        );
        registry.register(
            "refused",
            "Connections and calls refused before they did anything, by reason",
            self.refused.clone(),
        );
        let trims = [
            (
                "trims",
                "Times that this node as leader moved a partition's start up, by cause",
                &self.trims,
            ),
            (
                "trimmed_segments",
                "Segments that those left behind, on each replica",
                &self.trimmed_segments,
            ),
            (
                "trimmed_bytes",
                "Bytes of batches in those segments",
                &self.trimmed_bytes,
            ),
        ];
        for (name, help, family) in trims {
            registry.register(name, help, family.clone());
        }
        registry.register(
            "calls_in_flight",
            "gRPC calls being served",
            self.calls_in_flight.clone(),
        );
        registry.register(
            "sync_seconds",
            "Time that a sync of a file or directory took",
            self.syncs.clone(),
        );
        registry.register(
            "slow_disk_episodes",
            "Times that leadership was handed over because a write or sync took too long",
            self.slow_disk.clone(),
        );
        registry.register(
            "client_connections",
            "Open client connections",
            self.connections.clone(),
        );
        registry.register_collector(Box::new(envelopes::RefusedEnvelopes));
    }

    /// Adds gauges that are read when the page is asked for.
    pub fn add_collector(&self, collector: Box<dyn Collector>) {
        self.registry.write().register_collector(collector);
    }

    pub fn appended(&self, bytes: u64, messages: u32) {
        self.appends.inc();
        self.append_bytes.inc_by(bytes);
        self.append_messages.inc_by(u64::from(messages));
    }

    pub fn polled(&self, bytes: u64) {
        self.polls.inc();
        self.poll_bytes.inc_by(bytes);
    }

    pub fn forwarded(&self, op: Op) {
        let operation = Operation {
            operation: op.label(),
        };
        self.forwarded.get_or_create(&operation).inc();
    }

    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Refusal { reason }).inc();
    }

    /// A partition's start moved up past so many segments.
    pub fn trimmed(&self, cause: TrimCause, segments: u64, bytes: u64) {
        let trim = Trim {
            cause: cause.label(),
        };
        self.trims.get_or_create(&trim).inc();
        self.trimmed_segments.get_or_create(&trim).inc_by(segments);
        self.trimmed_bytes.get_or_create(&trim).inc_by(bytes);
    }

    pub fn call_started(&self) {
        self.calls_in_flight.inc();
    }

    pub fn call_ended(&self) {
        self.calls_in_flight.dec();
    }

    pub fn connection_opened(&self) {
        self.connections.inc();
    }

    /// A sync returned.
    pub fn synced(&self, took: Duration) {
        self.syncs.observe(took.as_secs_f64());
    }

    pub fn slow_disk(&self) {
        self.slow_disk.inc();
    }

    pub fn connection_closed(&self) {
        self.connections.dec();
    }

    /// A call that was answered. `method` is bounded by the caller to those that exist.
    pub fn answered(&self, method: &str, code: &str, took: Duration) {
        let call = Call {
            method: method.to_string(),
            code: code.to_string(),
        };
        self.latencies
            .get_or_create(&call)
            .observe(took.as_secs_f64());
    }

    /// The page for a scraper.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        prometheus_text::encode(&mut page, &self.registry.read())?;
        Ok(page)
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::ops::ReplicaQuery;

    #[test]
    fn the_page_shows_what_was_counted() {
        let metrics = Metrics::new("1.2.3");
        metrics.appended(300, 2);
        metrics.polled(300);
        metrics.forwarded(Op::Send);
        metrics.answered(
            "/imprint.v1.LogService/Send",
            "OK",
            Duration::from_millis(3),
        );
        let page = metrics.encode().expect("page");
        for line in [
            "imprint_build_info{version=\"1.2.3\"} 1",
            "imprint_appends_total 1",
            "imprint_append_bytes_total 300",
            "imprint_append_messages_total 2",
            "imprint_poll_bytes_total 300",
            "imprint_forwarded_calls_total{operation=\"send\"} 1",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        let counted = "imprint_call_duration_seconds_count{method=\"/imprint.v1.LogService/Send\",code=\"OK\"} 1";
        assert!(page.contains(counted), "{page}");
    }

    #[test]
    fn refused_envelopes_are_on_the_page_by_rule() {
        let metrics = Metrics::new("1.2.3");
        let count = |rule: &str| {
            let page = metrics.encode().expect("page");
            let name = format!("imprint_envelopes_refused_total{{rule=\"{rule}\"}} ");
            let mut lines = page.lines();
            let value = lines
                .find_map(|line| line.strip_prefix(&name))
                .expect("a line");
            value.parse::<u64>().expect("a number")
        };
        let before = count("header");
        let read = imprint_proto::envelope::decode::<ReplicaQuery>(bytes::Bytes::new());
        assert!(read.is_err());
        // Other tests of this process may be refused envelopes meanwhile.
        assert!(count("header") > before);
        for rule in imprint_proto::envelope::Rule::ALL {
            count(rule.label());
        }
    }
}
