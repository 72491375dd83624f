//! Connections: accepted from the network seam, counted, and labelled with the listener they came
//! in on.
//!
//! Over the limit a connection is accepted and closed at once: left in the backlog it would look
//! like a node that hangs.

use crate::metrics::Metrics;
use futures_util::Stream;
use imprint_raft::seams::{BoxStream, Listener};
use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tonic::transport::server::Connected;

/// After a failed accept (out of file descriptors, say) the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a call came from: an extension of each request.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub listener: Arc<str>,
    pub from: SocketAddr,
}

/// A client's connection. Dropping it gives its place back.
pub struct ClientStream {
    stream: BoxStream,
    arrival: Arrival,
    metrics: Arc<Metrics>,
    _place: OwnedSemaphorePermit,
}

impl Drop for ClientStream {
    fn drop(&mut self) {
        self.metrics.connection_closed();
    }
}

impl Connected for ClientStream {
    type ConnectInfo = Arrival;

    fn connect_info(&self) -> Arrival {
        self.arrival.clone()
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The connections of one listener, for as long as the stream is polled.
pub(super) fn connections(
    listener: Box<dyn Listener>,
    name: &str,
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
) -> impl Stream<Item = io::Result<ClientStream>> + Send + 'static {
    let name: Arc<str> = name.into();
    futures_util::stream::unfold(listener, move |mut listener| {
        let (name, places, metrics) =
            (Arc::clone(&name), Arc::clone(&places), Arc::clone(&metrics));
        async move {
            let stream = next(listener.as_mut(), &name, &places, &metrics).await;
            Some((Ok(stream), listener))
        }
    })
}

async fn next(
    listener: &mut dyn Listener,
    name: &Arc<str>,
    places: &Arc<Semaphore>,
    metrics: &Arc<Metrics>,
) -> ClientStream {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(listener = %name, %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            metrics.refused("connections");
            tracing::debug!(listener = %name, %from, "a connection over the limit was closed");
            continue;
        };
        metrics.connection_opened();
        return ClientStream {
            stream,
            arrival: Arrival {
                listener: Arc::clone(name),
                from,
            },
            metrics: Arc::clone(metrics),
            _place: place,
        };
    }
}
