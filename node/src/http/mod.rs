//! Pages for machines that watch: `/metrics`, `/livez`, `/readyz`.
//!
//! `/livez` answers as long as the process serves anything: restarting on it helps only where the
//! process hangs. `/readyz` is 200 only when a write through this node would work, else 503 with
//! the reason as text.

use crate::{core::Core, metrics::CONTENT_TYPE};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use imprint_raft::seams::{BoxStream, Listener};
use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

/// After a failed accept the next one waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The pages of one node.
pub fn pages(core: Arc<Core>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/", get(index))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such page\n") })
        .with_state(core)
}

/// Serves the pages until `stop` completes and the requests in flight have ended.
pub async fn serve(
    core: Arc<Core>,
    listener: Box<dyn Listener>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let served = axum::serve(Pages(listener), pages(core)).with_graceful_shutdown(stop);
    if let Err(error) = served.await {
        tracing::error!(%error, "the HTTP server ended");
    }
}

/// A listener of the network seam, as axum takes it.
struct Pages(Box<dyn Listener>);

impl axum::serve::Listener for Pages {
    type Io = BoxStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoxStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

async fn index(State(core): State<Arc<Core>>) -> String {
    format!(
        "imprint node {}\n\n/metrics  counters and gauges for Prometheus\n/readyz   200 when a write would work\n/livez    200 while the process serves\n",
        core.node_id()
    )
}

async fn ready(State(core): State<Arc<Core>>) -> Response {
    match core.readiness() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => {
            let reason = format!("not ready: {reason}\n");
            (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
        }
    }
}

async fn metrics(State(core): State<Arc<Core>>) -> Response {
    match core.metrics().encode() {
        Ok(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        Err(_) => {
            let text = "the metrics could not be written\n";
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}
