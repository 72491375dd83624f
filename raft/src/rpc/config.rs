//! Limits and times of the transport, each with its reason.

use std::time::Duration;

const MIB: usize = 1024 * 1024;

/// What may be said before a peer is known to belong here.
pub const MAX_HELLO_BYTES: usize = 16 * 1024;

/// What a [`super::PingHook`] may add to one ping or to its answer; more is cut off by leaving it out.
pub const MAX_PING_EXTRA_BYTES: usize = 64 * 1024;

/// Replies above this many bytes are charged to budgets, on both sides; smaller ones are bounded by their number. A
/// method that changes something must answer with less, for a reply that finds no room is lost after the work is done.
pub const REPLY_CHARGED_FROM: usize = 64 * 1024;

/// A peer that moves fewer bytes than these within the stall time-out, in either direction and with more to move, is
/// stalled: 1 KiB/s with the default of 10 s.
pub const STALL_BYTES: usize = 10 * 1024;

/// Settings of the transport, for both directions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcConfig {
    /// Largest payload on the wire, and after decompression, in bytes. Default 80 MiB: a batch of 64 MiB and what is
    /// wrapped around it.
    pub max_frame_bytes: usize,
    /// Payloads below this many bytes are never compressed. Default 1024: less isn't worth the CPU.
    pub compress_min_bytes: usize,
    /// zstd level where a caller asks for compression. Default 1.
    pub compress_level: i32,

    /// Bytes of requests that may be queued and not yet written, per peer, on the bulk connection. Default 80 MiB: one
    /// request of the largest size must fit.
    pub bulk_pool_bytes: usize,
    /// The same for the urgent connection. Default 8 MiB: votes, heartbeats and pings are small.
    pub urgent_pool_bytes: usize,
    /// Calls that may wait for the pool, per connection. Default 1024. One more fails at once.
    pub max_waiting_calls: usize,
    /// Bytes of the calls that wait for the pool, per connection. Default 80 MiB. One more call fails at once.
    pub max_waiting_bytes: usize,
    /// Calls sent and not answered, per connection. Default 1024. Later ones stay queued.
    pub max_in_flight_calls: usize,
    /// Bytes of replies that were received and not yet taken by their callers, per connection. Default 160 MiB: two of
    /// the largest size. A reply above [`REPLY_CHARGED_FROM`] bytes that finds no room is skipped, and its call fails.
    pub max_reply_bytes: usize,
    /// Frames put into one write at most. Default 64.
    pub coalesce_frames: usize,
    /// A write takes no further frame once it has this many bytes. Default 256 KiB.
    pub coalesce_bytes: usize,
    /// Time for dialling and the hello, together. Default 1 s.
    pub connect_timeout: Duration,
    /// Least time between two attempts to connect; doubles with each failure. Default 50 ms.
    pub backoff_min: Duration,
    /// Most time between two attempts to connect. Default 2 s.
    pub backoff_max: Duration,
    /// The same for addresses whose node isn't known yet. Default 200 ms: only formation asks them, and it paces itself.
    pub address_backoff_max: Duration,
    /// A connection without calls is closed after this time. Default 30 s; below the receiver's, so that the caller is
    /// the one who closes.
    pub idle_timeout: Duration,
    /// Connections kept for addresses whose node isn't known yet. Default 32.
    pub max_address_peers: usize,

    /// Bytes of requests in memory on the receiving side, over all bulk connections: from before the body is read until
    /// the reply is written. Default 128 MiB. When they are gone, sockets aren't read.
    pub server_bulk_bytes: usize,
    /// The same over all urgent connections. Default 16 MiB.
    pub server_urgent_bytes: usize,
    /// Bytes of replies that wait to be taken, over all bulk connections. Default 96 MiB: one of the largest size must
    /// fit. A reply above [`REPLY_CHARGED_FROM`] bytes that finds no room becomes a status 503.
    pub server_bulk_reply_bytes: usize,
    /// The same over all urgent connections. Default 16 MiB.
    pub server_urgent_reply_bytes: usize,
    /// What one peer may have of each of the bulk budgets, requests and replies, over all its connections. Default
    /// 88 MiB: one frame of the largest size must fit, and something must be left for the other peers.
    pub server_bulk_peer_bytes: usize,
    /// The same of the urgent budgets. Default 8 MiB: what a caller's urgent pool holds.
    pub server_urgent_peer_bytes: usize,
    /// Requests read and not answered, per connection. Default 256.
    pub server_in_flight_calls: usize,
    /// Connections accepted at a time. Default 256.
    pub max_connections: usize,
    /// Connections that haven't said hello yet, at a time. Default 64. With one more, the one goes that has been silent
    /// for longest: a flood of strangers pushes itself out, while a peer's hello comes within a round trip.
    pub max_greeting_connections: usize,
    /// Connections accepted of one node at a time; the oldest one goes. Default 8.
    pub max_connections_per_peer: usize,
    /// A connection has to say hello within this time. Default 2 s.
    pub hello_timeout: Duration,
    /// A connection that sends nothing for this long is closed. Default 60 s.
    pub server_idle_timeout: Duration,

    /// A half-read frame or a half-done write that moves by less than [`STALL_BYTES`] in this time ends the connection.
    /// Default 10 s.
    pub stall_timeout: Duration,
    /// A connection on which calls wait is asked by a ping if nothing comes back; this long after that was written,
    /// without a byte, it is taken for dead. Default 5 s.
    pub silence_timeout: Duration,
    /// Between two pings of a peer. Default 100 ms.
    pub ping_interval: Duration,
    /// A peer that leaves pings unanswered for this long is dead. Default 1 s.
    pub liveness_timeout: Duration,
}

impl Default for RpcConfig {
    fn default() -> Self {
        RpcConfig {
            max_frame_bytes: 80 * MIB,
            compress_min_bytes: 1024,
            compress_level: 1,
            bulk_pool_bytes: 80 * MIB,
            urgent_pool_bytes: 8 * MIB,
            max_waiting_calls: 1024,
            max_waiting_bytes: 80 * MIB,
            max_in_flight_calls: 1024,
            max_reply_bytes: 160 * MIB,
            coalesce_frames: 64,
            coalesce_bytes: MIB / 4,
            connect_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            address_backoff_max: Duration::from_millis(200),
            idle_timeout: Duration::from_secs(30),
            max_address_peers: 32,
            server_bulk_bytes: 128 * MIB,
            server_urgent_bytes: 16 * MIB,
            server_bulk_reply_bytes: 96 * MIB,
            server_urgent_reply_bytes: 16 * MIB,
            server_bulk_peer_bytes: 88 * MIB,
            server_urgent_peer_bytes: 8 * MIB,
            server_in_flight_calls: 256,
            max_connections: 256,
            max_greeting_connections: 64,
            max_connections_per_peer: 8,
            hello_timeout: Duration::from_secs(2),
            server_idle_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_millis(100),
            liveness_timeout: Duration::from_secs(1),
        }
    }
}

/// A setting that can't work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(&'static str);

impl RpcConfig {
    fn bulk_budgets(&self) -> [usize; 4] {
        [
            self.server_bulk_bytes,
            self.server_bulk_reply_bytes,
            self.server_bulk_peer_bytes,
            self.max_reply_bytes,
        ]
    }

    fn urgent_budgets(&self) -> [usize; 3] {
        [
            self.server_urgent_bytes,
            self.server_urgent_reply_bytes,
            self.server_urgent_peer_bytes,
        ]
    }

    /// Checks the settings against each other. The node does this once, at start.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rules = [
            (
                self.max_frame_bytes >= MAX_HELLO_BYTES
                    && u32::try_from(self.max_frame_bytes).is_ok(),
                "max_frame_bytes must be between 16 KiB and 4 GiB",
            ),
            (
                self.bulk_budgets()
                    .iter()
                    .all(|bytes| *bytes >= self.max_frame_bytes),
                "server_bulk_bytes, server_bulk_reply_bytes, server_bulk_peer_bytes and max_reply_bytes must each hold a \
                 frame of max_frame_bytes",
            ),
            (
                self.bulk_budgets()
                    .iter()
                    .chain(&self.urgent_budgets())
                    .all(|bytes| u32::try_from(*bytes).is_ok()),
                "server budgets and max_reply_bytes must be below 4 GiB",
            ),
            (
                self.max_greeting_connections > 0 && self.max_connections_per_peer > 1,
                "max_greeting_connections must be at least 1, max_connections_per_peer at least 2",
            ),
            (
                self.max_in_flight_calls > 0
                    && self.server_in_flight_calls > 0
                    && self.coalesce_frames > 0,
                "max_in_flight_calls, server_in_flight_calls and coalesce_frames must be at least 1",
            ),
            (
                self.backoff_min > Duration::ZERO && self.backoff_min <= self.backoff_max,
                "backoff_min must be above 0 and not above backoff_max",
            ),
            (
                self.idle_timeout < self.server_idle_timeout,
                "idle_timeout must be below server_idle_timeout",
            ),
            (
                self.ping_interval > Duration::ZERO && self.ping_interval < self.liveness_timeout,
                "ping_interval must be above 0 and below liveness_timeout",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(ConfigError(rule)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_contradictions_do_not() {
        assert_eq!(RpcConfig::default().check(), Ok(()));
        let small = RpcConfig {
            server_bulk_bytes: MIB,
            ..RpcConfig::default()
        };
        assert!(small.check().is_err());
        let slow_ping = RpcConfig {
            ping_interval: Duration::from_secs(2),
            ..RpcConfig::default()
        };
        assert!(slow_ping.check().is_err());
    }
}
