//! Clusters of real processes, broken on purpose, and the checks that must hold afterwards.
//!
//! `cluster` starts and kills nodes, `proxy` cuts the links between them, `audit` asks every node for
//! everything and holds it against the `ledger` of what was acknowledged, `disk` compares the segment
//! files themselves, `hold` does all of it. The simulated cluster is a binary of its own (`src/bin/sim`).

#![allow(
    clippy::disallowed_methods,
    reason = "these tests live in the real world"
)]

pub mod audit;
pub mod cluster;
pub mod disk;
pub mod fixture;
pub mod hold;
pub mod ledger;
pub mod load;
pub mod proxy;
pub mod readers;
pub mod tamper;
