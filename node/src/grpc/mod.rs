//! The gRPC side: connections from named listeners, the services, health and reflection.
//!
//! Nothing is decided here but how a call arrives (deadline, listener) and how its failure is
//! written; [`crate::core`] does the work.

mod accept;
mod deadline;
mod health;
mod observe;
mod server;
mod services;

pub use accept::{Arrival, ClientStream};
pub use server::{ServerParts, serve};
