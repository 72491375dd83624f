//! `imprint topic trim`: the oldest messages go, for good.

use super::several;
use crate::cli::args::TrimArgs;
use crate::cli::confirm::confirm;
use crate::cli::context::Context;
use crate::cli::exit::CliError;
use crate::cli::output::{self, Table};
use crate::cli::time::now_micros;
use imprint_client::{TrimTopic, v1};
use serde_json::{Value, json};

/// Trims, or says what would go.
pub(super) async fn run(context: &Context, args: TrimArgs) -> Result<(), CliError> {
    let trim = TrimTopic {
        topic: args.name,
        partitions: args.partition,
        before: args.before.position(now_micros()),
        dry_run: args.dry_run,
    };
    if !args.dry_run {
        confirm(&question(&trim, &args.before.to_string()), args.yes)?;
    }
    let partitions = context.admin().trim_topic(trim).await?;
    let value: Value = partitions.iter().map(partition_value).collect();
    output::document(context.format, &value, || table(&partitions, args.dry_run))?;
    let failures = partitions.iter().filter(|one| !one.reason.is_empty());
    let failures = failures.map(|one| {
        let name = format!("partition {}", one.partition);
        (name, CliError::refused(&one.reason, &one.error))
    });
    several(partitions.len(), failures.collect(), context.no_color)
}

fn question(trim: &TrimTopic, before: &str) -> String {
    let partitions = match trim.partitions.as_slice() {
        [] => "every partition".to_owned(),
        [one] => format!("partition {one}"),
        many => {
            let many: Vec<String> = many.iter().map(ToString::to_string).collect();
            format!("partitions {}", many.join(", "))
        }
    };
    format!(
        "Delete everything before {before} in {partitions} of {}?",
        trim.topic
    )
}

fn partition_value(one: &v1::TrimmedPartition) -> Value {
    let failed = !one.reason.is_empty();
    json!({
        "partition": one.partition,
        "previous_start_offset": one.previous_start_offset,
        "start_offset": one.start_offset,
        "end_offset": one.end_offset,
        "trimmed": one.start_offset - one.previous_start_offset,
        "reason": failed.then_some(&one.reason),
        "error": failed.then_some(&one.error),
    })
}

fn table(partitions: &[v1::TrimmedPartition], dry_run: bool) -> String {
    let gone = if dry_run { "WOULD GO" } else { "GONE" };
    let mut table = Table::new(&["PARTITION", gone, "START", "END"]);
    for one in partitions.iter().filter(|one| one.reason.is_empty()) {
        table.row([
            one.partition.to_string(),
            (one.start_offset - one.previous_start_offset).to_string(),
            one.start_offset.to_string(),
            one.end_offset.to_string(),
        ]);
    }
    table.render()
}
