//! The peers of this node, and whether they are alive.
//!
//! Invariants: this node is never in its own table; a peer that was removed fails its calls; every entry has one task
//! that pings it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::ids::NodeId;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::client::{CallOptions, Context, Payload, PeerAddress, RpcPeer};
use super::config::RpcConfig;
use super::error::RpcError;
use super::hello::{Hello, HelloCheck, HelloSource};
use super::liveness::{Board, PeerEvents, PingHook, PingSource, watch_peer};
use super::stats::RpcStats;
use crate::seams::{Net, Wrap};

/// What the transport needs of the node.
pub struct TableParts {
    pub net: Arc<dyn Net>,
    /// This node.
    pub node_id: NodeId,
    /// This node's hello as it is at the moment of asking.
    pub hello: HelloSource,
    /// The node's own rule about who may be a peer; asked when a peer answers our hello.
    pub check: HelloCheck,
    pub config: RpcConfig,
}

/// See the module's head.
pub struct PeerTable {
    own: NodeId,
    context: Arc<Context>,
    board: Arc<Board>,
    pings: Arc<Pings>,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    nodes: BTreeMap<NodeId, Entry>,
    addresses: BTreeMap<String, AddressEntry>,
    /// Counts uses of addresses, to know the one that was used longest ago.
    uses: u64,
    closed: bool,
}

struct Entry {
    peer: Arc<RpcPeer>,
    _watcher: AbortOnDropHandle<()>,
}

struct AddressEntry {
    peer: Arc<RpcPeer>,
    last_use: u64,
}

struct Pings {
    hello: HelloSource,
    hook: Mutex<Option<Arc<dyn PingHook>>>,
}

impl PingSource for Pings {
    fn incarnation(&self) -> u64 {
        (self.hello)().incarnation
    }

    fn hook(&self) -> Option<Arc<dyn PingHook>> {
        self.hook.lock().clone()
    }
}

impl fmt::Debug for PeerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerTable")
            .field("own", &self.own)
            .field("nodes", &self.nodes())
            .finish_non_exhaustive()
    }
}

impl PeerTable {
    /// An empty table.
    pub fn new(parts: TableParts) -> Arc<Self> {
        let pings = Arc::new(Pings {
            hello: Arc::clone(&parts.hello),
            hook: Mutex::new(None),
        });
        let context = Context {
            pings: Arc::clone(&pings) as Arc<dyn PingSource>,
            net: parts.net,
            hello: parts.hello,
            check: parts.check,
            config: Arc::new(parts.config),
            stats: Arc::default(),
        };
        Arc::new(PeerTable {
            own: parts.node_id,
            context: Arc::new(context),
            board: Arc::default(),
            pings,
            entries: Mutex::default(),
        })
    }

    /// Adds a peer, or tells where it is now. Needs a runtime. This node itself is not added.
    pub fn add(&self, node: NodeId, address: String) {
        if node == self.own {
            return;
        }
        let mut entries = self.entries.lock();
        if entries.closed {
            return;
        }
        match entries.nodes.get(&node) {
            Some(entry) => entry.peer.set_address(address),
            None => {
                entries.nodes.insert(node, self.entry(node, address));
            }
        }
    }

    fn entry(&self, node: NodeId, addr: String) -> Entry {
        let peer = RpcPeer::new(
            Arc::clone(&self.context),
            PeerAddress {
                node_id: Some(node),
                addr,
            },
        );
        let watcher = watch_peer(
            node,
            Arc::clone(&peer),
            Arc::clone(&self.board),
            Arc::clone(&self.pings) as Arc<dyn PingSource>,
            Arc::clone(&self.context.config),
        );
        Entry {
            peer,
            _watcher: AbortOnDropHandle::new(tokio::spawn(watcher)),
        }
    }

    /// Removes a peer: its connections end and its calls fail.
    pub fn remove(&self, node: NodeId) {
        let entry = self.entries.lock().nodes.remove(&node);
        if let Some(entry) = entry {
            entry.peer.close();
            self.board.remove(node);
        }
    }

    /// The peer, if it's in the table.
    pub fn get(&self, node: NodeId) -> Option<Arc<RpcPeer>> {
        self.entries
            .lock()
            .nodes
            .get(&node)
            .map(|entry| Arc::clone(&entry.peer))
    }

    /// All peers, in order.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.entries.lock().nodes.keys().copied().collect()
    }

    /// Whether the peer has answered lately. False for a node that isn't in the table.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.board.is_alive(node)
    }

    /// The peers that have answered lately, in order.
    pub fn alive(&self) -> Vec<NodeId> {
        self.board.alive()
    }

    /// Changes from now on, until the table is closed or gone.
    pub fn subscribe(&self) -> PeerEvents {
        self.board.subscribe()
    }

    /// Lets somebody ride on the pings.
    pub fn set_ping_hook(&self, hook: Arc<dyn PingHook>) {
        *self.pings.hook.lock() = Some(hook);
    }

    /// Calls whoever answers at an address, while its node isn't known. The connection is kept for the next call, and
    /// ends when it isn't used.
    pub async fn call_address(
        &self,
        addr: &str,
        method: u32,
        payload: Payload,
        options: CallOptions,
    ) -> Result<Bytes, RpcError> {
        match self.address_peer(addr) {
            Some(peer) => peer.call(method, payload, options).await,
            None => Err(RpcError::Closed {
                peer: addr.to_owned(),
            }),
        }
    }

    fn address_peer(&self, addr: &str) -> Option<Arc<RpcPeer>> {
        let mut entries = self.entries.lock();
        if entries.closed {
            return None;
        }
        entries.uses += 1;
        let now = entries.uses;
        if let Some(entry) = entries.addresses.get_mut(addr) {
            entry.last_use = now;
            return Some(Arc::clone(&entry.peer));
        }
        if entries.addresses.len() >= self.context.config.max_address_peers {
            entries.forget_oldest_address();
        }
        let address = PeerAddress {
            node_id: None,
            addr: addr.to_owned(),
        };
        let peer = RpcPeer::new(Arc::clone(&self.context), address);
        let entry = AddressEntry {
            peer: Arc::clone(&peer),
            last_use: now,
        };
        entries.addresses.insert(addr.to_owned(), entry);
        Some(peer)
    }

    /// A peer said hello to this node: it lives, so attempts to reach it aren't held back.
    pub(crate) fn heard(&self, hello: &Hello) {
        let entries = self.entries.lock();
        if let Some(entry) = entries.nodes.get(&hello.node_id) {
            entry.peer.heard(hello);
        }
        if let Some(entry) = entries.addresses.get(&hello.peer_address) {
            entry.peer.heard(hello);
        }
    }

    /// A peer called this node, on a connection that may be old: attempts to reach it aren't held back.
    pub(crate) fn called_by(&self, node: NodeId) {
        if let Some(peer) = self.get(node) {
            peer.called();
        }
    }

    /// What connections are wrapped in.
    pub(crate) fn wrap(&self) -> Option<Arc<dyn Wrap>> {
        self.context.net.wrap()
    }

    /// What a peer said of itself last.
    pub fn hello_of(&self, node: NodeId) -> Option<Hello> {
        self.get(node)?.hello()
    }

    /// The counters.
    pub fn stats(&self) -> &Arc<RpcStats> {
        &self.context.stats
    }

    /// The settings.
    pub fn config(&self) -> &Arc<RpcConfig> {
        &self.context.config
    }

    /// This node's hello as it is now.
    pub fn own_hello(&self) -> Hello {
        (self.context.hello)()
    }

    pub(crate) fn ping_source(&self) -> &dyn PingSource {
        self.pings.as_ref()
    }

    /// Ends all connections; calls fail from now on, no peer can be added, and subscriptions end after their last events.
    pub fn close(&self) {
        let (nodes, addresses) = {
            let mut entries = self.entries.lock();
            entries.closed = true;
            (
                std::mem::take(&mut entries.nodes),
                std::mem::take(&mut entries.addresses),
            )
        };
        for (node, entry) in nodes {
            entry.peer.close();
            self.board.remove(node);
        }
        for entry in addresses.into_values() {
            entry.peer.close();
        }
        self.board.close();
    }
}

impl Entries {
    fn forget_oldest_address(&mut self) {
        let oldest = self
            .addresses
            .iter()
            .min_by_key(|(_, entry)| entry.last_use);
        if let Some(addr) = oldest.map(|(addr, _)| addr.clone()) {
            self.addresses.remove(&addr);
        }
    }
}
