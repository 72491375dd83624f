//! Raft over segments: openraft's storage, state machine and network on top of the journal and the
//! internal RPC, and the registry of all groups of a node.
//!
//! One [`Group`] is one replica of one Raft group. The way of a batch through it:
//!
//! ```text
//! propose ─▶ openraft core ─▶ store::append (stamps) ─▶ journal ─▶ log reader ─▶ network ─▶ peers
//!                                                          └─▶ log reader ─▶ machine::apply ─▶ reply
//! ```
//!
//! Invariants:
//! * Only stamped batches leave the store: what followers receive and what the state machine sees
//!   was read back through the journal.
//! * A replica id is given out once and never reused; the node is only where the replica lives.
//! * A group never talks to its own node over the network.
//!
//! This module must not know gRPC, topics, or how a segment looks on disk.

mod bootstrap;
mod catchup;
pub(crate) mod codec;
mod dispatch;
mod fitness;
mod group;
mod groups;
mod inbound;
mod keeper;
mod machine;
mod network;
mod quiesce;
pub(crate) mod repair;
mod runtime;
mod scrub;
pub(crate) mod snapshot;
mod store;
pub(crate) mod suspect;
pub(crate) mod types;

#[cfg(test)]
mod tests;

pub use dispatch::RaftDispatcher;
pub use group::{Group, LinearizeError, ProposeError, Proposed};
pub use groups::{GroupSpec, Groups, GroupsConfig, OpenGroupError};
pub use machine::{Machine, NoMachine};
pub use repair::{DownGroup, RepairCounts};
pub use runtime::seed_this_thread;
pub use scrub::ScrubConfig;
pub use types::ReplicaNode;
