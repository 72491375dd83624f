//! Asks before something is destroyed: on a terminal the person, elsewhere nobody, so that a script
//! has to say `--yes`.

use super::exit::CliError;
use std::io::{self, BufRead, IsTerminal, Write};

/// Passes if `yes` was given or the person agrees.
pub fn confirm(question: &str, yes: bool) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(CliError::Usage(format!(
            "{question} Not on a terminal, so --yes has to say so"
        )));
    }
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if agrees(&answer) {
        Ok(())
    } else {
        Err(CliError::Declined)
    }
}

fn agrees(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_counts() {
        for yes in ["y\n", "Yes", " YES "] {
            assert!(agrees(yes), "{yes}");
        }
        for no in ["", "\n", "n", "yep", "ok"] {
            assert!(!agrees(no), "{no}");
        }
    }
}
