//! `imprint bench consume`: how fast a topic is read back, checksums verified, records walked.

use super::super::args::BenchConsumeArgs;
use super::super::context::{Context, interrupted};
use super::super::exit::CliError;
use super::super::output;
use super::{Latencies, latency_line, lines, percent, processor_time, round};
use imprint_client::ConsumerOptions;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// What was read.
#[derive(Debug)]
struct Read {
    messages: u64,
    payload_bytes: u64,
    batch_bytes: u64,
    replies: u64,
    /// Time waited for each reply: near zero where reading ahead keeps up.
    waits: Latencies,
}

/// Reads from the start to what was acknowledged before, and prints.
pub async fn run(context: &Context, args: BenchConsumeArgs) -> Result<(), CliError> {
    let value = tokio::select! {
        measured = measure(context, &args) => measured?,
        () = interrupted() => return Err(CliError::Interrupted),
    };
    output::document(context.format, &value, || described(&value))
}

async fn measure(context: &Context, args: &BenchConsumeArgs) -> Result<Value, CliError> {
    let client = &context.client;
    let partitions = match args.partition.as_slice() {
        [] => {
            let topic = context.admin().get_topic(&args.topic).await?;
            topic
                .partitions
                .iter()
                .map(|partition| partition.index)
                .collect()
        }
        chosen => chosen.to_vec(),
    };
    let options = ConsumerOptions {
        until: client.confirmed_ends(&args.topic, &partitions).await?,
        partitions,
        at_node: args.at,
        poll_bytes: u32::try_from(args.poll_bytes).unwrap_or(u32::MAX),
        ..ConsumerOptions::default()
    };
    let (begun, busy_before) = (Instant::now(), processor_time());
    let mut read = Read {
        messages: 0,
        payload_bytes: 0,
        batch_bytes: 0,
        replies: 0,
        waits: Latencies::new()?,
    };
    let complete = drain(context, args, options, &mut read).await?;
    let elapsed = begun.elapsed();
    let busy = processor_time()
        .zip(busy_before)
        .map(|(after, before)| after.saturating_sub(before));
    let seconds = elapsed.as_secs_f64().max(1e-9);
    Ok(json!({
        "conditions": {
            "topic": args.topic,
            "at_node": args.at,
            "poll_bytes": args.poll_bytes,
            "read_to_end": complete,
        },
        "seconds": seconds,
        "messages": read.messages,
        "replies": read.replies,
        "messages_per_second": round(read.messages as f64 / seconds),
        "megabytes_per_second": round(read.payload_bytes as f64 / seconds / 1e6),
        "batch_megabytes_per_second": round(read.batch_bytes as f64 / seconds / 1e6),
        "wait_us": read.waits.value(),
        "load_processor_percent": percent(busy, elapsed),
    }))
}

/// Whether the end was reached in time.
async fn drain(
    context: &Context,
    args: &BenchConsumeArgs,
    options: ConsumerOptions,
    read: &mut Read,
) -> Result<bool, CliError> {
    let mut consumer = context.client.consumer(&args.topic, options).await?;
    let begun = Instant::now();
    loop {
        let left = Duration::from_secs(args.seconds).saturating_sub(begun.elapsed());
        let asked = Instant::now();
        let fetched = match timeout(left, consumer.next()).await {
            Err(_) => return Ok(false),
            Ok(None) => return Ok(true),
            Ok(Some(fetched)) => fetched?,
        };
        read.waits.record(asked.elapsed());
        read.replies += 1;
        read.batch_bytes += fetched
            .batches()
            .iter()
            .map(|batch| batch.len())
            .sum::<u64>();
        for record in fetched.records() {
            read.messages += 1;
            read.payload_bytes += record.payload().len() as u64;
        }
    }
}

fn described(value: &Value) -> String {
    let conditions = &value["conditions"];
    let from = match conditions["at_node"].as_u64() {
        Some(node) => format!("node {node}"),
        None => "any replica".to_owned(),
    };
    let end = match conditions["read_to_end"].as_bool() {
        Some(true) => "to the end",
        _ => "not to the end",
    };
    let processor = match value["load_processor_percent"].as_f64() {
        Some(percent) => format!("{percent} % of one core for the reading"),
        None => "not known here".to_owned(),
    };
    lines(&[
        (
            "conditions",
            format!(
                "from the start {end}, from {from}, polls of {} B, one read ahead, checksums verified",
                conditions["poll_bytes"]
            ),
        ),
        (
            "read",
            format!(
                "{} messages in {:.3} s, {} replies",
                value["messages"],
                value["seconds"].as_f64().unwrap_or(0.0),
                value["replies"]
            ),
        ),
        (
            "rate",
            format!(
                "{} msg/s, {} MB/s of payload, {} MB/s of batches",
                value["messages_per_second"],
                value["megabytes_per_second"],
                value["batch_megabytes_per_second"]
            ),
        ),
        ("wait for a reply", latency_line(&value["wait_us"])),
        ("processor", processor),
    ])
}
