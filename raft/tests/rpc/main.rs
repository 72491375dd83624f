//! The transport from outside: nodes over a network in memory, raw frames against either side, and TCP on loopback.
//! Time is simulated (but for TCP), so nothing here waits for real.

mod calls;
mod liveness;
mod raw_client;
mod raw_server;
mod refusal;
mod support;
mod tcp;
