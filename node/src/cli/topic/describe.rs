//! `imprint topic describe`.

use super::{options, topic_value};
use crate::cli::context::Context;
use crate::cli::exit::CliError;
use crate::cli::output::{self, Table};
use crate::cli::time::format_micros;
use crate::retention::words;
use imprint_client::v1;
use serde_json::{Value, json};

/// Describes one topic.
pub(super) async fn run(context: &Context, name: &str) -> Result<(), CliError> {
    let admin = context.admin();
    let topic = admin.get_topic(name).await?;
    let partitions = admin.describe_partitions(name).await?;
    let mut value = topic_value(&topic);
    value["partitions"] = partitions.iter().map(partition_value).collect();
    output::document(context.format, &value, || described(&topic, &partitions))
}

fn described(topic: &v1::Topic, partitions: &[v1::PartitionDescription]) -> String {
    let mut text = format!(
        "topic        {}\nid           {}\nreplication  {}\n",
        topic.name, topic.topic_id, topic.replication
    );
    text.push('\n');
    text.push_str(&options::in_force(topic).render());
    text.push('\n');
    text.push_str(&partition_table(partitions).render());
    text.push('\n');
    text.push_str(&replica_table(partitions).render());
    text
}

fn partition_table(partitions: &[v1::PartitionDescription]) -> Table {
    let mut table = Table::new(&[
        "PARTITION",
        "LEADER",
        "START",
        "COMMIT",
        "END",
        "BYTES",
        "SEGMENTS",
        "OLDEST",
        "NEXT DELETION",
    ]);
    for partition in partitions {
        let known = |number: u64| match partition.next_deletion {
            Some(_) => number.to_string(),
            None => "-".to_owned(),
        };
        table.row([
            partition.index.to_string(),
            leader(partition),
            known(partition.start_offset),
            known(partition.commit_offset),
            known(partition.end_offset),
            known(partition.bytes),
            known(partition.segments.into()),
            partition
                .oldest_timestamp_us
                .map_or("-".to_owned(), format_micros),
            partition
                .next_deletion
                .as_ref()
                .map_or("-".to_owned(), next_deletion),
        ]);
    }
    table
}

/// `below 1200 (8 MiB) at 2026-01-31T…: its newest message is kept for 7d, 2d more`.
fn next_deletion(next: &v1::NextDeletion) -> String {
    if next.up_to_offset == 0 {
        return format!("none: {}", next.why_not);
    }
    let what = format!("below {} ({})", next.up_to_offset, words::size(next.bytes));
    let due = next.due_timestamp_us.map(format_micros);
    match (due, next.why_not.as_str()) {
        (_, "") => format!("{what} now"),
        (Some(due), why) => format!("{what} at {due}: {why}"),
        (None, why) => format!("{what}, not yet: {why}"),
    }
}

fn replica_table(partitions: &[v1::PartitionDescription]) -> Table {
    let mut table = Table::new(&[
        "PARTITION",
        "NODE",
        "START",
        "COMMIT",
        "END",
        "SYNCED",
        "BYTES",
        "SEGMENTS",
        "EPOCH",
        "STATE",
    ]);
    for partition in partitions {
        for replica in &partition.replicas {
            table.row(replica_row(partition, replica));
        }
    }
    table
}

fn leader(partition: &v1::PartitionDescription) -> String {
    match partition.leader_node {
        0 => "none".to_owned(),
        node => node.to_string(),
    }
}

fn replica_row(
    partition: &v1::PartitionDescription,
    replica: &v1::ReplicaDescription,
) -> [String; 10] {
    let state = match (replica.reachable, replica.error.as_str()) {
        (true, "") if !replica.damaged.is_empty() => {
            let ranges = replica.damaged.iter();
            let ranges: Vec<String> = ranges
                .map(|range| format!("{}..{}", range.from_offset, range.to_offset))
                .collect();
            format!("damaged, being repaired: offsets {}", ranges.join(", "))
        }
        (true, "") => "ok".to_owned(),
        (false, "") => "unreachable".to_owned(),
        (_, error) => error.to_owned(),
    };
    let position = |offset: u64| match replica.reachable {
        true => offset.to_string(),
        false => "-".to_owned(),
    };
    [
        partition.index.to_string(),
        replica.node_id.to_string(),
        position(replica.start_offset),
        position(replica.commit_offset),
        position(replica.end_offset),
        position(replica.synced_offset),
        position(replica.bytes),
        position(replica.segments.into()),
        partition.leader_epoch.to_string(),
        state,
    ]
}

fn next_deletion_value(next: &v1::NextDeletion) -> Value {
    json!({
        "up_to_offset": (next.up_to_offset != 0).then_some(next.up_to_offset),
        "bytes": next.bytes,
        "due_timestamp_us": next.due_timestamp_us,
        "due_time": next.due_timestamp_us.map(format_micros),
        "bytes_missing": next.bytes_missing,
        "why_not": (!next.why_not.is_empty()).then_some(&next.why_not),
    })
}

fn partition_value(partition: &v1::PartitionDescription) -> Value {
    let known = |number: u64| partition.next_deletion.is_some().then_some(number);
    json!({
        "partition": partition.index,
        "partition_id": partition.partition_id,
        "leader_node": (partition.leader_node != 0).then_some(partition.leader_node),
        "leader_epoch": partition.leader_epoch,
        "start_offset": known(partition.start_offset),
        "commit_offset": known(partition.commit_offset),
        "end_offset": known(partition.end_offset),
        "bytes": known(partition.bytes),
        "segments": known(partition.segments.into()),
        "oldest_timestamp_us": partition.oldest_timestamp_us,
        "oldest_time": partition.oldest_timestamp_us.map(format_micros),
        "next_deletion": partition.next_deletion.as_ref().map(next_deletion_value),
        "replicas": partition.replicas.iter().map(replica_value).collect::<Value>(),
    })
}

fn damaged_value(range: &v1::DamagedRange) -> Value {
    json!({
        "from_offset": range.from_offset,
        "to_offset": range.to_offset,
        "found": range.found,
    })
}

fn replica_value(replica: &v1::ReplicaDescription) -> Value {
    json!({
        "replica_id": replica.replica_id,
        "node_id": replica.node_id,
        "reachable": replica.reachable,
        "error": (!replica.error.is_empty()).then_some(&replica.error),
        "start_offset": replica.start_offset,
        "commit_offset": replica.commit_offset,
        "end_offset": replica.end_offset,
        "synced_offset": replica.synced_offset,
        "bytes": replica.bytes,
        "segments": replica.segments,
        "damaged": replica.damaged.iter().map(damaged_value).collect::<Value>(),
    })
}
