//! What the client takes from its surroundings besides the network: randomness and the wall clock.
//!
//! Nothing else in this crate asks the machine for either, so a simulation that supplies its own
//! [`Ambient`] sees the same message ids, the same back-off and the same producer times on each run
//! of a seed. Waiting is tokio's, whose clock a simulation controls by itself.

#![allow(clippy::disallowed_methods, reason = "a seam")]

use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};

/// Source of randomness (message ids, jitter, the first server to try) and of producer time.
pub trait Ambient: Debug + Send + Sync + 'static {
    /// A uniformly distributed value.
    fn random_u64(&self) -> u64;

    /// Microseconds since the Unix epoch.
    fn wall_micros(&self) -> u64;
}

/// The machine's generator and clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemAmbient;

impl Ambient for SystemAmbient {
    fn random_u64(&self) -> u64 {
        rand::random()
    }

    fn wall_micros(&self) -> u64 {
        // A clock before 1970 reads as 0: the server stamps its own time, this one only informs.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| {
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
            })
    }
}
