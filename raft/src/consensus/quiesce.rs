//! Idle groups sleep; nodes watch each other in their place.
//!
//! A group's heartbeats and election timers cost the same whether anybody writes or not, so a
//! leader puts a group to sleep once nothing has been written for a while, every follower holds
//! the whole log and knows that it is committed. A sleeping group has no ticks at all.
//!
//! Liveness is then watched per pair of nodes, by the transport. Rules:
//!
//! | event | who | what |
//! |---|---|---|
//! | idle, all followers equal | leader | asks the followers to sleep, then sleeps itself |
//! | asked, at exactly that vote and entry | follower | sleeps |
//! | any append or vote for the group | any | wakes |
//! | a write or linearizable read | leader | wakes, renews the lease |
//! | a peer dies or comes back as a new process | follower of a leader there | wakes after a small random delay: its election timer has run out |
//! | a peer comes back | leader with a replica there | wakes and sends a heartbeat, so that the returning replica doesn't campaign |
//!
//! Sleeping is an optimisation: waking too early or too often is never wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imprint_proto::envelope;
use imprint_proto::ids::NodeId;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;

use super::codec::{LogIdWire, QuiesceItem, QuiesceMessage, QuiesceReply, VoteWire};
use super::group::Group;
use super::groups::Groups;
use crate::rpc::{CallOptions, Class, PeerEvent, methods};

/// How often idle groups are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// How old a synced or committed mark may get before it is on disk. Nothing is written when there
/// are no new marks.
const MARKS_INTERVAL: Duration = Duration::from_millis(100);
/// How many groups one message puts to sleep at most.
const GROUPS_PER_MESSAGE: usize = 512;
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(1);

impl Groups {
    /// Puts idle groups to sleep, wakes them when their leader's node dies, and makes the marks of
    /// all groups durable in time. Runs until the peer table closes; spawn it once.
    pub async fn run(self: Arc<Self>) {
        let mut events = self.peers.subscribe();
        let mut asking = tokio::task::JoinSet::new();
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut marks = tokio::time::interval(MARKS_INTERVAL);
        marks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Some(event) => self.on_peer_event(event),
                    None => return,
                },
                _ = marks.tick() => self.flush_marks(),
                _ = sweep.tick() => {
                    // Asking the followers takes a while; marks and events don't wait for it.
                    while asking.try_join_next().is_some() {}
                    if asking.is_empty() {
                        let groups = Arc::clone(&self);
                        asking.spawn(async move {
                            groups.look_at_suspects().await;
                            groups.put_idle_to_sleep().await;
                        });
                    }
                }
            }
        }
    }

    fn on_peer_event(&self, event: PeerEvent) {
        match event {
            PeerEvent::Down(node) => self.wake_led_by(node),
            PeerEvent::Up { node, new_process } => {
                if new_process {
                    self.wake_led_by(node);
                }
                self.greet(node);
            }
        }
    }

    /// Wakes the sleeping groups that `node` led, spread over a moment so that a hundred groups
    /// don't campaign in the same instant.
    fn wake_led_by(&self, node: NodeId) {
        let mut delay = Duration::ZERO;
        for group in self.all() {
            if group.is_asleep() && group.leader() == Some(node) {
                delay += Duration::from_millis(1);
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    group.wake();
                });
            }
        }
    }

    /// Wakes the sleeping groups that this node leads and that have a replica on `node`.
    fn greet(&self, node: NodeId) {
        for group in self.all() {
            let has_replica = || group.members().iter().any(|(_, at, _)| *at == node);
            if group.is_asleep() && group.is_leader() && has_replica() {
                tokio::spawn(async move {
                    group.wake();
                    // A stopped core needs no greeting.
                    let _ = group.raft().trigger().heartbeat().await;
                });
            }
        }
    }

    async fn put_idle_to_sleep(&self) {
        let idle: Vec<(Arc<Group>, QuiesceItem)> = self
            .all()
            .into_iter()
            .filter(|group| !group.is_asleep())
            .filter(|group| group.sleep.idle_for() >= self.config.quiesce_after)
            .filter_map(|group| group.settled().map(|item| (group, item)))
            .take(GROUPS_PER_MESSAGE)
            .collect();
        if idle.is_empty() {
            return;
        }
        let refused = self.ask_followers(&idle).await;
        for (group, item) in &idle {
            // Asked again: a write may have come in between.
            let unchanged = group.settled().is_some_and(|now| now.last == item.last);
            let idle = group.sleep.idle_for() >= self.config.quiesce_after;
            if !refused.contains(&group.id) && unchanged && idle && group.sleep.fall_asleep() {
                group.raft().runtime_config().tick(false);
            }
        }
    }

    /// Asks every follower's node; gives the groups that some follower would not sleep for.
    async fn ask_followers(&self, idle: &[(Arc<Group>, QuiesceItem)]) -> Vec<u64> {
        let mut by_node: BTreeMap<NodeId, Vec<QuiesceItem>> = BTreeMap::new();
        for (group, item) in idle {
            for (replica, node, _) in group.members() {
                if node != self.node_id {
                    let item = QuiesceItem {
                        replica,
                        ..item.clone()
                    };
                    by_node.entry(node).or_default().push(item);
                }
            }
        }
        let asks = by_node
            .into_iter()
            .map(|(node, items)| self.ask_node(node, items));
        futures_util::future::join_all(asks).await.concat()
    }

    async fn ask_node(&self, node: NodeId, items: Vec<QuiesceItem>) -> Vec<u64> {
        let ids: Vec<u64> = items.iter().map(|item| item.group).collect();
        let Some(peer) = self.peers.get(node) else {
            return ids;
        };
        let message = envelope::encode(&QuiesceMessage { groups: items });
        let options = CallOptions {
            timeout: QUIESCE_TIMEOUT,
            class: Class::Urgent,
            compress: false,
        };
        let reply = peer
            .call(methods::QUIESCE, vec![message].into(), options)
            .await;
        let asleep = match reply.map(envelope::decode::<QuiesceReply>) {
            Ok(Ok(reply)) if reply.asleep.len() == ids.len() => reply.asleep,
            _ => return ids,
        };
        ids.into_iter()
            .zip(asleep)
            .filter_map(|(id, asleep)| (!asleep).then_some(id))
            .collect()
    }

    /// The follower's side: sleeps if it stands where the leader says.
    pub(crate) fn on_quiesce(&self, message: QuiesceMessage) -> QuiesceReply {
        let asleep = message
            .groups
            .iter()
            .map(|item| {
                self.get(item.group)
                    .is_some_and(|group| group.sleep_at(item))
            })
            .collect();
        QuiesceReply { asleep }
    }
}

impl Group {
    /// What the group would sleep at: it leads, and every member holds all of a committed log.
    fn settled(&self) -> Option<QuiesceItem> {
        let metrics = self.raft().metrics();
        let m = metrics.borrow_watched();
        let applied = m.last_applied?;
        let replication = m.replication.as_ref()?;
        let whole = m.state == ServerState::Leader
            && m.last_log_index == Some(applied.index)
            && m.cluster_committed == Some(applied)
            && replication
                .iter()
                .all(|(id, at)| *id == self.replica || *at == Some(applied));
        whole.then(|| QuiesceItem {
            group: self.id,
            replica: self.replica,
            vote: VoteWire::from(&m.vote),
            last: LogIdWire::from(&applied),
        })
    }

    fn sleep_at(&self, item: &QuiesceItem) -> bool {
        let metrics = self.raft().metrics();
        let same = {
            let m = metrics.borrow_watched();
            m.state == ServerState::Follower
                && m.vote == item.vote.vote()
                && m.last_applied == Some(item.last.log_id())
                && m.last_log_index == Some(item.last.index)
        };
        if same && item.replica == self.replica && self.sleep.fall_asleep() {
            self.raft().runtime_config().tick(false);
        }
        same
    }
}
