//! Retention: the leader of each partition has its log trimmed and its segments end as the topic's
//! settings say.
//!
//! ```text
//! settings, segments, time ─▶ decide ─▶ trim proposed ─▶ committed: every replica trims alike
//! ```
//!
//! Only the leader reads the settings; what all replicas do follows from the entries that it has
//! committed. A leader that is one no more proposes in vain, and two looks that decide the same change
//! nothing more, so nothing here needs to be exact about who leads or when.
//!
//! It must not know how segments are stored: it sees a [`Replica`].

mod clock;
mod decide;
pub(crate) mod words;

pub use clock::{Now, SteadyClock};
pub use decide::{Decision, Log, NextDeletion, Retention, SegmentFacts, decide};

use crate::{
    backend::{LogOffsets, ProposeError, ReadError, Replica, SegmentSummary},
    controller::{ControllerState, TopicRecord, settings},
    core::Core,
    metrics::TrimCause,
};
use futures_util::{StreamExt, stream};
use imprint_proto::ids::GroupId;
use imprint_raft::seams::Clock;
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Partitions that are looked at together: each may read from a disk and wait for a commit.
const PARTITIONS_AT_A_TIME: usize = 8;
/// A proposal that isn't committed by then is left to the next look.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(10);

/// What looking at partitions remembers.
#[derive(Default)]
pub struct RetentionState {
    clock: Mutex<SteadyClock>,
    /// Of each partition the oldest segment and its last stamp: finding that out may mean to walk
    /// through the segment. One entry for each partition led here at some time.
    oldest: Mutex<HashMap<GroupId, (u64, u64)>>,
}

impl RetentionState {
    /// What time it is, for deleting.
    pub fn now(&self, clock: &dyn Clock) -> Now {
        self.clock.lock().look(clock.now_micros(), Instant::now())
    }

    pub fn forget(&self, group: GroupId) {
        self.oldest.lock().remove(&group);
    }

    /// What is to go of a replica's log, now and next.
    pub async fn look(
        &self,
        group: GroupId,
        replica: &dyn Replica,
        retention: Retention,
        now: Now,
    ) -> Result<Decision, ReadError> {
        let offsets = replica.offsets();
        let mut facts: Vec<SegmentFacts> =
            replica.segments().into_iter().map(without_stamp).collect();
        if let Some(age_us) = retention.age_us {
            let may_go = |s: &&mut SegmentFacts| s.sealed && s.end_offset <= offsets.commit;
            let kept = facts.iter_mut().filter(|s| s.end_offset > offsets.start);
            for segment in kept.take_while(may_go) {
                segment.last_stamp_us = self.last_stamp(group, replica, segment).await?;
                // Those behind are younger.
                let stays = |stamp| !decide::is_expired(stamp, age_us, now);
                if segment.last_stamp_us.is_none_or(stays) {
                    break;
                }
            }
        }
        let LogOffsets { start, commit, .. } = offsets;
        let log = Log {
            segments: &facts,
            start,
            commit,
        };
        Ok(decide(log, retention, now))
    }

    /// Stamp of a sealed and committed segment's last batch: it doesn't change any more.
    async fn last_stamp(
        &self,
        group: GroupId,
        replica: &dyn Replica,
        segment: &SegmentFacts,
    ) -> Result<Option<u64>, ReadError> {
        let known = self.oldest.lock().get(&group).copied();
        if let Some((base_offset, stamp)) = known
            && base_offset == segment.base_offset
        {
            return Ok(Some(stamp));
        }
        let stamp = replica
            .stamp_at(segment.end_offset.saturating_sub(1))
            .await?;
        if let Some(stamp) = stamp {
            self.oldest
                .lock()
                .insert(group, (segment.base_offset, stamp));
        }
        Ok(stamp)
    }
}

fn without_stamp(segment: SegmentSummary) -> SegmentFacts {
    SegmentFacts {
        base_offset: segment.base_offset,
        end_offset: segment.end_offset,
        bytes: segment.bytes,
        sealed: segment.sealed,
        last_stamp_us: None,
    }
}

/// Looks at every partition that this node leads, again and again, until the node stops taking
/// calls; at those of a topic also right after its settings changed.
pub async fn run(core: Arc<Core>, every: Duration) {
    let mut states = core.parts.controller.clone();
    let mut stopping = core.stopping();
    let mut seen = Arc::clone(&states.borrow_and_update());
    let mut next = Instant::now();
    loop {
        let changed = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = tokio::time::sleep_until(next) => false,
            changed = states.changed() => match changed {
                Ok(()) => true,
                Err(_) => return,
            },
        };
        // Also where no topic asks for the time, so that a jump doesn't pass unseen.
        core.retention.now(core.parts.clock.as_ref());
        let state = Arc::clone(&states.borrow_and_update());
        let changed_topics = changed.then(|| changed_topics(&seen, &state));
        seen = state;
        match changed_topics {
            Some(topics) => pass(&core, &seen, |topic| topics.contains(&topic.topic_id)).await,
            None => {
                pass(&core, &seen, |_| true).await;
                next = Instant::now() + every;
            }
        }
    }
}

/// Topics whose settings are others than before. New ones have nothing to delete yet.
fn changed_topics(before: &ControllerState, after: &ControllerState) -> BTreeSet<u64> {
    let changed = after.topics.iter().filter(|(name, topic)| {
        let known = before.topics.get(*name);
        known.is_some_and(|known| !Arc::ptr_eq(known, topic) && known.settings != topic.settings)
    });
    changed.map(|(_, topic)| topic.topic_id).collect()
}

async fn pass(core: &Core, state: &ControllerState, wanted: impl Fn(&TopicRecord) -> bool) {
    let led: Vec<_> = state
        .partitions()
        .filter(|(topic, _)| wanted(topic))
        .filter_map(|(topic, partition)| {
            let group = GroupId(partition.partition_id);
            let replica = core.parts.replicas.get(group)?;
            let visit = Visit {
                core,
                topic: Arc::clone(topic),
                group,
                replica,
            };
            visit.replica.is_leader().then(|| visit.run())
        })
        .collect();
    stream::iter(led)
        .buffer_unordered(PARTITIONS_AT_A_TIME)
        .collect::<()>()
        .await;
}

/// One look at one partition.
struct Visit<'a> {
    core: &'a Core,
    topic: Arc<TopicRecord>,
    group: GroupId,
    replica: Arc<dyn Replica>,
}

impl Visit<'_> {
    async fn run(self) {
        if let Err(error) = self.keep_roll().await {
            self.report("where segments end could not be changed", &error);
        }
        let retention = Retention::of(&self.topic.settings);
        if retention.is_off() {
            return;
        }
        let now = self.core.retention.now(self.core.parts.clock.as_ref());
        let replica = self.replica.as_ref();
        let look = self
            .core
            .retention
            .look(self.group, replica, retention, now);
        match look.await {
            Ok(decision) => {
                if let Err(error) = self.trim(&decision).await {
                    self.report("retention could not trim", &error);
                }
            }
            Err(error) => {
                let (topic, group) = (&self.topic.name, self.group.0);
                tracing::warn!(topic, group, %error, "retention can't look at a partition");
            }
        }
    }

    /// Has the log's segments end as the topic says, if they don't.
    async fn keep_roll(&self) -> Result<(), ProposeError> {
        let wanted = settings::roll(&self.topic.settings);
        let Some(wanted) = wanted.filter(|wanted| *wanted != self.replica.roll_settings()) else {
            return Ok(());
        };
        let deadline = Instant::now() + PROPOSAL_TIMEOUT;
        self.replica.change_roll(wanted, deadline).await?;
        tracing::info!(
            topic = self.topic.name,
            group = self.group.0,
            segment_bytes = wanted.segment_bytes,
            segment_span_us = wanted.segment_span_us,
            "segments end by other settings from here on"
        );
        Ok(())
    }

    async fn trim(&self, decision: &Decision) -> Result<(), ProposeError> {
        let Some(upto) = decision.trim_upto.filter(|_| self.replica.is_leader()) else {
            return Ok(());
        };
        let deadline = Instant::now() + PROPOSAL_TIMEOUT;
        self.replica.trim(upto, deadline).await?;
        let (segments, bytes) = (decision.segments, decision.next.bytes);
        let metrics = self.core.metrics();
        metrics.trimmed(TrimCause::Retention, segments, bytes);
        let (topic, group) = (&self.topic.name, self.group.0);
        tracing::info!(topic, group, upto, segments, bytes, "retention trimmed");
        Ok(())
    }

    fn report(&self, what: &str, error: &ProposeError) {
        // Another node leads now, and looks by itself.
        if matches!(error, ProposeError::NotLeader { .. }) {
            return;
        }
        let (topic, group) = (&self.topic.name, self.group.0);
        tracing::warn!(topic, group, %error, "{what}; the next look tries again");
    }
}
