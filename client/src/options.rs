//! What a caller may choose about a client, with the defaults and why they are so.

use crate::ambient::{Ambient, SystemAmbient};
use std::sync::Arc;
use std::time::Duration;

/// What `send` does when an attempt ended without an answer, so that the batch may or may not be in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetryUnknown {
    /// Give the caller the error, with outcome [`Outcome::Unknown`](crate::Outcome::Unknown). At most once.
    #[default]
    No,
    /// Send again until the deadline. At least once: the batch may end up in the log several times,
    /// since each attempt that was lost may have been stored.
    Yes,
    /// Send again until the deadline, each attempt bound to one offset, so that at most one is stored.
    /// A producer sees to the offsets itself; in a single `send` this needs an expected offset, and is
    /// like `No` without one. Meant for a partition's only writer: writers that share one refuse each
    /// other and go round again.
    Guarded,
}

/// Settings of a [`Client`](crate::Client).
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Longest time for one call, over all its attempts. Default 10 s.
    pub deadline: Duration,
    /// Longest time for one attempt at one server before another one is tried; a long poll's wait is
    /// added to it. Default 3 s: longer than an election, shorter than a caller's patience.
    pub attempt_timeout: Duration,
    /// Longest time for a connection to come about. Default 1 s.
    pub connect_timeout: Duration,
    /// First pause after all servers were tried; it doubles per round, with jitter of half of it. Default 25 ms.
    pub backoff_first: Duration,
    /// Longest such pause. Default 1 s.
    pub backoff_max: Duration,
    /// Silence on a connection with calls under way after which it is probed. Default 5 s.
    pub keepalive_interval: Duration,
    /// Time for the answer to a probe before the connection counts as dead. Default 3 s.
    pub keepalive_timeout: Duration,
    /// Largest message accepted from a server, in bytes. Default 80 MiB: the largest settable batch
    /// (64 MiB) with room around it.
    pub max_message_bytes: usize,
    /// Randomness and wall clock.
    pub ambient: Arc<dyn Ambient>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            deadline: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            backoff_first: Duration::from_millis(25),
            backoff_max: Duration::from_secs(1),
            keepalive_interval: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(3),
            max_message_bytes: 80 << 20,
            ambient: Arc::new(SystemAmbient),
        }
    }
}
