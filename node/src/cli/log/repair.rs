//! `imprint log repair`.

use super::super::args::{Format, GlobalArgs};
use super::super::confirm::confirm;
use super::super::exit::CliError;
use super::super::output::{self, Table, say};
use super::args::RepairArgs;
use super::directory::{self, Directory, relative, report_value};
use imprint_raft::disk::{InlineOffload, Io, RealDisk};
use imprint_raft::offline::check::{Place, Report, Verdict};
use imprint_raft::offline::repair::{self, GiveUpError, Loss, Source, Step};
use imprint_raft::seams::SystemClock;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{self, IsTerminal};
use std::sync::Arc;

/// A step and how it went.
struct Done<'a> {
    step: &'a Step,
    /// `None` in a dry run.
    result: Option<Result<(), String>>,
}

/// Plans, says so, does it unless it is a dry run, and looks again.
pub fn run(global: &GlobalArgs, args: &RepairArgs) -> Result<(), CliError> {
    let dir = Directory::open(&args.dir, false)?;
    if dir.place.group.is_some() {
        return Err(CliError::Usage(
            "a repair needs the whole data directory, since the state log is a part of it"
                .to_owned(),
        ));
    }
    let source = match &args.from {
        Some(from) => Some(Source::open(&RealDisk, from).map_err(failed)?),
        None => None,
    };
    let report = dir.check(false)?;
    if let Some(group) = args.give_up {
        return give_up(global, args, &dir, &report, group);
    }
    let steps = repair::plan(&report, source.as_ref());
    let mut done: Vec<Done<'_>> = steps
        .iter()
        .map(|step| Done { step, result: None })
        .collect();
    if args.dry_run {
        show(global.output, &dir.place, &done, &report)?;
        return directory::verdict(&dir.place, &report);
    }
    let mut results = Vec::new();
    repair::apply(
        &io(),
        &dir.place,
        &steps,
        source.as_ref(),
        &mut |_, result| {
            results.push(result.map_err(|error| words(&error)));
        },
    );
    for (one, result) in done.iter_mut().zip(results) {
        one.result = Some(result);
    }
    // A repaired segment may need what a first look could not tell, such as a new digest.
    let after = dir.check(false)?;
    show(global.output, &dir.place, &done, &after)?;
    let failures = done.iter().filter(|one| matches!(one.result, Some(Err(_))));
    match failures.count() {
        0 => directory::verdict(&dir.place, &after),
        failed => Err(CliError::Fault(format!(
            "{failed} of {} repairs failed; {} thing(s) damaged",
            done.len(),
            after.of(Verdict::Damaged).count()
        ))),
    }
}

fn io() -> Io {
    Io::new(
        Arc::new(RealDisk),
        Arc::new(InlineOffload),
        Arc::new(SystemClock),
    )
}

fn words(error: &dyn Error) -> String {
    let sources = std::iter::successors(error.source(), |&error| error.source());
    sources.fold(error.to_string(), |text, source| {
        format!("{text}: {source}")
    })
}

fn failed(error: impl Error) -> CliError {
    CliError::Io(io::Error::other(words(&error)))
}

fn show(format: Format, place: &Place, done: &[Done<'_>], report: &Report) -> Result<(), CliError> {
    let value = json!({
        "dry_run": done.iter().all(|one| one.result.is_none()),
        "steps": done.iter().map(|one| step_value(place, one)).collect::<Value>(),
        "report": report_value(place, report),
    });
    output::document(format, &value, || table(place, done, report))
}

fn outcome(result: Option<&Result<(), String>>) -> &str {
    match result {
        None => "planned",
        Some(Ok(())) => "done",
        Some(Err(error)) => error,
    }
}

fn step_value(place: &Place, one: &Done<'_>) -> Value {
    json!({
        "what": one.step.what,
        "path": relative(place, &one.step.path),
        "group": one.step.group,
        "done": matches!(one.result, Some(Ok(()))),
        "error": one.result.as_ref().and_then(|result| result.as_ref().err()),
    })
}

fn table(place: &Place, done: &[Done<'_>], report: &Report) -> String {
    let mut table = Table::new(&["PATH", "REPAIR", "OUTCOME"]);
    for one in done {
        table.row([
            relative(place, &one.step.path),
            one.step.what.clone(),
            outcome(one.result.as_ref()).to_owned(),
        ]);
    }
    let mut text = match done.is_empty() {
        true => "nothing to repair\n".to_owned(),
        false => table.render(),
    };
    for item in report.of(Verdict::Damaged) {
        text.push_str(&format!(
            "still damaged: {}: {}\n",
            relative(place, &item.path),
            item.found
        ));
    }
    text
}

/// The last resort. Asks twice.
fn give_up(
    global: &GlobalArgs,
    args: &RepairArgs,
    dir: &Directory,
    report: &Report,
    group: u64,
) -> Result<(), CliError> {
    let loss = repair::loss(&RealDisk, &dir.place, report, group).map_err(refused)?;
    let said = args.lose_offsets.clone().unwrap_or(0..0);
    let value = loss_value(&loss);
    output::document(global.output, &value, || loss_text(&loss))?;
    if args.dry_run {
        return Ok(());
    }
    if said != (loss.from_offset..loss.to_offset) {
        return Err(refused(GiveUpError::OtherOffsets {
            group,
            from: loss.from_offset,
            to: loss.to_offset,
            said_from: said.start,
            said_to: said.end,
        }));
    }
    let count = loss.to_offset - loss.from_offset;
    twice(
        &format!("Give up {count} messages of group {group} on this node?"),
        "No replica has them any more, and acknowledged ones may be among them: really?",
        args.yes,
    )?;
    repair::give_up(&io(), &dir.place, &loss, said).map_err(refused)?;
    say("given up; the bytes are in quarantine/");
    let after = dir.check(false)?;
    directory::verdict(&dir.place, &after)
}

/// Two questions on a terminal, two `--yes` elsewhere.
fn twice(first: &str, second: &str, yes: u8) -> Result<(), CliError> {
    if yes < 2 && !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(CliError::Usage(format!(
            "{first} Not on a terminal, so --yes --yes has to say so"
        )));
    }
    confirm(first, yes >= 1)?;
    confirm(second, yes >= 2)
}

fn refused(error: GiveUpError) -> CliError {
    match error {
        GiveUpError::OtherOffsets { .. }
        | GiveUpError::NotDamaged(_)
        | GiveUpError::AtFront { .. } => CliError::Usage(error.to_string()),
        GiveUpError::Unknown(_) => CliError::NoSuchFile {
            path: error.to_string(),
        },
        other => failed(other),
    }
}

fn loss_value(loss: &Loss) -> Value {
    json!({
        "group": loss.group,
        "lost_from_offset": loss.from_offset,
        "lost_to_offset": loss.to_offset,
        "lost_from_index": loss.from_index,
        "cut_segment": loss.cut.map(|(name, _)| name.file_name()),
        "cut_at_byte": loss.cut.map(|(_, pos)| pos),
        "segments_given_up": loss.segments.iter().map(|name| name.file_name()).collect::<Vec<_>>(),
    })
}

fn loss_text(loss: &Loss) -> String {
    let mut text = format!(
        "group {}: offsets {}..{} would be lost, Raft entries from index {}\n",
        loss.group, loss.from_offset, loss.to_offset, loss.from_index
    );
    if let Some((name, pos)) = loss.cut {
        text.push_str(&format!("  {} is cut at byte {pos}\n", name.file_name()));
    }
    for name in &loss.segments {
        text.push_str(&format!("  {} goes\n", name.file_name()));
    }
    text
}
