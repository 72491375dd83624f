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
use std::sync::Arc;

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
