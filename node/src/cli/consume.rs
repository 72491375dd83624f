//! `imprint consume`: messages to stdout.
//!
//! The consumer's tasks poll and verify on the runtime's threads; this one writes. It blocks on a
//! slow reader, which is what holds the tasks back: they fetch only as far ahead as their bound.

use super::args::{ConsumeArgs, Format, OnTrimmed};
use super::context::{Context, interrupted};
use super::exit::CliError;
use super::output::{self, say};
use super::template::Template;
use super::time::{StartAt, format_micros, now_micros};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::FutureExt;
use imprint_client::{Client, Consumer, ConsumerOptions, Fetched, Record};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How a message is written.
#[derive(Debug)]
enum Style {
    /// Payload and delimiter.
    Plain(Vec<u8>),
    Template(Template),
    Json,
}

/// Consumes until the end asked for, an error, or Ctrl-C.
pub async fn run(context: &Context, args: ConsumeArgs) -> Result<(), CliError> {
    let style = style(context.streaming_format()?, &args)?;
    let mut out = output::bulk_stdout()?;
    let ended = tokio::select! {
        ended = copy(context, &args, &style, &mut out) => ended,
        () = interrupted() => Err(CliError::Interrupted),
    };
    let flushed = out.flush().map_err(CliError::from);
    match ended.and(flushed) {
        Err(error) if error.is_closed_pipe() => {
            // The rest of the buffer has nowhere to go; dropping it must not try again.
            let _ = out.into_parts();
            Ok(())
        }
        other => other,
    }
}

fn style(format: Format, args: &ConsumeArgs) -> Result<Style, CliError> {
    match (&args.format, format) {
        (Some(_), Format::Json) => Err(CliError::Usage(
            "-f and -o json exclude each other".to_owned(),
        )),
        (Some(text), _) => Template::parse(text)
            .map(Style::Template)
            .map_err(CliError::Usage),
        (None, Format::Json) => Ok(Style::Json),
        (None, _) => Ok(Style::Plain(args.delimiter.0.clone())),
    }
}

async fn copy(
    context: &Context,
    args: &ConsumeArgs,
    style: &Style,
    out: &mut BufWriter<File>,
) -> Result<(), CliError> {
    if args.count == Some(0) {
        return Ok(());
    }
    let options = options(context, args).await?;
    let patience = args.exit_at_end.then(|| context.client.options().deadline);
    let mut consumer = context.client.consumer(&args.topic, options).await?;
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut progressed = Instant::now();
    while let Some(fetched) = next(&mut consumer, out, patience, progressed).await? {
        if !fetched.batches().is_empty() {
            progressed = Instant::now();
        }
        if fetched.skipped > 0 {
            progressed = Instant::now();
            say(&skipped_line(&fetched));
        }
        if write_all(style, &args.topic, &fetched, &mut left, out)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

async fn options(context: &Context, args: &ConsumeArgs) -> Result<ConsumerOptions, CliError> {
    let until = match args.exit_at_end {
        true => ends(context, args).await?,
        false => BTreeMap::new(),
    };
    if let StartAt::Offset(from) = args.from {
        check_within(context, args, from, &until).await?;
    }
    Ok(ConsumerOptions {
        partitions: args.partition.clone(),
        from: args.from.position(now_micros()),
        until,
        at_node: args.at,
        on_trimmed: match args.on_trimmed {
            OnTrimmed::Start => imprint_client::OnTrimmed::Start,
            OnTrimmed::End => imprint_client::OnTrimmed::End,
            OnTrimmed::Fail => imprint_client::OnTrimmed::Fail,
        },
        ..ConsumerOptions::default()
    })
}

/// A start above an end is a mistake: nothing between them would be read, and that in silence.
async fn check_within(
    context: &Context,
    args: &ConsumeArgs,
    from: u64,
    until: &BTreeMap<u32, u64>,
) -> Result<(), CliError> {
    let Some((partition, end)) = until.iter().find(|(_, end)| from > **end) else {
        return Ok(());
    };
    let asked = [*partition];
    let offsets = context.client.offsets(&args.topic, &asked, args.at).await?;
    let start = offsets.first().map_or(0, |one| one.start_offset);
    Err(CliError::AboveEnd {
        partition: *partition,
        offset: from,
        start,
        end: *end,
    })
}

fn skipped_line(fetched: &Fetched) -> String {
    format!(
        "warning: partition {}: {} offsets were skipped, they are trimmed away; going on at offset {}",
        fetched.partition, fetched.skipped, fetched.next_offset
    )
}

/// Where each partition ends: behind everything acknowledged before now, as its leader confirms.
///
/// With `--at` and no leader to ask, what the named replica knows has to do, and that is said.
async fn ends(context: &Context, args: &ConsumeArgs) -> Result<BTreeMap<u32, u64>, CliError> {
    let client = &context.client;
    let partitions = match args.partition.as_slice() {
        [] => all_partitions(client, &args.topic).await?,
        chosen => chosen.to_vec(),
    };
    let error = match client.confirmed_ends(&args.topic, &partitions).await {
        Ok(ends) => return Ok(ends),
        Err(error) => error,
    };
    if args.at.is_none() || !error.is_transient() {
        return Err(error.into());
    }
    say(&format!(
        "warning: no leader confirms the end ({error}); reading what node {} knows to be committed",
        args.at.unwrap_or(0)
    ));
    let offsets = client.offsets(&args.topic, &partitions, args.at).await?;
    Ok(offsets
        .into_iter()
        .map(|one| (one.partition, one.commit_offset))
        .collect())
}

async fn all_partitions(client: &Client, topic: &str) -> Result<Vec<u32>, CliError> {
    let topic = client.admin().get_topic(topic).await?;
    Ok(topic
        .partitions
        .iter()
        .map(|partition| partition.index)
        .collect())
}

/// The next reply. What was written goes out before a wait, so that a reader sees it as it comes.
///
/// `patience` is how long to wait for anything new since `progressed`: a replica that never gets to
/// the end asked for must not keep the command for ever.
async fn next(
    consumer: &mut Consumer,
    out: &mut BufWriter<File>,
    patience: Option<Duration>,
    progressed: Instant,
) -> Result<Option<Fetched>, CliError> {
    let fetched = match (consumer.next().now_or_never(), patience) {
        (Some(fetched), _) => fetched,
        (None, None) => {
            out.flush()?;
            consumer.next().await
        }
        (None, Some(patience)) => {
            out.flush()?;
            let waited = timeout_at(progressed + patience, consumer.next()).await;
            waited.map_err(|_| {
                let what =
                    "the replica has not got to the end that was acknowledged before the start";
                CliError::NotInTime(format!("{what}: nothing new within {patience:?}"))
            })?
        }
    };
    Ok(fetched.transpose()?)
}

fn write_all(
    style: &Style,
    topic: &str,
    fetched: &Fetched,
    left: &mut u64,
    out: &mut BufWriter<File>,
) -> io::Result<ControlFlow<()>> {
    for record in fetched.records() {
        match style {
            Style::Plain(delimiter) => {
                out.write_all(record.payload())?;
                out.write_all(delimiter)?;
            }
            Style::Template(template) => template.write(out, topic, fetched.partition, &record)?,
            Style::Json => {
                serde_json::to_writer(&mut *out, &record_value(topic, fetched.partition, &record))?;
                out.write_all(b"\n")?;
            }
        }
        *left -= 1;
        if *left == 0 {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn record_value(topic: &str, partition: u32, record: &Record<'_>) -> Value {
    let mut value = json!({
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_us": record.timestamp_us,
        "time": format_micros(record.timestamp_us),
        "origin_timestamp_us": record.origin_timestamp_us,
        "id": format!("{:032x}", record.id()),
    });
    let Value::Object(fields) = &mut value else {
        return value;
    };
    if let Some(key) = record.key() {
        put_bytes(fields, "key", key);
    }
    let headers: Vec<Value> = record.headers().map(header_value).collect();
    if !headers.is_empty() {
        fields.insert("headers".to_owned(), Value::Array(headers));
    }
    put_bytes(fields, "payload", record.payload());
    value
}

fn header_value((key, value): (&[u8], &[u8])) -> Value {
    let mut fields = Map::new();
    put_bytes(&mut fields, "key", key);
    put_bytes(&mut fields, "value", value);
    Value::Object(fields)
}

/// Text as it is; other bytes under the name with `_base64` behind it.
fn put_bytes(fields: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => fields.insert(name.to_owned(), text.into()),
        Err(_) => fields.insert(format!("{name}_base64"), STANDARD.encode(bytes).into()),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_encoded() {
        let mut fields = Map::new();
        put_bytes(&mut fields, "payload", b"ok");
        put_bytes(&mut fields, "key", &[0xff, 0xfe]);
        let expected = json!({ "payload": "ok", "key_base64": "//4=" });
        assert_eq!(Value::Object(fields), expected);
    }
}
