//! `imprint bench`: measures a cluster under load that this process makes.
//!
//! What is printed says under which conditions it was measured, including how much processor time
//! the load itself took: where that is near the whole machine, the figures are of the load.

mod consume;
mod produce;

use super::args::{BenchArgs, BenchCommand};
use super::context::Context;
use super::exit::CliError;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::time::Duration;

/// Longest latency told apart, in microseconds; beyond it they count as this.
const LONGEST_US: u64 = 60_000_000;
/// Digits of a latency that are kept.
const DIGITS: u8 = 3;

/// Runs a benchmark.
pub async fn run(context: &Context, args: BenchArgs) -> Result<(), CliError> {
    match args.command {
        BenchCommand::Produce(args) => produce::run(context, args).await,
        BenchCommand::Consume(args) => consume::run(context, args).await,
    }
}

/// Latencies in microseconds.
#[derive(Debug)]
struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> Result<Latencies, CliError> {
        Histogram::new_with_bounds(1, LONGEST_US, DIGITS)
            .map(Latencies)
            .map_err(|error| CliError::Usage(error.to_string()))
    }

    fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US);
        self.0.saturating_record(micros.max(1));
    }

    fn add(&mut self, other: &Latencies) -> Result<(), CliError> {
        self.0
            .add(&other.0)
            .map_err(|error| CliError::Usage(error.to_string()))
    }

    fn value(&self) -> Value {
        let at = |quantile| self.0.value_at_quantile(quantile);
        json!({
            "count": self.0.len(),
            "min": if self.0.is_empty() { 0 } else { self.0.min() },
            "p50": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "p999": at(0.999),
            "max": self.0.max(),
        })
    }
}

/// Processor time of this process so far, user and system.
///
/// Read from the kernel's accounting where there is one; elsewhere it is not stated.
fn processor_time() -> Option<Duration> {
    // A tick is 10 ms on every Linux that is met.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the command in parentheses and may hold anything; count from behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * user.saturating_add(system))
}

/// Share of one core that `used` is of `elapsed`, in percent.
fn percent(used: Option<Duration>, elapsed: Duration) -> Option<f64> {
    used.map(|used| round(100.0 * used.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)))
}

/// One decimal is enough for every figure printed.
fn round(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}

/// One `name  value` per line.
fn lines(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:width$}  {value}\n");
    pairs.iter().map(line).collect()
}

fn latency_line(latencies: &Value) -> String {
    let names = ["min", "p50", "p90", "p99", "p999", "max"];
    let parts = names.map(|name| {
        let millis = latencies[name].as_u64().unwrap_or(0) as f64 / 1000.0;
        format!("{name} {millis:.3}")
    });
    format!("{} ms", parts.join(", "))
}
