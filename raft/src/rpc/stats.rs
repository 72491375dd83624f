//! Counters of the transport: plain atomics that the node's metrics read.
//!
//! All of them only rise, but for the gauges, which say so. Relaxed order is enough: they are never used to decide.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use imprint_proto::ids::NodeId;
use parking_lot::Mutex;

use super::error::Phase;
use super::methods;

/// A number that rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add_duration(&self, by: Duration) {
        self.add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX));
    }
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, to: u64) {
        self.0.store(to, Relaxed);
    }

    pub(crate) fn up(&self, by: u64) {
        self.0.fetch_add(by, Relaxed);
    }

    pub(crate) fn down(&self, by: u64) {
        self.0.fetch_sub(by, Relaxed);
    }
}

/// One method to one peer.
#[derive(Debug, Default)]
pub struct MethodStats {
    /// Calls begun.
    pub calls: Counter,
    /// Calls that failed in any way.
    pub errors: Counter,
    /// Calls that timed out, by the phase they died in, in the order of [`Phase::ALL`].
    pub timeouts: [Counter; Phase::ALL.len()],
    /// Calls given up by their caller.
    pub cancelled: Counter,
    /// Payload bytes sent, as on the wire.
    pub bytes_sent: Counter,
    /// Payload bytes of replies, as on the wire.
    pub bytes_received: Counter,
    /// Microseconds that calls spent in each phase, in the order of [`Phase::ALL`], however they ended.
    pub waits_us: [Counter; Phase::ALL.len()],
}

/// Everything about one peer.
#[derive(Debug)]
pub struct PeerStats {
    label: String,
    methods: [MethodStats; methods::TABLE.len()],
    other: MethodStats,
    /// Connections made, hello included.
    pub connects: Counter,
    /// Attempts to connect that failed.
    pub connect_failures: Counter,
    /// Connections that ended.
    pub disconnects: Counter,
    /// Calls refused at once because of the pool or the queue.
    pub overloaded: Counter,
    /// Replies that nobody waited for any more.
    pub unknown_replies: Counter,
    /// Replies skipped because callers held too many that they hadn't taken.
    pub dropped_replies: Counter,
    /// Connections taken for dead because nothing came back, not even the answer to a ping.
    pub silent: Counter,
    /// Times the peer was declared dead.
    pub deaths: Counter,
    /// Gauge: the last ping's round trip in microseconds.
    pub ping_us: Gauge,
    /// Gauge: calls sent and not answered.
    pub in_flight: Gauge,
}

impl PeerStats {
    fn new(label: String) -> Self {
        PeerStats {
            label,
            methods: Default::default(),
            other: MethodStats::default(),
            connects: Counter::default(),
            connect_failures: Counter::default(),
            disconnects: Counter::default(),
            overloaded: Counter::default(),
            unknown_replies: Counter::default(),
            dropped_replies: Counter::default(),
            silent: Counter::default(),
            deaths: Counter::default(),
            ping_us: Gauge::default(),
            in_flight: Gauge::default(),
        }
    }

    /// The peer's name in logs: `node 3`, or an address.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The counters of every method in [`methods::TABLE`], with their names.
    pub fn methods(&self) -> impl Iterator<Item = (&'static str, &MethodStats)> {
        let names = methods::TABLE.iter().map(|(_, name)| *name);
        names.zip(&self.methods)
    }

    /// The counters of one method.
    pub fn method(&self, method: u32) -> &MethodStats {
        methods::row(method).map_or(&self.other, |row| &self.methods[row])
    }
}

/// One method as it is served.
#[derive(Debug, Default)]
pub struct ServedStats {
    /// Requests read whole and handed on, or answered by the transport itself.
    pub requests: Counter,
    /// Requests answered with an error, by the transport or the handler.
    pub errors: Counter,
    /// Microseconds from a request's last byte to its answer.
    pub handling_us: Counter,
}

/// The receiving side.
#[derive(Debug, Default)]
pub struct ServerStats {
    methods: [ServedStats; methods::TABLE.len()],
    unknown_method: ServedStats,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections turned away because there were too many.
    pub over_limit: Counter,
    /// Connections without a hello that made room for later ones.
    pub pushed_out: Counter,
    /// Connections whose hello was refused.
    pub strangers: Counter,
    /// Connections closed because of bytes that can't be trusted.
    pub bad_frames: Counter,
    /// Connections closed because they made no progress.
    pub stalled: Counter,
    /// Requests handed to the dispatcher, or answered by the transport itself.
    pub requests: Counter,
    /// Requests answered with an error, by the transport or the handler.
    pub error_replies: Counter,
    /// Replies that found no room and became a status 503.
    pub refused_replies: Counter,
    /// Payload bytes received, as on the wire.
    pub bytes_received: Counter,
    /// Payload bytes of replies, as on the wire.
    pub bytes_sent: Counter,
    /// Microseconds that sockets went unread for want of memory.
    pub memory_wait_us: Counter,
    /// Gauge: open connections.
    pub connections: Gauge,
    /// Gauge: requests read and not answered.
    pub in_flight: Gauge,
    /// Gauge: bytes of the budget in use.
    pub memory_bytes: Gauge,
    /// Gauge: bytes of replies that the peers haven't taken.
    pub reply_bytes: Gauge,
}

impl ServerStats {
    /// The counters of every method in [`methods::TABLE`], with their names.
    pub fn methods(&self) -> impl Iterator<Item = (&'static str, &ServedStats)> {
        let names = methods::TABLE.iter().map(|(_, name)| *name);
        names.zip(&self.methods)
    }

    /// The counters of one method; all that aren't in the table share one row.
    pub fn method(&self, method: u32) -> &ServedStats {
        methods::row(method).map_or(&self.unknown_method, |row| &self.methods[row])
    }
}

/// All counters of the transport on this node.
#[derive(Debug, Default)]
pub struct RpcStats {
    peers: Mutex<BTreeMap<NodeId, Arc<PeerStats>>>,
    addresses: Mutex<Option<Arc<PeerStats>>>,
    /// The receiving side.
    pub server: ServerStats,
}

impl RpcStats {
    /// The counters of every peer that ever was in the table, in order of node id.
    pub fn peers(&self) -> Vec<(NodeId, Arc<PeerStats>)> {
        self.peers
            .lock()
            .iter()
            .map(|(node, stats)| (*node, Arc::clone(stats)))
            .collect()
    }

    /// The counters of one peer; they outlive its removal from the table.
    pub fn peer(&self, node: NodeId) -> Arc<PeerStats> {
        let mut peers = self.peers.lock();
        Arc::clone(
            peers
                .entry(node)
                .or_insert_with(|| Arc::new(PeerStats::new(format!("node {node}")))),
        )
    }

    /// Shared by all addresses whose node isn't known, or their number would have no bound.
    pub fn addresses(&self) -> Arc<PeerStats> {
        let mut addresses = self.addresses.lock();
        Arc::clone(
            addresses.get_or_insert_with(|| Arc::new(PeerStats::new("addresses".to_owned()))),
        )
    }
}
