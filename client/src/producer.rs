//! Appends single messages in batches.
//!
//! Messages of a partition gather in one open batch. It leaves when it is full, when it is as old as
//! the linger time, or on a flush; while the partition's place in flight is taken it goes on growing,
//! so batches get larger by themselves when the cluster is slower than the caller.
//!
//! * *Order*: with one batch in flight per partition (the default) messages of a partition are stored
//!   in the order of their `send` calls, retries included. With more in flight a retried batch may
//!   be overtaken.
//! * *Failure*: a batch that failed fails each of its messages and nothing else. Whoever needs the
//!   order across failures stops at the first one.
//! * *Memory*: bytes of messages accepted and not yet answered stay under `buffer_bytes`; `send` waits
//!   for room.
//!
//! What happens to messages when a producer is dropped? They are sent in the background as long as
//! the runtime lives. `close` is the way to know.

mod guarded;
mod lane;

use crate::client::Client;
use crate::error::ClientError;
use crate::options::RetryUnknown;
use crate::partitioner::partition_for_key;
use imprint_proto::batch::{BuildError, FRAME_HEADER_LEN, HeaderValue, UserHeader};
use imprint_proto::limits::BatchLimits;
use lane::{Ack, Lane, Outgoing};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Semaphore;

/// The user header that carries a message's key: kind raw. Imprint itself has no keys; a key chooses
/// the partition and travels as this header so that a reader can see it.
pub const KEY_HEADER: &str = "imprint.key";

/// Kind and length in front of each key and each value of a user header.
const TLV_OVERHEAD_BYTES: usize = 5;

/// How a producer gathers and sends.
#[derive(Debug, Clone)]
pub struct ProducerOptions {
    /// A batch leaves once it holds this many bytes. Default 1 MiB.
    pub batch_bytes: u64,
    /// A batch leaves once it holds this many messages. Default 100,000.
    pub batch_messages: u32,
    /// A batch leaves once its first message has waited this long. Default 5 ms.
    pub linger: Duration,
    /// Batches under way per partition. More than one gives up the order across retries. Default 1.
    pub in_flight: usize,
    /// Bytes accepted and not yet answered, over all partitions. Default 32 MiB.
    pub buffer_bytes: u32,
    /// What becomes of a batch whose answer was lost. [`RetryUnknown::Guarded`] needs the default of
    /// one batch in flight and takes it whatever `in_flight` says.
    pub retry_unknown: RetryUnknown,
    /// What a batch may be at most; the cluster's, if they differ from the defaults.
    pub limits: BatchLimits,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        ProducerOptions {
            batch_bytes: 1 << 20,
            batch_messages: 100_000,
            linger: Duration::from_millis(5),
            in_flight: 1,
            buffer_bytes: 32 << 20,
            retry_unknown: RetryUnknown::No,
            limits: BatchLimits::default(),
        }
    }
}

/// A message to append.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewMessage<'a> {
    /// The partition; unset: by `key`, or spread in runs of a batch if there is none.
    pub partition: Option<u32>,
    /// Chooses the partition (see [`partition_for_key`]) and travels as the header [`KEY_HEADER`].
    pub key: Option<&'a [u8]>,
    /// The bytes.
    pub payload: &'a [u8],
    /// User headers, beside the key's.
    pub headers: &'a [UserHeader<'a>],
}

/// Why a message was not accepted or not stored.
#[derive(Debug, Clone, Error)]
pub enum ProduceError {
    /// The topic has no such partition.
    #[error("partition {partition} does not exist: topic {topic} has {count}")]
    UnknownPartition {
        /// The topic.
        topic: String,
        /// What was asked for.
        partition: u32,
        /// How many there are.
        count: u32,
    },
    /// The message alone breaks a limit; a header or the payload is too large.
    #[error("message refused")]
    Message(#[from] BuildError),
    /// The batch was not stored, or nobody knows.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// The producer was closed.
    #[error("the producer is closed")]
    Closed,
}

/// Where a message was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// Server time of its batch, microseconds since the Unix epoch.
    pub timestamp_us: u64,
    /// The leader epoch it was stored in.
    pub epoch: u64,
}

/// The answer to come for one accepted message. Dropping it loses nothing but the answer.
#[derive(Debug)]
#[must_use = "a message counts as stored only once this says so; flush or wait"]
pub struct Delivery {
    ack: Arc<Ack>,
    partition: u32,
    index: u32,
}

impl Delivery {
    /// Waits for the answer.
    pub async fn wait(self) -> Result<Delivered, ProduceError> {
        let stored = self.ack.wait().await?;
        Ok(Delivered {
            partition: self.partition,
            offset: stored.base_offset + u64::from(self.index),
            timestamp_us: stored.timestamp_us,
            epoch: stored.epoch,
        })
    }
}

/// What came of the batches so far, for callers that don't wait for each message.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: AtomicU64,
    first_failure: OnceLock<ProduceError>,
}

/// Gathers messages into batches and appends them to one topic.
#[derive(Debug)]
pub struct Producer {
    client: Client,
    topic: Arc<str>,
    options: Arc<ProducerOptions>,
    /// One per partition, started by its first message.
    lanes: Vec<OnceLock<Arc<Lane>>>,
    budget: Arc<Semaphore>,
    /// Counts batches that left: messages without key or partition go to this one, modulo the partitions.
    spread: Arc<AtomicU32>,
    outcome: Arc<Tally>,
    id_high: u64,
    id_low: AtomicU64,
}

impl Client {
    /// A producer to `topic`, which must exist.
    pub async fn producer(
        &self,
        topic: &str,
        options: ProducerOptions,
    ) -> Result<Producer, ClientError> {
        let mut options = options;
        if options.retry_unknown == RetryUnknown::Guarded {
            options.in_flight = 1;
        }
        options.batch_bytes = options.batch_bytes.min(options.limits.max_batch_bytes);
        options.batch_messages = options.batch_messages.min(options.limits.max_messages);
        let partitions = self.admin().get_topic(topic).await?.partitions.len();
        let ambient = &self.options().ambient;
        Ok(Producer {
            client: self.clone(),
            topic: Arc::from(topic),
            lanes: std::iter::repeat_with(OnceLock::new)
                .take(partitions)
                .collect(),
            budget: Arc::new(Semaphore::new(options.buffer_bytes.max(1) as usize)),
            spread: Arc::new(AtomicU32::new(ambient.random_u64() as u32)),
            outcome: Arc::default(),
            id_high: ambient.random_u64(),
            id_low: AtomicU64::new(0),
            options: Arc::new(options),
        })
    }
}

impl Producer {
    /// Number of partitions of the topic, as found when the producer was made.
    pub fn partitions(&self) -> u32 {
        u32::try_from(self.lanes.len()).unwrap_or(u32::MAX)
    }

    /// Accepts a message, waiting for room in the buffer if need be.
    ///
    /// Is this safe to cancel? Yes: a message is either not accepted or accepted whole.
    pub async fn send(&self, message: NewMessage<'_>) -> Result<Delivery, ProduceError> {
        let partition = self.choose(&message)?;
        let lane = self.lane(partition)?;
        let bytes = frame_bytes(&message);
        // A message above the whole buffer waits for all of it and passes alone.
        let cost = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.options.buffer_bytes.max(1));
        let room = self
            .budget
            .acquire_many(cost)
            .await
            .map_err(|_| ProduceError::Closed)?;
        let (ack, index) = lane.push(Outgoing {
            id: self.next_id(),
            timestamp_us: self.client.options().ambient.wall_micros(),
            bytes,
            cost,
            message,
        })?;
        // Given back by the lane when the batch is answered.
        room.forget();
        Ok(Delivery {
            ack,
            partition,
            index,
        })
    }

    /// Messages known to be stored.
    pub fn acknowledged(&self) -> u64 {
        self.outcome.acknowledged.load(Ordering::Relaxed)
    }

    /// The first batch that failed, if one did.
    pub fn first_failure(&self) -> Option<ProduceError> {
        self.outcome.first_failure.get().cloned()
    }

    /// Waits until everything accepted so far is answered; the first failure is returned.
    pub async fn flush(&self) -> Result<(), ProduceError> {
        let waiting: Vec<_> = self.open_lanes().flat_map(|lane| lane.flush()).collect();
        let mut result = Ok(());
        for ack in waiting {
            let answer = ack.wait().await.map(|_| ());
            if result.is_ok() {
                result = answer;
            }
        }
        result
    }

    /// Flushes and ends.
    pub async fn close(self) -> Result<(), ProduceError> {
        self.flush().await
    }

    fn choose(&self, message: &NewMessage<'_>) -> Result<u32, ProduceError> {
        let count = self.partitions();
        let partition = match (message.partition, message.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_for_key(key, count),
            (None, None) => self.spread.load(Ordering::Relaxed) % count.max(1),
        };
        if partition < count {
            return Ok(partition);
        }
        Err(ProduceError::UnknownPartition {
            topic: self.topic.to_string(),
            partition,
            count,
        })
    }

    fn lane(&self, partition: u32) -> Result<&Arc<Lane>, ProduceError> {
        let slot = self
            .lanes
            .get(partition as usize)
            .ok_or(ProduceError::Closed)?;
        Ok(slot.get_or_init(|| {
            Lane::start(
                self.client.clone(),
                Arc::clone(&self.topic),
                partition,
                Arc::clone(&self.options),
                Arc::clone(&self.budget),
                Arc::clone(&self.spread),
                Arc::clone(&self.outcome),
            )
        }))
    }

    fn open_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.iter().filter_map(OnceLock::get)
    }

    /// Unique without asking for randomness per message: 64 random bits of this producer, then a counter.
    fn next_id(&self) -> u128 {
        let low = self.id_low.fetch_add(1, Ordering::Relaxed);
        u128::from(self.id_high) << 64 | u128::from(low)
    }
}

/// What a message adds to a batch.
fn frame_bytes(message: &NewMessage<'_>) -> u64 {
    let headers: usize = message
        .headers
        .iter()
        .map(|header| 2 * TLV_OVERHEAD_BYTES + value_len(&header.key) + value_len(&header.value))
        .sum();
    let key = message.key.map_or(0, |key| {
        2 * TLV_OVERHEAD_BYTES + KEY_HEADER.len() + key.len()
    });
    (FRAME_HEADER_LEN + message.payload.len() + headers + key) as u64
}

fn value_len(value: &HeaderValue<'_>) -> usize {
    match value {
        HeaderValue::Raw(data) | HeaderValue::Other(_, data) => data.len(),
        HeaderValue::String(text) => text.len(),
        fixed => fixed.kind().fixed_len().unwrap_or(0) as usize,
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        for lane in self.open_lanes() {
            lane.close();
        }
    }
}
