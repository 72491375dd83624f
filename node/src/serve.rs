//! `imprint serve`: one node as a process of its own.

pub use crate::config::ServeArgs;
use std::process::ExitCode;

/// Runs a node until it is asked to stop. Blocking; builds its own runtime, so it must be called
/// outside of one.
pub fn run(_args: ServeArgs) -> ExitCode {
    ExitCode::FAILURE
}
