//! Journal, state log, and what Raft needs of disks, clocks and networks.

pub mod disk;
pub mod identity;
pub mod journal;
pub mod meta;
pub mod seams;
pub mod statelog;
