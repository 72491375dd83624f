//! Two nodes, and calls between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::ids::NodeId;
use imprint_raft::rpc::{
    CallOptions, Class, ConnInfo, Dispatcher, Hello, PeerTable, Refusal, Replier, RpcConfig,
    RpcPeer, RpcServer, TableParts, methods,
};
use imprint_raft::seams::{Net, TcpNet};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Answered with the payload.
const ECHO: u32 = methods::FORWARD;
/// Answered with nothing.
const ONE_WAY: u32 = methods::APPEND_ENTRIES;

const TIMEOUT: Duration = Duration::from_secs(60);

/// How much randomness a payload has.
#[derive(Clone, Copy)]
pub enum Entropy {
    Zeros,
    /// Lines as programs log them.
    Text,
    /// Every other byte is random.
    Half,
    Random,
}

impl Entropy {
    pub const ALL: [Entropy; 4] = [
        Entropy::Zeros,
        Entropy::Text,
        Entropy::Half,
        Entropy::Random,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Entropy::Zeros => "zeros",
            Entropy::Text => "log lines",
            Entropy::Half => "half random",
            Entropy::Random => "random",
        }
    }

    /// The same bytes in every run.
    pub fn payload(self, len: usize) -> Bytes {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut bytes = Vec::with_capacity(len + 128);
        while bytes.len() < len {
            match self {
                Entropy::Zeros => bytes.extend([0; 8]),
                Entropy::Text => {
                    let (user, took) = (next() % 10_000, next() % 900);
                    let line =
                        format!("level=info msg=\"request served\" user={user} took_ms={took}\n");
                    bytes.extend(line.into_bytes());
                }
                Entropy::Half => bytes.extend((next() & 0x00ff_00ff_00ff_00ff).to_le_bytes()),
                Entropy::Random => bytes.extend(next().to_le_bytes()),
            }
        }
        bytes.truncate(len);
        bytes.into()
    }
}

/// How a load is put on.
#[derive(Clone, Copy)]
pub struct Load {
    pub under_way: usize,
    pub compress: bool,
}

impl Load {
    pub fn of(under_way: usize) -> Self {
        Load {
            under_way,
            compress: false,
        }
    }
}

/// Round trips.
pub struct Latencies {
    micros: Vec<f64>,
    begun: Instant,
    pub took: Duration,
}

impl Latencies {
    pub fn begin(expected: usize) -> Self {
        Latencies {
            micros: Vec::with_capacity(expected),
            begun: Instant::now(),
            took: Duration::ZERO,
        }
    }

    pub fn add(&mut self, took: Duration) {
        self.micros.push(took.as_secs_f64() * 1e6);
    }

    pub fn end(mut self) -> Self {
        self.took = self.begun.elapsed();
        self.micros.sort_by(f64::total_cmp);
        self
    }

    fn at(&self, share: f64) -> f64 {
        let last = self.micros.len().saturating_sub(1) as f64;
        self.micros
            .get((last * share) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }

    pub fn p50_us(&self) -> f64 {
        self.at(0.5)
    }

    pub fn p99_us(&self) -> f64 {
        self.at(0.99)
    }
}

struct Answers(Hello);

impl Dispatcher for Answers {
    fn hello(&self, _theirs: &Hello) -> Result<Hello, Refusal> {
        Ok(self.0.clone())
    }

    fn dispatch(&self, _conn: ConnInfo, method: u32, payload: Bytes, reply: Replier) {
        match method {
            ECHO => reply.ok(vec![payload]),
            _ => reply.ok(Vec::new()),
        }
    }
}

struct Node {
    table: Arc<PeerTable>,
    _server: RpcServer,
}

/// A node that calls and one that is called.
pub struct Pair {
    peer: Arc<RpcPeer>,
    caller: Node,
    _callee: Node,
}

impl Pair {
    pub async fn start() -> Pair {
        let (caller, callee) = (node(1).await, node(2).await);
        let addr = callee.table.own_hello().peer_address;
        caller.table.add(NodeId(2), addr);
        let peer = caller.table.get(NodeId(2)).expect("just added");
        peer.call(ECHO, Bytes::new().into(), options(false))
            .await
            .expect("a connection");
        Pair {
            peer,
            caller,
            _callee: callee,
        }
    }

    /// Payload bytes of one-way calls as sent.
    pub fn wire_bytes(&self) -> u64 {
        let stats = self.caller.table.stats().peer(NodeId(2));
        stats.method(ONE_WAY).bytes_sent.get()
    }

    /// Calls with `payload` that are answered with nothing.
    pub async fn one_way(&self, payload: &Bytes, calls: usize, load: Load) -> Duration {
        self.drive(ONE_WAY, payload, calls, load).await.took
    }

    /// Calls that are answered with their payload.
    pub async fn echo(&self, payload: &Bytes, calls: usize, load: Load) -> Latencies {
        // The first tenth warms up.
        self.drive(ECHO, payload, calls / 10, load).await;
        self.drive(ECHO, payload, calls, load).await
    }

    /// As many callers as calls are to be under way, each with one at a time.
    async fn drive(&self, method: u32, payload: &Bytes, calls: usize, load: Load) -> Latencies {
        let left = Arc::new(AtomicUsize::new(calls));
        let mut callers = JoinSet::new();
        let mut all = Latencies::begin(calls);
        for _ in 0..load.under_way {
            let (peer, payload, left) =
                (Arc::clone(&self.peer), payload.clone(), Arc::clone(&left));
            callers.spawn(async move {
                let mut own = Vec::new();
                while left
                    .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    let begun = Instant::now();
                    peer.call(method, payload.clone().into(), options(load.compress))
                        .await
                        .expect("a reply");
                    own.push(begun.elapsed());
                }
                own
            });
        }
        while let Some(own) = callers.join_next().await {
            own.expect("a caller")
                .into_iter()
                .for_each(|took| all.add(took));
        }
        all.end()
    }
}

fn options(compress: bool) -> CallOptions {
    CallOptions {
        timeout: TIMEOUT,
        class: Class::Bulk,
        compress,
    }
}

async fn node(id: u64) -> Node {
    let listener = TcpNet.listen("127.0.0.1:0").await.expect("listening");
    let own = Hello {
        cluster_id: Some([7; 16]),
        node_id: NodeId(id),
        storage_id: [u8::try_from(id).expect("small"); 16],
        incarnation: id,
        earliest_version: 1,
        latest_version: 1,
        peer_address: listener.local_addr().expect("an address").to_string(),
        client_address: String::new(),
        seeds_hash: 0,
    };
    let hello = own.clone();
    let table = PeerTable::new(TableParts {
        net: Arc::new(TcpNet),
        node_id: NodeId(id),
        hello: Arc::new(move || hello.clone()),
        check: Arc::new(|_| Ok(())),
        config: RpcConfig::default(),
    });
    let server = RpcServer::serve(listener, Arc::new(Answers(own)), Arc::clone(&table));
    Node {
        table,
        _server: server,
    }
}
