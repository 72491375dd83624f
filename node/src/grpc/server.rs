//! The tonic server: its bounds and windows, and all services on one listener.

use super::{
    accept, health,
    observe::Observe,
    services::{Admin, Log},
};
use crate::{config::Limits, core::Core};
use imprint_proto::v1::{
    FILE_DESCRIPTOR_SET, admin_service_server::AdminServiceServer,
    log_service_server::LogServiceServer,
};
use imprint_raft::seams::Listener;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;

/// Room beside the batch in a message: names, numbers, the field's own header.
const WRAPPER_BYTES: u64 = 64 << 10;
/// What one call may have on its way unread; a batch of the default limit fits in a few of them.
const STREAM_WINDOW: u32 = 1 << 20;
/// What one connection may have on its way unread.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// The largest HTTP/2 frame that we take: fewer, larger frames cost less.
const FRAME_BYTES: u32 = 1 << 20;
const HEADER_LIST_BYTES: u32 = 8 << 10;
/// A silent client is asked for a sign of life this often, and cut when it gives none in time.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// What serving one listener needs; the semaphores are shared by all listeners of a node.
pub struct ServerParts {
    pub core: Arc<Core>,
    pub connections: Arc<Semaphore>,
    pub calls: Arc<Semaphore>,
}

/// Serves one named listener until `stop` completes and the calls in flight have ended.
pub async fn serve(
    parts: ServerParts,
    name: &str,
    listener: Box<dyn Listener>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let limits = parts.core.limits().clone();
    let metrics = Arc::clone(parts.core.metrics());
    let connections = accept::connections(listener, name, parts.connections, Arc::clone(&metrics));
    let (reporter, health) = tonic_health::server::health_reporter();
    let following = tokio::spawn(health::follow(Arc::clone(&parts.core), reporter));
    // Ends with this listener, however that ends.
    let _following = AbortOnDropHandle::new(following);
    let take = message_bytes(limits.max_batch_bytes);
    let give = message_bytes(limits.max_poll_bytes.max(limits.max_batch_bytes));
    let log = LogServiceServer::new(Log(Arc::clone(&parts.core)))
        .max_decoding_message_size(take)
        .max_encoding_message_size(give);
    let admin = AdminServiceServer::new(Admin(Arc::clone(&parts.core)));
    let observe = Observe {
        metrics,
        places: parts.calls,
    };
    let mut server = tuned(&limits)
        .layer(observe)
        .add_service(log)
        .add_service(admin)
        .add_service(health);
    if let (Ok(v1), Ok(v1alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
        server = server.add_service(v1).add_service(v1alpha);
    }
    server.serve_with_incoming_shutdown(connections, stop).await
}

/// A batch over the limit is still read, so that its sender hears which limit it was.
fn message_bytes(batch: u64) -> usize {
    usize::try_from(batch.saturating_mul(2).saturating_add(WRAPPER_BYTES)).unwrap_or(usize::MAX)
}

fn reflection<'a>() -> tonic_reflection::server::Builder<'a> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn tuned(limits: &Limits) -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_concurrent_streams(limits.max_streams)
        .http2_max_header_list_size(HEADER_LIST_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}
