//! Hours of ordinary trouble: `soak --minutes 60 --seeds 1,2,3`.
//!
//! Writers, readers and retention by size run on a cluster of real processes while nodes are killed,
//! paused and cut off, as each seed says; the time is shared among the seeds. One node per seed is never
//! killed, so that a leak has time to show. Resident memory and open files of every node are printed at
//! the start, at every look and at the end. The run fails when the spared node grows beyond the bound
//! below after warm-up, when a reader or the audit finds a broken promise, or when a node ends by itself.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests live in the real world"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use imprint_cluster_tests::cluster::Cluster;
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::load::{Load, Pace};
use imprint_cluster_tests::readers::Readers;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const TOPIC: &str = "soak";
const NODES: [u64; 3] = [1, 2, 3];
const WRITERS: u64 = 4;
const READERS: u64 = 4;
/// Enough for the disk to stay small and for segments to go all the time.
const SETTINGS: [(&str, &str); 2] = [("segment_bytes", "64KiB"), ("retention_bytes", "512KiB")];
const PACE: Pace = Pace {
    payload_bytes: 1000,
    pause: Duration::from_millis(10),
};
/// Resident memory may grow by this factor after warm-up, and by this much besides.
const MEMORY_FACTOR: f64 = 1.5;
const MEMORY_SLACK_KIB: u64 = 64 << 10;
/// Open files may grow by this many.
const FILES_SLACK: u64 = 64;

struct Arguments {
    length: Duration,
    seeds: Vec<u64>,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments {
        length: Duration::from_secs(600),
        seeds: vec![1],
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(format!("{name} needs a value"))?;
        let wrong = |e: &dyn std::fmt::Display| format!("{name} {value}: {e}");
        match name.as_str() {
            "--minutes" => {
                let minutes: f64 = value.parse().map_err(|e| wrong(&e))?;
                found.length =
                    Duration::try_from_secs_f64(minutes * 60.0).map_err(|e| wrong(&e))?;
            }
            "--seeds" => {
                let seeds = value.split(',').map(str::parse);
                found.seeds = seeds.collect::<Result<_, _>>().map_err(|e| wrong(&e))?;
            }
            _ => {
                return Err(format!(
                    "{name} is not known; there are --minutes and --seeds"
                ));
            }
        }
    }
    Ok(found)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let share = arguments.length / u32::try_from(arguments.seeds.len()).unwrap_or(u32::MAX);
    for seed in arguments.seeds {
        println!("seed {seed}, {} s", share.as_secs());
        if let Err(problem) = soak(seed, share).await {
            println!("seed {seed}: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

async fn soak(seed: u64, length: Duration) -> Result<(), String> {
    let mut cluster = Cluster::start_with(&[("IMPRINT_STORAGE_RETENTION_CHECK", "1s")]).await;
    let topic = cluster.create_topic(TOPIC, &SETTINGS).await;
    let load = Load::start_paced(&cluster, TOPIC, WRITERS, PACE);
    let readers = Readers::start(&cluster, TOPIC, READERS);
    let mut trouble = Trouble::new(seed);
    let mut watch = Watch::new(length, trouble.spared);
    watch.look(&cluster, &load, &readers);
    while !watch.is_over() {
        trouble.one(&mut cluster).await;
        tokio::time::sleep(trouble.pause()).await;
        if let Some(problem) = readers.broken() {
            return Err(problem);
        }
        for node in NODES {
            if !cluster.is_running(node) {
                return Err(format!("node {node} ended:\n{}", cluster.log_of(node)));
            }
        }
        watch.look_if_due(&cluster, &load, &readers);
    }
    watch.look(&cluster, &load, &readers);
    let mut ledger = load.finish().await;
    ledger.allow_trims();
    let seen = readers.finish(&ledger).await?;
    println!("{} acknowledged, {seen:?}", ledger.count());
    hold_audit(&cluster, &topic, &ledger).await;
    watch.judge()
}

/// What goes wrong, and when, as the seed says.
struct Trouble {
    random: StdRng,
    spared: u64,
}

impl Trouble {
    fn new(seed: u64) -> Self {
        Trouble {
            random: StdRng::seed_from_u64(seed),
            spared: seed % 3 + 1,
        }
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(self.random.random_range(500..3000))
    }

    async fn one(&mut self, cluster: &mut Cluster) {
        let node = NODES[self.random.random_range(0..NODES.len())];
        let length = Duration::from_millis(self.random.random_range(100..4000));
        match self.random.random_range(0..4) {
            0 | 1 if node != self.spared => {
                cluster.kill(node);
                tokio::time::sleep(length).await;
                cluster.start_node(node);
                cluster.wait_ready().await;
            }
            2 => {
                cluster.pause(node);
                tokio::time::sleep(length).await;
                cluster.resume(node);
            }
            _ => {
                cluster.links.isolate(node);
                tokio::time::sleep(length).await;
                cluster.links.heal();
            }
        }
    }
}

/// Memory and files of one process.
#[derive(Debug, Clone, Copy)]
struct Usage {
    resident_kib: u64,
    open_files: u64,
}

fn usage(pid: u32) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident_kib = resident
        .and_then(|rest| rest.trim().split(' ').next()?.parse().ok())
        .unwrap_or(0);
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    Usage {
        resident_kib,
        open_files: files.map_or(0, |files| files.count() as u64),
    }
}

/// Looks at the nodes now and then, and remembers the spared one.
struct Watch {
    began: Instant,
    length: Duration,
    next_look: Instant,
    spared: u64,
    looks: Vec<(Duration, Usage)>,
}

impl Watch {
    fn new(length: Duration, spared: u64) -> Self {
        Watch {
            began: Instant::now(),
            length,
            next_look: Instant::now(),
            spared,
            looks: Vec::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.length
    }

    fn look_if_due(&mut self, cluster: &Cluster, load: &Load, readers: &Readers) {
        if Instant::now() >= self.next_look {
            self.look(cluster, load, readers);
        }
    }

    fn look(&mut self, cluster: &Cluster, load: &Load, readers: &Readers) {
        // Every minute, and a dozen times in a short run.
        self.next_look = Instant::now() + Duration::from_secs(60).min(self.length / 12);
        let at = self.began.elapsed();
        let mut line = format!(
            "{:>6} s  {:>8} acknowledged",
            at.as_secs(),
            load.acknowledged()
        );
        for node in NODES {
            let usage = usage(cluster.pid(node));
            let (mib, files) = (usage.resident_kib >> 10, usage.open_files);
            line.push_str(&format!("  node {node}: {mib:>4} MiB {files:>4} files"));
            if node == self.spared {
                self.looks.push((at, usage));
            }
        }
        println!("{line}  {:?}", readers.so_far());
    }

    /// The last look against the most that was seen up to the end of warm-up, a third of the run.
    fn judge(&self) -> Result<(), String> {
        let warm = self.length / 3;
        let early = self.looks.iter().filter(|(at, _)| *at <= warm);
        let memory = early.clone().map(|(_, usage)| usage.resident_kib).max();
        let files = early.map(|(_, usage)| usage.open_files).max();
        let (Some((_, last)), Some(memory), Some(files)) = (self.looks.last(), memory, files)
        else {
            return Err("nothing was looked at".into());
        };
        let allowed = (memory as f64 * MEMORY_FACTOR) as u64 + MEMORY_SLACK_KIB;
        let spared = self.spared;
        if last.resident_kib > allowed {
            let resident = last.resident_kib;
            return Err(format!(
                "node {spared} grew from {memory} to {resident} KiB, {allowed} are allowed"
            ));
        }
        if last.open_files > files + FILES_SLACK {
            let open = last.open_files;
            return Err(format!(
                "node {spared} had {files} open files and has {open}"
            ));
        }
        Ok(())
    }
}
