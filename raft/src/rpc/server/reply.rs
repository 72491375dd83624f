//! The receiver's promise of exactly one reply.

use std::sync::Arc;

use bytes::Bytes;
use imprint_proto::frame::FRAME_HEADER_LEN;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::budget::{self, Allowance};
use crate::rpc::config::REPLY_CHARGED_FROM;
use crate::rpc::hello::error_payload;
use crate::rpc::stats::{RpcStats, ServedStats};
use crate::rpc::status;
use crate::rpc::wire::Encoded;

/// What a request holds from before its body is read until its reply is written.
#[derive(Debug)]
pub(crate) struct Hold {
    stats: Arc<RpcStats>,
    memory: Option<budget::Bytes>,
    reply: ReplyHold,
    _in_flight: OwnedSemaphorePermit,
}

/// What its reply holds until it is written.
#[derive(Debug, Default)]
struct ReplyHold {
    bytes: u64,
    _charged: Option<budget::Bytes>,
}

impl Hold {
    pub(crate) fn new(
        stats: Arc<RpcStats>,
        memory: Option<budget::Bytes>,
        in_flight: OwnedSemaphorePermit,
    ) -> Self {
        stats.server.in_flight.up(1);
        stats.server.memory_bytes.up(held(memory.as_ref()));
        Hold {
            stats,
            memory,
            reply: ReplyHold::default(),
            _in_flight: in_flight,
        }
    }
}

fn held(memory: Option<&budget::Bytes>) -> u64 {
    memory.map_or(0, budget::Bytes::count)
}

impl Drop for Hold {
    fn drop(&mut self) {
        let stats = &self.stats.server;
        stats.in_flight.down(1);
        stats.memory_bytes.down(held(self.memory.as_ref()));
        stats.reply_bytes.down(self.reply.bytes);
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
    /// Boxed, as it is handed from queue to queue.
    open: Option<Box<Open>>,
}

#[derive(Debug)]
struct Open {
    request: Answering,
    hold: Hold,
    room: Arc<Allowance>,
    /// Unbounded, and yet bounded: each reply in it holds one of the connection's in-flight permits, and its bytes if
    /// they are many.
    queue: mpsc::UnboundedSender<Reply>,
}

/// Which request is answered.
#[derive(Debug)]
pub(crate) struct Answering {
    pub(crate) method: u32,
    pub(crate) correlation_id: u32,
    pub(crate) begun: Instant,
}

impl Replier {
    pub(crate) fn new(
        request: Answering,
        hold: Hold,
        room: Arc<Allowance>,
        queue: mpsc::UnboundedSender<Reply>,
    ) -> Self {
        Replier {
            open: Some(Box::new(Open {
                request,
                hold,
                room,
                queue,
            })),
        }
    }

    /// Done. The parts are written as they are and never joined.
    ///
    /// A reply above [`REPLY_CHARGED_FROM`] bytes needs room; if there is none, the caller gets a status 503 instead. So a
    /// request that changes something must be answered with less.
    pub fn ok(mut self, parts: Vec<Bytes>) {
        if let Some(open) = self.open.take() {
            open.ok(parts);
        }
    }

    /// Failed, with a reason for the caller's log.
    pub fn error(mut self, status: u32, reason: &str) {
        if let Some(open) = self.open.take() {
            open.error(status, reason);
        }
    }

    /// Whether the connection still lives, on which the answer would go: if not, the work can be left undone.
    pub fn is_wanted(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| !open.queue.is_closed())
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
    fn served(&self) -> &ServedStats {
        self.hold.stats.server.method(self.request.method)
    }

    fn ok(mut self, parts: Vec<Bytes>) {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        match self.charge(bytes) {
            Ok(()) => self.send(status::OK, parts),
            Err((status, reason)) => {
                // What there is no room for goes first.
                drop(parts);
                self.error(status, &reason);
            }
        }
    }

    /// Gets room for a reply, or says which error is sent instead.
    fn charge(&mut self, bytes: usize) -> Result<(), (u32, String)> {
        if bytes > self.room.largest_payload() {
            let reason = format!(
                "the reply of {bytes} bytes is over the limit of {}",
                self.room.largest_payload()
            );
            tracing::error!(method = self.request.method, reason, "a handler's fault");
            return Err((status::HANDLER_FAILED, reason));
        }
        if bytes > REPLY_CHARGED_FROM {
            let charged = self.room.try_take(bytes).map_err(|reason| {
                self.hold.stats.server.refused_replies.one();
                (status::NOT_READY, reason)
            })?;
            self.hold.reply._charged = Some(charged);
        }
        self.hold.reply.bytes = bytes as u64;
        self.hold.stats.server.reply_bytes.up(bytes as u64);
        Ok(())
    }

    fn error(self, status: u32, reason: &str) {
        self.hold.stats.server.error_replies.one();
        self.served().errors.one();
        self.send(status, vec![error_payload(reason)]);
    }

    fn send(self, status: u32, parts: Vec<Bytes>) {
        self.served()
            .handling_us
            .add_duration(self.request.begun.elapsed());
        let encoded = Encoded::plain(parts);
        self.hold
            .stats
            .server
            .bytes_sent
            .add(encoded.bytes() as u64);
        let header = encoded.header(status, self.request.correlation_id);
        // A connection that has ended takes no reply; the caller knows that it ended.
        let _ = self.queue.send(Reply {
            header,
            parts: encoded.parts,
            hold: self.hold,
        });
    }
}
