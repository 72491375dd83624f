//! Groups that did not open because of damage: what of them is good still serves other replicas, what is missing is fetched,
//! then they open.
//!
//! Invariants:
//! * A group that is down neither votes nor campaigns: nothing of it runs but its files.
//! * It is cut or emptied only on the word of a leader that had just confirmed that it leads.

use std::sync::Arc;

use imprint_proto::ids::NodeId;
use parking_lot::Mutex;

use super::fill::{Filled, Stuck, Word, fill};
use super::sources::Sources;
use super::text;
use crate::consensus::groups::{GroupSpec, Groups};
use crate::consensus::snapshot::{NEWEST, start_cut};
use crate::disk::offloaded;
use crate::disk::replace_file;
use crate::journal::{BadRange, Journal, Mend, RepairBatch, Rescue};

/// A group that waits for its repair.
pub(crate) struct Down {
    pub group: u64,
    /// The nodes of the other replicas.
    pub nodes: Vec<NodeId>,
    pub patient: Patient,
    /// How to open it again; taken while that is tried.
    spec: Mutex<Option<GroupSpec>>,
    /// Why it is still down, for people.
    state: Mutex<String>,
}

/// What of a group is there while it is down.
#[derive(Clone)]
pub(crate) enum Patient {
    /// Its journal did not open.
    Rescue(Arc<Rescue>),
    /// Its journal is open, but Raft could not start over a hole in it.
    Journal(Arc<Journal>),
}

impl Patient {
    fn damage(&self) -> Vec<BadRange> {
        match self {
            Self::Rescue(rescue) => rescue.damage(),
            Self::Journal(journal) => journal.damage(),
        }
    }

    /// Its first kept offset and its end.
    pub(crate) fn offsets(&self) -> (u64, u64) {
        match self {
            Self::Rescue(rescue) => (rescue.start_offset(), rescue.end_offset()),
            Self::Journal(journal) => (journal.start_offset(), journal.next_offset()),
        }
    }

    /// Good batches for another replica. Blocks.
    pub(crate) fn read(
        &self,
        from_offset: u64,
        max_bytes: u64,
    ) -> Result<Vec<RepairBatch>, String> {
        match self {
            Self::Rescue(rescue) => rescue.read(from_offset, max_bytes).map_err(text),
            Self::Journal(journal) => journal
                .read_for_repair(from_offset, max_bytes)
                .map_err(text),
        }
    }

    /// What has to be filled. Blocks.
    fn mends(&self) -> Result<Vec<Mend>, String> {
        match self {
            Self::Rescue(rescue) => rescue.mends().map_err(text),
            Self::Journal(journal) => {
                let mut bases: Vec<u64> = journal
                    .damage()
                    .iter()
                    .map(|bad| bad.segment_base)
                    .collect();
                bases.dedup();
                bases
                    .into_iter()
                    .map(|base| journal.mend(base).map_err(text))
                    .collect()
            }
        }
    }
}

/// A group that is down, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownGroup {
    pub group: u64,
    /// What is missing or bad.
    pub ranges: Vec<BadRange>,
    /// What is being done about it, or why nothing helps yet.
    pub state: String,
}

impl Down {
    pub(crate) fn new(spec: GroupSpec, own_node: NodeId, patient: Patient) -> Arc<Self> {
        let others = spec.members.values().map(|(node, _)| *node);
        Arc::new(Self {
            group: spec.group_id,
            nodes: others.filter(|node| *node != own_node).collect(),
            patient,
            spec: Mutex::new(Some(spec)),
            state: Mutex::new("it will be fetched from another replica".to_owned()),
        })
    }

    pub(crate) fn describe(&self) -> DownGroup {
        DownGroup {
            group: self.group,
            ranges: self.patient.damage(),
            state: self.state.lock().clone(),
        }
    }

    fn say(&self, state: String) {
        *self.state.lock() = state;
    }
}

impl Groups {
    /// One try to bring a group up again; true when it is open or open to a next try at once.
    pub(crate) async fn raise(&self, down: &Arc<Down>) -> bool {
        let sources = Sources {
            group: down.group,
            nodes: down.nodes.clone(),
            peers: Arc::clone(&self.peers),
        };
        match self.fill_all(down, &sources).await {
            Ok(()) => self.reopen(down).await,
            Err(reason) => {
                tracing::warn!(group = down.group, %reason, "a damaged group stays down");
                down.say(reason);
                false
            }
        }
    }

    async fn fill_all(&self, down: &Arc<Down>, sources: &Sources) -> Result<(), String> {
        let patient = down.patient.clone();
        let mends = offloaded(self.io(), move || patient.mends()).await;
        for mend in mends.map_err(text)?? {
            match fill(self.io(), mend, sources, true).await? {
                (mend, Filled::Whole) => drop(self.finish(mend).await?),
                (_, Filled::Stuck(stuck)) => return self.heed(down, sources, stuck).await,
            }
        }
        Ok(())
    }

    /// Does what a leader's word allows, or says why nothing can be done.
    async fn heed(&self, down: &Arc<Down>, sources: &Sources, stuck: Stuck) -> Result<(), String> {
        let offset = stuck.wanted.offset;
        if matches!(down.patient, Patient::Journal(_)) {
            // Sealed segments hold what a later start must find: never cut.
            return Err(stuck.to_string());
        }
        match stuck.word {
            Word::NeverCommitted { leader } => {
                tracing::warn!(
                    group = down.group,
                    offset,
                    leader = leader.0,
                    "damaged entries were never committed, says the leader: the log is cut there"
                );
                self.with_rescue(down, move |rescue| rescue.cut_tail(offset).map_err(text))
                    .await
            }
            Word::Trimmed {
                leader,
                start_offset,
            } => {
                tracing::warn!(
                    group = down.group,
                    start_offset,
                    leader = leader.0,
                    "all that is damaged was trimmed elsewhere: the log begins anew behind the leader's cut"
                );
                let snapshot = sources.read_cut(leader).await.map_err(text)?;
                let cut = start_cut(snapshot.clone()).map_err(text)?;
                let (disk, dir) = (Arc::clone(&self.io().disk), self.group_dir(down.group));
                self.with_rescue(down, move |rescue| {
                    // The snapshot first, as when a leader sends it: the log begins behind it then.
                    replace_file(&*disk, &dir.join(NEWEST), &[&snapshot]).map_err(text)?;
                    rescue.move_start(cut).map_err(text)
                })
                .await
            }
            Word::None => Err(stuck.to_string()),
        }
    }

    /// Changes the files of a group that is down, on a fresh look at them.
    async fn with_rescue(
        &self,
        down: &Down,
        change: impl FnOnce(Rescue) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let (io, state, dir) = (
            self.io().clone(),
            Arc::clone(&self.state),
            self.group_dir(down.group),
        );
        let group = down.group;
        let changed = offloaded(self.io(), move || {
            let rescue = Rescue::open(io, dir, state, group).map_err(text)?;
            change(rescue)
        });
        changed.await.map_err(text)?
    }

    async fn reopen(&self, down: &Arc<Down>) -> bool {
        let Some(spec) = down.spec.lock().take() else {
            return true;
        };
        self.forget_down(down.group);
        match self.open_group(spec).await {
            Ok(_) => {
                tracing::info!(
                    group = down.group,
                    "a damaged group was repaired and is open again"
                );
                true
            }
            // What is still damaged has registered the group as down again.
            Err(error) => {
                tracing::warn!(group = down.group, %error, "a repaired group did not open");
                false
            }
        }
    }
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let wanted = &self.wanted;
        write!(
            f,
            "no replica gave offsets {}..{}",
            wanted.offset, wanted.upto_offset
        )?;
        if let Some(from) = wanted.from {
            write!(f, " from entry {from} on")?;
        }
        for (node, what) in &self.heard {
            write!(f, "; node {node}: {what}")?;
        }
        Ok(())
    }
}
