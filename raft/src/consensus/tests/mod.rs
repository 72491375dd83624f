//! Groups of real replicas: real files, real sockets on the loopback, real openraft.

mod cluster;
mod conformance;
mod durability;
mod power;
mod repair;
mod replication;
mod snapshots;
mod states;
mod suspect;
mod trims;
