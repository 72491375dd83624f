//! A network in memory whose links can be frozen and cut, nodes on it, and frames by hand.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use imprint_proto::envelope;
use imprint_proto::frame::{Compression, FRAME_HEADER_LEN, FrameHeader};
use imprint_proto::ids::NodeId;
use imprint_raft::rpc::{
    CallOptions, Class, ConnInfo, Dispatcher, Hello, PeerTable, Refusal, Replier, RpcConfig,
    RpcPeer, RpcServer, TableParts, methods,
};
use imprint_raft::seams::{BoxStream, Listener, Net, Wrap};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// Answered with the request's payload.
pub const ECHO: u32 = methods::FORWARD;
/// Kept until the test answers.
pub const HELD: u32 = methods::CONTROLLER;
/// The handler drops the request.
pub const DROPPED: u32 = methods::DIGEST;

type Accepted = (BoxStream, SocketAddr);

/// Bytes a link holds in each of its four buffers.
const LINK_BUFFER: usize = 64;

/// What a link does with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Open,
    /// Keeps them; writers run into full buffers.
    Frozen,
    /// Takes them, and nobody ever gets them: as a network that has forgotten the connection.
    Swallowed,
}

#[derive(Debug)]
struct Link {
    to: String,
    flow: watch::Sender<Flow>,
    _carrier: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct World {
    listeners: BTreeMap<String, mpsc::UnboundedSender<Accepted>>,
    links: Vec<Link>,
    dials: Vec<(Instant, String)>,
    silent: bool,
    flow: Flow,
}

/// All nodes of a test share one.
#[derive(Debug, Clone)]
pub struct MemNet {
    world: Arc<Mutex<World>>,
}

impl MemNet {
    pub fn new() -> Self {
        let world = World {
            listeners: BTreeMap::new(),
            links: Vec::new(),
            dials: Vec::new(),
            silent: false,
            flow: Flow::Open,
        };
        MemNet {
            world: Arc::new(Mutex::new(world)),
        }
    }

    /// The same network for a node whose connections are wrapped.
    pub fn wrapped(&self, wrap: Arc<dyn Wrap>) -> WrappedNet {
        WrappedNet {
            net: self.clone(),
            wrap,
        }
    }

    /// Nothing moves on any link; writers run into full buffers.
    pub fn freeze(&self) {
        self.set_flow(Flow::Frozen);
    }

    pub fn thaw(&self) {
        self.set_flow(Flow::Open);
    }

    fn set_flow(&self, flow: Flow) {
        let mut world = self.world.lock();
        world.flow = flow;
        for link in &world.links {
            link.flow.send_replace(flow);
        }
    }

    /// The same for the link alone that was made as the `nth` one to `addr`.
    pub fn set_link(&self, addr: &str, nth: usize, flow: Flow) {
        let world = self.world.lock();
        let mut links = world.links.iter().filter(|link| link.to == addr);
        let link = links.nth(nth).expect("a link");
        link.flow.send_replace(flow);
    }

    /// Ends all links to `addr`; it goes on listening.
    pub fn cut(&self, addr: &str) {
        self.world.lock().links.retain(|link| link.to != addr);
    }

    /// Nobody listens on `addr` any more, and all links to it end.
    pub fn kill(&self, addr: &str) {
        self.world.lock().listeners.remove(addr);
        self.cut(addr);
    }

    /// Dials get no answer at all, neither yes nor no.
    pub fn silence(&self, silent: bool) {
        self.world.lock().silent = silent;
    }

    /// When `addr` was dialled.
    pub fn dials(&self, addr: &str) -> Vec<Instant> {
        self.world
            .lock()
            .dials
            .iter()
            .filter(|(_, to)| to == addr)
            .map(|(at, _)| *at)
            .collect()
    }
}

/// Carries bytes one way until an end is gone, then hangs up.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut flow: watch::Receiver<Flow>,
) {
    let mut buffer = [0; LINK_BUFFER];
    loop {
        // The sender lives in the network, which outlives its links.
        let _ = flow.wait_for(|flow| *flow != Flow::Frozen).await;
        let bytes = from.read(&mut buffer).await.unwrap_or(0);
        let _ = flow.wait_for(|flow| *flow != Flow::Frozen).await;
        if *flow.borrow() == Flow::Swallowed {
            if bytes == 0 {
                std::future::pending::<()>().await;
            }
            continue;
        }
        if bytes == 0 || to.write_all(&buffer[..bytes]).await.is_err() {
            break;
        }
    }
    // The other end may be gone already.
    let _ = to.shutdown().await;
}

#[async_trait]
impl Net for MemNet {
    async fn dial(&self, addr: &str) -> io::Result<BoxStream> {
        let (silent, listener) = {
            let mut world = self.world.lock();
            world.dials.push((Instant::now(), addr.to_owned()));
            (world.silent, world.listeners.get(addr).cloned())
        };
        if silent {
            std::future::pending::<()>().await;
        }
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = listener.ok_or_else(refused)?;
        let (caller, near) = tokio::io::duplex(LINK_BUFFER);
        let (far, callee) = tokio::io::duplex(LINK_BUFFER);
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = tokio::io::split(far);
        let flow = watch::Sender::new(self.world.lock().flow);
        let there = pump(near_read, far_write, flow.subscribe());
        let back = pump(far_read, near_write, flow.subscribe());
        let carry = async {
            tokio::select! {
                () = back => {}
                // What the callee has said before it hung up still arrives.
                () = async { there.await; std::future::pending().await } => {}
            }
        };
        let link = Link {
            to: addr.to_owned(),
            flow,
            _carrier: AbortOnDropHandle::new(tokio::spawn(carry)),
        };
        self.world.lock().links.push(link);
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        listener
            .send((Box::new(callee), from))
            .map_err(|_| refused())?;
        Ok(Box::new(caller))
    }

    async fn listen(&self, addr: &str) -> io::Result<Box<dyn Listener>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.world.lock().listeners.insert(addr.to_owned(), sender);
        Ok(Box::new(MemListener(receiver)))
    }
}

/// A network whose connections are wrapped.
#[derive(Debug, Clone)]
pub struct WrappedNet {
    net: MemNet,
    wrap: Arc<dyn Wrap>,
}

#[async_trait]
impl Net for WrappedNet {
    fn wrap(&self) -> Option<Arc<dyn Wrap>> {
        Some(Arc::clone(&self.wrap))
    }

    async fn dial(&self, addr: &str) -> io::Result<BoxStream> {
        self.net.dial(addr).await
    }

    async fn listen(&self, addr: &str) -> io::Result<Box<dyn Listener>> {
        self.net.listen(addr).await
    }
}

#[derive(Debug)]
struct MemListener(mpsc::UnboundedReceiver<Accepted>);

#[async_trait]
impl Listener for MemListener {
    async fn accept(&mut self) -> io::Result<Accepted> {
        match self.0.recv().await {
            Some(accepted) => Ok(accepted),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 0)))
    }
}

/// Answers by method, and notes what came in which order.
pub struct Recorder {
    own: Hello,
    refuse: Mutex<Option<String>>,
    hold_all: AtomicBool,
    seen: watch::Sender<Vec<(ConnInfo, u32, Bytes)>>,
    held: Mutex<Vec<Replier>>,
}

impl Recorder {
    /// Payloads in arrival order, once there are that many.
    pub async fn payloads(&self, count: usize) -> Vec<Bytes> {
        let mut seen = self.seen.subscribe();
        let all = seen
            .wait_for(|seen| seen.len() >= count)
            .await
            .expect("the recorder lives");
        all.iter().map(|(_, _, payload)| payload.clone()).collect()
    }

    pub fn count(&self) -> usize {
        self.seen.borrow().len()
    }

    pub fn last_conn(&self) -> ConnInfo {
        self.seen.borrow().last().expect("a request").0
    }

    pub fn take_held(&self) -> Vec<Replier> {
        std::mem::take(&mut self.held.lock())
    }

    /// Whatever comes from now on is kept until the test answers.
    pub fn hold_all(&self) {
        self.hold_all.store(true, Relaxed);
    }

    pub fn refuse(&self, reason: &str) {
        *self.refuse.lock() = Some(reason.to_owned());
    }
}

impl Dispatcher for Recorder {
    fn hello(&self, _theirs: &Hello) -> Result<Hello, Refusal> {
        match self.refuse.lock().as_deref() {
            Some(reason) => Err(reason.into()),
            None => Ok(self.own.clone()),
        }
    }

    fn dispatch(&self, conn: ConnInfo, method: u32, payload: Bytes, reply: Replier) {
        self.seen
            .send_modify(|seen| seen.push((conn, method, payload.clone())));
        match method {
            HELD => self.held.lock().push(reply),
            _ if self.hold_all.load(Relaxed) => self.held.lock().push(reply),
            DROPPED => drop(reply),
            _ => reply.ok(vec![payload]),
        }
    }
}

/// A node with both halves of the transport.
pub struct Node {
    pub id: NodeId,
    pub addr: String,
    pub table: Arc<PeerTable>,
    pub recorder: Arc<Recorder>,
    pub server: Option<RpcServer>,
}

impl Node {
    pub fn peer(&self, other: &Node) -> Arc<RpcPeer> {
        self.table.add(other.id, other.addr.clone());
        self.table.get(other.id).expect("just added")
    }

    /// Stops as a killed process does: nothing answers any more.
    pub fn kill(&mut self, net: &MemNet) {
        net.kill(&self.addr);
        self.server = None;
        self.table.close();
    }
}

pub fn addr_of(id: u64) -> String {
    format!("node-{id}:7000")
}

pub fn hello_of(id: u64) -> Hello {
    Hello {
        cluster_id: Some([7; 16]),
        node_id: NodeId(id),
        storage_id: [u8::try_from(id).expect("small"); 16],
        incarnation: 100 + id,
        earliest_version: 1,
        latest_version: 1,
        peer_address: addr_of(id),
        client_address: String::new(),
        seeds_hash: 0,
    }
}

pub async fn node(net: &MemNet, id: u64) -> Node {
    node_with(net, hello_of(id), RpcConfig::default()).await
}

pub async fn node_with(net: &MemNet, own: Hello, config: RpcConfig) -> Node {
    let addr = own.peer_address.clone();
    let listener = net.listen(&addr).await.expect("listening");
    node_on(Arc::new(net.clone()), listener, own, config)
}

pub async fn wrapped_node(net: &WrappedNet, id: u64) -> Node {
    let own = hello_of(id);
    let listener = net.listen(&own.peer_address).await.expect("listening");
    node_on(Arc::new(net.clone()), listener, own, RpcConfig::default())
}

pub fn node_on(
    net: Arc<dyn Net>,
    listener: Box<dyn Listener>,
    own: Hello,
    config: RpcConfig,
) -> Node {
    let (id, addr) = (own.node_id, own.peer_address.clone());
    let hello = own.clone();
    let table = PeerTable::new(TableParts {
        net,
        node_id: id,
        hello: Arc::new(move || hello.clone()),
        check: Arc::new(|_| Ok(())),
        config,
    });
    let recorder = Arc::new(Recorder {
        own,
        refuse: Mutex::default(),
        hold_all: AtomicBool::new(false),
        seen: watch::Sender::new(Vec::new()),
        held: Mutex::default(),
    });
    let server = RpcServer::serve(
        listener,
        Arc::clone(&recorder) as Arc<dyn Dispatcher>,
        Arc::clone(&table),
    );
    Node {
        id,
        addr,
        table,
        recorder,
        server: Some(server),
    }
}

pub fn bulk(timeout_ms: u64) -> CallOptions {
    CallOptions {
        timeout: Duration::from_millis(timeout_ms),
        class: Class::Bulk,
        compress: false,
    }
}

pub fn urgent(timeout_ms: u64) -> CallOptions {
    CallOptions {
        class: Class::Urgent,
        ..bulk(timeout_ms)
    }
}

/// Lets every task run until all of them wait, without the clock moving noticeably.
pub async fn settle() {
    tokio::time::sleep(Duration::from_micros(1)).await;
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Simulated seconds since then, rounded: timers have a grain of a millisecond.
pub fn seconds(since: Instant) -> u64 {
    (since.elapsed() + Duration::from_millis(500)).as_secs()
}

imprint_proto::envelope! {
    /// The first request of a connection, as it is on the wire.
    pub struct RawHello: version 0, compat 0 {
        hello: Hello,
        urgent: bool,
    }
}

imprint_proto::envelope! {
    /// An error reply, as it is on the wire.
    pub struct RawError: version 0, compat 0 {
        reason: String,
    }
}

/// A connection on which the test says what it wants.
pub struct RawConn(pub BoxStream);

impl RawConn {
    pub async fn dial(net: &MemNet, addr: &str) -> RawConn {
        RawConn(net.dial(addr).await.expect("a connection"))
    }

    /// Dials and says hello as node `id`.
    pub async fn greeted(net: &MemNet, addr: &str, id: u64, class: Class) -> RawConn {
        let mut conn = RawConn::dial(net, addr).await;
        conn.hello(hello_of(id), class).await;
        let (header, _) = conn.read().await.expect("an answer to the hello");
        assert_eq!((header.meta, header.correlation_id), (200, 1));
        conn
    }

    pub async fn hello(&mut self, hello: Hello, class: Class) {
        let payload = envelope::encode(&RawHello {
            hello,
            urgent: class == Class::Urgent,
        });
        self.send(methods::HELLO, 1, &payload).await;
    }

    pub async fn send(&mut self, meta: u32, correlation_id: u32, payload: &[u8]) {
        self.send_bytes(&frame(meta, correlation_id, payload)).await;
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("written");
        self.0.flush().await.expect("flushed");
    }

    /// The next frame; None at the end of the stream.
    pub async fn read(&mut self) -> Option<(FrameHeader, Bytes)> {
        let mut header = [0; FRAME_HEADER_LEN];
        self.0.read_exact(&mut header).await.ok()?;
        let header = FrameHeader::decode(&header).expect("a frame");
        let mut payload = vec![0; header.payload_size as usize];
        self.0.read_exact(&mut payload).await.ok()?;
        Some((header, payload.into()))
    }

    /// The status and the reason of the next reply, which must be an error.
    pub async fn read_error(&mut self) -> (u32, String) {
        let (header, payload) = self.read().await.expect("a reply");
        let error: RawError = envelope::decode(payload).expect("an error envelope");
        (header.meta, error.reason)
    }

    /// Whether the connection still serves.
    pub async fn echoes(&mut self) -> bool {
        self.0
            .write_all(&frame(ECHO, 999, b"still here?"))
            .await
            .is_ok()
            && self.read().await.is_some_and(|(header, payload)| {
                (header.meta, header.correlation_id, payload.as_ref()) == (200, 999, b"still here?")
            })
    }
}

pub fn frame(meta: u32, correlation_id: u32, payload: &[u8]) -> Vec<u8> {
    let parts = [Bytes::copy_from_slice(payload)];
    let header = FrameHeader::for_payload(Compression::None, meta, correlation_id, &parts);
    [&header.encode()[..], payload].concat()
}

/// The lines that this thread logs while it lives.
pub struct Logged {
    lines: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

impl Logged {
    pub fn begin() -> Logged {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&lines);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || LogWriter(Arc::clone(&writer)))
            .finish();
        Logged {
            lines,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// The lines that contain all of these.
    pub fn with(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.lines.lock().clone()).expect("text");
        let chosen = text
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)));
        chosen.map(str::to_owned).collect()
    }
}

struct LogWriter(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A peer of which the test plays the server.
pub struct RawPeer {
    listener: Box<dyn Listener>,
}

impl RawPeer {
    pub async fn listen(net: &MemNet, addr: &str) -> RawPeer {
        RawPeer {
            listener: net.listen(addr).await.expect("listening"),
        }
    }

    pub async fn accept(&mut self) -> RawConn {
        RawConn(self.listener.accept().await.expect("a connection").0)
    }

    /// Accepts connections until a bulk one comes, and answers its hello as node `id`. The urgent ones are kept open.
    pub async fn accept_bulk(&mut self, id: u64, kept: &mut Vec<RawConn>) -> RawConn {
        loop {
            let mut conn = self.accept().await;
            let (header, payload) = conn.read().await.expect("a hello");
            let hello: RawHello = envelope::decode(payload).expect("a hello");
            conn.send(200, header.correlation_id, &envelope::encode(&hello_of(id)))
                .await;
            if !hello.urgent {
                return conn;
            }
            kept.push(conn);
        }
    }
}

pub fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}
