//! `imprint produce`: stdin or a file into a topic, in bounded memory.
//!
//! A thread of its own reads, because a read of a terminal or a pipe can't be cancelled; two chunks
//! wait at most. The producer's buffer bounds the rest.

use super::args::{Format, ProduceArgs};
use super::context::{Context, interrupted};
use super::exit::CliError;
use super::lines::Splitter;
use super::output::{self, say};
use imprint_client::{
    NewMessage, ProduceError, Producer, ProducerOptions, RetryUnknown, UserHeader,
};
use serde_json::json;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Bytes per read.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks read ahead.
const CHUNKS_AHEAD: usize = 2;
/// Time between two progress lines on a terminal.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// What was handed to the producer.
#[derive(Debug, Default)]
struct Sent {
    messages: u64,
    bytes: u64,
}

/// Produces until the input ends, an error, or Ctrl-C; then waits for the answers and says how much was stored.
pub async fn run(context: &Context, args: ProduceArgs) -> Result<(), CliError> {
    let format = context.format;
    let options = options(context, &args).await?;
    let limit = usize::try_from(options.limits.max_batch_bytes).unwrap_or(usize::MAX);
    let producer = context.client.producer(&args.topic, options).await?;
    let input = read_ahead(args.file.as_deref())?;
    let begun = Instant::now();
    let (mut sent, mut splitter) = (
        Sent::default(),
        Splitter::new(&args.delimiter.0, args.keep_delimiter, limit),
    );
    let pumped = tokio::select! {
        pumped = pump(&producer, &args, input, &mut splitter, &mut sent) => pumped,
        () = interrupted() => Err(CliError::Interrupted),
    };
    // A second Ctrl-C does not wait for the answers.
    let flushed = tokio::select! {
        flushed = producer.flush() => flushed.map_err(CliError::from),
        () = interrupted() => Err(CliError::Interrupted),
    };
    let stored = producer.acknowledged();
    summary(format, &args.topic, stored, &sent, begun.elapsed())?;
    // The first batch that failed explains more than what stopped because of it.
    flushed.and(pumped)
}

async fn options(context: &Context, args: &ProduceArgs) -> Result<ProducerOptions, CliError> {
    let mut options = ProducerOptions {
        batch_messages: args.batch,
        linger: Duration::from_millis(args.linger_ms),
        ..ProducerOptions::default()
    };
    options.retry_unknown = match (args.at_least_once, args.at_most_once) {
        (true, _) => RetryUnknown::Yes,
        (_, true) => RetryUnknown::No,
        _ => RetryUnknown::Guarded,
    };
    let limits = context.admin().limits().await?;
    options.limits.max_batch_bytes = limits.max_batch_bytes;
    options.limits.max_messages = limits.max_messages_per_batch;
    options.limits.max_user_headers_bytes = limits.max_user_headers_bytes;
    options.limits.max_header_field_bytes = limits.max_header_field_bytes;
    Ok(options)
}

async fn pump(
    producer: &Producer,
    args: &ProduceArgs,
    mut input: mpsc::Receiver<io::Result<Vec<u8>>>,
    splitter: &mut Splitter,
    sent: &mut Sent,
) -> Result<(), CliError> {
    let headers: Vec<UserHeader<'_>> = args
        .header
        .iter()
        .map(|(key, value)| UserHeader::text(key, value))
        .collect();
    let common = NewMessage {
        partition: args.partition,
        key: args.key.as_deref().map(str::as_bytes),
        payload: &[],
        headers: &headers,
    };
    let mut progress = Progress::new();
    while let Some(chunk) = input.recv().await {
        let chunk = chunk.map_err(|error| input_error(args, error))?;
        splitter.push(&chunk);
        while let Some(payload) = splitter
            .next_message()
            .map_err(|error| CliError::Usage(error.to_string()))?
        {
            send(producer, NewMessage { payload, ..common }, sent).await?;
        }
        if let Some(error) = producer.first_failure() {
            return Err(error.into());
        }
        progress.show(sent);
    }
    if let Some(payload) = splitter.rest() {
        send(producer, NewMessage { payload, ..common }, sent).await?;
    }
    progress.end();
    Ok(())
}

async fn send(
    producer: &Producer,
    message: NewMessage<'_>,
    sent: &mut Sent,
) -> Result<(), ProduceError> {
    let bytes = message.payload.len() as u64;
    // The answer is looked at by `first_failure` and `flush`.
    drop(producer.send(message).await?);
    sent.messages += 1;
    sent.bytes += bytes;
    Ok(())
}

fn summary(
    format: Format,
    topic: &str,
    stored: u64,
    sent: &Sent,
    took: Duration,
) -> Result<(), CliError> {
    let seconds = took.as_secs_f64().max(1e-6);
    let rate = sent.bytes as f64 / seconds / 1e6;
    let of = match stored == sent.messages {
        true => String::new(),
        false => format!(" of {}", sent.messages),
    };
    say(&format!(
        "{stored}{of} messages stored in {topic}, {} bytes of payload, {seconds:.3} s, {:.0} msg/s, {rate:.2} MB/s",
        sent.bytes,
        stored as f64 / seconds,
    ));
    if format == Format::Table {
        return Ok(());
    }
    let value = json!({
        "topic": topic,
        "messages": stored,
        "messages_read": sent.messages,
        "payload_bytes_read": sent.bytes,
        "seconds": seconds,
    });
    output::document(format, &value, String::new)
}

fn input_error(args: &ProduceArgs, error: io::Error) -> CliError {
    match &args.file {
        Some(path) => CliError::File {
            path: path.display().to_string(),
            error,
        },
        None => CliError::File {
            path: "stdin".to_owned(),
            error,
        },
    }
}

/// Starts the reading thread. It ends with the input, an error, or when nobody takes its chunks.
fn read_ahead(file: Option<&Path>) -> Result<mpsc::Receiver<io::Result<Vec<u8>>>, CliError> {
    let mut source: Box<dyn Read + Send> = match file {
        None => Box::new(io::stdin()),
        Some(path) => Box::new(File::open(path).map_err(|error| CliError::File {
            path: path.display().to_string(),
            error,
        })?),
    };
    let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
    std::thread::spawn(move || {
        loop {
            let chunk = match read_chunk(&mut source) {
                Ok(chunk) if chunk.is_empty() => return,
                other => other,
            };
            let failed = chunk.is_err();
            if sender.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    });
    Ok(chunks)
}

fn read_chunk(source: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match source.read(&mut chunk) {
            Ok(length) => {
                chunk.truncate(length);
                return Ok(chunk);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A line that is written over again, if stderr is a terminal and stdin is not.
#[derive(Debug)]
struct Progress {
    shown: Option<Instant>,
    begun: Instant,
    wanted: bool,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            shown: None,
            begun: Instant::now(),
            wanted: io::stderr().is_terminal() && !io::stdin().is_terminal(),
        }
    }

    fn show(&mut self, sent: &Sent) {
        let last = self.shown.unwrap_or(self.begun);
        if self.wanted && last.elapsed() >= PROGRESS_EVERY {
            self.shown = Some(Instant::now());
            let seconds = self.begun.elapsed().as_secs_f64();
            let rate = sent.bytes as f64 / seconds / 1e6;
            eprint_quiet(&format!(
                "\r{} messages, {rate:.1} MB/s\x1b[K",
                sent.messages
            ));
        }
    }

    fn end(&self) {
        if self.shown.is_some() {
            eprint_quiet("\r\x1b[K");
        }
    }
}

fn eprint_quiet(text: &str) {
    let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
}
