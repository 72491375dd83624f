//! `imprint topic describe`.

use super::{options, topic_value};
use crate::cli::context::Context;
use crate::cli::exit::CliError;
use crate::cli::output::{self, Table};
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
    let mut table = Table::new(&[
        "PARTITION",
        "LEADER",
        "EPOCH",
        "NODE",
        "START",
        "COMMIT",
        "END",
        "SYNCED",
        "BYTES",
        "SEGMENTS",
        "STATE",
    ]);
    for partition in partitions {
        for replica in &partition.replicas {
            table.row(replica_row(partition, replica));
        }
    }
    text.push('\n');
    text.push_str(&table.render());
    text
}

fn replica_row(
    partition: &v1::PartitionDescription,
    replica: &v1::ReplicaDescription,
) -> [String; 11] {
    let leader = match partition.leader_node {
        0 => "none".to_owned(),
        node => node.to_string(),
    };
    let state = match (replica.reachable, replica.error.as_str()) {
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
        leader,
        partition.leader_epoch.to_string(),
        replica.node_id.to_string(),
        position(replica.start_offset),
        position(replica.commit_offset),
        position(replica.end_offset),
        position(replica.synced_offset),
        position(replica.bytes),
        position(replica.segments.into()),
        state,
    ]
}

fn partition_value(partition: &v1::PartitionDescription) -> Value {
    json!({
        "partition": partition.index,
        "partition_id": partition.partition_id,
        "leader_node": (partition.leader_node != 0).then_some(partition.leader_node),
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas.iter().map(replica_value).collect::<Value>(),
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
    })
}
