//! Log lines on standard error, as text or as JSON.

use crate::config::{LogConfig, LogFormat};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The consensus library warns of every peer that isn't there yet; what matters of that is said by
/// our own lines. Naming it in the level brings it back, and so does asking for debug or trace.
fn quiet(level: &str) -> String {
    let wanted = level.contains("openraft") || level.contains("debug") || level.contains("trace");
    if wanted {
        level.to_string()
    } else {
        // Whoever still talks to a group that has stopped in good order gets an error line there.
        format!("{level},openraft=error,openraft::raft=off")
    }
}

/// Starts logging for this process. A second call in one process changes nothing.
pub fn start(config: &LogConfig) {
    // The level was checked with the configuration; should it not parse here, "info" is better
    // than silence.
    let filter =
        EnvFilter::try_new(quiet(&config.level)).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match config.format {
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Text => lines
            .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
            .try_init(),
    };
    // Only possible when some logging is there already, as in tests.
    drop(started);
}
