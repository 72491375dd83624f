//! `imprint log`: looks at the files of a node, checks them, repairs what can be repaired without a cluster.
//!
//! These commands talk to nobody. What the bytes mean is known by `imprint_raft::offline`; here it is shown, and here the
//! operator is asked. The formation record alone is decoded here, since the node defines it.

mod args;
mod check;
mod directory;
mod inspect;
mod repair;
mod show;

pub use args::LogArgs;

use super::args::GlobalArgs;
use super::exit::CliError;
use args::LogCommand;

/// Runs one of the commands.
pub fn run(global: &GlobalArgs, args: LogArgs) -> Result<(), CliError> {
    match args.command {
        LogCommand::Inspect(args) => inspect::run(global, &args),
        LogCommand::Check(args) => check::run(global, &args),
        LogCommand::Repair(args) => repair::run(global, &args),
    }
}
