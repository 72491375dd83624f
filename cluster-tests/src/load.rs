//! Producers that write down what they were told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use imprint_client::{
    BatchBuilder, BatchLimits, Client, Message, Outcome, ProducerBatch, SendOptions,
};
use imprint_proto::batch::{StampedBatch, split_batches};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::ledger::Ledger;

/// What the producers share.
#[derive(Default)]
struct Shared {
    ledger: Mutex<Ledger>,
    stop: AtomicBool,
    /// When each acknowledgement came.
    acks: Mutex<Vec<Instant>>,
    pace: Pace,
}

/// What producers send, and how fast.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pace {
    /// Payloads are filled up to this many bytes.
    pub payload_bytes: usize,
    /// Between an answer and the next message.
    pub pause: Duration,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Producers at work.
pub struct Load {
    shared: Arc<Shared>,
    producers: JoinSet<()>,
}

/// A batch of one message.
pub fn batch_of(payload: &[u8]) -> ProducerBatch {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    builder
        .push(Message {
            id: rand::random(),
            origin_timestamp_us: 1,
            payload,
            headers: &[],
        })
        .expect("within the limits");
    builder.build().expect("one message")
}

/// The payloads of batches that stand back to back, each checked.
pub fn payloads_in(batches: Bytes) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    for bytes in split_batches(batches) {
        let batch = StampedBatch::verify_unbound(bytes.expect("whole batches"));
        let batch = batch.expect("checksums that fit");
        payloads.extend(batch.frames().map(|frame| frame.payload.to_vec()));
    }
    payloads
}

impl Load {
    /// Starts `count` producers, each sending one message after the other.
    pub fn start(cluster: &Cluster, topic: &str, count: u64) -> Load {
        Load::start_paced(cluster, topic, count, Pace::default())
    }

    /// As [`Load::start`], with larger messages or fewer of them.
    pub fn start_paced(cluster: &Cluster, topic: &str, count: u64, pace: Pace) -> Load {
        let shared = Arc::new(Shared {
            pace,
            ..Shared::default()
        });
        let mut producers = JoinSet::new();
        for who in 1..=count {
            let (client, shared) = (cluster.client(), Arc::clone(&shared));
            producers.spawn(produce(client, topic.to_owned(), who, shared));
        }
        Load { shared, producers }
    }

    /// Messages acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        locked(&self.shared.ledger).count()
    }

    /// Waits until `more` messages have been acknowledged from now on.
    pub async fn wait_for(&self, more: u64) {
        let goal = self.acknowledged() + more;
        crate::cluster::eventually("acknowledgements go on", async || {
            self.acknowledged() >= goal
        })
        .await;
    }

    /// The longest time without any acknowledgement since `from`.
    pub fn longest_gap_since(&self, from: Instant) -> Duration {
        let acks = locked(&self.shared.acks);
        let later: Vec<Instant> = acks.iter().copied().filter(|at| *at >= from).collect();
        let mut at = from;
        let mut longest = Duration::ZERO;
        for next in later {
            longest = longest.max(next.duration_since(at));
            at = next;
        }
        longest
    }

    /// What was sent and acknowledged up to now.
    pub fn ledger(&self) -> Ledger {
        locked(&self.shared.ledger).clone()
    }

    /// Ends the producers; gives what was sent and acknowledged.
    pub async fn finish(mut self) -> Ledger {
        self.shared.stop.store(true, Ordering::Release);
        while let Some(result) = self.producers.join_next().await {
            result.expect("producers don't panic");
        }
        locked(&self.shared.ledger).clone()
    }
}

async fn produce(client: Client, topic: String, who: u64, shared: Arc<Shared>) {
    for sequence in 0u64.. {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let unique: u64 = rand::random();
        let mut text = format!("producer {who} message {sequence} {unique:016x}");
        while text.len() < shared.pace.payload_bytes {
            text.push('.');
        }
        locked(&shared.ledger).sent(who, &text);
        let batch = batch_of(text.as_bytes());
        // Without retries of unknown outcomes: one message is stored at most once.
        let answer = client.send(&topic, 0, &batch, SendOptions::default()).await;
        match answer {
            Ok(reply) => {
                locked(&shared.ledger).acknowledged(reply.base_offset, &text);
                locked(&shared.acks).push(Instant::now());
            }
            Err(error) if error.outcome() != Outcome::Unknown => {
                locked(&shared.ledger).refused(&text);
            }
            Err(_) => {}
        }
        if !shared.pace.pause.is_zero() {
            tokio::time::sleep(shared.pace.pause).await;
        }
    }
}
