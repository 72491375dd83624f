//! Being called by peers.
//!
//! Bounds: connections, connections per node, requests in flight per connection, and bytes over all of them, with a
//! budget of their own for the urgent connections, so that bulk data can't keep votes and heartbeats from being read.

mod budget;
mod conn;
mod reply;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::ids::NodeId;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use budget::Budgets;
pub use reply::Replier;

use super::config::RpcConfig;
use super::hello::{Hello, Refusal};
use super::notices::Notices;
use super::stats::RpcStats;
use super::table::PeerTable;
use crate::seams::{BoxStream, Listener};

/// Connections that are being turned away at a time; beyond, they are just closed.
const TURNED_AWAY_AT_ONCE: usize = 16;

/// Pause after a failed accept: it's out of file handles, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Which connection a request came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnInfo {
    pub peer: NodeId,
    /// Never used twice within a process.
    pub conn_id: u64,
}

/// What a node does with its peers' requests.
pub trait Dispatcher: Send + Sync + 'static {
    /// The node's own rule about a peer that says hello, after the checks of [`super::hello::check`]. Gives this node's
    /// hello.
    fn hello(&self, theirs: &Hello) -> Result<Hello, Refusal>;

    /// Takes a request. Called in arrival order per connection, on the task that reads it: it must not block. Replies may
    /// be given in any order, from anywhere.
    fn dispatch(&self, conn: ConnInfo, method: u32, payload: Bytes, reply: Replier);
}

/// What all connections share.
pub(crate) struct ServerShared {
    peers: Arc<PeerTable>,
    dispatcher: Arc<dyn Dispatcher>,
    budgets: Budgets,
    admitted: Mutex<BTreeMap<NodeId, Vec<Admitted>>>,
    /// Connections without a hello, oldest first.
    greetings: Mutex<VecDeque<(u64, CancellationToken)>>,
    notices: Mutex<Notices>,
}

/// One connection of a peer.
struct Admitted {
    conn_id: u64,
    incarnation: u64,
    end: CancellationToken,
}

/// A connection's place in the list; leaves it when dropped.
struct Admission {
    server: Arc<ServerShared>,
    node: NodeId,
    conn_id: u64,
    end: CancellationToken,
}

impl Admission {
    async fn cancelled(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut admitted = self.server.admitted.lock();
        if let Some(list) = admitted.get_mut(&self.node) {
            list.retain(|other| other.conn_id != self.conn_id);
            if list.is_empty() {
                admitted.remove(&self.node);
            }
        }
    }
}

impl ServerShared {
    fn config(&self) -> &RpcConfig {
        self.peers.config()
    }

    fn stats(&self) -> &Arc<RpcStats> {
        self.peers.stats()
    }

    /// Puts a connection among those that haven't said hello; the oldest one makes room if there are too many.
    fn greeting(self: &Arc<Self>, conn_id: u64) -> Greeting {
        let end = CancellationToken::new();
        let mut greetings = self.greetings.lock();
        if greetings.len() >= self.config().max_greeting_connections
            && let Some((_, oldest)) = greetings.pop_front()
        {
            oldest.cancel();
            self.stats().server.pushed_out.one();
        }
        greetings.push_back((conn_id, end.clone()));
        drop(greetings);
        Greeting {
            server: Arc::clone(self),
            conn_id,
            end,
        }
    }

    /// Puts a connection into the list. Those of an earlier process of the same node end, and the oldest one if there
    /// are too many: their other end is most likely gone.
    fn admit(self: &Arc<Self>, conn_id: u64, hello: &Hello) -> Admission {
        let end = CancellationToken::new();
        let mut admitted = self.admitted.lock();
        let list = admitted.entry(hello.node_id).or_default();
        for old in list
            .iter()
            .filter(|old| old.incarnation != hello.incarnation)
        {
            old.end.cancel();
        }
        list.retain(|old| old.incarnation == hello.incarnation);
        if list.len() >= self.config().max_connections_per_peer {
            list.remove(0).end.cancel();
        }
        list.push(Admitted {
            conn_id,
            incarnation: hello.incarnation,
            end: end.clone(),
        });
        drop(admitted);
        Admission {
            server: Arc::clone(self),
            node: hello.node_id,
            conn_id,
            end,
        }
    }

    /// Whoever it is comes back every second or two for as long as he's refused.
    fn stranger(&self, from: SocketAddr, error: &dyn fmt::Display) {
        self.stats().server.strangers.one();
        let error = error.to_string();
        let due = self.notices.lock().due(&format!("{}: {error}", from.ip()));
        if let Some(unwritten) = due {
            tracing::warn!(%from, error, unwritten, "no hello with this connection");
        }
    }

    fn accept_failed(&self, error: &dyn fmt::Display) {
        let due = self.notices.lock().due(&format!("accept: {error}"));
        if let Some(unwritten) = due {
            tracing::warn!(%error, unwritten, "can't accept a connection");
        }
    }
}

/// A connection's place among those that haven't said hello; leaves it when dropped.
struct Greeting {
    server: Arc<ServerShared>,
    conn_id: u64,
    end: CancellationToken,
}

impl Greeting {
    async fn cancelled(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        let mut greetings = self.server.greetings.lock();
        greetings.retain(|(conn_id, _)| *conn_id != self.conn_id);
    }
}

/// Counts an open connection.
struct Open(Arc<RpcStats>);

impl Open {
    fn new(stats: &Arc<RpcStats>) -> Self {
        stats.server.accepted.one();
        stats.server.connections.up(1);
        Open(Arc::clone(stats))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.server.connections.down(1);
    }
}

/// Accepts connections until it's dropped.
#[derive(Debug)]
pub struct RpcServer {
    local_addr: Option<SocketAddr>,
    _accept: AbortOnDropHandle<()>,
}

impl RpcServer {
    /// Serves on `listener`, with the settings, the counters and the hello of `peers`. Needs a runtime. Dropping the
    /// server ends all its connections.
    pub fn serve(
        listener: Box<dyn Listener>,
        dispatcher: Arc<dyn Dispatcher>,
        peers: Arc<PeerTable>,
    ) -> RpcServer {
        let local_addr = listener.local_addr().ok();
        let config = peers.config();
        let shared = Arc::new(ServerShared {
            budgets: Budgets::new(config),
            admitted: Mutex::default(),
            greetings: Mutex::default(),
            notices: Mutex::new(Notices::new(1)),
            dispatcher,
            peers,
        });
        let accept = tokio::spawn(accept(shared, listener));
        RpcServer {
            local_addr,
            _accept: AbortOnDropHandle::new(accept),
        }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }
}

async fn accept(server: Arc<ServerShared>, mut listener: Box<dyn Listener>) {
    let mut open = JoinSet::new();
    let mut turned_away = JoinSet::new();
    let mut next_conn_id = 1;
    loop {
        let accepted = tokio::select! {
            biased;
            Some(_) = open.join_next(), if !open.is_empty() => continue,
            Some(_) = turned_away.join_next(), if !turned_away.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                server.accept_failed(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if open.len() >= server.config().max_connections {
            over_limit(&server, &mut turned_away, from, stream);
            continue;
        }
        let counted = Open::new(server.stats());
        let serve = conn::serve(Arc::clone(&server), next_conn_id, from, stream);
        open.spawn(async move {
            serve.await;
            drop(counted);
        });
        next_conn_id += 1;
    }
}

fn over_limit(
    server: &Arc<ServerShared>,
    turned_away: &mut JoinSet<()>,
    from: SocketAddr,
    stream: BoxStream,
) {
    server.stats().server.over_limit.one();
    if turned_away.len() < TURNED_AWAY_AT_ONCE {
        turned_away.spawn(conn::turn_away(Arc::clone(server), from, stream));
    }
}
