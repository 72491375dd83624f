//! A process that works on real files and is killed with SIGKILL at any moment, over and over.
//!
//! The parent starts this same test program as the victim, reads which steps it says are done, and kills it. Both draw their
//! steps from one seed, so the parent can take the same steps on a copy of the directory and knows what each of them makes:
//! after the kill everything that was acknowledged must be there, and of the step in between all, a prefix, or nothing.
//! `TORTURE_ROUNDS` and `TORTURE_SEED` choose how long and which; the seed is printed.

mod journal_support;

use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use imprint_raft::meta::{MetaStore, SledMeta};
use journal_support::draw::{Draw, number};
use journal_support::history::{History, Model, Op};
use journal_support::small;

const ROUNDS: u64 = 200;
/// Steps that a victim would take if nobody killed it.
const MANY: u64 = 100_000;
/// Where the victim keeps the number of its last step, besides what it is about.
const META_KEY: &[u8] = b"step";

/// Set while a model is tried that need not be the right one: its failures are no news.
static JUDGING: AtomicBool = AtomicBool::new(false);

fn op(draw: &mut Draw) -> Op {
    match draw.below(16) {
        0 | 1 => Op::Vote,
        2 => Op::Membership,
        3 | 4 => Op::Elected(1 + draw.below(3) as u32),
        5 => Op::Truncate(draw.below(6)),
        6 => Op::PurgeBut(draw.below(30)),
        7 => Op::Trim,
        8 | 9 => Op::Flush,
        10 if draw.below(8) == 0 => Op::Install(draw.below(4)),
        _ => Op::Data(1),
    }
}

/// The victim: takes steps on the files it is given until it is killed. Says nothing when run as a test.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os("TORTURE_DIR") else {
        return;
    };
    let dir = PathBuf::from(dir);
    let mut draw = Draw(number("TORTURE_SEED", 0));
    let mut history = History::on_files(&dir, small());
    history.open().expect("a killed victim's files open");
    history.adopt(number("TORTURE_TAG", 0));
    let meta = SledMeta::open(&dir).expect("the meta store always opens");
    let mut out = std::io::stdout();
    writeln!(out, "\nopen").expect("the parent reads");
    for step in 0..MANY {
        assert!(history.step(&op(&mut draw)), "a real disk refuses nothing");
        meta.put(META_KEY, &step.to_le_bytes()).expect("stored");
        writeln!(out, "step {step}").expect("the parent reads");
        out.flush().expect("the parent reads");
    }
}

/// Runs a victim until it said `steps` steps and a moment more; gives how many it said in all.
fn run_and_kill(dir: &Path, seed: u64, tag: u64, steps: u64, moment: Duration) -> u64 {
    let program = std::env::current_exe().expect("a path");
    let mut victim = Command::new(program)
        .args(["victim", "--exact", "--nocapture"])
        .env("TORTURE_DIR", dir)
        .env("TORTURE_SEED", seed.to_string())
        .env("TORTURE_TAG", tag.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test program starts");
    let mut lines = BufReader::new(victim.stdout.take().expect("piped")).lines();
    let mut said = 0;
    while said < steps
        && let Some(Ok(line)) = lines.next()
    {
        said += u64::from(line.starts_with("step "));
    }
    std::thread::sleep(moment);
    victim.kill().expect("SIGKILL is delivered");
    let status = victim.wait().expect("a killed process ends");
    assert_eq!(
        status.code(),
        None,
        "seed {seed}: the victim ended by itself"
    );
    let rest = lines.map_while(Result::ok);
    said + rest.filter(|line| line.starts_with("step ")).count() as u64
}

/// Takes the same steps on a copy; gives the models before and after the step in between.
fn expectations(copy: &Path, seed: u64, tag: u64, steps: u64) -> [Model; 2] {
    let mut draw = Draw(seed);
    let mut history = History::on_files(copy, small());
    history.open().expect("the copy opens as the original did");
    history.adopt(tag);
    for _ in 0..steps {
        assert!(history.step(&op(&mut draw)));
    }
    let before = history.model.clone();
    let op = op(&mut draw);
    assert!(history.step(&op));
    let after = history.model.with_last_step_unsure(&before);
    [before, after]
}

/// Opens what the victim left and holds it against both models; gives what was found.
fn judge(dir: &Path, expected: [Model; 2]) -> Result<(), String> {
    let mut history = History::on_files(dir, small());
    history.open()?;
    let mut reasons = Vec::new();
    for model in expected {
        history.model = model;
        JUDGING.store(true, Ordering::Relaxed);
        let verdict = catch_unwind(AssertUnwindSafe(|| history.check()));
        JUDGING.store(false, Ordering::Relaxed);
        match verdict {
            Ok(()) => return Ok(()),
            Err(reason) => reasons.push(text_of(&*reason)),
        }
    }
    Err(reasons.join("\nnor: "))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| "a check failed".to_owned())
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a writable directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("known").is_dir() {
            true if entry.file_name() == "meta" => {}
            true => copy_dir(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}

/// In memory where that is possible: a killed process loses nothing that it wrote, so syncs would only take time.
fn quick_dir() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).expect("a writable directory"),
        false => tempfile::tempdir().expect("a writable directory"),
    }
}

/// What the meta store kept may be old, but it is something that was put there.
fn check_meta(dir: &Path, highest: u64) {
    let meta = SledMeta::open(dir).expect("the meta store always opens");
    let value = meta.get(META_KEY).expect("no damage by a kill");
    let value = value.map(|v| u64::from_le_bytes(v.as_ref().try_into().expect("eight bytes")));
    assert!(value.is_none_or(|step| step <= highest), "{value:?}");
}

#[test]
fn a_process_killed_at_any_moment_keeps_what_it_acknowledged() {
    let seed = number("TORTURE_SEED", u64::from(std::process::id()));
    let rounds = number("TORTURE_ROUNDS", ROUNDS);
    println!("TORTURE_SEED={seed}");
    let root = quick_dir();
    let dir = root.path().join("data");
    std::fs::create_dir_all(&dir).expect("a writable directory");
    let mut draw = Draw(seed);
    let (mut tag, mut highest, mut steps_in_all) = (0, 0, 0);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !JUDGING.load(Ordering::Relaxed) {
            usual(info);
        }
    }));
    for round in 0..rounds {
        let copy = root.path().join("copy");
        copy_dir(&dir, &copy);
        let round_seed = draw.next();
        let (steps, moment) = (draw.below(60), Duration::from_micros(draw.below(5_000)));
        let said = run_and_kill(&dir, round_seed, tag, steps, moment);
        let expected = expectations(&copy, round_seed, tag, said);
        if let Err(problem) = judge(&dir, expected) {
            let kept = root.keep();
            panic!(
                "TORTURE_SEED={seed} round {round}, {said} steps, files in {}: {problem}",
                kept.display()
            );
        }
        highest = highest.max(said);
        check_meta(&dir, highest);
        std::fs::remove_dir_all(&copy).expect("ours");
        tag += said + 2;
        steps_in_all += said;
    }
    println!("killed {rounds} times in {steps_in_all} acknowledged steps");
    assert!(
        steps_in_all > rounds,
        "{steps_in_all} steps in {rounds} rounds prove nothing"
    );
}
