//! The `imprint` binary: server and command line in one. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    imprint_node::cli::main()
}
