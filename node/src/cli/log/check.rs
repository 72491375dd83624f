//! `imprint log check`.

use super::super::args::GlobalArgs;
use super::super::exit::CliError;
use super::args::CheckArgs;
use super::directory::{self, Directory};

/// Looks, shows, and fails if anything is damaged.
pub fn run(global: &GlobalArgs, args: &CheckArgs) -> Result<(), CliError> {
    let dir = Directory::open(&args.dir, args.while_running)?;
    let report = dir.check(args.quick)?;
    directory::show(global.output, &dir.place, &report, args.all)?;
    directory::verdict(&dir.place, &report)
}
