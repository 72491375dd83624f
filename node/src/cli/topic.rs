//! `imprint topic`.

use super::args::{TopicArgs, TopicCommand};
use super::confirm::confirm;
use super::context::Context;
use super::exit::CliError;
use super::output::{self, Table};
use imprint_client::{NewTopic, v1};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Runs a topic command.
pub async fn run(context: &Context, args: TopicArgs) -> Result<(), CliError> {
    match args.command {
        TopicCommand::Create {
            name,
            partitions,
            replication,
            set,
        } => {
            let new = NewTopic {
                name,
                partitions,
                replication,
                settings: set.into_iter().collect(),
            };
            create(context, new).await
        }
        TopicCommand::List => list(context).await,
        TopicCommand::Describe { name } => describe(context, &name).await,
        TopicCommand::Delete { names, yes } => delete(context, &names, yes).await,
    }
}

async fn create(context: &Context, new: NewTopic) -> Result<(), CliError> {
    let topic = context.admin().create_topic(new).await?;
    output::document(context.format, &topic_value(&topic), || {
        format!(
            "created topic {} with {} partition(s), replication {}\n",
            topic.name,
            topic.partitions.len(),
            topic.replication
        )
    })
}

async fn list(context: &Context) -> Result<(), CliError> {
    let topics = context.admin().list_topics().await?;
    let value: Value = topics.iter().map(topic_value).collect();
    output::document(context.format, &value, || {
        let mut table = Table::new(&["NAME", "PARTITIONS", "REPLICATION"]);
        for topic in &topics {
            table.row([
                topic.name.clone(),
                topic.partitions.len().to_string(),
                topic.replication.to_string(),
            ]);
        }
        table.render()
    })
}

async fn describe(context: &Context, name: &str) -> Result<(), CliError> {
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
    for (key, setting) in topic.settings.iter().collect::<BTreeMap<_, _>>() {
        text.push_str(&format!("{key}  {setting}\n"));
    }
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

async fn delete(context: &Context, names: &[String], yes: bool) -> Result<(), CliError> {
    let question = format!("Delete {} and everything in it?", names.join(", "));
    confirm(&question, yes)?;
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for name in names {
        let error = context.admin().delete_topic(name).await.err();
        let message = error.as_ref().map(ToString::to_string);
        results.push(json!({ "name": name, "deleted": error.is_none(), "error": message }));
        failures.extend(error.map(|error| (name, CliError::from(error))));
    }
    output::document(context.format, &Value::Array(results), || {
        let failed = |name: &String| failures.iter().any(|(failed, _)| *failed == name);
        let deleted = names.iter().filter(|name| !failed(name));
        deleted
            .map(|name| format!("deleted topic {name}\n"))
            .collect()
    })?;
    several(names.len(), failures, context.no_color)
}

/// One failed item out of one is that item's error; out of several, each is reported.
fn several(
    all: usize,
    mut failures: Vec<(&String, CliError)>,
    no_color: bool,
) -> Result<(), CliError> {
    if all == 1 {
        return failures.pop().map_or(Ok(()), |(_, error)| Err(error));
    }
    let Some(status) = failures.first().map(|(_, error)| error.status()) else {
        return Ok(());
    };
    for (name, error) in &failures {
        output::say(&format!("topic {name}:"));
        error.report(output::stderr_color(no_color));
    }
    Err(CliError::Several {
        failed: failures.len(),
        all,
        status,
    })
}

fn topic_value(topic: &v1::Topic) -> Value {
    let partitions: Value = topic
        .partitions
        .iter()
        .map(|partition| {
            let nodes: Vec<u64> = partition
                .replicas
                .iter()
                .map(|replica| replica.node_id)
                .collect();
            json!({
                "partition": partition.index,
                "partition_id": partition.partition_id,
                "nodes": nodes,
            })
        })
        .collect();
    json!({
        "name": topic.name,
        "topic_id": topic.topic_id,
        "replication": topic.replication,
        "settings": topic.settings.iter().collect::<BTreeMap<_, _>>(),
        "partitions": partitions,
    })
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
