//! `imprint topic`.

mod describe;
mod options;
mod trim;

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
        TopicCommand::Describe { name } => describe::run(context, &name).await,
        TopicCommand::Alter { name, set, unset } => alter(context, &name, set, unset).await,
        TopicCommand::Trim(args) => trim::run(context, args).await,
        TopicCommand::Options => options::run(context),
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

async fn alter(
    context: &Context,
    name: &str,
    set: Vec<(String, String)>,
    unset: Vec<String>,
) -> Result<(), CliError> {
    let set = set.into_iter().collect();
    let topic = context.admin().update_topic(name, set, unset).await?;
    output::document(context.format, &topic_value(&topic), || {
        format!(
            "changed topic {}\n{}",
            topic.name,
            options::in_force(&topic).render()
        )
    })
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
    let failures = failures.into_iter();
    let failures = failures.map(|(name, error)| (format!("topic {name}"), error));
    several(names.len(), failures.collect(), context.no_color)
}

/// One failed item out of one is that item's error; out of several, each is reported.
fn several(
    all: usize,
    mut failures: Vec<(String, CliError)>,
    no_color: bool,
) -> Result<(), CliError> {
    if all == 1 {
        return failures.pop().map_or(Ok(()), |(_, error)| Err(error));
    }
    let Some(status) = failures.first().map(|(_, error)| error.status()) else {
        return Ok(());
    };
    for (name, error) in &failures {
        output::say(&format!("{name}:"));
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
