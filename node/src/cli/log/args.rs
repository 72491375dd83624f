//! The shape of `imprint log`.

use super::super::units;
use clap::{Args, Subcommand};
use std::ops::Range;
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
    /// Check a data directory, or one group's; exit status 5 if anything is damaged
    Check(CheckArgs),
    /// Repair what can be repaired without a cluster
    Repair(RepairArgs),
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

/// `imprint log check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Everything is held against everything: identity, formation, both copies of the state log, the segments of each group (every \
checksum, offsets and indexes against the control entries, names, the synced mark against the log's end), digests, marks of \
damage, snapshots, what lies in quarantine/, and what belongs to nothing. Nothing is written.

Verdicts: `ok`; `note`, worth knowing; `mends`, the next start puts it right by itself (a torn tail after a crash, one bad copy \
of the state log); `damaged`, something that was synced is not there: the table says which bytes and offsets, and what to do.

A group's directory on its own (groups/GROUP) is checked against the state log of the directory above it, if there is one.

  imprint log check /var/lib/imprint
  imprint log check COPY -o json | jq '.items[] | select(.verdict == \"damaged\")'")]
pub struct CheckArgs {
    /// A data directory, or groups/GROUP in it
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Headers and names only: no payload is read, so rot in payloads goes unseen
    #[arg(long)]
    pub quick: bool,
    /// Go on although a running node has the directory; ends of logs may look torn, since they move
    #[arg(long)]
    pub while_running: bool,
    /// Show also the segments that are as they should be
    #[arg(long, short = 'a')]
    pub all: bool,
}

/// `imprint log repair`.
#[derive(Debug, Args)]
#[command(after_help = "\
First checks all of DIR, then does what is safe: one copy of the state log is mended from the other, cuts that were begun are \
finished, torn tails are cut, digests that can't be read are made again, marks of damage that a full check disproves are \
removed, a meta store that doesn't open and files that belong to nothing are set aside. Whatever was ever part of a log goes \
to quarantine/, nothing of it is deleted. A second run finds nothing to do.

Damage to synced data is best left to a running node, which fetches it from another replica. With --from it is taken from a copy \
of another replica's data directory instead: a segment is taken only if all of it checks, its entries have the indexes and terms \
that the state logs of both directories agree on, and it holds whatever is still good here.

If no replica has the data any more, --give-up cuts the group's log at its first damaged offset. --dry-run says which offsets \
that loses; --lose-offsets has to repeat them, and the command asks twice (elsewhere than on a terminal: --yes --yes). Do it on \
one replica only if the others are gone or are given up at the same place.

  imprint log repair DIR --dry-run
  imprint log repair DIR --from /mnt/copy-of-node-2
  imprint log repair DIR --give-up 3 --dry-run")]
pub struct RepairArgs {
    /// A data directory
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Say what would be done and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Copy of another replica's data directory, to fill damage from
    #[arg(long, value_name = "OTHER_DIR", conflicts_with = "give_up")]
    pub from: Option<PathBuf>,
    /// Give up the damaged end of this group's log
    #[arg(long, value_name = "GROUP")]
    pub give_up: Option<u64>,
    /// The offsets that are lost by that, A to B-1
    #[arg(long, value_name = "A..B", requires = "give_up", value_parser = offsets)]
    pub lose_offsets: Option<Range<u64>>,
    /// Don't ask; giving up asks twice, so it takes two
    #[arg(long, short = 'y', action = clap::ArgAction::Count)]
    pub yes: u8,
}

/// `A..B`.
fn offsets(text: &str) -> Result<Range<u64>, String> {
    let parsed = text
        .split_once("..")
        .and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed
        .filter(|range: &Range<u64>| range.start < range.end)
        .ok_or_else(|| {
            "expected two offsets, the first below the second, such as 100..250".to_owned()
        })
}
