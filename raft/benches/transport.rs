//! How fast the transport between nodes is, against plain TCP in the same run.
//!
//! Two nodes with whole transports (hello, pings, budgets, checksums) in one process, over TCP on loopback. The controls
//! use the same runtime and the same seam for the network: a length-prefixed copy one way, and an echo. Every figure of
//! the transport therefore covers queueing, framing, both checksums, dispatch and the reply, and stands beside what the
//! machine does without all that.
//!
//! `cargo bench -p imprint-raft --bench transport`, or with `-- quick` for a tenth of the time, or with the name of one
//! part: `acceptance`, `sizes`, `compression`.

#[path = "transport/control.rs"]
mod control;
#[path = "transport/load.rs"]
mod load;
#[path = "transport/report.rs"]
mod report;

use std::sync::Arc;

use bytes::Bytes;
use load::{Entropy, Load, Pair};
use report::{Samples, mib_per_s, print_conditions};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    bulk_bytes: usize,
    small_calls: usize,
}

const FULL: Effort = Effort {
    rounds: 7,
    bulk_bytes: 1024 * MIB,
    small_calls: 20_000,
};

const QUICK: Effort = Effort {
    rounds: 3,
    bulk_bytes: 128 * MIB,
    small_calls: 3_000,
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let effort = if words.iter().any(|word| word == "quick") {
        QUICK
    } else {
        FULL
    };
    let parts = ["acceptance", "sizes", "compression"];
    let chosen = |part: &str| {
        let any = words.iter().any(|word| parts.contains(&word.as_str()));
        !any || words.iter().any(|word| word == part)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    print_conditions(runtime.metrics().num_workers());
    runtime.block_on(async {
        if chosen("acceptance") {
            acceptance(effort).await;
        }
        if chosen("sizes") {
            sizes(effort).await;
        }
        if chosen("compression") {
            compression_moves_the_bottleneck(effort).await;
        }
    });
}

/// The two figures that must hold, each with its control measured in turns with it.
async fn acceptance(effort: Effort) {
    println!(
        "\n## Against plain TCP, {} rounds in turns\n",
        effort.rounds
    );
    let pair = Pair::start().await;
    let batch = Entropy::Random.payload(MIB);
    let mut plain = Samples::default();
    let mut framed = Samples::default();
    let mut echo = Samples::default();
    let mut call = Samples::default();
    for _ in 0..effort.rounds {
        let messages = effort.bulk_bytes / MIB;
        let took = control::copy(Arc::new(batch.clone()), messages).await;
        plain.add(mib_per_s(effort.bulk_bytes, took));
        let took = pair.one_way(&batch, messages, Load::of(8)).await;
        framed.add(mib_per_s(effort.bulk_bytes, took));
        echo.add(control::echo(64, effort.small_calls).await.p50_us());
        let small = Entropy::Random.payload(64);
        let latencies = pair.echo(&small, effort.small_calls, Load::of(1)).await;
        call.add(latencies.p50_us());
    }
    println!("| | median | min | max |\n|---|---:|---:|---:|");
    plain.row("plain copy with length prefixes, 1 MiB, one way, MiB/s");
    framed.row("calls of 1 MiB, one way, 8 under way, MiB/s");
    echo.row("plain echo of 64 bytes, p50, µs");
    call.row("call of 64 bytes and its echo, p50, µs");
    let (throughput, latency) = (
        framed.median() / plain.median(),
        call.median() / echo.median(),
    );
    let verdict = |holds| if holds { "holds" } else { "DOES NOT HOLD" };
    println!();
    println!(
        "throughput ratio {throughput:.2} (at least 0.50: {})",
        verdict(throughput >= 0.5)
    );
    println!(
        "latency ratio {latency:.2} (at most 2.00: {})",
        verdict(latency <= 2.0)
    );
}

/// Latency and throughput by payload size and by calls under way.
async fn sizes(effort: Effort) {
    println!("\n## By payload size and calls under way (echo: the payload goes there and back)\n");
    println!("| payload | under way | calls | p50 µs | p99 µs | MiB/s one way |");
    println!("|---:|---:|---:|---:|---:|---:|");
    let pair = Pair::start().await;
    for size in [64, KIB, 16 * KIB, 256 * KIB, MIB, 8 * MIB] {
        let payload = Entropy::Random.payload(size);
        for under_way in [1, 8, 64] {
            if size * under_way > 64 * MIB {
                continue;
            }
            let calls = (effort.bulk_bytes / 4 / size).clamp(under_way, effort.small_calls);
            let result = pair.echo(&payload, calls, Load::of(under_way)).await;
            let rate = mib_per_s(calls * size, result.took);
            println!(
                "| {} | {under_way} | {calls} | {:.1} | {:.1} | {rate:.0} |",
                report::size(size),
                result.p50_us(),
                result.p99_us(),
            );
        }
    }
}

/// Failure 3 of five: compression that saves bytes and costs more than it saves. Every level of entropy is run with and,
/// as the control, without it; the processor's time stands beside the rate.
async fn compression_moves_the_bottleneck(effort: Effort) {
    println!(
        "\n## Compression (zstd level 1) by entropy, 8 under way, one way; control: the same uncompressed\n"
    );
    println!(
        "| payload | entropy | compression | MiB/s | bytes on the wire | CPU ms per 100 MiB |"
    );
    println!("|---:|---|---|---:|---:|---:|");
    let pair = Pair::start().await;
    for size in [4 * KIB, 64 * KIB, MIB] {
        for entropy in Entropy::ALL {
            let payload = entropy.payload(size);
            for compress in [false, true] {
                row_of_compression(&pair, effort, &payload, entropy, compress).await;
            }
        }
    }
}

async fn row_of_compression(
    pair: &Pair,
    effort: Effort,
    payload: &Bytes,
    entropy: Entropy,
    compress: bool,
) {
    let total = effort.bulk_bytes / 8;
    let calls = total / payload.len();
    let (sent, cpu) = (pair.wire_bytes(), report::cpu_ms());
    let load = Load {
        under_way: 8,
        compress,
    };
    let took = pair.one_way(payload, calls, load).await;
    let wire = (pair.wire_bytes() - sent) as f64 / (calls * payload.len()) as f64;
    let cpu = (report::cpu_ms() - cpu) as f64 * (100 * MIB) as f64 / total as f64;
    println!(
        "| {} | {} | {} | {:.0} | {:.1} % | {cpu:.0} |",
        report::size(payload.len()),
        entropy.name(),
        if compress { "zstd" } else { "none (control)" },
        mib_per_s(total, took),
        wire * 100.0,
    );
}
