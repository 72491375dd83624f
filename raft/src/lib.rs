//! Journal, state log, and what Raft needs of disks, clocks and networks.

pub mod disk;
pub mod journal;
pub mod seams;
pub mod statelog;
