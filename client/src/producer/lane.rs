//! One partition's part of a producer: the open batch, the full ones behind each other, and the one
//! task that sends them.
//!
//! `push` runs on the caller's side under a short lock; only the lane's task takes batches out.
//! A batch's checksums are computed by that task, so that callers don't wait for them.

use super::guarded::Guard;
use super::{KEY_HEADER, NewMessage, ProduceError, ProducerOptions, Tally};
use crate::client::{Client, SendOptions};
use crate::options::RetryUnknown;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use imprint_proto::batch::{BatchBuilder, BuildError, HeaderValue, Message, UserHeader};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// Where a batch was stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub base_offset: u64,
    pub timestamp_us: u64,
    pub epoch: u64,
}

/// The answer to a batch, given once and read by each of its messages.
#[derive(Debug, Default)]
pub(super) struct Ack {
    answer: OnceLock<Result<Stored, ProduceError>>,
    given: Notify,
}

impl Ack {
    pub async fn wait(&self) -> Result<Stored, ProduceError> {
        let given = self.given.notified();
        tokio::pin!(given);
        // Registered before looking, so that an answer in between is not missed.
        given.as_mut().enable();
        if let Some(answer) = self.answer.get() {
            return answer.clone();
        }
        given.await;
        self.answer
            .get()
            .cloned()
            .unwrap_or(Err(ProduceError::Closed))
    }

    fn give(&self, answer: Result<Stored, ProduceError>) {
        // Only the lane's task answers, once per batch.
        let _ = self.answer.set(answer);
        self.given.notify_waiters();
    }

    fn is_given(&self) -> bool {
        self.answer.get().is_some()
    }
}

/// A message with what the producer added.
pub(super) struct Outgoing<'a> {
    pub id: u128,
    pub timestamp_us: u64,
    /// What it adds to a batch.
    pub bytes: u64,
    /// What it took from the producer's budget.
    pub cost: u32,
    pub message: NewMessage<'a>,
}

#[derive(Debug)]
struct Gathering {
    builder: BatchBuilder,
    ack: Arc<Ack>,
    first_id: u128,
    /// When it has to leave at the latest.
    due: Instant,
    /// Taken from the producer's budget.
    cost: usize,
}

impl Gathering {
    fn push(&mut self, outgoing: &Outgoing<'_>) -> Result<(), BuildError> {
        let NewMessage {
            key,
            payload,
            headers,
            ..
        } = outgoing.message;
        let keyed: Vec<UserHeader<'_>>;
        let headers = match key {
            None => headers,
            Some(key) => {
                let key = UserHeader::new(KEY_HEADER, HeaderValue::Raw(key));
                keyed = std::iter::once(key)
                    .chain(headers.iter().copied())
                    .collect();
                &keyed
            }
        };
        self.builder.push(Message {
            id: outgoing.id,
            origin_timestamp_us: outgoing.timestamp_us,
            payload,
            headers,
        })?;
        self.cost += outgoing.cost as usize;
        Ok(())
    }
}

#[derive(Debug, Default)]
struct State {
    open: Option<Gathering>,
    full: VecDeque<Gathering>,
    /// Batches not answered, oldest first; answered ones are dropped from the front.
    unanswered: VecDeque<Arc<Ack>>,
    closed: bool,
}

/// One partition of a producer.
#[derive(Debug)]
pub(super) struct Lane {
    client: Client,
    topic: Arc<str>,
    partition: u32,
    options: Arc<ProducerOptions>,
    budget: Arc<Semaphore>,
    spread: Arc<AtomicU32>,
    outcome: Arc<Tally>,
    guard: Option<tokio::sync::Mutex<Guard>>,
    state: Mutex<State>,
    wake: Notify,
}

/// What the lane's task should do next.
enum Due {
    Send(Gathering),
    WaitUntil(Instant),
    Wait,
    End,
}

impl Lane {
    pub fn start(
        client: Client,
        topic: Arc<str>,
        partition: u32,
        options: Arc<ProducerOptions>,
        budget: Arc<Semaphore>,
        spread: Arc<AtomicU32>,
        outcome: Arc<Tally>,
    ) -> Arc<Lane> {
        let guarded = options.retry_unknown == RetryUnknown::Guarded;
        let guard = guarded.then(|| Guard::new(client.clone(), &topic, partition).into());
        let lane = Arc::new(Lane {
            guard,
            client,
            topic,
            partition,
            options,
            budget,
            spread,
            outcome,
            state: Mutex::new(State::default()),
            wake: Notify::new(),
        });
        tokio::spawn(run(Arc::clone(&lane)));
        lane
    }

    /// Puts a message into the open batch; says which batch and at which place.
    pub fn push(&self, outgoing: Outgoing<'_>) -> Result<(Arc<Ack>, u32), ProduceError> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(ProduceError::Closed);
        }
        let too_full = |open: &Gathering| {
            open.builder.count() > 0
                && open.builder.len_bytes() + outgoing.bytes > self.options.batch_bytes
        };
        if state.open.as_ref().is_some_and(too_full) {
            self.roll(&mut state);
        }
        let mut added = self.add(&mut state, &outgoing);
        if matches!(added, Err(error) if error.is_full()) && state.open.is_some() {
            // Full by another measure than ours: the message begins the next batch.
            self.roll(&mut state);
            added = self.add(&mut state, &outgoing);
        }
        let (ack, index) = added?;
        let full = state.open.as_ref().is_some_and(|open| {
            open.builder.len_bytes() >= self.options.batch_bytes
                || open.builder.count() >= self.options.batch_messages
        });
        if full {
            self.roll(&mut state);
        }
        drop(state);
        if index == 0 || full {
            self.wake.notify_one();
        }
        Ok((ack, index))
    }

    /// Adds to the open batch, beginning one if there is none. On an error nothing has changed.
    fn add(
        &self,
        state: &mut State,
        outgoing: &Outgoing<'_>,
    ) -> Result<(Arc<Ack>, u32), BuildError> {
        if let Some(open) = &mut state.open {
            let index = open.builder.count();
            open.push(outgoing)?;
            return Ok((Arc::clone(&open.ack), index));
        }
        let mut open = self.gather(outgoing.id);
        open.push(outgoing)?;
        let ack = Arc::clone(&open.ack);
        state.unanswered.push_back(Arc::clone(&ack));
        state.open = Some(open);
        Ok((ack, 0))
    }

    fn gather(&self, first_id: u128) -> Gathering {
        Gathering {
            builder: BatchBuilder::new(self.options.limits),
            ack: Arc::default(),
            first_id,
            due: Instant::now() + self.options.linger,
            cost: 0,
        }
    }

    /// The open batch is complete: it queues, and messages that may go anywhere go elsewhere.
    fn roll(&self, state: &mut State) {
        if let Some(open) = state.open.take() {
            state.full.push_back(open);
            self.spread.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets everything go at once; the answers to wait for.
    pub fn flush(&self) -> Vec<Arc<Ack>> {
        let mut state = self.state.lock();
        self.roll(&mut state);
        let waiting = state.unanswered.iter().cloned().collect();
        drop(state);
        self.wake.notify_one();
        waiting
    }

    /// Nothing more is accepted; what is there still goes.
    pub fn close(&self) {
        let mut state = self.state.lock();
        self.roll(&mut state);
        state.closed = true;
        drop(state);
        self.wake.notify_one();
    }

    fn next_due(&self, now: Instant) -> Due {
        let mut state = self.state.lock();
        if state.full.is_empty() && state.open.as_ref().is_some_and(|open| open.due <= now) {
            self.roll(&mut state);
        }
        match (state.full.pop_front(), &state.open) {
            (Some(batch), _) => Due::Send(batch),
            (None, Some(open)) => Due::WaitUntil(open.due),
            (None, None) if state.closed => Due::End,
            (None, None) => Due::Wait,
        }
    }

    async fn deliver(&self, batch: Gathering) {
        let Gathering {
            builder,
            ack,
            first_id,
            cost,
            ..
        } = batch;
        let count = u64::from(builder.count());
        let answer = self.append(builder, first_id).await;
        match &answer {
            Ok(_) => {
                self.outcome
                    .acknowledged
                    .fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                // Only the first one is kept.
                let _ = self.outcome.first_failure.set(error.clone());
            }
        }
        ack.give(answer);
        self.budget.add_permits(cost);
        let mut state = self.state.lock();
        while state.unanswered.front().is_some_and(|ack| ack.is_given()) {
            state.unanswered.pop_front();
        }
    }

    async fn append(&self, builder: BatchBuilder, first_id: u128) -> Result<Stored, ProduceError> {
        let batch = builder.build()?;
        if let Some(guard) = &self.guard {
            // One batch at a time, so this never waits.
            return guard.lock().await.append(&batch, first_id).await;
        }
        let options = SendOptions {
            expected_offset: None,
            retry_unknown: self.options.retry_unknown,
        };
        let reply = self
            .client
            .send(&self.topic, self.partition, &batch, options)
            .await?;
        Ok(Stored {
            base_offset: reply.base_offset,
            timestamp_us: reply.base_timestamp_us,
            epoch: reply.leader_epoch,
        })
    }
}

/// The lane's task: starts batches in order, at most `in_flight` at a time.
async fn run(lane: Arc<Lane>) {
    let mut flying = FuturesUnordered::new();
    loop {
        if flying.len() >= lane.options.in_flight.max(1) {
            flying.next().await;
            continue;
        }
        let due = lane.next_due(Instant::now());
        let until = match due {
            Due::Send(batch) => {
                flying.push(lane.deliver(batch));
                continue;
            }
            Due::End if flying.is_empty() => return,
            Due::WaitUntil(until) => Some(until),
            Due::Wait | Due::End => None,
        };
        tokio::select! {
            biased;
            Some(()) = flying.next() => {}
            () = lane.wake.notified() => {}
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
    }
}
