//! The command line.
//!
//! * stdout is data, stderr is talk. Nothing but what was asked for goes to stdout, and nothing that
//!   moves goes to a stderr that is not a terminal.
//! * The exit status says what happened ([`exit::ExitStatus`]); an error is one line with the stable
//!   reason, followed by a hint where there is one.
//! * A reader that goes away (`| head`) ends a command quietly.
//!
//! What this module must not know: anything of a node's inside. `serve` and `dev` are handed their
//! arguments; `log` looks at files through `imprint_raft::offline`; every other command is a client like
//! any other and uses `imprint_client` alone.

#![allow(
    clippy::disallowed_methods,
    reason = "a command line lives in the real world"
)]

mod args;
mod bench;
mod cluster;
mod confirm;
mod consume;
mod context;
mod exit;
mod lines;
mod log;
mod output;
mod produce;
mod template;
mod time;
mod topic;
mod units;
mod verify;

use args::{Cli, Command};
use clap::Parser;
use context::Context;
use exit::CliError;
use std::process::ExitCode;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // Prints by itself and exits with 2 on a usage error, with 0 on --help and --version.
    let cli = Cli::parse();
    match cli.command {
        Command::Serve(args) => crate::serve::run(args),
        Command::Dev(args) => crate::dev::run(args),
        Command::Log(args) => ended(&cli.global, log::run(&cli.global, args)),
        command => run_client(&cli.global, command),
    }
}

/// The exit code, the error said.
fn ended(global: &args::GlobalArgs, result: Result<(), CliError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that goes away ends a command quietly.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            error.report(output::stderr_color(global.no_color));
            error.status().into()
        }
    }
}

fn run_client(global: &args::GlobalArgs, command: Command) -> ExitCode {
    let result = Context::new(global).and_then(|context| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let ended = runtime.block_on(dispatch(&context, command));
        // A read of stdin that never returns must not keep the process.
        runtime.shutdown_background();
        ended
    });
    ended(global, result)
}

async fn dispatch(context: &Context, command: Command) -> Result<(), CliError> {
    match command {
        // These end in good order when interrupted, so they listen for it themselves.
        Command::Produce(args) => produce::run(context, args).await,
        Command::Consume(args) => consume::run(context, args).await,
        Command::Bench(args) => bench::run(context, args).await,
        other => tokio::select! {
            ended = quick(context, other) => ended,
            () = context::interrupted() => Err(CliError::Interrupted),
        },
    }
}

async fn quick(context: &Context, command: Command) -> Result<(), CliError> {
    match command {
        Command::Topic(args) => topic::run(context, args).await,
        Command::Cluster(args) => cluster::run(context, args).await,
        Command::Verify(args) => verify::run(context, args).await,
        Command::Version => output::version(context),
        // Handled before a runtime existed or by `dispatch`.
        Command::Serve(_)
        | Command::Dev(_)
        | Command::Produce(_)
        | Command::Consume(_)
        | Command::Bench(_)
        | Command::Log(_) => Ok(()),
    }
}
