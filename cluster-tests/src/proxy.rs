//! The links between nodes, each a TCP proxy that can be cut.
//!
//! Every node is known to the others by its proxy's address. A proxy learns who dials from the hello
//! that opens each connection, so a link is a pair of nodes and can be cut alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes up to and with the node id in a dialler's first frame: frame header, two envelope headers, an
/// optional cluster id of 16 bytes, the id.
const HELLO_PREFIX: usize = 26 + 6 + 6 + 1 + 16 + 8;

type Pair = (u64, u64);

/// All links of a cluster.
pub struct Links {
    addresses: BTreeMap<u64, String>,
    cut: Arc<Mutex<BTreeSet<Pair>>>,
    /// Rises with every change of `cut`: open connections look again.
    changes: watch::Sender<u64>,
    _accepts: JoinSet<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair(a: u64, b: u64) -> Pair {
    (a.min(b), a.max(b))
}

impl Links {
    /// Opens a proxy for each node, given its real port.
    pub async fn open(targets: BTreeMap<u64, u16>) -> Links {
        let cut = Arc::default();
        let changes = watch::Sender::new(0);
        let mut accepts = JoinSet::new();
        let mut addresses = BTreeMap::new();
        for (node, port) in targets {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("bound").to_string();
            addresses.insert(node, address);
            let gate = Gate {
                node,
                port,
                cut: Arc::clone(&cut),
                changes: changes.subscribe(),
            };
            accepts.spawn(gate.accept(listener));
        }
        Links {
            addresses,
            cut,
            changes,
            _accepts: accepts,
        }
    }

    /// Where the other nodes reach `node`.
    pub fn address(&self, node: u64) -> String {
        self.addresses[&node].clone()
    }

    /// Cuts the link between two nodes, in both directions.
    pub fn cut(&self, a: u64, b: u64) {
        locked(&self.cut).insert(pair(a, b));
        self.changes.send_modify(|n| *n += 1);
    }

    /// Cuts `node` off from all others.
    pub fn isolate(&self, node: u64) {
        let others: Vec<u64> = self
            .addresses
            .keys()
            .copied()
            .filter(|n| *n != node)
            .collect();
        others.into_iter().for_each(|other| self.cut(node, other));
    }

    /// Mends everything.
    pub fn heal(&self) {
        locked(&self.cut).clear();
        self.changes.send_modify(|n| *n += 1);
    }
}

/// The proxy of one node.
#[derive(Clone)]
struct Gate {
    node: u64,
    port: u16,
    cut: Arc<Mutex<BTreeSet<Pair>>>,
    changes: watch::Receiver<u64>,
}

impl Gate {
    async fn accept(self, listener: TcpListener) {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            // A connection that breaks is the nodes' business.
            let gate = self.clone();
            open.spawn(async move { drop(gate.carry(stream).await) });
            while open.try_join_next().is_some() {}
        }
    }

    fn is_cut(&self, from: u64) -> bool {
        locked(&self.cut).contains(&pair(from, self.node))
    }

    async fn carry(mut self, mut dialler: TcpStream) -> io::Result<()> {
        let mut hello = [0; HELLO_PREFIX];
        dialler.read_exact(&mut hello).await?;
        let from = node_id(&hello);
        if self.is_cut(from) {
            return Ok(());
        }
        let mut target = TcpStream::connect(("127.0.0.1", self.port)).await?;
        dialler.set_nodelay(true)?;
        target.set_nodelay(true)?;
        target.write_all(&hello).await?;
        let carrying = copy_bidirectional(&mut dialler, &mut target);
        tokio::pin!(carrying);
        loop {
            tokio::select! {
                result = &mut carrying => return result.map(drop),
                changed = self.changes.changed() => {
                    if changed.is_err() || self.is_cut(from) {
                        return Ok(());
                    }
                }
            }
        }
    }
}

fn node_id(hello: &[u8; HELLO_PREFIX]) -> u64 {
    let at = if hello[38] == 0 { 39 } else { 55 };
    let mut id = [0; 8];
    id.copy_from_slice(&hello[at..at + 8]);
    u64::from_le_bytes(id)
}
