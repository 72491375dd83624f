//! One call between nodes for everything that a node doesn't own: `forward`.
//!
//! ```text
//! caller ─▶ service ─▶ route ─┬─▶ local handler
//!                             └─▶ ForwardRequest ─ peer ─▶ the same handler there
//! ```
//!
//! The envelope names an operation, carries its body (a protobuf message of the public contract or
//! an envelope of [`ops`]), the caller's listener name, the time left, and how many hops it may
//! still take. A node that can't serve says so with `NOT_LEADER` and a hint rather than forwarding
//! again, except once: hops are bounded by [`MAX_HOPS`].
//!
//! Whether a failed forward may be repeated is decided by [`crate::failure::Failure`]: a call that
//! surely never left this node may, one without an answer may not, unless it only reads.

pub mod ops;
pub(crate) mod wire;

pub use wire::{ForwardReply, ForwardRequest, WireError, encode_request};

use std::time::Duration;
use tokio::time::Instant;

/// How often a call may be passed on.
pub const MAX_HOPS: u8 = 2;

/// What a handler knows about the call beside its request.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// Name of the listener that the client came in on.
    pub listener: String,
    pub deadline: Instant,
    /// How often it may still be passed on.
    pub hops_left: u8,
}

impl CallContext {
    pub fn new(listener: &str, timeout: Duration) -> Self {
        Self {
            listener: listener.to_string(),
            deadline: Instant::now() + timeout,
            hops_left: MAX_HOPS,
        }
    }

    /// Time left until the deadline.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}
