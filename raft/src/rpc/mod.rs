//! Versioned bytes between nodes: the transport under Raft and the controller.
//!
//! A node has a [`PeerTable`] for calling and an [`RpcServer`] for being called. A call is a method id of [`methods`] and
//! a payload; what is in the payload is its method's affair, but for the hello and the ping, which belong to the
//! transport.
//!
//! Rules:
//!
//! * Calls to a peer leave in the order in which they were begun, per [`Class`], and are dispatched there in that order.
//!   Replies come in any order.
//! * Every queue and map has a bound in calls or bytes ([`RpcConfig`] names them), and whoever is refused hears it at
//!   once. A slow peer costs its pool and no more.
//! * A call ends by its time-out, whatever the network does, and says which part of the way it died on.
//! * `Bytes` are frozen before they are shared: a request's parts go into the socket without being joined, a received
//!   payload is one allocation, and slices of it are handed on.
//! * Bytes that contradict their checksums end the connection; a peer of another frame version is told so.
//! * All time comes from tokio's clock and all I/O through [`crate::seams::Net`], so that it runs in simulated time.
//!
//! What the transport must not know: Raft, groups, topics, and the bytes of any method but its own two. It does not
//! authenticate: checksums protect against damage, not against intent.

mod client;
mod config;
mod error;
pub mod hello;
pub(crate) mod liveness;
pub mod methods;
mod notices;
mod server;
pub mod stats;
pub mod status;
mod table;
mod wire;
mod write;

pub use client::{CallOptions, Class, Payload, PeerAddress, RpcPeer};
pub use config::{
    ConfigError, MAX_HELLO_BYTES, MAX_PING_EXTRA_BYTES, REPLY_CHARGED_FROM, RpcConfig, STALL_BYTES,
};
pub use error::{Phase, RpcError};
pub use hello::{Hello, HelloCheck, HelloSource, Refusal};
pub use liveness::{PeerEvent, PeerEvents, PingHook};
pub use server::{ConnInfo, Dispatcher, Replier, RpcServer};
pub use stats::RpcStats;
pub use table::{PeerTable, TableParts};
