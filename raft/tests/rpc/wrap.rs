//! The place for TLS: whatever the seam for the network wraps connections in, both sides speak through it, and a handshake
//! holds up its own connection alone.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use imprint_raft::rpc::{Class, RpcError};
use imprint_raft::seams::{BoxStream, Wrap};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::support::*;

/// A handshake of one round trip, and then every byte is turned.
#[derive(Debug)]
struct Turned(u8);

#[async_trait]
impl Wrap for Turned {
    async fn outgoing(&self, _addr: &str, mut stream: BoxStream) -> io::Result<BoxStream> {
        stream.write_u8(self.0).await?;
        if stream.read_u8().await? != !self.0 {
            return Err(io::Error::other("the other side has another key"));
        }
        Ok(Box::new(TurnedStream(stream, self.0)))
    }

    async fn incoming(&self, _from: SocketAddr, mut stream: BoxStream) -> io::Result<BoxStream> {
        if stream.read_u8().await? != self.0 {
            return Err(io::Error::other("the other side has another key"));
        }
        stream.write_u8(!self.0).await?;
        Ok(Box::new(TurnedStream(stream, self.0)))
    }
}

struct TurnedStream(BoxStream, u8);

impl AsyncRead for TurnedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, buffer))?;
        let key = self.1;
        buffer.filled_mut()[before..]
            .iter_mut()
            .for_each(|byte| *byte ^= key);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TurnedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let turned: Vec<u8> = bytes.iter().map(|byte| byte ^ self.1).collect();
        Pin::new(&mut self.0).poll_write(cx, &turned)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn both_sides_speak_through_what_connections_are_wrapped_in() {
    let net = MemNet::new();
    let a = wrapped_node(&net.wrapped(Arc::new(Turned(0x5a))), 1).await;
    let b = wrapped_node(&net.wrapped(Arc::new(Turned(0x5a))), 2).await;
    let peer = a.peer(&b);
    for options in [bulk(1000), urgent(1000)] {
        let payload = Bytes::from(vec![3; 5000]);
        let echo = peer.call(ECHO, payload.clone().into(), options).await;
        assert_eq!(echo.expect("an echo"), payload);
    }
    // Who speaks plainly isn't understood.
    let mut plain = RawConn::dial(&net, &b.addr).await;
    plain.send_bytes(&frame(ECHO, 1, b"x")).await;
    assert!(plain.read().await.is_none());
    // Nor is another key, and both sides know why.
    let c = wrapped_node(&net.wrapped(Arc::new(Turned(0x11))), 3).await;
    let failed = c.peer(&b).call(ECHO, Bytes::new().into(), bulk(1000)).await;
    assert!(
        matches!(failed, Err(RpcError::Unreachable { .. })),
        "{failed:?}"
    );
    assert!(b.table.stats().server.strangers.get() >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_does_not_end_holds_up_nobody_and_has_the_time_of_a_hello() {
    let net = MemNet::new();
    let b = wrapped_node(&net.wrapped(Arc::new(Turned(0x5a))), 2).await;
    let mut stuck = Vec::new();
    for _ in 0..20 {
        stuck.push(RawConn::dial(&net, &b.addr).await);
    }
    let a = wrapped_node(&net.wrapped(Arc::new(Turned(0x5a))), 1).await;
    let echo = a.peer(&b).call(ECHO, Bytes::new().into(), bulk(100)).await;
    echo.expect("an echo");
    tokio::time::sleep(Duration::from_millis(2100)).await;
    settle().await;
    assert_eq!(b.table.stats().server.strangers.get(), 20);
    assert_eq!(a.peer(&b).in_flight(Class::Bulk), 0);
}
