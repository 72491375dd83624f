//! How nodes become a cluster, exactly once, and find each other again afterwards.
//!
//! Every seed lists the same seeds. A node without a cluster asks each seed who it is; when all
//! have answered, none has a cluster and all list the same seeds, the one with the lowest node id
//! founds: it draws a cluster id and writes the *formation record* (who the first members are, with
//! the storage id of each) to its own disk. The others never receive anything: they ask again, see
//! that a seed has a record, check that it names them, and write it down themselves.
//!
//! Why exactly once? Only one node may found, it founds only after every seed has said that it has
//! no cluster, and its record is on its disk before anybody can see it. A founder that dies before
//! that has founded nothing; one that dies after it comes back with the record.
//!
//! | what a node finds | what it does |
//! |---|---|
//! | own record on disk | goes on with it; seeds are only asked for their current addresses |
//! | no record, a seed's record names this node and this storage id | adopts it |
//! | own record damaged or gone, the identity names a cluster | sets it aside, adopts that cluster's record from a seed; never founds |
//! | that, and every seed has answered without a record | refuses: names the file |
//! | no record, a seed's record names this node id with another storage id | refuses: this disk is not that node's |
//! | no record, most seeds turn this node away | refuses, with their reason: it is another disk than the one they know |
//! | no record, a seed's record does not name this node | refuses: not one of the first members |
//! | a seed with another list of seeds | waits and says so: the configurations contradict |
//! | two seeds with one node id | waits and says so |
//! | a seed that doesn't answer or resolve | waits; formation needs every seed once |
//!
//! This module must not know topics or the controller's state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::envelope;
use imprint_proto::ids::NodeId;
use imprint_raft::disk::{Disk, Io, is_no_space, read_file};
use imprint_raft::identity::{self, Identity, IdentityError};
use imprint_raft::meta::MetaStore;
use imprint_raft::quarantine::Quarantine;
use imprint_raft::rpc::{CallOptions, Class, Hello, PeerTable, RpcError, methods};
use imprint_raft::seams::Entropy;
use parking_lot::Mutex;
use tokio::sync::watch;

imprint_proto::envelope! {
    /// Who founded the cluster together: written once, never changed.
    #[derive(Clone, Debug, PartialEq)]
    pub struct FormationRecord: version 0, compat 0 {
        cluster_id: [u8; 16],
        members: Vec<FoundingMember>,
    }
}

imprint_proto::envelope! {
    /// One founding member. `replica_id` is its replica of the controller group.
    #[derive(Clone, Debug, PartialEq)]
    pub struct FoundingMember: version 0, compat 0 {
        node_id: u64,
        storage_id: [u8; 16],
        address: String,
        replica_id: u64,
    }
}

imprint_proto::envelope! {
    /// What a node says of itself when a seed asks.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct WhoIsReply: version 0, compat 0 {
        node_id: u64,
        storage_id: [u8; 16],
        address: String,
        seeds: Vec<String>,
        record: Option<FormationRecord>,
    }
}

/// How long a seed may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Between two rounds of asking while the cluster isn't formed; doubles up to the maximum.
const ROUND_WAIT_MIN: Duration = Duration::from_millis(10);
const ROUND_WAIT_MAX: Duration = Duration::from_millis(500);
/// Between two rounds of asking seeds for their addresses afterwards.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(1);

/// Why this node can't belong to the cluster that it found. Final: an operator has to decide.
#[derive(Debug, thiserror::Error)]
pub enum FormationError {
    #[error(
        "node {node} already belongs to cluster {cluster} with another disk (storage id {known}, \
         here {own}): this data directory is new or a copy. Restore the old one, or remove the \
         node from the cluster before giving its id to a new disk"
    )]
    ForeignStorage {
        node: u64,
        cluster: String,
        known: String,
        own: String,
    },
    #[error("most seeds refuse this node; {seed} says: {reason}")]
    Refused { seed: String, reason: String },
    #[error(
        "cluster {cluster} was formed without node {node}: it is not one of the seeds' first members"
    )]
    NotAMember { node: u64, cluster: String },
    #[error("the data directory belongs to cluster {own}, the seed {seed} to cluster {found}")]
    OtherCluster {
        seed: String,
        own: String,
        found: String,
    },
    #[error("{path}: {source}; restore the file from a backup, or remove the node and add it anew")]
    Damaged {
        path: String,
        source: std::io::Error,
    },
    #[error("can't write {path}: {source}")]
    Write {
        path: String,
        source: std::io::Error,
    },
}

/// What formation needs of the node.
pub struct FormationParts {
    pub identity: Identity,
    pub seeds: Vec<String>,
    /// This node's advertised internal RPC address.
    pub address: String,
    pub peers: Arc<PeerTable>,
    pub io: Io,
    pub data_dir: PathBuf,
    pub entropy: Arc<dyn Entropy>,
    /// Remembers where members were last met. Losing it costs the time to ask the seeds.
    pub meta: Arc<dyn MetaStore>,
}

/// The state of formation on this node.
pub struct Formation {
    parts: FormationParts,
    record: watch::Sender<Option<FormationRecord>>,
    waiting_for: Mutex<String>,
}

impl std::fmt::Debug for Formation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Formation").finish_non_exhaustive()
    }
}

impl Formation {
    /// Reads the record, if the node has one.
    pub fn open(parts: FormationParts) -> Result<Arc<Self>, FormationError> {
        let record = read_record(&parts)?;
        Ok(Arc::new(Formation {
            record: watch::Sender::new(record),
            waiting_for: Mutex::new("the seeds have not been asked yet".to_string()),
            parts,
        }))
    }

    /// The record, once there is one.
    pub fn record(&self) -> Option<FormationRecord> {
        self.record.borrow().clone()
    }

    /// The cluster's id, once there is one.
    pub fn cluster_id(&self) -> Option<[u8; 16]> {
        self.record
            .borrow()
            .as_ref()
            .map(|record| record.cluster_id)
    }

    /// What formation waits for, as a sentence; empty when it's done.
    pub fn waiting_for(&self) -> String {
        self.waiting_for.lock().clone()
    }

    /// Answers a seed that asks who this node is (method FORM).
    pub fn who_is(&self) -> Bytes {
        envelope::encode(&WhoIsReply {
            node_id: self.parts.identity.node_id.0,
            storage_id: self.parts.identity.storage_id.0,
            address: self.parts.address.clone(),
            seeds: self.parts.seeds.clone(),
            record: self.record(),
        })
    }

    /// Waits until the node belongs to a cluster. Fills the peer table on the way.
    pub async fn form(&self) -> Result<FormationRecord, FormationError> {
        let mut wait = ROUND_WAIT_MIN;
        loop {
            if let Some(record) = self.record() {
                self.waiting_for.lock().clear();
                self.add_members(&record);
                return Ok(record);
            }
            let answers = self.ask_seeds().await;
            match self.decide(&answers) {
                Step::Wait(reason) => {
                    self.note_waiting(reason);
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(ROUND_WAIT_MAX);
                }
                Step::Write(record) => match self.write_record(record).await {
                    Err(FormationError::Write { source, path }) if is_no_space(&source) => {
                        self.note_waiting(format!("there is no room on the disk for {path}"));
                        tokio::time::sleep(ROUND_WAIT_MAX).await;
                    }
                    written => written?,
                },
                Step::Refuse(error) => return Err(error),
            }
        }
    }

    /// Keeps asking the seeds that aren't connected, so that a node that moved is found. Never
    /// returns; spawn it.
    pub async fn discover(self: Arc<Self>) {
        loop {
            tokio::time::sleep(DISCOVERY_INTERVAL).await;
            let lost = |node: NodeId| !self.parts.peers.is_alive(node);
            let any_lost = self.record().is_some_and(|record| {
                record
                    .members
                    .iter()
                    .map(|m| NodeId(m.node_id))
                    .any(|node| node.0 != self.parts.identity.node_id.0 && lost(node))
            });
            if any_lost {
                self.ask_seeds().await;
            }
        }
    }

    fn note_waiting(&self, reason: String) {
        let mut waiting = self.waiting_for.lock();
        if *waiting != reason {
            tracing::info!(reason = %reason, "the cluster isn't formed yet");
            *waiting = reason;
        }
    }

    /// Asks every seed; an answer also puts the seed into the peer table at its address.
    async fn ask_seeds(&self) -> BTreeMap<String, Answer> {
        let asks = self.parts.seeds.iter().map(|seed| async {
            let answer = self.ask(seed).await;
            if let Ok(reply) = &answer {
                self.learn(seed, reply);
            }
            (seed.clone(), answer)
        });
        futures_util::future::join_all(asks)
            .await
            .into_iter()
            .collect()
    }

    async fn ask(&self, seed: &str) -> Answer {
        if seed == self.parts.address {
            return envelope::decode(self.who_is()).map_err(|e| Unanswered::Silent(e.to_string()));
        }
        let options = CallOptions {
            timeout: ASK_TIMEOUT,
            class: Class::Urgent,
            compress: false,
        };
        let reply = self
            .parts
            .peers
            .call_address(seed, methods::FORM, Vec::new().into(), options)
            .await
            .map_err(|error| match error {
                RpcError::Refused { reason, .. } => Unanswered::Refused(reason),
                other => Unanswered::Silent(other.to_string()),
            })?;
        envelope::decode(reply).map_err(|e| Unanswered::Silent(e.to_string()))
    }

    /// A stranger on a seed's address is not taken for the member that lived there.
    fn learn(&self, seed: &str, reply: &WhoIsReply) {
        let own = self.parts.identity.node_id.0;
        let known = self.record();
        let stranger = known.is_some_and(|record| {
            record
                .members
                .iter()
                .all(|m| m.node_id != reply.node_id || m.storage_id != reply.storage_id)
        });
        if reply.node_id != own && !stranger {
            self.parts.peers.add(NodeId(reply.node_id), seed.to_owned());
            self.remember(reply.node_id, seed);
        }
    }

    fn remember(&self, node: u64, address: &str) {
        if self.remembered(node).as_deref() == Some(address) {
            return;
        }
        let meta = Arc::clone(&self.parts.meta);
        let (key, address) = (address_key(node), address.to_owned());
        self.parts.io.offload.run(Box::new(move || {
            if let Err(error) = meta.put(&key, address.as_bytes()) {
                tracing::warn!(node, %error, "the member's address is not remembered");
            }
        }));
    }

    /// Where a member was last met; what can't be read counts as forgotten.
    fn remembered(&self, node: u64) -> Option<String> {
        let stored = self.parts.meta.get(&address_key(node)).ok()??;
        String::from_utf8(stored.to_vec()).ok()
    }

    fn add_members(&self, record: &FormationRecord) {
        for member in &record.members {
            if member.node_id != self.parts.identity.node_id.0 {
                let node = NodeId(member.node_id);
                if self.parts.peers.get(node).is_none() {
                    let last_met = self.remembered(member.node_id);
                    let address = last_met.unwrap_or_else(|| member.address.clone());
                    self.parts.peers.add(node, address);
                }
            }
        }
    }

    async fn write_record(&self, record: FormationRecord) -> Result<(), FormationError> {
        let path = record_path(&self.parts);
        let shown = path.display().to_string();
        let io = self.parts.io.clone();
        let bytes = envelope::encode_checked(&record);
        let mut identity = self.parts.identity.clone();
        let (dir, cluster) = (self.parts.data_dir.clone(), record.cluster_id);
        let write = move || {
            io.replace_file(None, &path, &[&bytes])?;
            let joined = identity::join_cluster(&*io.disk, &dir, &mut identity, cluster);
            joined.map_err(|error| final_failure(&io, error))
        };
        let failed = |source| FormationError::Write {
            path: shown.clone(),
            source,
        };
        crate::node::offloaded(&self.parts.io, write)
            .await
            .map_err(failed)?
            .map_err(failed)?;
        tracing::info!(cluster = %hex(&record.cluster_id), members = record.members.len(), "the cluster is formed");
        self.record.send_replace(Some(record));
        Ok(())
    }

    /// The decision table of the module's head.
    fn decide(&self, answers: &BTreeMap<String, Answer>) -> Step {
        if let Some(record) = answers.values().flatten().find_map(|a| a.record.clone()) {
            return self.decide_adoption(record);
        }
        if self.parts.identity.cluster_id.is_some() {
            return self.decide_lost(answers);
        }
        if let Some(refused) = refused_by_most(answers) {
            return Step::Refuse(refused);
        }
        if !answers.contains_key(&self.parts.address) {
            return Step::Wait(format!(
                "this node's advertised peer address {} is not among the seeds ({})",
                self.parts.address,
                self.parts.seeds.join(",")
            ));
        }
        let mut by_node = BTreeMap::new();
        for (seed, answer) in answers {
            let answer = match answer {
                Ok(answer) => answer,
                Err(Unanswered::Silent(e)) => {
                    return Step::Wait(format!("seed {seed} does not answer: {e}"));
                }
                Err(Unanswered::Refused(e)) => {
                    return Step::Wait(format!("seed {seed} refuses this node: {e}"));
                }
            };
            if answer.seeds != self.parts.seeds {
                return Step::Wait(format!(
                    "seed {seed} lists other seeds ({}) than this node ({})",
                    answer.seeds.join(","),
                    self.parts.seeds.join(",")
                ));
            }
            if let Some((other, _)) = by_node.insert(answer.node_id, (seed, answer)) {
                return Step::Wait(format!(
                    "seeds {other} and {seed} both say that they are node {}",
                    answer.node_id
                ));
            }
        }
        let own = self.parts.identity.node_id.0;
        match by_node.keys().next() {
            Some(lowest) if *lowest == own => Step::Write(self.found(&by_node)),
            _ => Step::Wait("the node with the lowest id founds the cluster".into()),
        }
    }

    /// This node was part of a cluster and has lost the record of it: it may not found another.
    fn decide_lost(&self, answers: &BTreeMap<String, Answer>) -> Step {
        if let Some(refused) = refused_by_most(answers) {
            return Step::Refuse(refused);
        }
        let path = record_path(&self.parts).display().to_string();
        if answers.values().all(Result::is_ok) {
            let nobody = "the record of the cluster is lost here and on every seed";
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, nobody);
            return Step::Refuse(FormationError::Damaged { path, source });
        }
        Step::Wait(format!("{path} is lost; a seed that has it is waited for"))
    }

    fn decide_adoption(&self, record: FormationRecord) -> Step {
        let own = &self.parts.identity;
        let cluster = hex(&record.cluster_id);
        if let Some(known) = own.cluster_id.filter(|known| *known != record.cluster_id) {
            return Step::Refuse(FormationError::OtherCluster {
                own: hex(&known),
                seed: self.parts.seeds.join(","),
                found: cluster,
            });
        }
        match record.members.iter().find(|m| m.node_id == own.node_id.0) {
            Some(member) if member.storage_id == own.storage_id.0 => Step::Write(record),
            Some(member) => Step::Refuse(FormationError::ForeignStorage {
                node: own.node_id.0,
                cluster,
                known: hex(&member.storage_id),
                own: hex(&own.storage_id.0),
            }),
            None => Step::Refuse(FormationError::NotAMember {
                node: own.node_id.0,
                cluster,
            }),
        }
    }

    fn found(&self, by_node: &BTreeMap<u64, (&String, &WhoIsReply)>) -> FormationRecord {
        let mut cluster_id = [0; 16];
        self.parts.entropy.fill(&mut cluster_id);
        let members = (1..)
            .zip(by_node.values())
            .map(|(replica_id, (_, answer))| FoundingMember {
                node_id: answer.node_id,
                storage_id: answer.storage_id,
                address: answer.address.clone(),
                replica_id,
            })
            .collect();
        FormationRecord {
            cluster_id,
            members,
        }
    }

    /// Whether a node that says hello may talk to this one.
    pub fn check_hello(&self, hello: &Hello) -> Result<(), String> {
        let own = self.cluster_id();
        if let (Some(own), Some(theirs)) = (own, hello.cluster_id)
            && own != theirs
        {
            return Err(format!(
                "this node belongs to cluster {}, not to {}",
                hex(&own),
                hex(&theirs)
            ));
        }
        let Some(record) = self.record() else {
            return Ok(());
        };
        match record.members.iter().find(|m| m.node_id == hello.node_id.0) {
            Some(member) if member.storage_id != hello.storage_id => Err(format!(
                "node {} is known here with storage id {}, not {}",
                member.node_id,
                hex(&member.storage_id),
                hex(&hello.storage_id)
            )),
            _ => Ok(()),
        }
    }
}

/// What a seed said.
type Answer = Result<WhoIsReply, Unanswered>;

/// Why a seed said nothing of itself.
enum Unanswered {
    /// Not there, not yet, or not understood: it is waited for.
    Silent(String),
    /// It doesn't talk to this node.
    Refused(String),
}

/// A cluster that doesn't know this disk turns it away at the hello already. Most seeds have to, so
/// that no single misconfigured one can end a node.
fn refused_by_most(answers: &BTreeMap<String, Answer>) -> Option<FormationError> {
    let refusals: Vec<(&String, &String)> = answers
        .iter()
        .filter_map(|(seed, answer)| match answer {
            Err(Unanswered::Refused(reason)) => Some((seed, reason)),
            _ => None,
        })
        .collect();
    let (seed, reason) = refusals.first()?;
    (refusals.len() > answers.len() / 2).then(|| FormationError::Refused {
        seed: (*seed).clone(),
        reason: (*reason).clone(),
    })
}

enum Step {
    Wait(String),
    Write(FormationRecord),
    Refuse(FormationError),
}

/// Key of a member's last address in the meta store.
fn address_key(node: u64) -> Vec<u8> {
    format!("peer-address/{node}").into_bytes()
}

fn record_path(parts: &FormationParts) -> PathBuf {
    parts.data_dir.join("formation")
}

/// The record on disk. Where the identity says which cluster it was, a record that is gone or damaged
/// comes back from a seed; the damaged one is set aside.
fn read_record(parts: &FormationParts) -> Result<Option<FormationRecord>, FormationError> {
    let path = record_path(parts);
    let damaged = |source| FormationError::Damaged {
        path: path.display().to_string(),
        source,
    };
    let disk = &*parts.io.disk;
    let joined = parts.identity.cluster_id.is_some();
    if !disk.exists(&path).map_err(damaged)? {
        if joined {
            tracing::warn!(path = %path.display(), "the formation record is gone: a seed is asked for it");
        }
        return Ok(None);
    }
    let bytes = read_file(disk, &path).map_err(damaged)?;
    match envelope::decode_checked(bytes.into()) {
        Ok(record) => Ok(Some(record)),
        Err(error) if joined => {
            let aside = set_aside(disk, parts, &path).map_err(damaged)?;
            tracing::warn!(
                path = %path.display(), %error, aside = %aside.display(),
                "the formation record is damaged and was set aside: a seed is asked for it"
            );
            Ok(None)
        }
        Err(error) => Err(damaged(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            error,
        ))),
    }
}

fn set_aside(disk: &dyn Disk, parts: &FormationParts, path: &Path) -> std::io::Result<PathBuf> {
    let now_us = parts.io.clock.now_micros();
    Quarantine::new(disk, &parts.data_dir, now_us).set_aside(path, "formation")
}

/// Lower-case hex, as identities are shown everywhere.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// An identity that could not be written: final for the process unless it was for want of room.
fn final_failure(io: &Io, error: IdentityError) -> std::io::Error {
    match error {
        IdentityError::Io { source, .. } if is_no_space(&source) => source,
        IdentityError::Io { path, source } => {
            io.fatal(None, &format!("{}: {source}", path.display()));
            source
        }
        error => std::io::Error::other(error),
    }
}
