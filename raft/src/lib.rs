//! Journal, state log, and what Raft needs of disks, clocks and networks.

pub mod consensus;
pub mod disk;
#[doc(hidden)]
pub mod envelopes;
pub mod identity;
pub mod journal;
pub mod meta;
pub mod offline;
pub mod quarantine;
pub mod rpc;
pub mod seams;
pub mod statelog;
