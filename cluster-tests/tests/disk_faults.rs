//! Disks that fail or hang under a running node. The faults are put between the node and the kernel with strace; where it is
//! not installed, or may not trace, the tests say so and do nothing.

#![allow(
    clippy::disallowed_methods,
    reason = "this test lives in the real world"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use imprint_client::v1;
use imprint_cluster_tests::cluster::{Cluster, eventually};
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::load::Load;

const TOPIC: &str = "events";

/// What happens to every fdatasync of a process, until it is dropped.
struct Fault(Child);

impl Fault {
    /// Attaches to a process; `None` with a word on why not.
    fn inject(pid: u32, what: &str) -> Option<Fault> {
        let strace = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e"])
            .arg(format!("inject=fdatasync:{what}"))
            .args(["-p", &pid.to_string()])
            .stderr(Stdio::piped())
            .spawn();
        let mut strace = match strace {
            Ok(strace) => strace,
            Err(error) => {
                eprintln!("skipped: no strace here: {error}");
                return None;
            }
        };
        let mut first = String::new();
        let stderr = strace.stderr.take().expect("piped");
        let mut lines = BufReader::new(stderr);
        lines.read_line(&mut first).expect("strace says something");
        if !first.contains("attached") {
            eprintln!("skipped: strace may not trace here: {first}");
            return None;
        }
        // Whatever it says later must not fill the pipe.
        std::thread::spawn(move || lines.lines().map_while(Result::ok).count());
        Some(Fault(strace))
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        // On SIGTERM it lets go of the process; SIGKILL could leave it stopped. It doesn't answer where the process has
        // ended inside of a delay.
        let pid = self.0.id().to_string();
        drop(Command::new("kill").args(["-TERM", &pid]).status());
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn start() -> (Cluster, v1::Topic, Load) {
    let cluster = Cluster::start().await;
    let topic = cluster
        .create_topic(TOPIC, &[("segment_bytes", "64KiB")])
        .await;
    let load = Load::start(&cluster, TOPIC, 4);
    load.wait_for(50).await;
    (cluster, topic, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_ends_the_process_and_its_tail_is_not_trusted_until_a_leader_has_seen_to_it()
{
    let (mut cluster, topic, load) = start().await;
    let leader = cluster.leader_of(TOPIC).await;
    let Some(fault) = Fault::inject(cluster.pid(leader), "error=EIO:when=1+") else {
        return;
    };
    eventually("the node says what failed", async || {
        cluster.log_of(leader).contains("a write or sync failed")
    })
    .await;
    let code = tokio::time::timeout(Duration::from_secs(10), cluster.wait_exit(leader)).await;
    drop(fault);
    let code = match code {
        Ok(code) => code,
        Err(_) => cluster.wait_exit(leader).await,
    };
    assert_eq!(code, Some(11));
    let log = cluster.log_of(leader);
    assert!(log.contains("a write or sync failed"), "{log}");
    let marker = cluster.node(leader).data_dir.join("suspect");
    assert!(marker.is_file(), "no marker was left");
    load.wait_for(50).await;
    cluster.start_node(leader);
    cluster.wait_ready().await;
    eventually("the marker goes", async || !marker.exists()).await;
    load.wait_for(50).await;
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_disk_loses_the_lead_and_the_node_goes_on() {
    let (mut cluster, topic, load) = start().await;
    let leader = cluster.leader_of(TOPIC).await;
    let Some(fault) = Fault::inject(cluster.pid(leader), "delay_enter=3000000") else {
        return;
    };
    eventually("another node leads", async || {
        cluster.leader_of(TOPIC).await != leader
    })
    .await;
    load.wait_for(200).await;
    drop(fault);
    assert!(cluster.is_running(leader), "{}", cluster.log_of(leader));
    let log = cluster.log_of(leader);
    assert!(log.contains("the disk is slow"), "{log}");
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_never_answers_ends_the_process() {
    let (mut cluster, topic, load) = start().await;
    let leader = cluster.leader_of(TOPIC).await;
    let Some(fault) = Fault::inject(cluster.pid(leader), "delay_enter=120000000") else {
        return;
    };
    // A process that ends while it is traced is only gone when the tracer is.
    eventually("the node says that it is stuck", async || {
        cluster.log_of(leader).contains("the disk is stuck")
    })
    .await;
    drop(fault);
    assert_eq!(cluster.wait_exit(leader).await, Some(13));
    load.wait_for(50).await;
    cluster.start_node(leader);
    cluster.wait_ready().await;
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
}
