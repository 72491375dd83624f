//! Where the outside world comes in: clock, random numbers and network, each behind a small trait.
//!
//! Code outside of these seams and of `disk` never reads a clock, a random generator or a socket by itself, so that a
//! whole cluster can run in one process under simulated time. The traits know nothing of Raft, segments or gRPC.

#![allow(clippy::disallowed_methods, reason = "the seams")]

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// Wall-clock time. It may jump in both directions; whoever needs monotonic stamps keeps the highest one seen.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Microseconds since the Unix epoch.
    fn now_micros(&self) -> u64;

    /// Microseconds since some moment, never set back or forward: for how long something takes. A clock that nobody sets
    /// may give its wall-clock time.
    fn steady_micros(&self) -> u64 {
        self.now_micros()
    }
}

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_micros(&self) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        since_epoch.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
    }

    fn steady_micros(&self) -> u64 {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        let begun = BEGUN.get_or_init(Instant::now);
        u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A source of random bytes.
pub trait Entropy: Send + Sync + fmt::Debug + 'static {
    /// Fills all of `bytes`.
    fn fill(&self, bytes: &mut [u8]);

    /// A random number, uniform over its whole range.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// The thread's generator, seeded by the operating system.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        rand::RngCore::fill_bytes(&mut rand::rng(), bytes);
    }
}

/// What a connection has to be able to do.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One connection, whatever carries it.
pub type BoxStream = Box<dyn Stream>;

/// The place for TLS between nodes: turns a raw connection into the one that is spoken on.
///
/// Both methods may take round trips. The transport calls them where only the connection itself waits: after the dial and
/// within the time for connecting, after the accept and within the time for the hello. Neither sets a deadline of its own.
/// What a handshake proves of the other side is for the wrapper to check; the transport's hello comes after it, through
/// it, and stays as it is.
#[async_trait]
pub trait Wrap: Send + Sync + fmt::Debug + 'static {
    /// This side has dialled `addr` (`host:port`): the client of the handshake.
    async fn outgoing(&self, addr: &str, stream: BoxStream) -> io::Result<BoxStream>;

    /// This side has accepted a connection: the server of the handshake.
    async fn incoming(&self, from: SocketAddr, stream: BoxStream) -> io::Result<BoxStream>;
}

/// Dials and listens.
#[async_trait]
pub trait Net: Send + Sync + fmt::Debug + 'static {
    /// What connections between nodes are wrapped in; None leaves them as they are.
    fn wrap(&self) -> Option<Arc<dyn Wrap>> {
        None
    }

    /// Opens a connection to `addr` (`host:port`). It sets no deadline of its own.
    async fn dial(&self, addr: &str) -> io::Result<BoxStream>;

    /// Listens on `addr` (`host:port`, port 0 for any).
    async fn listen(&self, addr: &str) -> io::Result<Box<dyn Listener>>;
}

/// A listening socket.
#[async_trait]
pub trait Listener: Send + fmt::Debug + 'static {
    /// Waits for the next connection. Safe to cancel: a connection is either returned or left in the backlog.
    async fn accept(&mut self) -> io::Result<(BoxStream, SocketAddr)>;

    /// The address it is bound to, with the port that the system chose.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// Plain TCP without Nagle's delay.
#[derive(Debug, Default, Clone, Copy)]
pub struct TcpNet;

#[async_trait]
impl Net for TcpNet {
    async fn dial(&self, addr: &str) -> io::Result<BoxStream> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    async fn listen(&self, addr: &str) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(TcpAcceptor(TcpListener::bind(addr).await?)))
    }
}

#[derive(Debug)]
struct TcpAcceptor(TcpListener);

#[async_trait]
impl Listener for TcpAcceptor {
    async fn accept(&mut self) -> io::Result<(BoxStream, SocketAddr)> {
        let (stream, from) = self.0.accept().await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), from))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}
