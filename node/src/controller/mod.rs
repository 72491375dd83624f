//! What exists in the cluster: nodes, topics, partitions and their replica sets.
//!
//! This is the state machine of Raft group 0. A command is a checksummed envelope in one frame of a
//! batch; applying it is a plain function of state and command ([`ControllerState::apply`]), equal
//! on every node whatever its clock or its version of the same command. Its answer travels back to
//! the proposer as an envelope too.
//!
//! Invariants:
//! * A partition id and a replica id are given out once, from counters that only rise. So a group
//!   whose id is below the partition counter and in no topic was deleted, for good: that is what the
//!   reconciler may rely on, also while a restarted node is still replaying.
//! * A node id belongs to one storage id for life.
//! * A refused command changes nothing.
//!
//! This module knows no file, no socket and no openraft; it never reads a clock or a random number.

pub(crate) mod command;
mod machine;
mod place;
pub(crate) mod records;
mod setting_values;
pub mod settings;
mod state;

pub use command::{Answer, Command, CommandError, CreateTopic, UpdateTopic, Verdict, batch_for};
pub use machine::ControllerMachine;
pub use records::{NodeRecord, PartitionRecord, ReplicaRecord, TopicRecord};
pub use state::ControllerState;

#[cfg(test)]
mod tests;
