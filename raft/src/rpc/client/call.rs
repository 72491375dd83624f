//! One call: its five timing points, and the guard that ends it exactly once.
//!
//! Why is a call safe to cancel? Until it's dispatched, dropping its future takes it out of the queue: its slot and its
//! bytes are free at once. After that its bytes belong to the connection, which lets go of them when they are written;
//! dropping only takes the call out of the correlation map, and its reply will be skipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout_at};

use super::lane::Lane;
use super::queue::Slot;
use crate::rpc::error::{Phase, RpcError};
use crate::rpc::methods;
use crate::rpc::wire::Encoded;

/// A time-out that the clock can't express counts as this one.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// How a call ended, if not by a reply with status 200. Without the words that only the caller needs.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Its time had passed before it was dispatched.
    Expired,
    Unreachable(Arc<str>),
    Refused(Arc<str>),
    Disconnected(Arc<str>),
    Remote {
        status: u32,
        reason: String,
    },
    Version(u8),
    /// Its reply was skipped.
    NoRoom {
        bytes: u64,
        held: usize,
        limit: usize,
    },
    Closed,
}

/// What came for a call, and the room that it takes until the caller has it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) payload: Bytes,
    pub(crate) _room: Option<OwnedSemaphorePermit>,
}

/// How a call ended.
pub(crate) type Outcome = Result<Received, Failure>;

impl Failure {
    pub(crate) fn error(self, peer: &str, method: u32) -> RpcError {
        let peer = peer.to_owned();
        match self {
            // A time-out needs more than this; the guard makes its error.
            Failure::Expired | Failure::Closed => RpcError::Closed { peer },
            Failure::Unreachable(reason) => RpcError::Unreachable {
                peer,
                reason: reason.to_string(),
            },
            Failure::Refused(reason) => RpcError::Refused {
                peer,
                reason: reason.to_string(),
            },
            Failure::Disconnected(reason) => RpcError::Disconnected {
                peer,
                reason: reason.to_string(),
            },
            Failure::Remote { status, reason } => RpcError::Remote {
                peer,
                method: methods::name(method),
                status,
                reason,
            },
            Failure::Version(theirs) => RpcError::Version { peer, theirs },
            Failure::NoRoom { bytes, held, limit } => RpcError::ReplyDropped {
                peer,
                method: methods::name(method),
                bytes,
                held,
                limit,
            },
        }
    }
}

/// What the caller, the queue and the connection know of a call in common.
#[derive(Debug)]
pub(crate) struct CallShared {
    pub(crate) method: u32,
    pub(crate) deadline: Instant,
    timeout: Duration,
    enqueued: Instant,
    /// Nanoseconds after `enqueued` at which a phase ended, plus one; 0 while it hasn't.
    ended: [AtomicU64; Phase::ALL.len()],
    /// 0 until dispatched.
    correlation_id: AtomicU32,
}

impl CallShared {
    pub(crate) fn new(method: u32, timeout: Duration) -> Arc<Self> {
        let enqueued = Instant::now();
        Arc::new(CallShared {
            method,
            deadline: enqueued
                .checked_add(timeout)
                .unwrap_or(enqueued + LONGEST_TIMEOUT),
            timeout,
            enqueued,
            ended: Default::default(),
            correlation_id: AtomicU32::new(0),
        })
    }

    /// Notes that a phase is over.
    pub(crate) fn end(&self, phase: Phase) {
        let nanos = u64::try_from(self.enqueued.elapsed().as_nanos()).unwrap_or(u64::MAX - 1);
        self.ended[phase as usize].store(nanos + 1, Relaxed);
    }

    pub(crate) fn dispatched(&self, correlation_id: u32) {
        self.end(Phase::Dispatch);
        self.correlation_id.store(correlation_id, Relaxed);
    }

    pub(crate) fn correlation_id(&self) -> u32 {
        self.correlation_id.load(Relaxed)
    }

    /// How long ago its last byte left this process; None while it hasn't.
    pub(crate) fn sent_for(&self) -> Option<Duration> {
        let sent = self.ended[Phase::Flush as usize].load(Relaxed);
        let nanos = Duration::from_nanos(sent.checked_sub(1)?);
        Some(self.enqueued.elapsed().saturating_sub(nanos))
    }

    /// The phase the call is in.
    pub(crate) fn phase(&self) -> Phase {
        let open = Phase::ALL
            .into_iter()
            .find(|phase| self.ended[*phase as usize].load(Relaxed) == 0);
        open.unwrap_or(Phase::Reply)
    }

    /// Time spent in each phase, in the order of [`Phase::ALL`]; zero for those not reached.
    pub(crate) fn spent(&self) -> [Duration; Phase::ALL.len()] {
        let now = u64::try_from(self.enqueued.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut since = 0;
        let mut over = false;
        std::array::from_fn(|phase| {
            if over {
                return Duration::ZERO;
            }
            let until = match self.ended[phase].load(Relaxed) {
                0 => {
                    over = true;
                    now
                }
                ended => ended - 1,
            };
            let spent = Duration::from_nanos(until.saturating_sub(since));
            since = until;
            spent
        })
    }
}

/// A call on its way from the queue to the socket.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) shared: Arc<CallShared>,
    pub(crate) encoded: Encoded,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// The caller's end. Whatever way it goes, the call leaves queue and correlation map.
#[derive(Debug)]
pub(crate) struct CallGuard {
    pub(crate) lane: Arc<Lane>,
    pub(crate) shared: Arc<CallShared>,
    pub(crate) slot: Slot,
    pub(crate) reply: oneshot::Receiver<Outcome>,
    pub(crate) open: bool,
}

impl CallGuard {
    pub(crate) fn shared(&self) -> &Arc<CallShared> {
        &self.shared
    }

    /// Waits for the reply, up to the deadline.
    pub(crate) async fn wait(mut self) -> Result<Bytes, RpcError> {
        let outcome = timeout_at(self.shared.deadline, &mut self.reply).await;
        let result = match outcome {
            Ok(Ok(Ok(received))) => Ok(received.payload),
            Err(_) | Ok(Ok(Err(Failure::Expired))) => Err(self.timed_out()),
            Ok(Ok(Err(failure))) => Err(failure.error(self.lane.label(), self.shared.method)),
            Ok(Err(_)) => {
                let ended = Failure::Disconnected("it ended before the reply".into());
                Err(ended.error(self.lane.label(), self.shared.method))
            }
        };
        self.open = false;
        self.count(&result);
        result
    }

    fn timed_out(&self) -> RpcError {
        let phase = self.shared.phase();
        let in_flight = self.lane.abandon(self.slot, &self.shared);
        self.log_timeout(phase, in_flight);
        self.lane.stats().method(self.shared.method).timeouts[phase as usize].one();
        RpcError::Timeout {
            peer: self.lane.label().to_owned(),
            method: methods::name(self.shared.method),
            timeout: self.shared.timeout,
            phase,
        }
    }

    /// The one line that says where the time went. A ping's time-out is news for liveness, which logs the death.
    fn log_timeout(&self, phase: Phase, in_flight: usize) {
        let [memory, dispatch, write, flush, reply] =
            self.shared.spent().map(|spent| spent.as_secs_f64() * 1e3);
        let (peer, method) = (self.lane.label(), methods::name(self.shared.method));
        let correlation_id = self.shared.correlation_id();
        let timeout_ms = self.shared.timeout.as_secs_f64() * 1e3;
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    peer,
                    method,
                    correlation_id,
                    timeout_ms,
                    in_flight,
                    memory_ms = memory,
                    dispatch_ms = dispatch,
                    write_ms = write,
                    flush_ms = flush,
                    reply_ms = reply,
                    %phase,
                    "call timed out"
                )
            };
        }
        if self.shared.method == methods::PING {
            line!(debug);
        } else {
            line!(warn);
        }
    }

    fn count(&self, result: &Result<Bytes, RpcError>) {
        self.count_waits();
        if result.is_err() {
            self.lane.stats().method(self.shared.method).errors.one();
        }
    }

    fn count_waits(&self) {
        let stats = self.lane.stats().method(self.shared.method);
        for (wait, spent) in stats.waits_us.iter().zip(self.shared.spent()) {
            wait.add_duration(spent);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.open {
            self.lane.abandon(self.slot, &self.shared);
            self.count_waits();
            self.lane.stats().method(self.shared.method).cancelled.one();
        }
    }
}
