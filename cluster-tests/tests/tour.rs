//! The README's tour, run as it stands there.

use std::path::Path;
use std::process::{Command, Stdio};

use imprint_cluster_tests::cluster::{Cluster, binary};

/// The contents of all blocks fenced as "sh tour", one after the other.
fn tour(readme: &str) -> String {
    let mut script = String::new();
    let mut inside = false;
    for line in readme.lines() {
        match (inside, line.trim_end()) {
            (false, "```sh tour") => inside = true,
            (true, "```") => inside = false,
            (true, line) => {
                script.push_str(line);
                script.push('\n');
            }
            (false, _) => {}
        }
    }
    script
}

#[test]
fn the_readme_tour_runs_as_it_stands() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let script = tour(&std::fs::read_to_string(readme).expect("a README"));
    assert!(script.contains("imprint dev"), "the README has no tour");

    let _one_cluster_at_a_time = Cluster::lock();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = std::env::var("PATH").expect("a PATH");
    let bin_dir = tempfile::tempdir().expect("a temporary directory");
    std::os::unix::fs::symlink(binary(), bin_dir.path().join("imprint")).expect("a link");
    let bin_dir = bin_dir.path().display();
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(dir.path())
        .env("PATH", format!("{bin_dir}:{path}"))
        .env_remove("IMPRINT_SERVER")
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{script}\n---\n{stdout}\n---\n{stderr}"
    );
    assert!(stdout.contains("apple\nbanana\ncherry\n"), "{stdout}");
    assert!(stdout.contains("partition 0, offset 1: banana"), "{stdout}");
}
