//! `imprint serve` processes on loopback, usually three, each with its own data directory.
//!
//! All traffic between nodes goes through [`Links`], so that any pair can be cut. Only one cluster runs
//! at a time on a machine (a file lock sees to it): the tests measure nothing while they share two cores,
//! but elections must not starve. Dropping a cluster kills its processes; if the test is panicking, the
//! nodes' logs are printed first.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use imprint_client::{Client, ClientOptions, NewTopic, PollOptions, Position, v1};
use tempfile::TempDir;

use crate::proxy::Links;

/// How long anything that should take a second may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that can only be asked.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One node: its addresses, its files and, while it runs, its process.
pub struct NodeProcess {
    pub id: u64,
    pub client: String,
    pub http: String,
    peer_port: u16,
    pub data_dir: PathBuf,
    log: PathBuf,
    process: Option<Child>,
}

/// A cluster.
pub struct Cluster {
    pub nodes: Vec<NodeProcess>,
    pub links: Links,
    /// Added to every node's environment.
    settings: Vec<(String, String)>,
    dir: TempDir,
    _one_at_a_time: File,
}

/// The `imprint` binary: `CLUSTER_TESTS_BIN`, or the one built beside this test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CLUSTER_TESTS_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a running program has a path");
    let beside = test
        .ancestors()
        .map(|dir| dir.join("imprint"))
        .find(|path| path.is_file());
    beside.expect("build it first: cargo build -p imprint-node --bin imprint")
}

/// Below this the system gives no port to whoever asks for any, so a node that is down keeps its own.
const FIRST_PORT: u16 = 10_240;
const PORTS: u16 = 20_480;

/// Ports that are free now, and that nobody takes who doesn't name them: neither a proxy, nor a connection that goes out while a
/// node is down.
fn free_ports(count: usize) -> Vec<u16> {
    let start = rand::random_range(0..PORTS);
    let all = (0..PORTS).map(|n| FIRST_PORT + (start + n) % PORTS);
    let free = all.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let ports: Vec<u16> = free.take(count).collect();
    assert_eq!(ports.len(), count, "the machine is short of ports");
    ports
}

fn lock_machine() -> File {
    let path = std::env::temp_dir().join("imprint-cluster-tests.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .expect("the temporary directory is writable");
    file.lock().expect("a lock on a local file");
    file
}

impl Cluster {
    /// Starts three nodes and waits until the cluster is ready.
    pub async fn start() -> Cluster {
        Cluster::start_with(&[]).await
    }

    /// As [`Cluster::start`], with `IMPRINT_*` variables for all nodes.
    pub async fn start_with(settings: &[(&str, &str)]) -> Cluster {
        let mut cluster = Cluster::prepare().await;
        cluster.set(settings);
        cluster.start_all().await;
        cluster
    }

    /// As [`Cluster::start`], after `prepare` has made what the data directories lie on.
    pub async fn start_on(prepare: impl FnOnce(&Cluster)) -> Cluster {
        let mut cluster = Cluster::prepare().await;
        prepare(&cluster);
        cluster.start_all().await;
        cluster
    }

    fn set(&mut self, settings: &[(&str, &str)]) {
        let owned = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
        self.settings = settings.iter().map(owned).collect();
    }

    async fn start_all(&mut self) {
        for id in 1..=3 {
            self.start_node(id);
        }
        self.wait_ready().await;
    }

    /// Held while a cluster runs: one at a time on a machine.
    pub fn lock() -> File {
        lock_machine()
    }

    async fn prepare() -> Cluster {
        let lock = lock_machine();
        let dir = TempDir::new().expect("a temporary directory");
        let ports = free_ports(9);
        let nodes: Vec<NodeProcess> = ports
            .chunks(3)
            .zip(1..)
            .map(|(ports, id)| NodeProcess {
                id,
                client: format!("127.0.0.1:{}", ports[0]),
                peer_port: ports[1],
                http: format!("127.0.0.1:{}", ports[2]),
                data_dir: dir.path().join(format!("node-{id}")),
                log: dir.path().join(format!("node-{id}.log")),
                process: None,
            })
            .collect();
        let targets = nodes.iter().map(|node| (node.id, node.peer_port));
        let links = Links::open(targets.collect()).await;
        Cluster {
            nodes,
            links,
            settings: Vec::new(),
            dir,
            _one_at_a_time: lock,
        }
    }

    pub fn node(&self, id: u64) -> &NodeProcess {
        self.nodes
            .iter()
            .find(|node| node.id == id)
            .expect("nodes 1 to 3")
    }

    fn node_mut(&mut self, id: u64) -> &mut NodeProcess {
        self.nodes
            .iter_mut()
            .find(|node| node.id == id)
            .expect("nodes 1 to 3")
    }

    /// A directory for the test's own files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a node that isn't running.
    pub fn start_node(&mut self, id: u64) {
        let seeds: Vec<String> = (1..=3).map(|node| self.links.address(node)).collect();
        let advertised = self.links.address(id);
        let settings = self.settings.clone();
        let node = self.node_mut(id);
        assert!(node.process.is_none(), "node {id} runs already");
        let log = File::options().create(true).append(true).open(&node.log);
        let process = Command::new(binary())
            .arg("serve")
            .env("IMPRINT_NODE_ID", id.to_string())
            .env("IMPRINT_DATA_DIR", &node.data_dir)
            .env("IMPRINT_SEEDS", seeds.join(","))
            .env("IMPRINT_LISTEN_CLIENT", &node.client)
            .env("IMPRINT_ADVERTISE_CLIENT", &node.client)
            .env(
                "IMPRINT_LISTEN_PEER",
                format!("127.0.0.1:{}", node.peer_port),
            )
            .env("IMPRINT_ADVERTISE_PEER", advertised)
            .env("IMPRINT_LISTEN_HTTP", &node.http)
            .envs(settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log file"))
            .spawn();
        node.process = Some(process.expect("the binary starts"));
    }

    fn signal(&self, id: u64, name: &str) {
        let process = self.node(id).process.as_ref().expect("a running node");
        let status = Command::new("kill")
            .args([format!("-{name}"), process.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success(), "kill -{name} of node {id}");
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self, id: u64) {
        let mut process = self.node_mut(id).process.take().expect("a running node");
        process.kill().expect("SIGKILL is delivered");
        process.wait().expect("a killed process ends");
    }

    /// SIGKILL to all in one go.
    pub fn kill_all(&mut self) {
        let mut processes: Vec<Child> = self
            .nodes
            .iter_mut()
            .filter_map(|n| n.process.take())
            .collect();
        for process in &mut processes {
            process.kill().expect("SIGKILL is delivered");
        }
        for process in &mut processes {
            process.wait().expect("a killed process ends");
        }
    }

    pub fn pause(&self, id: u64) {
        self.signal(id, "STOP");
    }

    pub fn resume(&self, id: u64) {
        self.signal(id, "CONT");
    }

    /// SIGTERM; gives the exit code.
    pub fn stop(&mut self, id: u64) -> Option<i32> {
        self.signal(id, "TERM");
        let mut process = self.node_mut(id).process.take().expect("a running node");
        process.wait().expect("a stopped process ends").code()
    }

    pub fn is_running(&mut self, id: u64) -> bool {
        let process = self.node_mut(id).process.as_mut();
        process.is_some_and(|p| matches!(p.try_wait(), Ok(None)))
    }

    /// Waits until a node has ended by itself; gives its exit code.
    pub async fn wait_exit(&mut self, id: u64) -> Option<i32> {
        eventually("the node ends", async || !self.is_running(id)).await;
        let mut process = self.node_mut(id).process.take().expect("it ran");
        process.wait().expect("an ended process").code()
    }

    /// Process id of a running node.
    pub fn pid(&self, id: u64) -> u32 {
        self.node(id).process.as_ref().expect("a running node").id()
    }

    /// Length of what a node has logged so far, for [`Cluster::log_since`].
    pub fn log_mark(&self, id: u64) -> usize {
        self.log_of(id).len()
    }

    /// What a node logged since a mark.
    pub fn log_since(&self, id: u64, mark: usize) -> String {
        self.log_of(id).split_off(mark)
    }

    /// What a node wrote to stderr.
    pub fn log_of(&self, id: u64) -> String {
        std::fs::read_to_string(&self.node(id).log).unwrap_or_default()
    }

    pub fn servers(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.client.clone()).collect()
    }

    /// A client of all three nodes.
    pub fn client(&self) -> Client {
        self.client_with(ClientOptions::default())
    }

    pub fn client_with(&self, options: ClientOptions) -> Client {
        Client::connect(&self.servers(), options).expect("valid addresses")
    }

    /// Runs the command line against this cluster.
    pub fn imprint(&self, args: &[&str]) -> Output {
        Command::new(binary())
            .args(args)
            .env("IMPRINT_SERVER", self.servers().join(","))
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs")
    }

    /// As [`Cluster::imprint`], for what has to succeed; gives stdout.
    pub fn imprint_ok(&self, args: &[&str]) -> Vec<u8> {
        let output = self.imprint(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "imprint {args:?}: {stderr}");
        output.stdout
    }

    pub async fn wait_ready(&mut self) {
        let client = self.client();
        let ids: Vec<u64> = self.nodes.iter().map(|node| node.id).collect();
        let ready = async || {
            for id in &ids {
                assert!(
                    self.is_running(*id),
                    "node {id} ended:\n{}",
                    self.log_of(*id)
                );
            }
            client
                .admin()
                .status()
                .await
                .is_ok_and(|status| status.ready)
        };
        eventually("the cluster is ready", ready).await;
    }

    pub async fn create_topic(&self, name: &str, settings: &[(&str, &str)]) -> v1::Topic {
        let owned = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
        let new = NewTopic {
            name: name.into(),
            partitions: 1,
            replication: 3,
            settings: settings.iter().map(owned).collect(),
        };
        self.client()
            .admin()
            .create_topic(new)
            .await
            .expect("a fresh name")
    }

    /// Waits until a node serves its replica of partition 0.
    pub async fn wait_serves(&self, topic: &str, id: u64) {
        let client = self.client();
        let options = PollOptions {
            at_node: Some(id),
            ..PollOptions::default()
        };
        eventually("the node serves its replica", async || {
            let reply = client.poll(topic, 0, Position::First, options).await;
            reply.is_ok()
        })
        .await;
    }

    /// A node that follows in partition 0 of the topic.
    pub async fn follower_of(&self, topic: &str) -> u64 {
        let leader = self.leader_of(topic).await;
        leader % 3 + 1
    }

    /// The node that leads partition 0, once some node does.
    pub async fn leader_of(&self, topic: &str) -> u64 {
        let client = self.client();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(partitions) = client.admin().describe_partitions(topic).await
                && let Some(first) = partitions.first()
                && first.leader_node != 0
            {
                return first.leader_node;
            }
            assert!(Instant::now() < deadline, "{topic} got no leader");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Asks again and again until it is true; panics when patience ends.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_all();
        if std::thread::panicking() {
            for node in &self.nodes {
                let log = std::fs::read_to_string(&node.log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(40).collect();
                eprintln!("--- node {}, last lines of its log", node.id);
                tail.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
    }
}
