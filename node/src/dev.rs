//! `imprint dev`: a whole cluster on loopback in one process.

use std::{path::PathBuf, process::ExitCode};

/// Flags of `imprint dev`.
#[derive(Debug, Clone, clap::Args)]
pub struct DevArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub nodes: u16,
    /// Directory to keep the data in; without it a temporary one that is removed at the end
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Choose free ports instead of 7460, 7470, 7480
    #[arg(long)]
    pub ephemeral: bool,
    /// error, warn, info, debug, trace, or directives
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: String,
}

/// Runs a cluster until it is asked to stop. Blocking; builds its own runtime, so it must be called
/// outside of one.
pub fn run(_args: DevArgs) -> ExitCode {
    ExitCode::FAILURE
}
