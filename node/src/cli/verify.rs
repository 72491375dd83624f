//! `imprint verify`: are the replicas byte for byte the same?

use super::args::VerifyArgs;
use super::context::Context;
use super::exit::CliError;
use super::output::{self, Table};
use imprint_client::v1;
use serde_json::{Value, json};
use std::time::Duration;

/// Time for the servers to read everything, unless told otherwise.
const DEFAULT_WAIT: Duration = Duration::from_secs(600);

/// Compares, shows, and fails if anything differs or could not be compared.
pub async fn run(context: &Context, args: VerifyArgs) -> Result<(), CliError> {
    let topic = args.topic.unwrap_or_default();
    let wait = context.timeout.unwrap_or(DEFAULT_WAIT);
    let partitions = context.admin().verify(&topic, wait).await?;
    let value: Value = partitions.iter().map(partition_value).collect();
    output::document(context.format, &value, || described(&partitions))?;
    let faults = partitions
        .iter()
        .filter(|partition| !partition.equal)
        .count();
    match faults {
        0 => Ok(()),
        _ => Err(CliError::Fault(format!(
            "{faults} of {} partition(s) differ or could not be compared",
            partitions.len()
        ))),
    }
}

fn described(partitions: &[v1::PartitionVerification]) -> String {
    let mut table = Table::new(&[
        "TOPIC",
        "PARTITION",
        "EQUAL",
        "UP TO",
        "NODE",
        "BYTES",
        "DIGEST",
        "PROBLEM",
    ]);
    for partition in partitions {
        for replica in &partition.replicas {
            let problem = [partition.problem.as_str(), replica.error.as_str()]
                .into_iter()
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join("; ");
            table.row([
                partition.topic.clone(),
                partition.partition.to_string(),
                if partition.equal { "yes" } else { "NO" }.to_owned(),
                partition.compared_to_offset.to_string(),
                replica.node_id.to_string(),
                replica.bytes.to_string(),
                replica.digest.clone(),
                problem,
            ]);
        }
    }
    table.render()
}

fn partition_value(partition: &v1::PartitionVerification) -> Value {
    json!({
        "topic": partition.topic,
        "partition": partition.partition,
        "partition_id": partition.partition_id,
        "compared_to_offset": partition.compared_to_offset,
        "equal": partition.equal,
        "problem": (!partition.problem.is_empty()).then_some(&partition.problem),
        "replicas": partition.replicas.iter().map(replica_value).collect::<Value>(),
    })
}

fn replica_value(replica: &v1::ReplicaDigest) -> Value {
    let segments: Value = replica
        .segments
        .iter()
        .map(|segment| {
            json!({
                "base_offset": segment.base_offset,
                "end_offset": segment.end_offset,
                "bytes": segment.bytes,
                "digest": segment.digest,
                "sealed": segment.sealed,
            })
        })
        .collect();
    json!({
        "node_id": replica.node_id,
        "digest": replica.digest,
        "bytes": replica.bytes,
        "start_offset": replica.start_offset,
        "error": (!replica.error.is_empty()).then_some(&replica.error),
        "segments": segments,
    })
}
