//! The binary as people and scripts meet it: what goes to stdout, what to stderr, and the exit status.

#![allow(clippy::disallowed_methods, reason = "these tests use real sockets")]

#[path = "../../client/tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use support::{Fake, Fault, Log, refusal};
use tempfile::TempDir;
use tonic::Code;

/// A fake server and the directory for a test's files.
struct Stage {
    runtime: tokio::runtime::Runtime,
    server: Fake,
    log: Arc<Mutex<Log>>,
    dir: TempDir,
}

impl Stage {
    fn new() -> Stage {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let log = Arc::<Mutex<Log>>::default();
        let server = runtime.block_on(Fake::start(1, &log));
        let dir = TempDir::new().unwrap();
        Stage {
            runtime,
            server,
            log,
            dir,
        }
    }

    fn file(&self, content: &[u8]) -> PathBuf {
        let path = self.dir.path().join("input");
        std::fs::write(&path, content).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = imprint(arguments);
        command.args(["--server", &self.server.address]);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What it wrote to stdout, if it succeeded.
    fn stdout(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.run(arguments);
        assert_eq!(status(&output), 0, "{arguments:?}: {}", stderr(&output));
        output.stdout
    }

    fn produce(&self, content: &[u8], more: &[&str]) -> Output {
        let path = self.file(content);
        let path = path.to_str().unwrap();
        let mut arguments = vec!["produce", "t", "--file", path];
        arguments.extend(more);
        self.run(&arguments)
    }
}

fn imprint(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imprint"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["IMPRINT_SERVER", "IMPRINT_TIMEOUT", "IMPRINT_OUTPUT"] {
        command.env_remove(name);
    }
    command
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const READ_ALL: &[&str] = &["consume", "t", "--exit-at-end"];

#[test]
fn lines_come_back_byte_for_byte() {
    let stage = Stage::new();
    let content: Vec<u8> = (0..50_000u32)
        .flat_map(|number| format!("line {number}\r \u{e9}\n").into_bytes())
        .collect();
    let output = stage.produce(&content, &[]);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    assert!(stderr(&output).contains("50000 messages stored in t"));
    assert!(stage.stdout(READ_ALL) == content);
}

#[test]
fn a_last_line_without_its_end_gains_one_unless_delimiters_are_kept() {
    let stage = Stage::new();
    let content = b"a\n\nlast \xff";
    assert_eq!(status(&stage.produce(content, &[])), 0);
    assert_eq!(stage.stdout(READ_ALL), b"a\n\nlast \xff\n");

    let stage = Stage::new();
    assert_eq!(status(&stage.produce(content, &["--keep-delimiter"])), 0);
    let raw = ["consume", "t", "--exit-at-end", "--delimiter", ""];
    assert_eq!(stage.stdout(&raw), content);
    assert_eq!(stage.log.lock().unwrap().next_offset, 3);
}

#[test]
fn stdin_is_read_and_nothing_in_it_is_no_message() {
    let stage = Stage::new();
    let mut command = stage.command(&["produce", "t", "--delimiter", ","]);
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a,b,,c").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(stage.stdout(READ_ALL), b"a\nb\n\nc\n");
    assert_eq!(status(&stage.run(&["produce", "t"])), 0);
    assert_eq!(stage.log.lock().unwrap().next_offset, 4);
}

#[test]
fn positions_and_counts_choose_what_is_read() {
    let stage = Stage::new();
    stage.produce(b"0\n1\n2\n3\n4\n", &["--batch", "2"]);
    let read = |more: &[&str]| stage.stdout(&[READ_ALL, more].concat());
    assert_eq!(read(&["--from", "3"]), b"3\n4\n");
    assert_eq!(read(&["--from", "-1"]), b"4\n");
    assert_eq!(read(&["--from", "end"]), b"");
    assert_eq!(read(&["-n", "2"]), b"0\n1\n");
    assert_eq!(read(&["-n", "0"]), b"");
    assert_eq!(read(&["-p", "0", "--from", "4"]), b"4\n");
    assert_eq!(
        stage.stdout(&["consume", "t", "-n", "5"]),
        b"0\n1\n2\n3\n4\n"
    );
}

#[test]
fn templates_and_json_show_what_a_message_carries() {
    let stage = Stage::new();
    stage.produce(b"hello\n", &["-k", "key", "-H", "color=red"]);
    let read = |more: &[&str]| {
        let bytes = stage.stdout(&[READ_ALL, more].concat());
        String::from_utf8(bytes).unwrap()
    };
    let template = r"%t/%p@%o %k:%s (%S) %h %T%%\n";
    assert_eq!(
        read(&["-f", template]),
        "t/0@0 key:hello (5) imprint.key=key,color=red 1000%\n"
    );
    let line = read(&["-o", "json"]);
    let record: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(record["payload"], "hello");
    assert_eq!(record["key"], "key");
    assert_eq!(record["offset"], 0);
    assert_eq!(record["time"], "1970-01-01T00:00:01.000000Z");
    assert_eq!(record["headers"][1]["value"], "red");
    assert_eq!(line.matches('\n').count(), 1);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let stage = Stage::new();
    // More than the command's buffer and a pipe hold.
    let line = [[b'x'; 1023].as_slice(), b"\n"].concat();
    stage.produce(&line.repeat(4096), &[]);
    let mut command = stage.command(READ_ALL);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((status(&output), stderr(&output)), (0, String::new()));
}

#[test]
fn usage_errors_are_two() {
    for arguments in [
        &["no-such-command"][..],
        &["topic", "create"],
        &["produce", "t", "-p", "0", "-k", "x"],
        &["consume", "t", "--from", "yesterday"],
        &["consume", "t", "-f", "%z"],
        &["consume", "t", "-f", "%s", "-o", "json"],
        &["consume", "t", "-o", "yaml"],
        &["cluster", "status", "--server", "nonsense"],
        &["topic", "delete", "t"],
        &["bench", "produce", "--batch", "0"],
    ] {
        let output = imprint(arguments).output().unwrap();
        assert_eq!(status(&output), 2, "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(
            stderr(&output).starts_with("error:"),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn what_is_missing_is_three() {
    let stage = Stage::new();
    for arguments in [
        &["topic", "describe", "missing"][..],
        &["consume", "missing", "-e"],
        &["consume", "t", "-p", "9"],
    ] {
        let output = stage.run(arguments);
        assert_eq!(status(&output), 3, "{arguments:?}: {}", stderr(&output));
    }
    let output = stage.run(&["topic", "describe", "missing"]);
    let expected = "error: refused: TOPIC_NOT_FOUND (reason TOPIC_NOT_FOUND)\n";
    assert_eq!(stderr(&output), expected);
}

#[test]
fn nobody_there_and_not_ready_are_four() {
    let nobody = [
        "cluster",
        "status",
        "--server",
        "127.0.0.1:1",
        "--timeout",
        "300ms",
    ];
    let output = imprint(&nobody).output().unwrap();
    assert_eq!(status(&output), 4, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("(reason UNREACHABLE)"),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("hint: "), "{}", stderr(&output));

    let stage = Stage::new();
    let output = stage.run(&["cluster", "wait-ready", "--timeout", "300ms"]);
    assert_eq!(status(&output), 4, "{}", stderr(&output));
    stage.server.script([Fault::Refuse(refusal(
        Code::ResourceExhausted,
        "OVERLOADED_CALLS",
    ))]);
    assert_eq!(status(&stage.run(&["cluster", "status"])), 4);
}

#[test]
fn a_difference_found_is_five() {
    let stage = Stage::new();
    assert_eq!(status(&stage.run(&["verify", "same"])), 0);
    let output = stage.run(&["verify", "different", "-o", "json"]);
    assert_eq!(status(&output), 5, "{}", stderr(&output));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value[0]["problem"], "digests differ");
}

#[test]
fn a_passing_refusal_is_ridden_out_and_a_missing_file_is_named() {
    let stage = Stage::new();
    let passing = refusal(Code::Unavailable, "NOT_READY");
    stage.server.script([Fault::Refuse(passing)]);
    let output = stage.produce(b"a\n", &[]);
    assert_eq!(status(&output), 0, "{}", stderr(&output));
    let output = stage.run(&["produce", "t", "--file", "does-not-exist"]);
    assert_eq!(status(&output), 1);
    assert!(stderr(&output).contains("does-not-exist"));
}

#[test]
fn a_benchmark_states_conditions_and_counts_what_was_acknowledged() {
    let stage = Stage::new();
    let load = [
        "--topic",
        "t",
        "--size",
        "100",
        "--batch",
        "10",
        "--in-flight",
        "2",
    ];
    let times = ["--seconds", "1", "--warm-up", "0", "-o", "json"];
    let bytes = stage.stdout(&[&["bench", "produce"][..], &load, &times].concat());
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["conditions"]["messages_per_batch"], 10);
    let batches = value["batches"].as_u64().unwrap();
    assert!(batches > 0);
    assert_eq!(value["messages"], 10 * batches);
    assert_eq!(value["latency_us"]["count"], batches);

    let stored = stage.log.lock().unwrap().next_offset;
    assert!(stored >= 10 * batches);
    let bytes = stage.stdout(&["bench", "consume", "t", "-o", "json"]);
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["messages"], stored);
    assert_eq!(value["conditions"]["read_to_end"], true);
    let table = stage.stdout(&["bench", "consume", "t"]);
    assert!(String::from_utf8(table).unwrap().starts_with("conditions"));
}

#[test]
fn ctrl_c_is_130_and_what_was_read_is_written() {
    let stage = Stage::new();
    stage.produce(b"a\n", &[]);
    let mut command = stage.command(&["consume", "t"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 2];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(&first, b"a\n");
    drop(stage.runtime);
}

#[test]
fn the_version_is_data() {
    let output = imprint(&["version", "-o", "json"]).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
}
