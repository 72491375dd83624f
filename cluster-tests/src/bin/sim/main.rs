//! A whole cluster in one process, under simulated time, network and disk: one seed, one history.
//!
//! `sim --seed N` runs three nodes (the code that `imprint serve` runs, behind other seams) and two
//! producers. Meanwhile the leader of the partition is killed, everything that its disk had not
//! synced is dropped, and it is started again; later the front of the log is trimmed. With `--flip-bit` one
//! bit of what the dead node had synced is flipped before it starts. At the end every acknowledged message must stand at
//! its offset on every node, with the same bytes everywhere, and nothing that nobody sent.
//!
//! The history (what was asked, answered and done, with simulated times) goes to stdout, so that
//! two runs of one seed can be compared byte for byte. Exit status 0: the audit held; 1: it didn't.
//!
//! One process runs one seed: hash maps and tokio draw from the process's random generator, which is
//! seeded here, before anything else has drawn from it.

mod scenario;
mod seams;

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(seed) = seed_argument() else {
        eprintln!("usage: sim --seed NUMBER [--break-sync] [--flip-bit]");
        return ExitCode::from(2);
    };
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let faults = scenario::Faults {
        lying_disk: has("--break-sync"),
        flipped_bit: has("--flip-bit"),
    };
    seams::make_deterministic(seed);
    match scenario::run(seed, faults) {
        Ok(history) => {
            history.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            failure.history.iter().for_each(|line| println!("{line}"));
            eprintln!("seed {seed}: {}", failure.reason);
            eprintln!("replay: cargo run -p imprint-cluster-tests --bin sim -- --seed {seed}");
            ExitCode::FAILURE
        }
    }
}

fn seed_argument() -> Option<u64> {
    let mut args = std::env::args().skip_while(|arg| arg != "--seed");
    args.next()?;
    args.next()?.parse().ok()
}
