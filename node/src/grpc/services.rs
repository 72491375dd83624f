//! The two services of the public contract, over [`Core`].

use super::{accept::Arrival, deadline};
use crate::{config::DEFAULT_LISTENER, core::Core, failure::Failure, forward::CallContext};
use imprint_proto::v1::{self, admin_service_server::AdminService, log_service_server::LogService};
use std::{sync::Arc, time::Duration};
use tonic::{Request, Response, Status};

/// `imprint.v1.LogService`.
pub(super) struct Log(pub Arc<Core>);

/// `imprint.v1.AdminService`.
pub(super) struct Admin(pub Arc<Core>);

/// Name of the listener that a call came in on.
fn listener<T>(request: &Request<T>) -> String {
    let arrival = request.extensions().get::<Arrival>();
    arrival.map_or_else(|| DEFAULT_LISTENER.into(), |a| a.listener.to_string())
}

/// Takes a request apart: how it arrived, and what it asks for.
fn open<T>(core: &Core, request: Request<T>, wait: Duration) -> (CallContext, T) {
    let timeout = deadline::timeout(request.metadata(), core.limits(), wait);
    let context = CallContext::new(&listener(&request), timeout);
    (context, request.into_inner())
}

/// Writes a result for the client.
fn answer<T>(
    core: &Core,
    context: &CallContext,
    result: Result<T, Failure>,
) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|failure| {
        let state = core.controller();
        failure.into_status(|node| state.client_address(node, &context.listener))
    })
}

macro_rules! method {
    ($core:expr, $request:expr, $method:ident) => {
        method!($core, $request, $method, Duration::ZERO)
    };
    ($core:expr, $request:expr, $method:ident, $wait:expr) => {{
        let (context, request) = open(&$core, $request, $wait);
        let result = $core.$method(request, &context).await;
        answer(&$core, &context, result)
    }};
}

#[tonic::async_trait]
impl LogService for Log {
    async fn send(
        &self,
        request: Request<v1::SendRequest>,
    ) -> Result<Response<v1::SendResponse>, Status> {
        method!(self.0, request, send)
    }

    async fn poll(
        &self,
        request: Request<v1::PollRequest>,
    ) -> Result<Response<v1::PollResponse>, Status> {
        let wait = Duration::from_millis(u64::from(request.get_ref().max_wait_ms));
        method!(self.0, request, poll, wait)
    }

    async fn get_offsets(
        &self,
        request: Request<v1::GetOffsetsRequest>,
    ) -> Result<Response<v1::GetOffsetsResponse>, Status> {
        method!(self.0, request, get_offsets)
    }

    async fn send_text(
        &self,
        request: Request<v1::SendTextRequest>,
    ) -> Result<Response<v1::SendResponse>, Status> {
        method!(self.0, request, send_text)
    }

    async fn poll_text(
        &self,
        request: Request<v1::PollTextRequest>,
    ) -> Result<Response<v1::PollTextResponse>, Status> {
        let wait = Duration::from_millis(u64::from(request.get_ref().max_wait_ms));
        method!(self.0, request, poll_text, wait)
    }
}

/// Creating a topic and comparing replicas take longer than other calls.
const LONG: Duration = Duration::from_secs(25);

#[tonic::async_trait]
impl AdminService for Admin {
    async fn create_topic(
        &self,
        request: Request<v1::CreateTopicRequest>,
    ) -> Result<Response<v1::CreateTopicResponse>, Status> {
        method!(self.0, request, create_topic, LONG)
    }

    async fn get_topic(
        &self,
        request: Request<v1::GetTopicRequest>,
    ) -> Result<Response<v1::GetTopicResponse>, Status> {
        method!(self.0, request, get_topic)
    }

    async fn list_topics(
        &self,
        request: Request<v1::ListTopicsRequest>,
    ) -> Result<Response<v1::ListTopicsResponse>, Status> {
        method!(self.0, request, list_topics)
    }

    async fn update_topic(
        &self,
        request: Request<v1::UpdateTopicRequest>,
    ) -> Result<Response<v1::UpdateTopicResponse>, Status> {
        method!(self.0, request, update_topic)
    }

    async fn trim_partition(
        &self,
        request: Request<v1::TrimPartitionRequest>,
    ) -> Result<Response<v1::TrimPartitionResponse>, Status> {
        method!(self.0, request, trim_partition)
    }

    async fn trim_topic(
        &self,
        request: Request<v1::TrimTopicRequest>,
    ) -> Result<Response<v1::TrimTopicResponse>, Status> {
        method!(self.0, request, trim_topic)
    }

    async fn delete_topic(
        &self,
        request: Request<v1::DeleteTopicRequest>,
    ) -> Result<Response<v1::DeleteTopicResponse>, Status> {
        method!(self.0, request, delete_topic)
    }

    async fn describe_partitions(
        &self,
        request: Request<v1::DescribePartitionsRequest>,
    ) -> Result<Response<v1::DescribePartitionsResponse>, Status> {
        method!(self.0, request, describe_partitions)
    }

    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        Ok(Response::new(self.0.status(&listener(&request))))
    }

    async fn get_limits(
        &self,
        _request: Request<v1::GetLimitsRequest>,
    ) -> Result<Response<v1::GetLimitsResponse>, Status> {
        Ok(Response::new(self.0.get_limits()))
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<v1::VerifyResponse>, Status> {
        method!(self.0, request, verify, LONG)
    }
}
