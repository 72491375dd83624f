//! After a failed write or sync nobody knows what the disk has kept of the tail, so the process ends; what the next one does
//! with that tail is here.
//!
//! Before the end a marker is written, at best effort: the file that failed, and for each group concerned where its log
//! ended. The next run reads such a tail past the page cache (opening a log does that after any unclean end), and for the
//! groups named:
//!
//! * the replica neither campaigns nor grants votes: it may lack what it acknowledged, and its vote could then elect somebody
//!   who lacks it too;
//! * until a leader has brought it past its old end: it has applied an entry at or behind it, or one of a later term, whose
//!   leader holds all that was ever committed;
//! * or until most voters of the group turn out to be suspect at once: then nobody could ever be elected, so they vote
//!   again, and Raft's own rule makes the longest log among them lead. They go on saying that they are suspect until a
//!   leader has brought them on, so that each of them comes to know.
//!
//! The marker goes when no group is suspect any more. One that can't be read makes every group suspect: it is there because
//! the disk failed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use imprint_proto::envelope;
use imprint_proto::ids::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;

use super::codec::{GroupStateMessage, GroupStateReply};
use super::fitness::Unfit;
use super::group::Group;
use super::groups::Groups;
use crate::disk::offloaded;
use crate::disk::{Io, read_file, replace_file};
use crate::journal::{Journal, LogPos};
use crate::rpc::{CallOptions, Class, methods};

const MARKER: &str = "suspect";
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

imprint_proto::envelope! {
    /// The marker's contents.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct SuspectRecord: version 0, compat 0 {
        /// What failed, for people.
        failed: String,
        groups: Vec<SuspectTail>,
    }
}

imprint_proto::envelope! {
    /// Where a group's log ended when the process did.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct SuspectTail: version 0, compat 0 {
        group: u64,
        end_offset: u64,
        end_term: u64,
        end_index: u64,
    }
}

/// What is known of one suspect group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tail {
    end_offset: u64,
    /// `None`: the marker could not be read; the end that the log is opened with counts.
    end: Option<LogPos>,
    /// Most voters are suspect: this one campaigns and votes although it is.
    lifted: bool,
}

/// The suspect groups of this run.
pub(crate) struct Suspects {
    path: PathBuf,
    failed: String,
    tails: Mutex<BTreeMap<u64, Tail>>,
}

impl Suspects {
    /// Reads the marker of the run before. `all` gives every group that something is kept of.
    pub(crate) fn load(io: &Io, data_dir: &Path, all: impl Fn() -> Vec<u64>) -> Self {
        let path = data_dir.join(MARKER);
        let (failed, tails) = match read(io, &path) {
            Ok(None) => (String::new(), BTreeMap::new()),
            Ok(Some(record)) => {
                tracing::warn!(failed = %record.failed, groups = record.groups.len(), "the disk failed in the run before: the tails of these groups are suspect");
                let tails = record.groups.iter().map(tail_of);
                (record.failed.clone(), tails.collect())
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the marker of a failed disk can't be read: every group is suspect");
                let unknown = Tail {
                    end_offset: 0,
                    end: None,
                    lifted: false,
                };
                let tails = all().into_iter().map(|group| (group, unknown));
                (error.to_string(), tails.collect())
            }
        };
        Self {
            path,
            failed,
            tails: Mutex::new(tails),
        }
    }

    /// Whether a group is suspect in this run, lifted or not.
    pub(crate) fn has(&self, group: u64) -> bool {
        self.tails.lock().contains_key(&group)
    }

    /// A suspect group's log was opened.
    fn opened(&self, group: u64, journal: &Journal) {
        if let Some(tail) = self.tails.lock().get_mut(&group) {
            let end = journal.last().unwrap_or_default();
            tail.end_offset = tail.end_offset.max(journal.next_offset());
            tail.end = Some(tail.end.map_or(end, |known| known.max(end)));
        }
    }

    fn get(&self, group: u64) -> Option<Tail> {
        self.tails.lock().get(&group).copied()
    }

    fn set_lifted(&self, group: u64) {
        if let Some(tail) = self.tails.lock().get_mut(&group) {
            tail.lifted = true;
        }
    }

    /// Takes a group out, and the marker away when it was the last. Blocks.
    fn clear(&self, io: &Io, group: u64) -> io::Result<()> {
        let left: Vec<SuspectTail> = {
            let mut tails = self.tails.lock();
            tails.remove(&group);
            tails
                .iter()
                .map(|(group, tail)| tail.to_wire(*group))
                .collect()
        };
        if left.is_empty() {
            if io.disk.exists(&self.path)? {
                io.disk.remove_file(&self.path)?;
                io.disk.sync_dir(crate::disk::parent(&self.path)?)?;
            }
            return Ok(());
        }
        write(io, &self.path, self.failed.clone(), left)
    }
}

impl Tail {
    fn to_wire(self, group: u64) -> SuspectTail {
        let end = self.end.unwrap_or_default();
        SuspectTail {
            group,
            end_offset: self.end_offset,
            end_term: end.term,
            end_index: end.index,
        }
    }
}

fn tail_of(wire: &SuspectTail) -> (u64, Tail) {
    let end = LogPos {
        term: wire.end_term,
        index: wire.end_index,
    };
    let tail = Tail {
        end_offset: wire.end_offset,
        end: Some(end),
        lifted: false,
    };
    (wire.group, tail)
}

fn read(io: &Io, path: &Path) -> io::Result<Option<SuspectRecord>> {
    if !io.disk.exists(path)? {
        return Ok(None);
    }
    let bytes = read_file(io.disk.as_ref(), path)?;
    let record = envelope::decode_checked(bytes.into());
    let record = record.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
    Ok(Some(record))
}

fn write(io: &Io, path: &Path, failed: String, groups: Vec<SuspectTail>) -> io::Result<()> {
    let bytes = envelope::encode_checked(&SuspectRecord { failed, groups });
    replace_file(io.disk.as_ref(), path, &[&bytes])
}

impl Groups {
    /// The last words of a process whose disk failed: which tails are suspect. Blocks, at best effort. `group` is the one whose
    /// file failed; without one it was the state log, and all are concerned.
    pub(crate) fn mark_suspect(&self, group: Option<u64>, failed: &str) {
        let concerned = self
            .all()
            .into_iter()
            .filter(|open| group.is_none_or(|group| open.id == group));
        let mut tails: BTreeMap<u64, SuspectTail> = {
            let before = self.suspects.tails.lock();
            before
                .iter()
                .map(|(g, tail)| (*g, tail.to_wire(*g)))
                .collect()
        };
        for open in concerned {
            let tail = Tail {
                end_offset: open.journal.next_offset(),
                end: open.journal.last(),
                lifted: false,
            };
            tails.insert(open.id, tail.to_wire(open.id));
        }
        let groups = tails.into_values().collect();
        if let Err(error) = write(&self.io, &self.suspects.path, failed.to_owned(), groups) {
            tracing::warn!(%error, "the marker of the failed disk could not be written");
        }
    }

    /// A replica was opened: it is unfit if the run before left it suspect.
    pub(super) fn doubt(&self, group: &Group) {
        if self.suspects.has(group.id) {
            self.suspects.opened(group.id, &group.journal);
            group.set_unfit(Unfit::Suspect, true);
        }
    }

    /// Looks whether suspect replicas can be trusted again. Called every now and then.
    pub(super) async fn look_at_suspects(&self) {
        for group in self.all() {
            let Some(tail) = self.suspects.get(group.id) else {
                continue;
            };
            if group.brought_past(tail) {
                self.trust(&group).await;
            } else if !tail.lifted && self.most_are_suspect(&group).await {
                tracing::warn!(
                    group = group.id,
                    "most replicas are suspect: the longest log may lead"
                );
                self.suspects.set_lifted(group.id);
                group.set_unfit(Unfit::Suspect, false);
            }
        }
    }

    async fn trust(&self, group: &Group) {
        let (io, suspects, id) = (self.io.clone(), Arc::clone(&self.suspects), group.id);
        let cleared = offloaded(&self.io, move || suspects.clear(&io, id)).await;
        if let Err(error) = cleared.and_then(|done| done) {
            // It stays suspect for the next start, which costs time and nothing else.
            tracing::warn!(%error, "the marker of the failed disk could not be changed");
        }
        group.set_unfit(Unfit::Suspect, false);
        tracing::info!(group = id, "a leader has brought the suspect tail on");
    }

    async fn most_are_suspect(&self, group: &Group) -> bool {
        let voters = group.members().into_iter().filter(|(_, _, voter)| *voter);
        let nodes: Vec<NodeId> = voters.map(|(_, node, _)| node).collect();
        if nodes.is_empty() {
            return false;
        }
        let others = nodes.iter().filter(|node| **node != self.node_id);
        let asks = others.map(|node| self.is_suspect_on(*node, group.id));
        let answers = futures_util::future::join_all(asks).await;
        let suspect = 1 + answers.into_iter().filter(|suspect| *suspect).count();
        suspect * 2 > nodes.len()
    }

    async fn is_suspect_on(&self, node: NodeId, group: u64) -> bool {
        let Some(peer) = self.peers.get(node) else {
            return false;
        };
        let message = GroupStateMessage {
            groups: vec![group],
        };
        let options = CallOptions {
            timeout: ASK_TIMEOUT,
            class: Class::Urgent,
            compress: false,
        };
        let parts = vec![envelope::encode(&message)];
        match peer.call(methods::GROUP_STATE, parts.into(), options).await {
            Ok(reply) => envelope::decode::<GroupStateReply>(reply)
                .is_ok_and(|reply| reply.suspect.first() == Some(&true)),
            Err(_) => false,
        }
    }
}

impl Group {
    /// Whether a leader has brought this replica past the end that its log had when its disk failed.
    fn brought_past(&self, tail: Tail) -> bool {
        let metrics = self.raft.metrics();
        let m = metrics.borrow_watched();
        let (Some(_), Some(applied), Some(end)) = (m.current_leader, m.last_applied, tail.end)
        else {
            return false;
        };
        let applied = super::types::log_pos(&applied);
        let held = self
            .journal
            .synced()
            .is_some_and(|synced| synced >= applied);
        held && (applied.term > end.term || applied.index >= end.index)
    }
}
