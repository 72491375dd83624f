//! Conditions and figures, as Markdown.

use std::time::Duration;

/// What a reader needs to judge the figures.
pub fn print_conditions(workers: usize) {
    let profile = if cfg!(debug_assertions) {
        "UNOPTIMISED: figures mean nothing"
    } else {
        "bench (release, thin LTO, 4 codegen units)"
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("build profile: {profile}");
    println!(
        "processor: {} with {cores} cores; Linux {}",
        processor(),
        kernel()
    );
    println!(
        "topology: two nodes in one process, TCP on 127.0.0.1, one runtime with {workers} workers"
    );
    println!("payload: raw bytes of a fixed seed, one part; random unless said otherwise");
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| "unknown".to_owned())
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Processor time of this process, user and system, in milliseconds (the kernel counts in steps of ten).
pub fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |field: usize| -> u64 {
        let word = after_name.split_whitespace().nth(field);
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    // utime and stime, in hundredths of a second.
    (ticks(11) + ticks(12)) * 10
}

pub fn mib_per_s(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / (1024.0 * 1024.0) / took.as_secs_f64()
}

/// A size in the largest unit that divides it.
pub fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// One figure of several rounds.
#[derive(Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn add(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub fn row(&self, name: &str) {
        let end = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        println!(
            "| {name} | {:.1} | {:.1} | {:.1} |",
            self.median(),
            end(self.0.first()),
            end(self.0.last())
        );
    }
}
