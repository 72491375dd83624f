//! Groups of real replicas: real files, real sockets on the loopback, real openraft.

mod cluster;
mod conformance;
mod durability;
mod replication;
mod suspect;
