//! The Imprint node: what stands between a client's call and the replicated log.
//!
//! A call comes in on a named client listener (`services`), is checked at one gateway, and is then
//! either served by a replica on this node or forwarded once to the node that can (`forward`).
//! What exists (nodes, topics, partitions, replicas) is the applied state of the `controller`;
//! the `reconciler` opens and drops the partition groups that the state gives to this node.
//! `node::Node` ties these together and is the same in `serve`, in `dev` and in a simulation;
//! nothing here is global.
//!
//! This crate knows no file format, no openraft type and no internal frame: those are behind
//! `backend`.

pub mod backend;
pub mod cli;
pub mod config;
pub mod controller;
pub mod core;
pub mod dev;
#[doc(hidden)]
pub mod envelopes;
pub mod failure;
pub mod file_limit;
pub mod formation;
pub mod forward;
pub mod grpc;
pub mod http;
mod logging;
pub mod metrics;
pub mod node;
pub mod permits;
pub mod reconciler;
pub mod retention;
pub mod room;
pub mod serve;
