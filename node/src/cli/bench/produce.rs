//! `imprint bench produce`: a closed loop. Each producer keeps a fixed number of batches under way
//! and sends the next one when an acknowledgement comes, so latency is that of a system as busy as
//! this load makes it, not of one that more load arrives at meanwhile.

use super::super::args::BenchProduceArgs;
use super::super::context::{Context, interrupted};
use super::super::exit::CliError;
use super::super::output::{self, say};
use super::{Latencies, latency_line, lines, percent, processor_time, round};
use imprint_client::{Ambient, ProducerBatch};
use imprint_client::{
    BatchBuilder, BatchLimits, Client, ClientError, Message, NewTopic, ProduceError, SendOptions,
    SystemAmbient,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Bytes of random payload that messages are cut from.
const NOISE_BYTES: usize = 4 << 20;

/// When measuring begins and ends.
#[derive(Debug, Clone, Copy)]
struct Window {
    begin: Instant,
    end: Instant,
}

/// What one place in flight of one producer measured.
#[derive(Debug)]
struct Measured {
    batches: u64,
    failures: u64,
    first_failure: Option<ClientError>,
    latencies: Latencies,
}

/// What all of them are told.
#[derive(Debug)]
struct Load {
    client: Client,
    topic: String,
    limits: BatchLimits,
    size: usize,
    batch: u32,
    noise: Vec<u8>,
    window: Window,
}

/// Measures and prints.
pub async fn run(context: &Context, args: BenchProduceArgs) -> Result<(), CliError> {
    let (topic, partitions, temporary) = topic(context, &args).await?;
    let measured = tokio::select! {
        measured = measure(context, &args, &topic, partitions) => measured,
        () = interrupted() => Err(CliError::Interrupted),
    };
    if temporary && !args.keep {
        let deleted = context.admin().delete_topic(&topic).await;
        if let Err(error) = deleted {
            say(&format!("warning: topic {topic} was not deleted: {error}"));
        }
    }
    let value = measured?;
    output::document(context.format, &value, || described(&value))
}

/// Name, partitions, and whether it was made here.
async fn topic(
    context: &Context,
    args: &BenchProduceArgs,
) -> Result<(String, u32, bool), CliError> {
    let admin = context.admin();
    if let Some(name) = &args.topic {
        let partitions = admin.get_topic(name).await?.partitions.len();
        let partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        return Ok((name.clone(), partitions, false));
    }
    let new = NewTopic {
        name: format!("bench-{:016x}", SystemAmbient.random_u64()),
        partitions: args.partitions,
        replication: args.replication,
        ..NewTopic::default()
    };
    let name = new.name.clone();
    admin.create_topic(new).await?;
    Ok((name, args.partitions, true))
}

async fn measure(
    context: &Context,
    args: &BenchProduceArgs,
    topic: &str,
    partitions: u32,
) -> Result<Value, CliError> {
    let limits = context.admin().limits().await?;
    let begin = Instant::now() + Duration::from_secs(args.warm_up);
    let load = Arc::new(Load {
        client: context.client.clone(),
        topic: topic.to_owned(),
        limits: BatchLimits {
            max_batch_bytes: limits.max_batch_bytes,
            max_messages: limits.max_messages_per_batch,
            ..BatchLimits::default()
        },
        size: usize::try_from(args.size).unwrap_or(usize::MAX),
        batch: args.batch,
        noise: noise(usize::try_from(args.size).unwrap_or(usize::MAX))?,
        window: Window {
            begin,
            end: begin + Duration::from_secs(args.seconds),
        },
    });
    // Refused before any load is made, if the batch is too large.
    load.build(0).map_err(CliError::Produce)?;
    let mut places = JoinSet::new();
    for producer in 0..args.producers {
        let partition = producer % partitions.max(1);
        for place in 0..args.in_flight {
            let seed = (producer * args.in_flight + place) as usize;
            places.spawn(run_place(Arc::clone(&load), partition, seed));
        }
    }
    tokio::time::sleep_until(begin).await;
    let busy_before = processor_time();
    tokio::time::sleep_until(load.window.end).await;
    let busy = processor_time()
        .zip(busy_before)
        .map(|(after, before)| after.saturating_sub(before));
    let mut all = Measured::new()?;
    while let Some(ended) = places.join_next().await {
        let measured = ended.map_err(|error| CliError::Usage(error.to_string()))??;
        all.add(measured)?;
    }
    report(args, topic, partitions, all, busy)
}

async fn run_place(load: Arc<Load>, partition: u32, seed: usize) -> Result<Measured, CliError> {
    let mut measured = Measured::new()?;
    let mut number = seed;
    while Instant::now() < load.window.end {
        let batch = load.build(number).map_err(CliError::Produce)?;
        number = number.wrapping_add(7919);
        let sent = Instant::now();
        let answer = load
            .client
            .send(&load.topic, partition, &batch, SendOptions::default())
            .await;
        let answered = Instant::now();
        // Counted by when the answer came: what was asked for in the window but answered later is not
        // throughput of the window.
        let counts = load.window.begin <= answered && answered < load.window.end;
        match answer {
            Ok(_) if counts => {
                measured.batches += 1;
                measured.latencies.record(answered - sent);
            }
            Ok(_) => {}
            Err(error) if error.is_transient() => {
                measured.failures += 1;
                measured.first_failure.get_or_insert(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(measured)
}

impl Load {
    /// A batch of different messages, each with an id and a time of its own.
    fn build(&self, number: usize) -> Result<ProducerBatch, ProduceError> {
        let mut builder = BatchBuilder::new(self.limits);
        let room = self.noise.len() - self.size;
        let now = SystemAmbient.wall_micros();
        for index in 0..self.batch {
            let start = number.wrapping_mul(4099).wrapping_add(index as usize * 61) % (room + 1);
            builder.push(Message {
                id: u128::from(SystemAmbient.random_u64()),
                origin_timestamp_us: now,
                payload: &self.noise[start..start + self.size],
                headers: &[],
            })?;
        }
        Ok(builder.build()?)
    }
}

impl Measured {
    fn new() -> Result<Measured, CliError> {
        Ok(Measured {
            batches: 0,
            failures: 0,
            first_failure: None,
            latencies: Latencies::new()?,
        })
    }

    fn add(&mut self, other: Measured) -> Result<(), CliError> {
        self.batches += other.batches;
        self.failures += other.failures;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.latencies.add(&other.latencies)
    }
}

/// Random bytes, more than one message's, so that neighbours differ.
fn noise(size: usize) -> Result<Vec<u8>, CliError> {
    if size > NOISE_BYTES << 4 {
        return Err(CliError::Usage(
            "--size is larger than any batch may be".to_owned(),
        ));
    }
    let length = NOISE_BYTES + size;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&SystemAmbient.random_u64().to_le_bytes());
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn report(
    args: &BenchProduceArgs,
    topic: &str,
    partitions: u32,
    measured: Measured,
    busy: Option<Duration>,
) -> Result<Value, CliError> {
    let elapsed = Duration::from_secs(args.seconds);
    let messages = measured.batches * u64::from(args.batch);
    let bytes = messages * args.size;
    let seconds = elapsed.as_secs_f64();
    if measured.failures > 0 {
        let first = measured
            .first_failure
            .map(|error| error.to_string())
            .unwrap_or_default();
        say(&format!(
            "warning: {} batches failed; the first: {first}",
            measured.failures
        ));
    }
    Ok(json!({
        "conditions": {
            "loop": "closed",
            "topic": topic,
            "partitions": partitions,
            "payload_bytes": args.size,
            "messages_per_batch": args.batch,
            "producers": args.producers,
            "in_flight_per_producer": args.in_flight,
            "warm_up_seconds": args.warm_up,
            "seconds": args.seconds,
        },
        "messages": messages,
        "batches": measured.batches,
        "failed_batches": measured.failures,
        "messages_per_second": round(messages as f64 / seconds),
        "megabytes_per_second": round(bytes as f64 / seconds / 1e6),
        "latency_us": measured.latencies.value(),
        "load_processor_percent": percent(busy, elapsed),
    }))
}

fn described(value: &Value) -> String {
    let conditions = &value["conditions"];
    let processor = match value["load_processor_percent"].as_f64() {
        Some(percent) => format!("{percent} % of one core for the load"),
        None => "not known here".to_owned(),
    };
    lines(&[
        (
            "conditions",
            format!(
                "closed loop, {} producer(s) with {} batch(es) of {} x {} B under way each, {} partition(s), \
                 {} s after {} s warm-up",
                conditions["producers"],
                conditions["in_flight_per_producer"],
                conditions["messages_per_batch"],
                conditions["payload_bytes"],
                conditions["partitions"],
                conditions["seconds"],
                conditions["warm_up_seconds"],
            ),
        ),
        (
            "acknowledged",
            format!(
                "{} messages in {} batches",
                value["messages"], value["batches"]
            ),
        ),
        (
            "rate",
            format!(
                "{} msg/s, {} MB/s of payload",
                value["messages_per_second"], value["megabytes_per_second"]
            ),
        ),
        ("latency of a batch", latency_line(&value["latency_us"])),
        ("failed batches", value["failed_batches"].to_string()),
        ("processor", processor),
    ])
}
