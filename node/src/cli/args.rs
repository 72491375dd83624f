//! The shape of the command line: every command, flag, default and environment variable.

use super::time::{StartAt, TrimBefore};
use super::units;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Imprint, a replicated message log: server and command line.
#[derive(Debug, Parser)]
#[command(
    name = "imprint",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(
    after_help = "Exit status: 0 all done, 1 failed, 2 usage, 3 not found, 4 unavailable or timed out, \
    5 verification found a fault, 130 interrupted."
)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that every client command takes, before or after its name.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Connection and output")]
pub struct GlobalArgs {
    /// Servers of the cluster; one that answers is enough
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT,...",
        env = "IMPRINT_SERVER",
        default_value = "127.0.0.1:7460",
        value_delimiter = ','
    )]
    pub server: Vec<String>,
    /// Longest time for each call over all its attempts, such as 500ms, 3s, 1m; a plain number is
    /// seconds. For `wait-ready`, of the whole command [default: 10s; wait-ready 60s]
    #[arg(long, global = true, value_name = "TIME", env = "IMPRINT_TIMEOUT", value_parser = units::duration)]
    pub timeout: Option<Duration>,
    /// Form of the output
    #[arg(
        long,
        short = 'o',
        global = true,
        value_name = "FORMAT",
        env = "IMPRINT_OUTPUT",
        value_enum,
        default_value_t = Format::Table
    )]
    pub output: Format,
    /// Never use colour; it is used on a terminal only, and not if NO_COLOR is set
    #[arg(long, global = true)]
    pub no_color: bool,
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people; `consume` writes the payloads
    Table,
    /// One JSON document; where it streams, one object a line
    Json,
    /// YAML; not for commands that stream
    Yaml,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node
    Serve(crate::serve::ServeArgs),
    /// Run a whole cluster on loopback in one process
    Dev(crate::dev::DevArgs),
    /// Create, list, describe, change, trim and delete topics
    Topic(TopicArgs),
    /// Append messages from stdin or a file
    Produce(ProduceArgs),
    /// Read messages
    Consume(ConsumeArgs),
    /// State of the cluster
    Cluster(ClusterArgs),
    /// Compare the replicas of a topic, or of all, byte for byte; exit status 5 if any differ
    Verify(VerifyArgs),
    /// Look at, check and repair the files of a node that is not running
    Log(super::log::LogArgs),
    /// Measure produce or consume
    Bench(BenchArgs),
    /// Print the version
    Version,
}

/// `imprint topic`.
#[derive(Debug, Args)]
pub struct TopicArgs {
    #[command(subcommand)]
    pub command: TopicCommand,
}

/// What to do with topics.
#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create a topic; it is usable when the command returns
    Create {
        /// Name, 1 to 249 of letters, digits, dot, underscore, hyphen
        name: String,
        /// Number of partitions
        #[arg(long, short = 'p', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        partitions: u32,
        /// Replicas of each partition; 0: three, or the number of nodes if fewer
        #[arg(long, short = 'r', default_value_t = 0, value_name = "N")]
        replication: u32,
        /// A setting of the topic, may be repeated
        #[arg(long, value_name = "KEY=VALUE", value_parser = units::key_value)]
        set: Vec<(String, String)>,
    },
    /// List topics
    List,
    /// Describe a topic: partitions, leaders, replicas and their positions
    Describe {
        /// Name
        name: String,
    },
    /// Change settings of a topic; `imprint topic options` lists them
    #[command(group(ArgGroup::new("change").args(["set", "unset"]).required(true).multiple(true)))]
    Alter {
        /// Name
        name: String,
        /// Set a setting, may be repeated
        #[arg(long, value_name = "KEY=VALUE", value_parser = units::key_value)]
        set: Vec<(String, String)>,
        /// Put a setting back to its default, may be repeated
        #[arg(long, value_name = "KEY")]
        unset: Vec<String>,
    },
    /// Delete the oldest messages of a topic, for good
    Trim(TrimArgs),
    /// List the settings that a topic may have: range, default, meaning
    Options,
    /// Delete topics and everything in them
    Delete {
        /// Names
        #[arg(required = true)]
        names: Vec<String>,
        /// Don't ask
        #[arg(long, short = 'y')]
        yes: bool,
    },
}

/// `imprint topic trim`.
#[derive(Debug, Args)]
pub struct TrimArgs {
    /// Name
    pub name: String,
    /// Partitions [default: all]
    #[arg(long, short = 'p', value_name = "N,...", value_delimiter = ',')]
    pub partition: Vec<u32>,
    /// Messages before this go: an offset, end for all that is committed, or @TIME as in `consume --from`
    #[arg(long, value_name = "POSITION", value_parser = TrimBefore::parse)]
    pub before: TrimBefore,
    /// Don't ask
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Change nothing, say what would go
    #[arg(long)]
    pub dry_run: bool,
}

/// `imprint produce`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each piece of the input that ends with the delimiter is one message, the delimiter left off; so is a last \
piece without one. `consume` writes each payload and the delimiter behind it, so text that ends with a newline \
comes back byte for byte, and text that doesn't comes back with one more. For any input byte for byte: \
`produce --keep-delimiter`, then `consume --delimiter ''`.

A batch whose answer was lost is sent again, bound to the offset it must get, so that it is stored once. Producers that \
share a partition slow each other down by that; --at-least-once sends again unbound and may store a batch twice, \
--at-most-once fails instead.")]
pub struct ProduceArgs {
    /// Topic
    pub topic: String,
    /// Partition; without it and without a key, batches go to the partitions in turn
    #[arg(long, short = 'p', value_name = "N", conflicts_with = "key")]
    pub partition: Option<u32>,
    /// Key of every message: chooses the partition and travels as the user header `imprint.key`
    #[arg(long, short = 'k', value_name = "KEY")]
    pub key: Option<String>,
    /// User header of every message, may be repeated
    #[arg(long, short = 'H', value_name = "KEY=VALUE", value_parser = units::key_value)]
    pub header: Vec<(String, String)>,
    /// Read this file instead of stdin
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What ends a message; \n \r \t \0 \\ \xHH are understood, '' makes the whole input one message
    #[arg(long, default_value = "\\n", value_name = "TEXT", value_parser = units::Delimiter::parse)]
    pub delimiter: units::Delimiter,
    /// Keep the delimiter as the end of each payload
    #[arg(long)]
    pub keep_delimiter: bool,
    /// Most messages in a batch
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// Longest wait for a batch to fill, in milliseconds
    #[arg(long, default_value_t = 5, value_name = "MS")]
    pub linger_ms: u64,
    /// When an answer is lost, send again even if the batch may then be stored twice
    #[arg(long, conflicts_with = "at_most_once")]
    pub at_least_once: bool,
    /// When an answer is lost, fail instead of sending again
    #[arg(long)]
    pub at_most_once: bool,
}

/// `imprint consume`.
#[derive(Debug, Args)]
#[command(after_help = "\
Template: %s payload, %S its length, %o offset, %p partition, %t topic, %T server time in milliseconds, \
%U server time as text, %P producer's time in milliseconds, %i id, %k key, %K its length, %h headers, %% a percent \
sign; \\n \\r \\t \\0 \\\\ \\xHH. Nothing is added behind a template.

-o json writes one object a line; a payload that is not UTF-8 stands as payload_base64.")]
pub struct ConsumeArgs {
    /// Topic
    pub topic: String,
    /// Partitions [default: all]
    #[arg(long, short = 'p', value_name = "N,...", value_delimiter = ',')]
    pub partition: Vec<u32>,
    /// Where to start in each partition: start, end, an offset N, -N for the last N messages, or
    /// @TIME with TIME as RFC 3339, now, -1h (s, m, h, d), or a number with its unit (1700000000s, …ms, …us)
    #[arg(
        long,
        default_value = "start",
        value_name = "POSITION",
        allow_hyphen_values = true,
        value_parser = StartAt::parse
    )]
    pub from: StartAt,
    /// Stop after this many messages
    #[arg(long, short = 'n', value_name = "N")]
    pub count: Option<u64>,
    /// Stop when everything is read that was acknowledged before the command started
    #[arg(long, short = 'e')]
    pub exit_at_end: bool,
    /// Read from this node's replicas
    #[arg(long, value_name = "NODE")]
    pub at: Option<u64>,
    /// What to do where the next messages were trimmed away: go on at the first that is kept (and say
    /// how many are skipped), go on behind the last, or fail
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnTrimmed::Start)]
    pub on_trimmed: OnTrimmed,
    /// How to write a message
    #[arg(long, short = 'f', value_name = "TEMPLATE")]
    pub format: Option<String>,
    /// What to write behind each payload; \n \r \t \0 \\ \xHH are understood, '' writes nothing
    #[arg(long, default_value = "\\n", value_name = "TEXT", value_parser = units::Delimiter::parse)]
    pub delimiter: units::Delimiter,
}

/// What `consume` does about messages that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnTrimmed {
    Start,
    End,
    Fail,
}

/// `imprint cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// What to ask about the cluster.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ClusterCommand {
    /// Nodes, leader and readiness, as the answering node sees them; works without a leader
    Status,
    /// Wait until the cluster is ready; exit status 4 if it is not in time
    WaitReady,
}

/// `imprint verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Topic [default: all]
    pub topic: Option<String>,
}

/// `imprint bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Closed loop of appends: each producer waits for acknowledgements
    Produce(BenchProduceArgs),
    /// Read a topic from its start as fast as it comes
    Consume(BenchConsumeArgs),
}

/// `imprint bench produce`.
#[derive(Debug, Clone, Args)]
pub struct BenchProduceArgs {
    /// Topic to append to [default: a new one that is deleted at the end]
    #[arg(long, value_name = "NAME")]
    pub topic: Option<String>,
    /// Partitions of the new topic; producers go to them in turn
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub partitions: u32,
    /// Replicas of the new topic; 0: three, or the number of nodes if fewer
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub replication: u32,
    /// Payload bytes of a message, such as 1024 or 1KiB; random, so that nothing compresses
    #[arg(long, default_value = "1024", value_name = "BYTES", value_parser = units::bytes)]
    pub size: u64,
    /// Messages per batch
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// Producers at once
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub producers: u32,
    /// Batches that each producer has under way
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub in_flight: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Seconds before that, not counted
    #[arg(long, default_value_t = 2, value_name = "S")]
    pub warm_up: u64,
    /// Keep the new topic
    #[arg(long)]
    pub keep: bool,
}

/// `imprint bench consume`.
#[derive(Debug, Clone, Args)]
pub struct BenchConsumeArgs {
    /// Topic to read
    pub topic: String,
    /// Partitions [default: all]
    #[arg(long, short = 'p', value_name = "N,...", value_delimiter = ',')]
    pub partition: Vec<u32>,
    /// Read from this node's replicas
    #[arg(long, value_name = "NODE")]
    pub at: Option<u64>,
    /// Bytes per poll
    #[arg(long, default_value = "4MiB", value_name = "BYTES", value_parser = units::bytes)]
    pub poll_bytes: u64,
    /// Stop after this many seconds even if the end is not reached
    #[arg(long, default_value_t = 60, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("imprint").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn servers_may_be_several_and_stand_anywhere() {
        for line in [
            "--server a:1,b:2 topic list",
            "topic list --server a:1 --server b:2",
        ] {
            let cli = parse(line).unwrap();
            assert_eq!(cli.global.server, ["a:1", "b:2"], "{line}");
        }
    }

    #[test]
    fn consume_takes_positions_that_begin_with_a_hyphen() {
        let cli = parse("consume t --from -5 -p 1,2").unwrap();
        let Command::Consume(args) = cli.command else {
            panic!("consume");
        };
        assert_eq!(args.from, StartAt::Last(5));
        assert_eq!(args.partition, [1, 2]);
        assert_eq!(args.delimiter, units::Delimiter(b"\n".to_vec()));
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "produce t -p 1 -k x",
            "topic create t -p 0",
            "topic delete",
            "topic alter t",
            "topic trim t",
            "topic trim t --before start",
            "topic trim t --before -5",
            "topic create t --set novalue",
            "consume t --timeout soon",
            "bench produce --producers 0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
