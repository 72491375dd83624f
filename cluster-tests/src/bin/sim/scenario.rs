//! What happens in a run: three nodes, two producers, one killed leader, one trim, one audit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use imprint_client::{
    BatchBuilder, BatchLimits, Client, ClientOptions, Message, NewTopic, Position, ProducerBatch,
    SendOptions, TrimTopic, v1,
};
use imprint_cluster_tests::audit::{Ledger, audit};
use imprint_node::config::{HostPort, NodeConfig};
use imprint_node::node::{Node, Seams};
use imprint_proto::ids::NodeId;
use imprint_raft::disk::InlineOffload;
use imprint_raft::disk::sim::Loss;
use imprint_raft::disk::{Io, SimDisk};
use imprint_raft::meta::MemMeta;

use super::seams::{SimClock, SimEntropy, SimNet};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const TOPIC: &str = "events";
/// Messages of each producer before the audit.
const MESSAGES: u64 = 60;
/// The leader dies when this many messages are acknowledged.
const KILL_AT: u64 = 40;
/// Simulated time that it stays down.
const DOWN_FOR: Duration = Duration::from_secs(3);
/// No run takes longer, in simulated time.
const LONGEST_RUN: Duration = Duration::from_secs(300);
/// For each of the waits below: the cluster must get well within this, in simulated time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Payloads are filled up to this many bytes, so that a run fills several segments.
const PAYLOAD_BYTES: usize = 2000;
/// The smallest segments that a topic may have.
const SEGMENT_BYTES: &str = "64KiB";
/// After this message the first producer trims everything below [`TRIM_BEFORE`].
const TRIM_AFTER: u64 = 50;
const TRIM_BEFORE: u64 = 35;

/// What is done to the disks besides the power cut.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Disks claim to have synced what they haven't: the positive control, in which the audit has to fail.
    pub lying_disk: bool,
    /// One bit of what the killed node had synced is flipped while it is down.
    pub flipped_bit: bool,
}

/// A run whose audit failed, or that didn't finish.
pub struct Failure {
    pub history: Vec<String>,
    pub reason: String,
}

/// What the hosts, the producers and the loop around them share. One thread runs them all.
#[derive(Default)]
struct World {
    history: Vec<String>,
    ledger: Ledger,
    /// Set by a producer, carried out by the loop: which node to kill.
    kill: Option<String>,
    killed: bool,
    finished: u32,
}

type Shared = Rc<RefCell<World>>;

fn note(world: &Shared, line: String) {
    let at = turmoil::sim_elapsed().unwrap_or_default().as_micros();
    world
        .borrow_mut()
        .history
        .push(format!("{at:>12} us  {line}"));
}

/// Runs a seed.
pub fn run(seed: u64, faults: Faults) -> Result<Vec<String>, Failure> {
    let world: Shared = Rc::default();
    let result = simulate(seed, faults, &world);
    let history = world.borrow().history.clone();
    match result {
        Ok(()) => Ok(history),
        Err(error) => Err(Failure {
            history,
            reason: error.to_string(),
        }),
    }
}

fn simulate(seed: u64, faults: Faults, world: &Shared) -> turmoil::Result {
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(LONGEST_RUN)
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_micros(100))
        .max_message_latency(Duration::from_millis(5))
        .tcp_capacity(4096)
        .build();
    let disks: BTreeMap<&str, SimDisk> = NODES.map(|name| (name, SimDisk::new())).into();
    if faults.lying_disk {
        disks.values().for_each(lie_about_syncs);
    }
    for (n, name) in (1..).zip(NODES) {
        let disk = disks[name].clone();
        let starts = Rc::new(RefCell::new(0u64));
        sim.host(name, move || {
            *starts.borrow_mut() += 1;
            let entropy = SimEntropy::new(seed ^ (n << 32) ^ (*starts.borrow() << 48));
            run_node(n, disk.clone(), entropy)
        });
    }
    let driver_world = Rc::clone(world);
    sim.client("driver", drive(seed, driver_world));
    run_to_end(&mut sim, &disks, seed, faults, world)
}

/// Steps the simulation and carries out the kill that the producers ask for.
fn run_to_end(
    sim: &mut turmoil::Sim<'_>,
    disks: &BTreeMap<&str, SimDisk>,
    seed: u64,
    faults: Faults,
    world: &Shared,
) -> turmoil::Result {
    let mut down: Option<(String, Duration)> = None;
    loop {
        let finished = sim.step()?;
        let kill = world.borrow_mut().kill.take();
        if let Some(name) = kill {
            let line = format!("kill {name}, drop what it had not synced");
            world.borrow_mut().history.push(line);
            sim.crash(name.as_str());
            disks[name.as_str()].crash(seed, Loss::DropAll);
            if faults.flipped_bit {
                let line = flip_bit(&disks[name.as_str()], seed)?;
                world.borrow_mut().history.push(line);
            }
            down = Some((name, sim.elapsed() + DOWN_FOR));
        }
        if let Some((name, until)) = &down
            && sim.elapsed() >= *until
        {
            world
                .borrow_mut()
                .history
                .push(format!("start {name} again"));
            sim.bounce(name.as_str());
            down = None;
        }
        if finished {
            return Ok(());
        }
    }
}

/// Flips a bit in the front half of the partition's first segment, which was synced long ago.
fn flip_bit(disk: &SimDisk, seed: u64) -> std::io::Result<String> {
    let files = disk.files();
    let of_topic = |path: &&PathBuf| {
        let text = path.to_string_lossy();
        text.ends_with(".seg") && !text.contains("groups/00000000000000000000/")
    };
    let path = files.iter().find(of_topic);
    let path = path.ok_or_else(|| std::io::Error::other("the topic has no segment yet"))?;
    let written = disk.contents(path)?;
    let end = written.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let at =
        usize::try_from(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1).unwrap_or(0) % (end / 2);
    disk.rewrite(path, |bytes| bytes[at] ^= 1)?;
    Ok(format!("flip a bit of byte {at} of {}", path.display()))
}

fn lie_about_syncs(disk: &SimDisk) {
    disk.ignore_syncs(true);
}

async fn run_node(n: u64, disk: SimDisk, entropy: SimEntropy) -> turmoil::Result {
    let name = format!("n{n}");
    let mut config = NodeConfig::loopback(NodeId(n), "/data".into(), 7460, 7461, 7462);
    config.seeds = NODES.map(|seed| HostPort::new(seed, 7461)).to_vec();
    for listener in config.listeners.iter_mut().chain([&mut config.peer]) {
        listener.listen.host = "0.0.0.0".into();
        listener.advertise.host = name.clone();
    }
    config.http.host = "0.0.0.0".into();
    let io = Io::new(Arc::new(disk), Arc::new(InlineOffload), Arc::new(SimClock));
    let seams = Seams {
        io,
        net: Arc::new(SimNet),
        entropy: Arc::new(entropy),
        open_meta: |_| Ok(Arc::new(MemMeta::default())),
    };
    let node = Node::start(config, seams).await?;
    let error = node.failed().await;
    Err(format!("node {n} can't go on: {error}").into())
}

fn client(seed: u64, who: u64) -> Result<Client, Box<dyn std::error::Error>> {
    let options = ClientOptions {
        ambient: Arc::new(SimEntropy::new(seed.rotate_left(17) ^ who)),
        ..ClientOptions::default()
    };
    let servers = NODES.map(|name| format!("{name}:7460"));
    Ok(Client::connect_with(&servers, options, Arc::new(SimNet))?)
}

/// Waits for the cluster, creates the topic, runs the producers, audits.
async fn drive(seed: u64, world: Shared) -> turmoil::Result {
    let admin_client = client(seed, 0)?;
    wait_ready(&admin_client).await?;
    note(&world, "the cluster is ready".into());
    let topic = admin_client
        .admin()
        .create_topic(NewTopic {
            name: TOPIC.into(),
            partitions: 1,
            replication: 3,
            settings: [("segment_bytes".to_owned(), SEGMENT_BYTES.to_owned())].into(),
        })
        .await?;
    note(
        &world,
        format!("created {} with id {}", topic.name, topic.topic_id),
    );
    let producers = (1..=2).map(|who| produce(seed, who, Rc::clone(&world)));
    for result in futures_util::future::join_all(producers).await {
        result?;
    }
    audit_until_equal(&admin_client, &world).await
}

async fn wait_ready(client: &Client) -> turmoil::Result {
    let ready = async {
        loop {
            if client
                .admin()
                .status()
                .await
                .is_ok_and(|status| status.ready)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready)
        .await
        .map_err(|_| "the cluster did not become ready".into())
}

fn payload(seed: u64, who: u64, sequence: u64) -> String {
    let text = format!("seed {seed} producer {who} message {sequence} ");
    format!("{text:.<PAYLOAD_BYTES$}")
}

fn batch_of(payload: &str) -> Result<ProducerBatch, Box<dyn std::error::Error>> {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    builder.push(Message {
        id: 0,
        origin_timestamp_us: 1,
        payload: payload.as_bytes(),
        headers: &[],
    })?;
    Ok(builder.build()?)
}

/// Sends message after message; one whose outcome is unknown is noted as such and not repeated.
async fn produce(seed: u64, who: u64, world: Shared) -> turmoil::Result {
    let client = client(seed, who)?;
    for sequence in 0..MESSAGES {
        let text = payload(seed, who, sequence);
        world.borrow_mut().ledger.sent(who, &text);
        note(&world, format!("producer {who} sends {sequence}"));
        let batch = batch_of(&text)?;
        let answer = client.send(TOPIC, 0, &batch, SendOptions::default()).await;
        match answer {
            Ok(reply) => acknowledged(&world, who, sequence, &text, &reply),
            Err(error) => note(
                &world,
                format!("producer {who} got for {sequence}: {error}"),
            ),
        }
        if (who, sequence) == (1, TRIM_AFTER) {
            trim(&client, &world).await;
        }
    }
    world.borrow_mut().finished += 1;
    Ok(())
}

/// The front of the log goes, or the answer says why not.
async fn trim(client: &Client, world: &Shared) {
    world.borrow_mut().ledger.allow_trims();
    let trim = TrimTopic {
        topic: TOPIC.into(),
        partitions: Vec::new(),
        before: Position::Offset(TRIM_BEFORE),
        dry_run: false,
    };
    match client.admin().trim_topic(trim).await {
        Ok(trimmed) => note(world, format!("trimmed: {trimmed:?}")),
        Err(error) => note(world, format!("not trimmed: {error}")),
    }
}

fn acknowledged(world: &Shared, who: u64, sequence: u64, text: &str, reply: &v1::SendResponse) {
    let line = format!(
        "producer {who}: {sequence} stands at {} in epoch {}",
        reply.base_offset, reply.leader_epoch
    );
    note(world, line);
    let mut world = world.borrow_mut();
    world.ledger.acknowledged(reply.base_offset, text);
    if world.ledger.count() >= KILL_AT && !world.killed {
        world.killed = true;
        world.kill = reply
            .served_by
            .as_ref()
            .map(|node| format!("n{}", node.node_id));
    }
}

/// The cluster may still be catching up: the audit is asked again until it holds or patience ends.
async fn audit_until_equal(client: &Client, world: &Shared) -> turmoil::Result {
    if !world.borrow().killed {
        return Err("the leader was never killed: the run proves nothing".into());
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let ledger = world.borrow().ledger.clone();
        match audit(client, TOPIC, &[1, 2, 3], &ledger).await {
            Ok(summary) => {
                note(world, format!("audit: {summary}"));
                return Ok(());
            }
            Err(problem) if tokio::time::Instant::now() >= deadline => {
                note(world, format!("audit: {problem}"));
                return Err(problem.into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}
