//! One of the two connections to a peer, as its callers see it: a queue, a correlation map, and whether to try.
//!
//! All of it is one struct behind one short lock; the driver ([`super::conn`]) is the only one who dials, writes and
//! reads. Rules:
//!
//! * A call is queued if there is a connection, or one may be tried now. While an attempt is held back after a failure,
//!   calls fail at once with the reason of that failure: waiting would only turn it into a time-out.
//! * The correlation map belongs to the present connection. When that ends, every call in it fails with `Disconnected`;
//!   what is still queued goes out on the next one.
//! * A correlation id isn't given out while a call that has it waits for its reply.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::frame::FRAME_HEADER_LEN;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::call::{CallGuard, CallShared, Failure, Outcome, Outgoing};
use super::queue::{QueueLimits, QueueRefusal, Removed, SendQueue};
use super::{CallOptions, Class};
use crate::rpc::config::RpcConfig;
use crate::rpc::error::{Phase, RpcError};
use crate::rpc::hello::HELLO_CORRELATION;
use crate::rpc::stats::PeerStats;
use crate::rpc::wire::Encoded;
use crate::rpc::write::WriteBatch;

/// A dial that is older than this when the peer shows itself is started over: its first packet may be lost.
const STALE_DIAL: Duration = Duration::from_millis(200);

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) class: Class,
    pub(crate) config: Arc<RpcConfig>,
    stats: Arc<PeerStats>,
    label: String,
    backoff_max: Duration,
    state: Mutex<State>,
    /// Bytes that came in, over all connections.
    pub(crate) received: Arc<AtomicU64>,
    /// Bytes for replies that callers haven't taken.
    room: Arc<Semaphore>,
    /// Something to send, or the lane closed. Only the driver waits for it.
    pub(crate) work: Notify,
    /// Ends the present connection or attempt. Only the driver waits for it.
    pub(crate) kick: Notify,
    /// A connection ended, or the peer was heard of. Only liveness waits for it.
    pub(crate) news: Notify,
}

#[derive(Debug)]
struct State {
    queue: SendQueue<Outgoing>,
    in_flight: BTreeMap<u32, InFlight>,
    next_correlation: u32,
    link: Link,
    backoff: Duration,
}

#[derive(Debug)]
struct InFlight {
    shared: Arc<CallShared>,
    reply: oneshot::Sender<Outcome>,
}

#[derive(Debug)]
enum Link {
    /// No connection; one may be tried.
    Down,
    /// No connection; none is tried until then, for this reason.
    HeldBack {
        until: Instant,
        why: Failure,
    },
    Connecting {
        since: Instant,
    },
    Up,
    Closed,
}

impl Lane {
    pub(crate) fn new(
        class: Class,
        config: Arc<RpcConfig>,
        stats: Arc<PeerStats>,
        label: String,
        backoff_max: Duration,
    ) -> Arc<Self> {
        let capacity = match class {
            Class::Urgent => config.urgent_pool_bytes,
            Class::Bulk => config.bulk_pool_bytes,
        };
        let limits = QueueLimits {
            capacity,
            waiting_calls: config.max_waiting_calls,
            waiting_bytes: config.max_waiting_bytes.max(capacity),
        };
        let state = State {
            queue: SendQueue::new(limits),
            in_flight: BTreeMap::new(),
            next_correlation: HELLO_CORRELATION + 1,
            link: Link::Down,
            backoff: config.backoff_min,
        };
        Arc::new(Lane {
            class,
            stats,
            label,
            backoff_max,
            state: Mutex::new(state),
            received: Arc::default(),
            room: Arc::new(Semaphore::new(config.max_reply_bytes)),
            work: Notify::new(),
            kick: Notify::new(),
            news: Notify::new(),
            config,
        })
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn stats(&self) -> &PeerStats {
        &self.stats
    }

    /// Queues a call. Nothing here waits, so calls go out in the order in which they are begun.
    pub(crate) fn begin(
        self: &Arc<Self>,
        method: u32,
        parts: Vec<Bytes>,
        options: &CallOptions,
    ) -> Result<CallGuard, RpcError> {
        self.stats.method(method).calls.one();
        let begun = self.try_begin(method, parts, options);
        if let Err(error) = &begun {
            self.stats.method(method).errors.one();
            if matches!(error, RpcError::Overloaded { .. }) {
                self.stats.overloaded.one();
            }
        }
        begun
    }

    fn try_begin(
        self: &Arc<Self>,
        method: u32,
        parts: Vec<Bytes>,
        options: &CallOptions,
    ) -> Result<CallGuard, RpcError> {
        let payload: usize = parts.iter().map(Bytes::len).sum();
        self.check_size(payload)?;
        let shared = CallShared::new(method, options.timeout);
        let slot = {
            let mut state = self.state.lock();
            state
                .usable()
                .map_err(|failure| failure.error(&self.label, method))?;
            state
                .queue
                .take_slot(FRAME_HEADER_LEN + payload)
                .map_err(|refusal| self.refused(refusal, payload))?
        };
        let (reply, receiver) = oneshot::channel();
        // From here on the guard gives the slot back, whatever happens.
        let guard = CallGuard {
            lane: Arc::clone(self),
            shared: Arc::clone(&shared),
            slot,
            reply: receiver,
            open: true,
        };
        let encoded = self.encode(parts, options.compress)?;
        self.stats
            .method(method)
            .bytes_sent
            .add(encoded.bytes() as u64);
        let bytes = FRAME_HEADER_LEN + encoded.bytes();
        {
            let mut state = self.state.lock();
            state
                .usable()
                .map_err(|failure| failure.error(&self.label, method))?;
            state.queue.fill(
                slot,
                Outgoing {
                    shared,
                    encoded,
                    reply,
                },
                bytes,
            );
            self.promote(&mut state);
        }
        self.work.notify_one();
        Ok(guard)
    }

    fn check_size(&self, payload: usize) -> Result<(), RpcError> {
        let limit = self.config.max_frame_bytes;
        if payload > limit {
            return Err(RpcError::TooLarge {
                peer: self.label.clone(),
                bytes: payload,
                limit,
            });
        }
        Ok(())
    }

    fn encode(&self, parts: Vec<Bytes>, compress: bool) -> Result<Encoded, RpcError> {
        if !compress {
            return Ok(Encoded::plain(parts));
        }
        let failed = |e: std::io::Error| RpcError::Compression {
            peer: self.label.clone(),
            reason: e.to_string(),
        };
        Encoded::compressed(parts, &self.config).map_err(failed)
    }

    fn refused(&self, refusal: QueueRefusal, payload: usize) -> RpcError {
        let peer = self.label.clone();
        match refusal {
            QueueRefusal::TooLarge { limit } => RpcError::TooLarge {
                peer,
                bytes: payload,
                limit,
            },
            QueueRefusal::Full { calls, bytes } => RpcError::Overloaded {
                peer,
                waiting_calls: calls,
                waiting_bytes: bytes,
            },
        }
    }

    fn promote(&self, state: &mut State) {
        state.queue.promote(|call| call.shared.end(Phase::Memory));
    }

    /// Takes a call out of queue and correlation map, if it's still there. Gives the number of calls that are in flight.
    pub(crate) fn abandon(&self, slot: super::queue::Slot, shared: &Arc<CallShared>) -> usize {
        let mut state = self.state.lock();
        let in_flight = state.in_flight.len();
        // Dropped after the lock is released: a call may own much.
        let removed = state.queue.remove(slot);
        match &removed {
            Removed::Ready(_, bytes) => state.queue.release(*bytes),
            Removed::Later => {}
            Removed::Gone => self.forget(&mut state, shared),
        }
        self.promote(&mut state);
        let more = state.queue.has_ready();
        drop(state);
        if more {
            self.work.notify_one();
        }
        in_flight
    }

    fn forget(&self, state: &mut State, shared: &Arc<CallShared>) {
        let id = shared.correlation_id();
        if state
            .in_flight
            .get(&id)
            .is_some_and(|call| Arc::ptr_eq(&call.shared, shared))
        {
            state.in_flight.remove(&id);
            self.stats.in_flight.down(1);
        }
    }

    /// Takes back the bytes of a buffer that is gone.
    fn release(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.queue.release(bytes);
        self.promote(&mut state);
        let more = state.queue.has_ready();
        drop(state);
        if more {
            self.work.notify_one();
        }
    }

    /// Dispatches what is next in order, as much as goes into one write.
    pub(crate) fn take_batch(self: &Arc<Self>) -> WriteBatch<Sending> {
        let mut batch = WriteBatch::new();
        let mut expired = Vec::new();
        let now = Instant::now();
        let mut state = self.state.lock();
        while batch.frames() < self.config.coalesce_frames
            && batch.bytes() < self.config.coalesce_bytes
            && state.in_flight.len() < self.config.max_in_flight_calls
        {
            let Some((call, bytes)) = state.queue.pop() else {
                break;
            };
            if call.shared.deadline <= now || call.reply.is_closed() {
                state.queue.release(bytes);
                self.promote(&mut state);
                expired.push(call);
                continue;
            }
            self.dispatch(&mut state, &mut batch, call, bytes);
        }
        drop(state);
        for call in expired {
            // The caller may be gone.
            let _ = call.reply.send(Err(Failure::Expired));
        }
        batch
    }

    fn dispatch(
        self: &Arc<Self>,
        state: &mut State,
        batch: &mut WriteBatch<Sending>,
        call: Outgoing,
        bytes: usize,
    ) {
        let id = state.free_correlation();
        call.shared.dispatched(id);
        let header = call.encoded.header(call.shared.method, id);
        let permit = Permit {
            lane: Arc::clone(self),
            bytes,
        };
        batch.push(
            &header,
            &call.encoded.parts,
            Sending {
                shared: Arc::clone(&call.shared),
                permit,
            },
        );
        state.in_flight.insert(
            id,
            InFlight {
                shared: call.shared,
                reply: call.reply,
            },
        );
        self.stats.in_flight.up(1);
    }

    /// Whether somebody waits for this reply.
    pub(crate) fn is_awaited(&self, correlation_id: u32) -> bool {
        self.state.lock().in_flight.contains_key(&correlation_id)
    }

    /// Ends a call with what the peer said.
    pub(crate) fn complete(&self, correlation_id: u32, wire_bytes: u64, result: Outcome) {
        let (call, more) = {
            let mut state = self.state.lock();
            (
                state.in_flight.remove(&correlation_id),
                state.queue.has_ready(),
            )
        };
        let Some(call) = call else {
            self.stats.unknown_replies.one();
            return;
        };
        self.stats.in_flight.down(1);
        self.stats
            .method(call.shared.method)
            .bytes_received
            .add(wire_bytes);
        // The caller may be gone.
        let _ = call.reply.send(result);
        if more {
            self.work.notify_one();
        }
    }

    /// Room for a reply until its caller takes it.
    pub(crate) fn reply_room(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Failure> {
        let room = u32::try_from(bytes)
            .ok()
            .and_then(|permits| Arc::clone(&self.room).try_acquire_many_owned(permits).ok());
        room.ok_or_else(|| {
            self.stats.dropped_replies.one();
            Failure::NoRoom {
                bytes,
                held: self.reply_bytes(),
                limit: self.config.max_reply_bytes,
            }
        })
    }

    /// Bytes of replies that callers haven't taken.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.config
            .max_reply_bytes
            .saturating_sub(self.room.available_permits())
    }

    /// Bytes that came in so far, over all connections.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Calls that wait for the pool, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        self.state.lock().queue.waiting()
    }

    /// Whether the connection serves nobody.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.queue.len() == 0 && state.in_flight.is_empty()
    }

    /// Calls sent and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.state.lock().in_flight.len()
    }

    /// Bytes of the pool that are given out.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.state.lock().queue.reserved()
    }

    /// Whether there is something to send, for the driver that has no connection.
    pub(crate) fn wants_connection(&self) -> bool {
        self.state.lock().queue.has_ready()
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state.lock().link, Link::Closed)
    }

    /// The driver starts an attempt; false if the lane is closed.
    pub(crate) fn connecting(&self) -> bool {
        self.state.lock().turn(Link::Connecting {
            since: Instant::now(),
        })
    }

    /// The hello went well; false if the lane is closed.
    pub(crate) fn connected(&self) -> bool {
        let mut state = self.state.lock();
        state.backoff = self.config.backoff_min;
        self.stats.connects.one();
        state.turn(Link::Up)
    }

    /// An attempt that began at `begun` failed: everything queued fails with it.
    pub(crate) fn connect_failed(&self, begun: Instant, why: Failure) {
        self.stats.connect_failures.one();
        let mut state = self.state.lock();
        let until = begun + state.backoff;
        state.backoff = (state.backoff * 2).min(self.backoff_max);
        state.turn(Link::HeldBack {
            until,
            why: why.clone(),
        });
        let calls = state.queue.drain();
        self.promote(&mut state);
        drop(state);
        for call in calls {
            let _ = call.reply.send(Err(why.clone()));
        }
    }

    /// An attempt was given up to start over; what is queued stays.
    pub(crate) fn connect_again(&self) {
        self.state.lock().turn(Link::Down);
    }

    /// The connection ended: everything on it fails.
    pub(crate) fn connection_ended(&self, reason: &str) {
        self.stats.disconnects.one();
        let mut state = self.state.lock();
        state.turn(Link::Down);
        let calls = std::mem::take(&mut state.in_flight);
        drop(state);
        self.stats.in_flight.down(calls.len() as u64);
        let why = Failure::Disconnected(reason.into());
        for call in calls.into_values() {
            let _ = call.reply.send(Err(why.clone()));
        }
    }

    /// The peer said hello to us: it lives, so the next attempt isn't held back.
    pub(crate) fn heard(&self) {
        let mut state = self.state.lock();
        state.lift(self.config.backoff_min);
        if let Link::Connecting { since } = state.link
            && since.elapsed() > STALE_DIAL
        {
            self.kick.notify_waiters();
        }
        drop(state);
        self.news.notify_one();
    }

    /// The peer gave a sign of life: the next attempt isn't held back.
    pub(crate) fn not_held_back(&self) {
        self.state.lock().lift(self.config.backoff_min);
    }

    /// Ends the present connection, if there is one.
    pub(crate) fn hang_up(&self) {
        self.kick.notify_waiters();
    }

    /// Fails everything, now and from now on.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.link = Link::Closed;
        let queued = state.queue.drain();
        let sent = std::mem::take(&mut state.in_flight);
        drop(state);
        self.stats.in_flight.down(sent.len() as u64);
        let replies = queued.into_iter().map(|call| call.reply);
        for reply in replies.chain(sent.into_values().map(|call| call.reply)) {
            let _ = reply.send(Err(Failure::Closed));
        }
        self.kick.notify_waiters();
        self.work.notify_one();
    }
}

impl State {
    /// Fails a call that can't be queued now.
    fn usable(&self) -> Result<(), Failure> {
        match &self.link {
            Link::Closed => Err(Failure::Closed),
            Link::HeldBack { until, why } if Instant::now() < *until => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// The next attempt isn't held back, and the one after that for the least time.
    fn lift(&mut self, backoff_min: Duration) {
        self.backoff = backoff_min;
        if matches!(self.link, Link::HeldBack { .. }) {
            self.link = Link::Down;
        }
    }

    /// Closed is final.
    fn turn(&mut self, to: Link) -> bool {
        if matches!(self.link, Link::Closed) {
            return false;
        }
        self.link = to;
        true
    }

    /// 0 means "not dispatched" and the hello has its own.
    fn free_correlation(&mut self) -> u32 {
        loop {
            let id = self.next_correlation;
            self.next_correlation = id.wrapping_add(1);
            if id > HELLO_CORRELATION && !self.in_flight.contains_key(&id) {
                return id;
            }
        }
    }
}

/// A frame that is being written: it pays for its buffer.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) shared: Arc<CallShared>,
    permit: Permit,
}

impl Sending {
    /// The last byte is out; gives the pool its bytes back.
    pub(crate) fn written(self) -> Arc<CallShared> {
        self.shared.end(Phase::Write);
        drop(self.permit);
        self.shared
    }
}

#[derive(Debug)]
struct Permit {
    lane: Arc<Lane>,
    bytes: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.lane.release(self.bytes);
    }
}
