//! The receiver's promise of exactly one reply.

use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::frame::FRAME_HEADER_LEN;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::rpc::hello::error_payload;
use crate::rpc::stats::RpcStats;
use crate::rpc::status;
use crate::rpc::wire::Encoded;

/// What a request holds from before its body is read until its reply is written.
#[derive(Debug)]
pub(crate) struct Hold {
    stats: Arc<RpcStats>,
    bytes: u64,
    _memory: Option<OwnedSemaphorePermit>,
    _in_flight: OwnedSemaphorePermit,
}

impl Hold {
    pub(crate) fn new(
        stats: Arc<RpcStats>,
        memory: Option<OwnedSemaphorePermit>,
        in_flight: OwnedSemaphorePermit,
    ) -> Self {
        let bytes = memory
            .as_ref()
            .map_or(0, |permit| permit.num_permits() as u64);
        stats.server.in_flight.up(1);
        stats.server.memory_bytes.up(bytes);
        Hold {
            stats,
            bytes,
            _memory: memory,
            _in_flight: in_flight,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.stats.server.in_flight.down(1);
        self.stats.server.memory_bytes.down(self.bytes);
    }
}

/// A reply on its way to the socket.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) header: [u8; FRAME_HEADER_LEN],
    pub(crate) parts: Vec<Bytes>,
    pub(crate) hold: Hold,
}

/// Answers one request, once. Dropped without an answer, it answers that the handler failed.
#[derive(Debug)]
pub struct Replier {
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    correlation_id: u32,
    max_bytes: usize,
    hold: Hold,
    /// Unbounded, and yet bounded: each reply in it holds one of the connection's in-flight permits.
    queue: mpsc::UnboundedSender<Reply>,
}

impl Replier {
    pub(crate) fn new(
        correlation_id: u32,
        max_bytes: usize,
        hold: Hold,
        queue: mpsc::UnboundedSender<Reply>,
    ) -> Self {
        Replier {
            open: Some(Open {
                correlation_id,
                max_bytes,
                hold,
                queue,
            }),
        }
    }

    /// Done. The parts are written as they are and never joined.
    pub fn ok(mut self, parts: Vec<Bytes>) {
        let Some(open) = self.open.take() else { return };
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        if bytes > open.max_bytes {
            let limit = open.max_bytes;
            tracing::error!(bytes, limit, "a reply is over the limit");
            return open.error(status::HANDLER_FAILED, "the reply is over the limit");
        }
        open.send(status::OK, parts);
    }

    /// Failed, with a reason for the caller's log.
    pub fn error(mut self, status: u32, reason: &str) {
        if let Some(open) = self.open.take() {
            open.error(status, reason);
        }
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.error(status::HANDLER_FAILED, "the handler gave no answer");
        }
    }
}

impl Open {
    fn error(self, status: u32, reason: &str) {
        self.hold.stats.server.error_replies.one();
        self.send(status, vec![error_payload(reason)]);
    }

    fn send(self, status: u32, parts: Vec<Bytes>) {
        let encoded = Encoded::plain(parts);
        self.hold
            .stats
            .server
            .bytes_sent
            .add(encoded.bytes() as u64);
        let header = encoded.header(status, self.correlation_id);
        // A connection that has ended takes no reply; the caller knows that it ended.
        let _ = self.queue.send(Reply {
            header,
            parts: encoded.parts,
            hold: self.hold,
        });
    }
}
