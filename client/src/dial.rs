//! How a connection to a server comes about, kept apart so that a simulation can bring its own network.
//!
//! Names are resolved at each dial, never once and for all: a container that came back with another
//! address is found again.

#![allow(clippy::disallowed_methods, reason = "a seam")]

use futures_util::future::BoxFuture;
use std::fmt::Debug;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What a dial yields: bytes both ways.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A dialled connection.
pub type BoxStream = Box<dyn ByteStream>;

/// Opens connections. A dial must end by itself, with an error if the far side does not answer.
pub trait Dial: Debug + Send + Sync + 'static {
    /// Connects to `address`, a `host:port`.
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<BoxStream>>;
}

/// TCP with small segments sent at once.
#[derive(Debug, Clone, Copy)]
pub struct TcpDial {
    /// Longest time for name resolution and handshake together.
    pub timeout: Duration,
}

impl Dial for TcpDial {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<BoxStream>> {
        let (timeout, address) = (self.timeout, address.to_owned());
        Box::pin(async move {
            let connecting = TcpStream::connect(&address);
            let stream = tokio::time::timeout(timeout, connecting)
                .await
                .map_err(|_| {
                    let message = format!("no connection within {timeout:?}");
                    io::Error::new(io::ErrorKind::TimedOut, message)
                })??;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}
