//! Which nodes are alive, watched once per pair of nodes and not once per group.
//!
//! | what happens | what follows |
//! |---|---|
//! | an answer to a ping | alive |
//! | `liveness_timeout` without an answer | dead; both connections are hung up, so that nothing waits on a dead socket |
//! | half of it without an answer, while the bulk connection brings bytes | the urgent connection alone is dead: pinged on a new one |
//! | the urgent connection ends | pinged at once on a new one |
//! | that can't be made, or ends again | dead at once |
//! | the peer says hello to us | pinged at once |
//! | the answer comes from another process than before | a new process, even if it was never dead |
//!
//! Only answers to our own pings count: a peer that reaches us but can't be reached is dead for us, as it can't vote for
//! us or take our entries.
//!
//! Events are differences between two looks at the same board, so a slow subscriber costs nothing and never misses that
//! something has changed: it may see several changes of one node as one death and one return.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::envelope;
use imprint_proto::ids::NodeId;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::client::{CallOptions, Class, RpcPeer};
use super::config::{MAX_PING_EXTRA_BYTES, RpcConfig};
use super::error::RpcError;
use super::methods;

imprint_proto::envelope! {
    /// A ping, and its answer.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct PingMessage: version 0, compat 0 {
        /// Of the sender's process.
        incarnation: u64,
        /// What the sender's hook put in.
        extra: Bytes,
    }
}

/// Lets others ride on the pings: commit points and heartbeats of many groups in one message per pair of nodes. Called on
/// the transport's tasks, so it must not block.
pub trait PingHook: Send + Sync + 'static {
    /// What to send to `to` with the next ping. At most [`MAX_PING_EXTRA_BYTES`].
    fn ping(&self, to: NodeId) -> Bytes;

    /// A ping of `from` brought `received`; gives what its answer carries.
    fn answer(&self, from: NodeId, received: Bytes) -> Bytes;

    /// The answer of `from` brought `received`.
    fn answered(&self, from: NodeId, received: Bytes);
}

/// A change of a peer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// It doesn't answer.
    Down(NodeId),
    /// It answers. `new_process`: it is another process than the one that answered before.
    Up { node: NodeId, new_process: bool },
}

/// What is known of one peer. Counters instead of flags, so that a change between two looks shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PeerState {
    alive: bool,
    deaths: u64,
    new_processes: u64,
    incarnation: Option<u64>,
}

type States = BTreeMap<NodeId, PeerState>;

/// The states of all peers in the table; bounded by its size. Without a sender once the table is closed.
#[derive(Debug)]
pub(crate) struct Board(RwLock<Option<watch::Sender<States>>>);

impl Default for Board {
    fn default() -> Self {
        Board(RwLock::new(Some(watch::Sender::default())))
    }
}

impl Board {
    pub(crate) fn is_alive(&self, node: NodeId) -> bool {
        self.look(|states| states.get(&node).is_some_and(|state| state.alive))
    }

    pub(crate) fn alive(&self) -> Vec<NodeId> {
        self.look(|states| {
            let alive = states.iter().filter(|(_, state)| state.alive);
            alive.map(|(node, _)| *node).collect()
        })
    }

    pub(crate) fn subscribe(&self) -> PeerEvents {
        let receiver = match self.0.read().as_ref() {
            Some(states) => states.subscribe(),
            // Of a sender that is gone: the subscription ends at once.
            None => watch::channel(States::default()).1,
        };
        let seen = receiver.borrow().clone();
        PeerEvents {
            receiver,
            seen,
            pending: Vec::new(),
        }
    }

    /// Nobody is alive any more, and subscriptions end when they have seen that.
    pub(crate) fn close(&self) {
        if let Some(states) = self.0.write().take() {
            states.send_if_modified(|states| !std::mem::take(states).is_empty());
        }
    }

    pub(crate) fn remove(&self, node: NodeId) {
        self.change(|states| states.remove(&node).is_some());
    }

    fn look<T: Default>(&self, at: impl FnOnce(&States) -> T) -> T {
        let board = self.0.read();
        board
            .as_ref()
            .map_or_else(T::default, |states| at(&states.borrow()))
    }

    fn change(&self, how: impl FnOnce(&mut States) -> bool) -> bool {
        let board = self.0.read();
        board
            .as_ref()
            .is_some_and(|states| states.send_if_modified(how))
    }

    /// An answer came from the process `incarnation`; true if that is news.
    fn up(&self, node: NodeId, incarnation: u64) -> bool {
        self.change(|states| {
            let state = states.entry(node).or_default();
            let before = *state;
            if state.incarnation.is_some_and(|known| known != incarnation) {
                state.new_processes += 1;
            }
            state.incarnation = Some(incarnation);
            state.alive = true;
            *state != before
        })
    }

    /// True if the peer was alive until now.
    fn down(&self, node: NodeId) -> bool {
        self.change(|states| {
            let Some(state) = states.get_mut(&node) else {
                return false;
            };
            let was_alive = state.alive;
            state.alive = false;
            state.deaths += u64::from(was_alive);
            was_alive
        })
    }
}

/// A subscription to changes. Starts with what is known at its beginning; look at [`super::PeerTable::is_alive`] for that.
#[derive(Debug)]
pub struct PeerEvents {
    receiver: watch::Receiver<States>,
    seen: States,
    /// Found and not handed out yet, last one first. At most two per peer.
    pending: Vec<PeerEvent>,
}

impl PeerEvents {
    /// Waits for the next change; None when the table is closed or gone. Safe to cancel.
    pub async fn recv(&mut self) -> Option<PeerEvent> {
        loop {
            if let Some(event) = self.pending.pop() {
                return Some(event);
            }
            self.receiver.changed().await.ok()?;
            let now = self.receiver.borrow_and_update().clone();
            self.pending = differences(&self.seen, &now);
            self.pending.reverse();
            self.seen = now;
        }
    }
}

fn differences(seen: &States, now: &States) -> Vec<PeerEvent> {
    let mut events = Vec::new();
    let gone = seen
        .iter()
        .filter(|(node, state)| state.alive && !now.contains_key(*node));
    events.extend(gone.map(|(node, _)| PeerEvent::Down(*node)));
    for (node, state) in now {
        let before = seen.get(node).copied().unwrap_or_default();
        let died = state.deaths != before.deaths;
        let new_process = state.new_processes != before.new_processes;
        if died && (before.alive || !state.alive) {
            events.push(PeerEvent::Down(*node));
        }
        if state.alive && (died || new_process || !before.alive) {
            events.push(PeerEvent::Up {
                node: *node,
                new_process,
            });
        }
    }
    events
}

/// Who this node is, for its pings, and who rides on them.
pub(crate) trait PingSource: Send + Sync {
    fn incarnation(&self) -> u64;
    fn hook(&self) -> Option<Arc<dyn PingHook>>;
}

/// A ping of this node to `to`.
pub(crate) fn ping_payload(source: &dyn PingSource, to: NodeId) -> Bytes {
    let extra = source.hook().map(|hook| hook.ping(to)).unwrap_or_default();
    message(source, extra)
}

/// The answer to a ping of `from`.
pub(crate) fn answer_payload(source: &dyn PingSource, from: NodeId, ping: PingMessage) -> Bytes {
    let extra = source
        .hook()
        .map(|hook| hook.answer(from, ping.extra))
        .unwrap_or_default();
    message(source, extra)
}

fn message(source: &dyn PingSource, extra: Bytes) -> Bytes {
    let extra = if extra.len() > MAX_PING_EXTRA_BYTES {
        Bytes::new()
    } else {
        extra
    };
    envelope::encode(&PingMessage {
        incarnation: source.incarnation(),
        extra,
    })
}

/// Pings one peer for as long as it is in the table.
pub(crate) async fn watch_peer(
    node: NodeId,
    peer: Arc<RpcPeer>,
    board: Arc<Board>,
    source: Arc<dyn PingSource>,
    config: Arc<RpcConfig>,
) {
    let mut watcher = Watcher {
        node,
        peer,
        board,
        source,
        config,
        last_answer: None,
    };
    loop {
        let begun = Instant::now();
        watcher.round().await;
        let next = begun + watcher.config.ping_interval;
        tokio::select! {
            biased;
            () = watcher.peer.news() => {}
            () = sleep_until(next) => {}
        }
    }
}

struct Watcher {
    node: NodeId,
    peer: Arc<RpcPeer>,
    board: Arc<Board>,
    source: Arc<dyn PingSource>,
    config: Arc<RpcConfig>,
    /// None while the peer isn't alive.
    last_answer: Option<Instant>,
}

impl Watcher {
    /// One ping; a second one if the first says nothing about the peer yet, but only about its connection.
    async fn round(&mut self) {
        let bulk_before = self.peer.bulk_received();
        let mut answer = self.ping(2).await;
        match &answer {
            Err(RpcError::Disconnected { .. }) => answer = self.ping(1).await,
            Err(RpcError::Timeout { phase, .. }) => {
                // One that is still being made isn't dead.
                if !phase.is_local() && self.peer.bulk_received() != bulk_before {
                    tracing::info!(peer = %self.node, "only the bulk connection answers; the urgent one is made anew");
                    self.peer.hang_up_urgent();
                }
                answer = self.ping(1).await;
            }
            _ => {}
        }
        match answer {
            Ok(()) => self.last_answer = Some(Instant::now()),
            Err(error) => self.unanswered(&error),
        }
    }

    /// Waits for the answer for one `part`th of the time that is left.
    async fn ping(&self, part: u32) -> Result<(), RpcError> {
        let begun = Instant::now();
        let options = CallOptions {
            timeout: self.time_left(begun) / part,
            class: Class::Urgent,
            compress: false,
        };
        let payload = ping_payload(self.source.as_ref(), self.node);
        let reply = self
            .peer
            .call(methods::PING, payload.into(), options)
            .await?;
        let Ok(answer) = envelope::decode::<PingMessage>(reply) else {
            // It answers, whatever it means by it.
            return Ok(());
        };
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.peer.stats().ping_us.set(micros);
        if self.board.up(self.node, answer.incarnation) {
            tracing::info!(peer = %self.node, incarnation = answer.incarnation, "peer is alive");
        }
        if let Some(hook) = self.source.hook() {
            hook.answered(self.node, answer.extra);
        }
        Ok(())
    }

    /// Until when the peer has to answer to be, or to become, alive.
    fn time_left(&self, now: Instant) -> Duration {
        let since = self.last_answer.unwrap_or(now);
        (since + self.config.liveness_timeout)
            .saturating_duration_since(now)
            .max(Duration::from_millis(1))
    }

    fn unanswered(&mut self, error: &RpcError) {
        let over = match error {
            // The peer's own words: it lives.
            RpcError::Remote { .. } => return self.last_answer = Some(Instant::now()),
            // Our own queue is full; that alone doesn't say that the peer is dead.
            RpcError::Overloaded { .. } => self
                .last_answer
                .is_some_and(|last| last.elapsed() >= self.config.liveness_timeout),
            _ => true,
        };
        if !over {
            return;
        }
        self.last_answer = None;
        if self.board.down(self.node) {
            self.peer.stats().deaths.one();
            tracing::warn!(peer = %self.node, %error, "peer is dead");
            self.peer.hang_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);

    #[tokio::test]
    async fn a_slow_subscriber_sees_death_and_return_as_two_events() {
        let board = Board::default();
        let mut events = board.subscribe();
        board.up(A, 7);
        assert_eq!(
            events.recv().await,
            Some(PeerEvent::Up {
                node: A,
                new_process: false
            })
        );
        board.down(A);
        board.up(A, 7);
        board.down(A);
        board.up(A, 8);
        assert_eq!(events.recv().await, Some(PeerEvent::Down(A)));
        assert_eq!(
            events.recv().await,
            Some(PeerEvent::Up {
                node: A,
                new_process: true
            })
        );
        drop(board);
        assert_eq!(events.recv().await, None);
    }

    #[tokio::test]
    async fn a_new_process_shows_without_a_death() {
        let board = Board::default();
        board.up(A, 7);
        let mut events = board.subscribe();
        board.up(A, 7);
        board.up(A, 8);
        assert_eq!(
            events.recv().await,
            Some(PeerEvent::Up {
                node: A,
                new_process: true
            })
        );
    }

    #[tokio::test]
    async fn a_removed_peer_goes_down() {
        let board = Board::default();
        board.up(A, 7);
        let mut events = board.subscribe();
        board.remove(A);
        assert_eq!(events.recv().await, Some(PeerEvent::Down(A)));
    }

    #[test]
    fn a_peer_that_never_answered_has_no_events() {
        let board = Board::default();
        assert!(!board.down(A));
        assert!(!board.is_alive(A));
        assert!(board.alive().is_empty());
    }
}
