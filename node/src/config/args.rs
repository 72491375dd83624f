//! The flags of `imprint serve`. Values stay text: they are judged together with the file's and the
//! environment's, so that one message form serves all three.

use std::path::PathBuf;

/// Flags of `imprint serve`; each beats its environment variable, which beats the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServeArgs {
    /// TOML configuration file [env: IMPRINT_CONFIG]
    #[arg(long, short = 'c', value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the effective configuration with the origin of each value, and exit
    #[arg(long)]
    pub print_config: bool,

    /// Number of this node, unique in the cluster [env: IMPRINT_NODE_ID]
    #[arg(long, value_name = "N")]
    pub node_id: Option<String>,

    /// Directory of everything this node stores [env: IMPRINT_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,

    /// Internal addresses of the nodes that form the cluster [env: IMPRINT_SEEDS]
    #[arg(long, value_name = "HOST:PORT,...")]
    pub seeds: Option<String>,

    /// Where gRPC clients are accepted [env: IMPRINT_LISTEN_CLIENT]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen_client: Option<String>,

    /// Where other nodes are accepted [env: IMPRINT_LISTEN_PEER]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen_peer: Option<String>,

    /// Where metrics and health are served [env: IMPRINT_LISTEN_HTTP]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen_http: Option<String>,

    /// The address that clients are told to use [env: IMPRINT_ADVERTISE_CLIENT]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise_client: Option<String>,

    /// The address that other nodes use [env: IMPRINT_ADVERTISE_PEER]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise_peer: Option<String>,

    /// One more client listener, may be repeated [env: IMPRINT_LISTENERS]
    #[arg(long, value_name = "NAME=LISTEN@ADVERTISE")]
    pub listener: Vec<String>,

    /// Form of the log lines: text or json [env: IMPRINT_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,

    /// error, warn, info, debug, trace, or directives [env: IMPRINT_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,

    /// Any other configuration key, may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ServeArgs {
    /// The flags that were given and stand for a key.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("node_id", &self.node_id),
            ("data_dir", &self.data_dir),
            ("seeds", &self.seeds),
            ("listen.client", &self.listen_client),
            ("listen.peer", &self.listen_peer),
            ("listen.http", &self.listen_http),
            ("advertise.client", &self.advertise_client),
            ("advertise.peer", &self.advertise_peer),
            ("log_format", &self.log_format),
            ("log_level", &self.log_level),
        ]
        .into_iter()
        .filter_map(|(path, value)| value.as_deref().map(|value| (path, value)))
    }
}
