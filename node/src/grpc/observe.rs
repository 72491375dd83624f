//! Around every call: a bound on how many run at a time, and its latency by method and code.
//!
//! Over the bound a call is refused at once, with a retry delay: waiting in a queue would only move
//! the deadline closer. Health checks pass, so that an overloaded node isn't taken for a dead one.

use crate::{
    failure::{Failure, Reason},
    metrics::Metrics,
};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tonic::{
    Code,
    body::Body,
    codegen::http::{HeaderMap, Request, Response},
};
use tower::{Layer, Service};

/// Calls of this service are never refused.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Wraps every service of the node.
#[derive(Debug, Clone)]
pub(super) struct Observe {
    pub metrics: Arc<Metrics>,
    pub places: Arc<Semaphore>,
}

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed {
            inner,
            observe: self.clone(),
        }
    }
}

/// A service with [`Observe`] around it.
#[derive(Debug, Clone)]
pub(super) struct Observed<S> {
    inner: S,
    observe: Observe,
}

/// Counts a call until it is answered or given up.
struct InFlight {
    metrics: Arc<Metrics>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.call_ended();
    }
}

type Answer<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Observed<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answer<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let metrics = Arc::clone(&self.observe.metrics);
        let path = request.uri().path().to_string();
        let place = Arc::clone(&self.observe.places).try_acquire_owned().ok();
        if place.is_none() && !path.starts_with(HEALTH) {
            metrics.refused("calls");
            let failure = Failure::new(
                Reason::OverloadedCalls,
                "this node serves as many calls as it may at a time",
            );
            let refusal = failure.into_status(|_| None).into_http();
            return Box::pin(async move { Ok(refusal) });
        }
        metrics.call_started();
        let in_flight = InFlight {
            metrics,
            _place: place,
        };
        let started = Instant::now();
        // The clone is ready only after its own poll_ready; the one that was polled is used.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        let answer = inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let code = code_of(answer.headers());
            let method = if code == Code::Unimplemented {
                "unknown"
            } else {
                &path
            };
            let took = started.elapsed();
            in_flight
                .metrics
                .answered(method, &format!("{code:?}"), took);
            Ok(answer)
        })
    }
}

/// A failed call has its code in the head; a successful one in the trailers, which come later.
fn code_of(headers: &HeaderMap) -> Code {
    headers
        .get("grpc-status")
        .map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
}
