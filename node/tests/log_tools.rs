//! `imprint log` on the directory of a node that was killed: output and exit status.

#![allow(clippy::disallowed_methods, reason = "these tests use real sockets")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

fn imprint(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imprint"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["IMPRINT_SERVER", "IMPRINT_TIMEOUT", "IMPRINT_OUTPUT"] {
        command.env_remove(name);
    }
    command
}

fn run(arguments: &[&str]) -> Output {
    imprint(arguments).output().unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stdout(output)))
}

/// A node of its own that is killed when this is dropped.
struct Node {
    child: Child,
    address: String,
}

impl Node {
    fn start(data: &Path) -> Node {
        let data = data.to_str().unwrap();
        let mut command = imprint(&["dev", "--nodes", "1", "--ephemeral", "--data", data]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        Node { child, address }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The data directory of a node that was killed after it had stored 300 messages, as files. Made once.
fn files() -> &'static BTreeMap<PathBuf, Vec<u8>> {
    static FILES: OnceLock<BTreeMap<PathBuf, Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let node = Node::start(dir.path());
        let server = ["--server", &node.address];
        let created = imprint(&["topic", "create", "t"])
            .args(server)
            .output()
            .unwrap();
        assert_eq!(status(&created), 0, "{}", stderr(&created));
        let mut produce = imprint(&["produce", "t", "--batch", "10", "-H", "kind=test"]);
        produce.args(server).stdin(Stdio::piped());
        let mut child = produce.spawn().unwrap();
        let lines: String = (0..300).map(|n| format!("line {n}\n")).collect();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(lines.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
        // Only what the synced mark covers is damage when it is damaged.
        let state = dir.path().join("node-1/state/a.log");
        let marked = |_: &u32| {
            let shown = run(&["log", "inspect", state.to_str().unwrap()]);
            stdout(&shown).contains("synced_offset 300")
        };
        assert!((0..500).find(marked).is_some(), "no mark in time");
        drop(node);
        let mut files = BTreeMap::new();
        read_all(&dir.path().join("node-1"), Path::new(""), &mut files);
        files
    })
}

fn read_all(root: &Path, below: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(root.join(below)).unwrap() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            read_all(root, &path, files);
        } else {
            files.insert(path, std::fs::read(entry.path()).unwrap());
        }
    }
}

/// A copy of that directory.
struct Copy(TempDir);

impl Copy {
    fn new() -> Copy {
        let dir = TempDir::new().unwrap();
        for (path, bytes) in files() {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        Copy(dir)
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        read_all(self.0.path(), Path::new(""), &mut files);
        files
    }

    /// The segment of the topic's partition.
    fn segment(&self) -> String {
        let files = self.files();
        let mut segments = files
            .keys()
            .filter(|path| path.extension().is_some_and(|e| e == "seg"));
        let last = segments.next_back().unwrap();
        self.0.path().join(last).to_str().unwrap().to_owned()
    }

    fn flip(&self, file: &str, at: usize) {
        let path = self.0.path().join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn a_segment_is_shown_batch_by_batch_and_message_by_message() {
    let copy = Copy::new();
    let segment = copy.segment();
    let shown = run(&["log", "inspect", &segment]);
    assert_eq!(status(&shown), 0, "{}", stderr(&shown));
    assert!(
        stdout(&shown).contains("zeros to the end"),
        "{}",
        stdout(&shown)
    );
    assert!(
        stdout(&shown).contains("300 messages"),
        "{}",
        stdout(&shown)
    );

    let one = [
        "log",
        "inspect",
        &segment,
        "--from-offset",
        "105",
        "-n",
        "1",
        "--payload",
        "-o",
        "json",
    ];
    let shown = run(&one);
    let objects: Vec<serde_json::Value> = stdout(&shown)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let message = objects
        .iter()
        .find(|object| object["type"] == "message" && object["offset"] == 105)
        .unwrap();
    assert_eq!(message["payload"], "line 105");
    assert_eq!(message["headers"][0]["key"], "kind");
    assert_eq!(objects.last().unwrap()["batches"], 1);
}

#[test]
fn damage_in_a_segment_is_shown_and_what_is_behind_it_too() {
    let copy = Copy::new();
    let segment = copy.segment();
    copy.flip(&segment, 1000);
    let shown = run(&["log", "inspect", &segment]);
    assert_eq!(status(&shown), 5);
    assert!(stdout(&shown).contains("DAMAGED"));
    assert!(stdout(&shown).contains("..300 "), "{}", stdout(&shown));
    assert!(
        stderr(&shown).contains("1 damaged range(s)"),
        "{}",
        stderr(&shown)
    );
}

#[test]
fn small_files_and_foreign_ones() {
    let copy = Copy::new();
    let file = |name: &str| copy.0.path().join(name).to_str().unwrap().to_owned();
    let shown = json(&run(&["log", "inspect", &file("identity"), "-o", "json"]));
    assert_eq!(
        (&shown["type"], &shown["node_id"]),
        (&"identity".into(), &1.into())
    );
    let shown = run(&["log", "inspect", &file("formation"), "-o", "yaml"]);
    assert!(
        stdout(&shown).contains("\"members\":"),
        "{}",
        stdout(&shown)
    );
    let shown = run(&["log", "inspect", &file("state/a.log")]);
    assert_eq!(status(&shown), 0);
    assert!(stdout(&shown).contains("membership"), "{}", stdout(&shown));
    copy.flip("identity", 12);
    assert_eq!(status(&run(&["log", "inspect", &file("identity")])), 5);

    std::fs::write(file("notes"), "hello").unwrap();
    let foreign = run(&["log", "inspect", &file("notes")]);
    assert_eq!(status(&foreign), 2);
    assert!(stderr(&foreign).contains("not a file of a data directory"));
    assert_eq!(status(&run(&["log", "inspect", &file("absent")])), 3);
    assert_eq!(status(&run(&["log", "inspect", copy.path()])), 2);
}

#[test]
fn a_killed_nodes_directory_is_not_damaged() {
    let copy = Copy::new();
    for more in [&[][..], &["--quick"]] {
        let checked = imprint(&["log", "check", copy.path()])
            .args(more)
            .output()
            .unwrap();
        assert_eq!(
            status(&checked),
            0,
            "{}{}",
            stdout(&checked),
            stderr(&checked)
        );
        assert!(
            stdout(&checked).contains("0 damaged"),
            "{}",
            stdout(&checked)
        );
    }
    assert_eq!(&copy.files(), files(), "a check wrote something");
    let groups = copy.0.path().join("groups");
    let group = std::fs::read_dir(groups)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let checked = run(&["log", "check", group.to_str().unwrap()]);
    assert_eq!(status(&checked), 0, "{}", stderr(&checked));
    assert_eq!(status(&run(&["log", "check", "/nowhere"])), 3);
    let empty = TempDir::new().unwrap();
    assert_eq!(
        status(&run(&["log", "check", empty.path().to_str().unwrap()])),
        2
    );
}

#[test]
fn a_running_nodes_directory_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let _node = Node::start(dir.path());
    let data = dir.path().join("node-1");
    let data = data.to_str().unwrap();
    for command in [&["log", "check", data][..], &["log", "repair", data]] {
        let refused = run(command);
        assert_eq!(status(&refused), 2, "{}", stderr(&refused));
        assert!(
            stderr(&refused).contains("another process uses"),
            "{}",
            stderr(&refused)
        );
    }
    let allowed = run(&["log", "check", data, "--while-running"]);
    assert!(
        stderr(&allowed).contains("may move"),
        "{}",
        stderr(&allowed)
    );
}

#[test]
fn damage_is_named_planned_and_repaired() {
    let (copy, other) = (Copy::new(), Copy::new());
    let segment = copy.segment();
    copy.flip(&segment, 1000);
    copy.flip("state/b.log", 100);
    let damaged = copy.files();
    let checked = run(&["log", "check", copy.path(), "-o", "json"]);
    assert_eq!(status(&checked), 5, "{}", stdout(&checked));
    let report = json(&checked);
    let items = report["items"].as_array().unwrap();
    let bad: Vec<_> = items
        .iter()
        .filter(|item| item["verdict"] == "damaged")
        .collect();
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(bad[0]["range"]["from_offset"].is_u64(), "{bad:?}");

    let planned = run(&["log", "repair", copy.path(), "--dry-run", "-o", "json"]);
    assert_eq!(status(&planned), 5);
    assert_eq!(json(&planned)["steps"].as_array().unwrap().len(), 1);
    assert_eq!(copy.files(), damaged, "a dry run wrote something");

    let repair = ["log", "repair", copy.path(), "--from", other.path()];
    let repaired = run(&repair);
    assert_eq!(
        status(&repaired),
        0,
        "{}{}",
        stdout(&repaired),
        stderr(&repaired)
    );
    let after = copy.files();
    assert_eq!(
        after[Path::new("state/b.log")],
        files()[Path::new("state/b.log")]
    );
    let again = run(&repair);
    assert!(
        stdout(&again).contains("nothing to repair"),
        "{}",
        stdout(&again)
    );
    assert_eq!(copy.files(), after, "a second repair changed something");
    assert_eq!(status(&run(&["log", "check", copy.path()])), 0);
}

#[test]
fn giving_up_says_what_is_lost_and_asks_twice() {
    let copy = Copy::new();
    let segment = copy.segment();
    copy.flip(&segment, 1000);
    let damaged = copy.files();
    let group = segment
        .split('/')
        .rev()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        .to_string();
    let give_up = ["log", "repair", copy.path(), "--give-up", &group];
    let told = imprint(&give_up)
        .args(["--dry-run", "-o", "json"])
        .output()
        .unwrap();
    assert_eq!(status(&told), 0, "{}", stderr(&told));
    let loss = json(&told);
    let range = format!("{}..{}", loss["lost_from_offset"], loss["lost_to_offset"]);
    assert_eq!(loss["lost_to_offset"], 300);
    for (more, says) in [
        (&["--yes", "--yes"][..], "--lose-offsets"),
        (&["--lose-offsets", "0..5", "--yes", "--yes"], "not 0..5"),
        (&["--lose-offsets", &range], "--yes --yes"),
        (&["--lose-offsets", &range, "--yes"], "--yes --yes"),
    ] {
        let refused = imprint(&give_up).args(more).output().unwrap();
        assert_eq!(status(&refused), 2, "{more:?}: {}", stderr(&refused));
        assert!(
            stderr(&refused).contains(says),
            "{more:?}: {}",
            stderr(&refused)
        );
        assert_eq!(copy.files(), damaged, "{more:?} changed something");
    }
    let done = imprint(&give_up)
        .args(["--lose-offsets", &range, "--yes", "--yes"])
        .output()
        .unwrap();
    assert_eq!(status(&done), 0, "{}", stderr(&done));
    assert_eq!(status(&run(&["log", "check", copy.path()])), 0);
    let kept = std::fs::read_dir(copy.0.path().join("quarantine"))
        .unwrap()
        .count();
    assert_eq!(kept, 1);
}
