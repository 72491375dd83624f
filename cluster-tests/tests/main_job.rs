//! The main job on real input: a million lines in, the same bytes out of each of three nodes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use imprint_cluster_tests::cluster::Cluster;
use imprint_cluster_tests::hold::{same_files, verify_equal};
use sha2::{Digest, Sha256};

const LINES: usize = 1_000_000;

/// Text that is there wherever the tests can be built: this workspace's own sources and pages, and the
/// licence texts that Debian ships. Repeated with a number in front of each line, so that no two
/// lines are alike, until there are a million.
fn corpus() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for dir in ["proto", "raft", "node", "client", "cluster-tests", "docs"] {
        collect(&root.join(dir), &mut files);
    }
    collect(Path::new("/usr/share/common-licenses"), &mut files);
    files.sort();
    let texts = files
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok());
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for path in entries.filter_map(|entry| entry.ok().map(|e| e.path())) {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, files);
            }
        } else {
            files.push(path);
        }
    }
}

fn write_input(path: &Path) -> String {
    let lines = corpus();
    assert!(
        lines.len() > 1000,
        "a corpus of {} lines is none",
        lines.len()
    );
    let mut out = BufWriter::new(File::create(path).expect("a writable directory"));
    let mut hash = Sha256::new();
    for (number, line) in lines.iter().cycle().take(LINES).enumerate() {
        let line = format!("{number:07} {line}\n");
        hash.update(&line);
        out.write_all(line.as_bytes()).expect("space on the disk");
    }
    out.flush().expect("space on the disk");
    format!("{:x}", hash.finalize())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_lines_come_back_the_same_from_each_node() {
    let cluster = Cluster::start().await;
    let topic = cluster
        .create_topic("lines", &[("segment_bytes", "16MiB")])
        .await;
    let input = cluster.dir().join("input.txt");
    let expected = write_input(&input);
    let input = input.to_string_lossy().into_owned();

    cluster.imprint_ok(&["produce", "lines", "--file", &input, "--timeout", "60s"]);
    for node in ["1", "2", "3"] {
        let args = [
            "consume",
            "lines",
            "--at",
            node,
            "--from",
            "start",
            "--exit-at-end",
        ];
        let output = cluster.imprint_ok(&args);
        let digest = format!("{:x}", Sha256::digest(&output));
        assert_eq!(digest, expected, "node {node} gave {} bytes", output.len());
    }

    cluster.imprint_ok(&["verify", "lines"]);
    verify_equal(&cluster, "lines").await;
    let segments = same_files(&cluster, &topic).await.len();
    assert!(
        segments >= 3,
        "only {segments} segments: nothing was sealed"
    );
}
