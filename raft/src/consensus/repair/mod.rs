//! Damage is repaired from other replicas.
//!
//! | what is damaged | what the replica does meanwhile | how it ends |
//! |---|---|---|
//! | a range of a sealed segment | votes and serves the rest; hands the lead over, does not campaign | the range is fetched, the segment written anew and swapped in |
//! | what must be there of the active segment, or a whole segment | the group is down here; what is good of it serves others | fetched, then opened |
//! | the same, but the leader never had it | down | cut there: it was never committed |
//! | the same, but trimmed everywhere | down | begins anew behind the leader's cut |
//! | what nobody has any more | down, or with a hole; alarm | an operator decides, offline |
//!
//! Why may any replica fill a hole, not only a leader? The control log, which is intact, says which term and index stand at
//! each offset. Two logs that agree on the term and index of an entry agree on its bytes, committed or not.
//!
//! This module must not know how a segment looks on disk.

mod down;
mod fill;
mod serve;
mod sources;
mod stats;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imprint_proto::ids::NodeId;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use down::DownGroup;
pub use stats::{RepairCounts, RepairStats};

pub(crate) use down::{Down, Patient};
pub(crate) use serve::{read_cut, read_log, segment_digests};
pub(crate) use sources::Sources;

use super::fitness::Unfit;
use super::group::Group;
use super::groups::Groups;
use crate::disk::offloaded;
use crate::journal::{Mend, MendError};
use fill::{Filled, fill};

/// How often damage is looked for and failed repairs are considered again.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Repairs at a time on one node: each holds a batch of a megabyte and writes a segment.
const REPAIRS_AT_A_TIME: usize = 2;
/// The wait after a failed repair; doubles up to the maximum.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// A leader with a hole asks another replica to take over this often.
const HAND_OVER_EVERY: Duration = Duration::from_secs(2);

/// When a group may be tried again, and how long to wait then.
struct Retry {
    at: Instant,
    pause: Duration,
}

impl Groups {
    /// Repairs damaged groups until the node stops; spawn it once.
    pub async fn repair(self: Arc<Self>) {
        let mut running: JoinSet<(u64, bool)> = JoinSet::new();
        let mut busy: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut retries: BTreeMap<u64, Retry> = BTreeMap::new();
        let mut handed_over: BTreeMap<u64, Instant> = BTreeMap::new();
        let mut look = tokio::time::interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            while let Some(done) = running.try_join_next() {
                // A task that was cancelled has no group to report; its entry ends with the node.
                if let Ok((group, repaired)) = done {
                    busy.remove(&group);
                    note(&mut retries, group, repaired);
                }
            }
            self.judge_fitness(&mut handed_over);
            for work in self.work_to_do() {
                let id = work.group();
                let due = retries
                    .get(&id)
                    .is_none_or(|retry| retry.at <= Instant::now());
                if running.len() >= REPAIRS_AT_A_TIME || busy.contains_key(&id) || !due {
                    continue;
                }
                busy.insert(id, Instant::now());
                let groups = Arc::clone(&self);
                running.spawn(async move { (id, groups.do_work(work).await) });
            }
        }
    }

    /// Sees to it that no replica with a hole leads.
    fn judge_fitness(&self, handed_over: &mut BTreeMap<u64, Instant>) {
        for group in self.all() {
            let damaged = group.journal().is_damaged();
            if damaged != group.is_unfit(Unfit::Hole) {
                group.set_unfit(Unfit::Hole, damaged);
            }
            if !damaged {
                handed_over.remove(&group.id());
                continue;
            }
            let last = handed_over.get(&group.id());
            if group.is_leader() && last.is_none_or(|at| at.elapsed() >= HAND_OVER_EVERY) {
                handed_over.insert(group.id(), Instant::now());
                tracing::warn!(group = group.id(), "a leader with a damaged log hands over");
                self.hand_over(&group);
            }
        }
    }

    /// Asks a living voter to take over.
    fn hand_over(&self, group: &Arc<Group>) {
        let members = group.members();
        let other = members.iter().find(|(replica, node, voter)| {
            *replica != group.replica_id() && *voter && self.peers.is_alive(*node)
        });
        let Some((_, node, _)) = other.copied() else {
            return;
        };
        let group = Arc::clone(group);
        tokio::spawn(async move { group.transfer_leader(node).await });
    }

    fn work_to_do(&self) -> Vec<Work> {
        let down = self.all_down().into_iter().map(Work::Down);
        let holes = self
            .all()
            .into_iter()
            .filter(|group| group.journal().is_damaged());
        down.chain(holes.map(Work::Holes)).collect()
    }

    async fn do_work(&self, work: Work) -> bool {
        match work {
            Work::Down(down) => self.raise(&down).await,
            Work::Holes(group) => self.mend_holes(&group).await,
        }
    }

    /// Mends every damaged segment of an open group.
    async fn mend_holes(&self, group: &Arc<Group>) -> bool {
        let sources = self.sources_of(group);
        let mut bases: Vec<u64> = group
            .journal()
            .damage()
            .iter()
            .map(|bad| bad.segment_base)
            .collect();
        bases.dedup();
        let mut all = true;
        for base in bases {
            match self.mend_segment(group, base, &sources).await {
                Ok(bytes) => {
                    tracing::info!(
                        group = group.id(),
                        segment = base,
                        bytes,
                        "a damaged segment was repaired from other replicas"
                    );
                }
                Err(reason) => {
                    self.repairs.failed();
                    tracing::warn!(group = group.id(), segment = base, %reason, "a damaged segment could not be repaired yet");
                    all = false;
                }
            }
        }
        all
    }

    async fn mend_segment(
        &self,
        group: &Arc<Group>,
        base: u64,
        sources: &Sources,
    ) -> Result<u64, String> {
        let journal = Arc::clone(group.journal());
        let begun = offloaded(self.io(), move || journal.mend(base)).await;
        let mend = match begun.map_err(text)? {
            Err(MendError::Active(_)) => return self.close_for_repair(group).await.map(|()| 0),
            begun => begun.map_err(text)?,
        };
        match fill(self.io(), mend, sources, false).await? {
            (mend, Filled::Whole) => self.finish(mend).await,
            (_, Filled::Stuck(stuck)) => Err(stuck.to_string()),
        }
    }

    /// Swaps a filled segment in; gives the bytes that were fetched for it.
    async fn finish(&self, mend: Mend) -> Result<u64, String> {
        let finished = offloaded(self.io(), move || mend.finish()).await;
        let mended = finished.map_err(text)?.map_err(text)?;
        self.repairs.mended(mended.fetched_bytes);
        Ok(mended.fetched_bytes)
    }

    pub(crate) fn sources_of(&self, group: &Group) -> Sources {
        let members = group.members().into_iter().map(|(_, node, _)| node);
        let nodes: Vec<NodeId> = members.filter(|node| *node != self.node_id).collect();
        Sources {
            group: group.id(),
            nodes,
            peers: Arc::clone(&self.peers),
        }
    }
}

/// An error as a reason for people, with what caused it.
fn text(error: impl std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Something to repair.
enum Work {
    Down(Arc<Down>),
    Holes(Arc<Group>),
}

impl Work {
    fn group(&self) -> u64 {
        match self {
            Self::Down(down) => down.group,
            Self::Holes(group) => group.id(),
        }
    }
}

fn note(retries: &mut BTreeMap<u64, Retry>, group: u64, repaired: bool) {
    if repaired {
        retries.remove(&group);
        return;
    }
    let before = retries.get(&group).map(|retry| retry.pause);
    let pause = before.map_or(RETRY_AFTER, |pause| (pause * 2).min(RETRY_AFTER_MAX));
    let at = Instant::now() + pause;
    retries.insert(group, Retry { at, pause });
}
