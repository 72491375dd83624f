//! The shape of `imprint log`.

use super::super::units;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `imprint log`.
#[derive(Debug, Args)]
#[command(after_help = "\
What lies in a data directory: `identity` and `formation` (who the node is), `state/a.log` and `state/b.log` (votes, control \
entries and marks of all groups, two copies of the same bytes), `groups/GROUP/*.seg` (the messages), `meta/` (only what can be \
rebuilt) and `quarantine/` (what was set aside). docs/on-disk.md has every byte.

These commands need no cluster and work on a copy of a directory as well. None writes, but `repair` without --dry-run.

Exit status: 0 all good, 1 failed, 2 usage, 3 no such file, 5 damage was found.")]
pub struct LogArgs {
    #[command(subcommand)]
    pub command: LogCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Show what is in one file, past damage; exit status 5 if there is any
    Inspect(InspectArgs),
}

/// `imprint log inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file may be a segment (.seg), a state log (a.log, b.log), identity, formation, a snapshot, a .seg.digest, a .seg.damaged, or \
something in quarantine/. Its name says which; a segment or a state log is also known by its first bytes.

A segment is shown batch by batch, every checksum checked. Behind damage it goes on at the next batch that is good and could \
follow on. The end of an active segment may be torn after a crash, and zeros may be written ahead of it: both are normal, and \
`imprint log check` says whether they are, since that is in the state log.

-o json writes one object a line for segments and state logs; each has a field `type`.

  imprint log inspect groups/00000000000000000003/*.seg
  imprint log inspect FILE --from-offset 5000 --limit 1 --frames
  imprint log inspect state/a.log -o json | grep '\"group\":3,'")]
pub struct InspectArgs {
    /// Files, one after the other
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Show each message of a batch, with the beginning of its payload
    #[arg(long)]
    pub frames: bool,
    /// Show whole payloads; means --frames
    #[arg(long)]
    pub payload: bool,
    /// Begin at the batch that holds this offset (segments)
    #[arg(long, value_name = "N", conflicts_with = "at_byte")]
    pub from_offset: Option<u64>,
    /// Begin at this byte, such as 4096 or 1MiB, or what follows it
    #[arg(long, value_name = "N", value_parser = units::bytes)]
    pub at_byte: Option<u64>,
    /// Stop after this many batches or records
    #[arg(long, short = 'n', value_name = "N")]
    pub limit: Option<u64>,
}
