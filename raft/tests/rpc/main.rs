//! The transport from outside: nodes over a network in memory, raw frames against either side, and TCP on loopback.
//! Time is simulated (but for TCP), so nothing here waits for real.

mod backoff;
mod calls;
mod dead_links;
mod flood;
mod golden;
mod liveness;
mod phases;
mod raw_client;
mod raw_server;
mod refusal;
mod replies;
mod shares;
mod support;
mod tcp;
mod wrap;
