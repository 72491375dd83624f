//! Calling a peer.
//!
//! Two connections each: votes, heartbeats and pings must not wait behind a snapshot, so they have one of their own, with
//! a pool of their own. Within a connection calls go out in the order in which they were begun; between the two there is
//! no order.

mod call;
mod conn;
mod lane;
mod queue;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::ids::NodeId;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::config::RpcConfig;
use super::error::RpcError;
use super::hello::{Hello, HelloCheck, HelloSource};
use super::liveness::PingSource;
use super::stats::{PeerStats, RpcStats};
use crate::seams::Net;
use lane::Lane;

/// Which of a peer's two connections a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Votes, heartbeats, pings, and small questions that can't wait.
    Urgent,
    /// Everything else.
    Bulk,
}

impl Class {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Class::Urgent => "urgent",
            Class::Bulk => "bulk",
        }
    }
}

/// How a call is made.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// From the beginning of the call to its reply.
    pub timeout: Duration,
    pub class: Class,
    /// Whether the payload is worth compressing. Payloads below `compress_min_bytes` are sent as they are.
    pub compress: bool,
}

/// A request's bytes in parts, which are written as they are and never joined.
#[derive(Debug, Clone, Default)]
pub struct Payload(Vec<Bytes>);

impl From<Vec<Bytes>> for Payload {
    fn from(parts: Vec<Bytes>) -> Self {
        Payload(parts)
    }
}

impl From<Bytes> for Payload {
    fn from(part: Bytes) -> Self {
        Payload(vec![part])
    }
}

/// Where a peer is, and who is expected there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddress {
    /// None while only the address is known; then whoever answers is taken.
    pub node_id: Option<NodeId>,
    /// `host:port`, resolved at each dial.
    pub addr: String,
}

/// What all peers of a node share.
pub(crate) struct Context {
    pub(crate) net: Arc<dyn Net>,
    pub(crate) hello: HelloSource,
    pub(crate) check: HelloCheck,
    pub(crate) pings: Arc<dyn PingSource>,
    pub(crate) config: Arc<RpcConfig>,
    pub(crate) stats: Arc<RpcStats>,
}

/// What a peer's two drivers share with its callers.
pub(crate) struct PeerShared {
    pub(crate) context: Arc<Context>,
    pub(crate) node: Option<NodeId>,
    address: Mutex<String>,
    hello: Mutex<Option<Hello>>,
}

impl PeerShared {
    pub(crate) fn address(&self) -> String {
        self.address.lock().clone()
    }

    /// Who was found there, if not who is expected.
    pub(crate) fn found(&self) -> Option<NodeId> {
        let met = || self.hello.lock().as_ref().map(|hello| hello.node_id);
        self.node.or_else(met)
    }

    pub(crate) fn met(&self, hello: Hello) {
        *self.hello.lock() = Some(hello);
    }
}

/// A node that this one calls.
pub struct RpcPeer {
    shared: Arc<PeerShared>,
    urgent: Arc<Lane>,
    bulk: Arc<Lane>,
    _drivers: [AbortOnDropHandle<()>; 2],
}

impl fmt::Debug for RpcPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcPeer")
            .field("peer", &self.urgent.label())
            .finish_non_exhaustive()
    }
}

impl RpcPeer {
    /// A peer without a connection; the first call makes one. Needs a runtime.
    pub(crate) fn new(context: Arc<Context>, peer: PeerAddress) -> Arc<Self> {
        let config = &context.config;
        let (stats, label, backoff_max) = match peer.node_id {
            Some(node) => (
                context.stats.peer(node),
                format!("node {node}"),
                config.backoff_max,
            ),
            None => (
                context.stats.addresses(),
                peer.addr.clone(),
                config.address_backoff_max,
            ),
        };
        let lane = |class| {
            Lane::new(
                class,
                Arc::clone(config),
                Arc::clone(&stats),
                label.clone(),
                backoff_max,
            )
        };
        let (urgent, bulk) = (lane(Class::Urgent), lane(Class::Bulk));
        let shared = Arc::new(PeerShared {
            node: peer.node_id,
            address: Mutex::new(peer.addr),
            hello: Mutex::new(None),
            context,
        });
        let drive = |lane: &Arc<Lane>| {
            AbortOnDropHandle::new(tokio::spawn(conn::drive(
                Arc::clone(lane),
                Arc::clone(&shared),
            )))
        };
        let drivers = [drive(&urgent), drive(&bulk)];
        Arc::new(RpcPeer {
            shared,
            urgent,
            bulk,
            _drivers: drivers,
        })
    }

    /// Begins a call. Its place in the order is taken when this returns, whether or not the future is polled. Dropping the
    /// future gives the call up.
    pub fn start(
        &self,
        method: u32,
        payload: Payload,
        options: CallOptions,
    ) -> impl Future<Output = Result<Bytes, RpcError>> + Send + 'static + use<> {
        let begun = self.lane(options.class).begin(method, payload.0, &options);
        async move {
            match begun {
                Ok(call) => call.wait().await,
                Err(error) => Err(error),
            }
        }
    }

    /// Calls and waits for the reply.
    pub async fn call(
        &self,
        method: u32,
        payload: Payload,
        options: CallOptions,
    ) -> Result<Bytes, RpcError> {
        self.start(method, payload, options).await
    }

    /// The node expected here.
    pub fn node(&self) -> Option<NodeId> {
        self.shared.node
    }

    /// Where it is dialled.
    pub fn address(&self) -> String {
        self.shared.address()
    }

    /// What it said last, on a connection in either direction.
    pub fn hello(&self) -> Option<Hello> {
        self.shared.hello.lock().clone()
    }

    /// Its counters.
    pub fn stats(&self) -> &PeerStats {
        self.urgent.stats()
    }

    /// Calls sent on a connection and not answered.
    pub fn in_flight(&self, class: Class) -> usize {
        self.lane(class).in_flight()
    }

    /// Bytes that calls hold of a connection's pool.
    pub fn reserved_bytes(&self, class: Class) -> usize {
        self.lane(class).reserved_bytes()
    }

    /// Calls that wait for a connection's pool, and their bytes.
    pub fn waiting(&self, class: Class) -> (usize, usize) {
        self.lane(class).waiting()
    }

    /// Bytes of replies that callers haven't taken yet.
    pub fn reply_bytes(&self, class: Class) -> usize {
        self.lane(class).reply_bytes()
    }

    /// It moved: the next dial goes there, and present connections end.
    pub(crate) fn set_address(&self, address: String) {
        let moved = {
            let mut own = self.shared.address.lock();
            let moved = *own != address;
            *own = address;
            moved
        };
        if moved {
            for lane in [&self.urgent, &self.bulk] {
                lane.heard();
                lane.hang_up();
            }
        }
    }

    /// It said hello to us.
    pub(crate) fn heard(&self, hello: &Hello) {
        self.shared.met(hello.clone());
        self.urgent.heard();
        self.bulk.heard();
    }

    /// It called us.
    pub(crate) fn called(&self) {
        self.urgent.not_held_back();
        self.bulk.not_held_back();
    }

    /// Bytes that the bulk connections brought so far.
    pub(crate) fn bulk_received(&self) -> u64 {
        self.bulk.received()
    }

    /// Ends the urgent connection alone.
    pub(crate) fn hang_up_urgent(&self) {
        self.urgent.hang_up();
    }

    /// Ends both connections, so that whatever is stuck in them is retried on new ones.
    pub(crate) fn hang_up(&self) {
        self.urgent.hang_up();
        self.bulk.hang_up();
    }

    /// Waits until the urgent connection ends or the peer says hello.
    pub(crate) async fn news(&self) {
        self.urgent.news.notified().await;
    }

    /// Fails all calls, now and from now on.
    pub(crate) fn close(&self) {
        self.urgent.close();
        self.bulk.close();
    }

    fn lane(&self, class: Class) -> &Arc<Lane> {
        match class {
            Class::Urgent => &self.urgent,
            Class::Bulk => &self.bulk,
        }
    }
}

impl Drop for RpcPeer {
    fn drop(&mut self) {
        self.close();
    }
}
