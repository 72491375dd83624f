//! What every client command starts from: the client, the form of the output, the time it may take.

use super::args::{Format, GlobalArgs};
use super::exit::CliError;
use imprint_client::{Admin, Client, ClientOptions};
use std::time::Duration;

/// Made once from the global flags.
#[derive(Debug)]
pub struct Context {
    /// The cluster.
    pub client: Client,
    /// Form of the output.
    pub format: Format,
    /// What `--timeout` said.
    pub timeout: Option<Duration>,
    /// Whether colour was refused.
    pub no_color: bool,
}

impl Context {
    /// Checks the servers' addresses; dials nothing.
    pub fn new(global: &GlobalArgs) -> Result<Context, CliError> {
        let mut options = ClientOptions::default();
        if let Some(timeout) = global.timeout {
            options.deadline = timeout;
            options.connect_timeout = options.connect_timeout.min(timeout);
        }
        Ok(Context {
            client: Client::connect(&global.server, options)?,
            format: global.output,
            timeout: global.timeout,
            no_color: global.no_color,
        })
    }

    /// The administrative calls.
    pub fn admin(&self) -> Admin {
        self.client.admin()
    }

    /// Refuses YAML where records stream.
    pub fn streaming_format(&self) -> Result<Format, CliError> {
        match self.format {
            Format::Yaml => Err(CliError::Usage(
                "this command streams: -o table or -o json".to_owned(),
            )),
            format => Ok(format),
        }
    }
}

/// Ends at Ctrl-C. Where the signal can't be listened for, it ends the process as usual, and this never ends.
pub async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
