//! Why a call failed, and what the caller may conclude from it.

use std::fmt;
use std::time::Duration;

/// The part of a call's way on which it spent its last moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Waiting for bytes of the pool. Nothing has been sent.
    Memory,
    /// Waiting for its turn, or for a connection. Nothing has been sent.
    Dispatch,
    /// Being written to the socket.
    Write,
    /// Written, waiting for the flush.
    Flush,
    /// Waiting for the peer's reply.
    Reply,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Phase; 5] = [
        Phase::Memory,
        Phase::Dispatch,
        Phase::Write,
        Phase::Flush,
        Phase::Reply,
    ];

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Memory => "memory",
            Phase::Dispatch => "dispatch",
            Phase::Write => "write",
            Phase::Flush => "flush",
            Phase::Reply => "reply",
        }
    }

    /// Whether the request was still here: the network isn't to blame and the peer hasn't seen it.
    pub fn is_local(self) -> bool {
        matches!(self, Phase::Memory | Phase::Dispatch)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The time ran out.
    #[error("{method} to {peer} timed out after {timeout:?} in phase {phase}")]
    Timeout {
        peer: String,
        method: &'static str,
        timeout: Duration,
        phase: Phase,
    },
    /// No connection; nothing was sent. Also while the next attempt is held back.
    #[error("{peer} can't be reached: {reason}")]
    Unreachable { peer: String, reason: String },
    /// One of the two sides doesn't accept the other; nothing was sent.
    #[error("{peer} refused: {reason}")]
    Refused { peer: String, reason: String },
    /// The connection ended with the call on it.
    #[error("the connection to {peer} ended: {reason}")]
    Disconnected { peer: String, reason: String },
    /// The peer answered with an error.
    #[error("{peer} answered {method} with {status}: {reason}")]
    Remote {
        peer: String,
        method: &'static str,
        status: u32,
        reason: String,
    },
    /// The peer speaks another version of the frame.
    #[error("{peer} speaks version {theirs} of the internal protocol")]
    Version { peer: String, theirs: u8 },
    /// The request can never be sent.
    #[error("a request of {bytes} bytes to {peer} is over the limit of {limit}")]
    TooLarge {
        peer: String,
        bytes: usize,
        limit: usize,
    },
    /// Too many calls wait for the pool already; nothing was sent.
    #[error(
        "too many calls to {peer} wait to be sent: {waiting_calls} calls, {waiting_bytes} bytes"
    )]
    Overloaded {
        peer: String,
        waiting_calls: usize,
        waiting_bytes: usize,
    },
    /// The peer answered, but this node had no room for the answer: callers hold too many that they haven't taken.
    #[error(
        "the reply of {peer} to {method}, {bytes} bytes, found no room: {held} of {limit} are held"
    )]
    ReplyDropped {
        peer: String,
        method: &'static str,
        bytes: u64,
        held: usize,
        limit: usize,
    },
    /// zstd failed; nothing was sent.
    #[error("a request to {peer} could not be compressed: {reason}")]
    Compression { peer: String, reason: String },
    /// The peer was removed, or the table closed.
    #[error("the transport to {peer} is closed")]
    Closed { peer: String },
}

impl RpcError {
    /// Whether the peer may have acted on the request though it failed here.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            RpcError::Timeout { phase, .. } => !phase.is_local(),
            // The peer's handler may have failed half-way, or done all of it.
            RpcError::Disconnected { .. } | RpcError::ReplyDropped { .. } => true,
            RpcError::Remote { status, .. } => {
                matches!(
                    *status,
                    super::status::HANDLER_FAILED | super::status::TIMED_OUT
                )
            }
            _ => false,
        }
    }

    /// Whether the same request may succeed later without anybody changing anything.
    pub fn is_retriable(&self) -> bool {
        match self {
            RpcError::Timeout { .. }
            | RpcError::Unreachable { .. }
            | RpcError::Disconnected { .. }
            | RpcError::ReplyDropped { .. }
            | RpcError::Overloaded { .. } => true,
            // A stranger stays one until an operator acts.
            RpcError::Refused { .. } | RpcError::Version { .. } => false,
            RpcError::Remote { status, .. } => {
                matches!(*status, super::status::NOT_READY | super::status::TIMED_OUT)
            }
            RpcError::TooLarge { .. } | RpcError::Compression { .. } | RpcError::Closed { .. } => {
                false
            }
        }
    }
}
