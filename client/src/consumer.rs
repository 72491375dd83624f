//! Reads a topic's partitions from a position on.
//!
//! One task per partition polls and checks what it got while the caller works on what came before:
//! one reply waits, one is under way. Batches are handed on as they came; walking their records
//! copies nothing.
//!
//! * Records of a partition come in offset order without gaps. Between partitions there is no order.
//! * Checksums are verified here, end to end, whatever the network and the servers did.
//! * *Memory*: at most (partitions + 1) replies are held; `buffer_bytes` over that number is the size
//!   asked for, though a single batch that is larger still comes whole.

use crate::client::{Client, PollOptions, Position};
use crate::error::ClientError;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use imprint_proto::batch::{BatchError, FrameView, StampedBatch, split_batches};
use imprint_proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Smallest reply asked for, however many partitions share the buffer.
const MIN_POLL_BYTES: u32 = 64 << 10;
/// Polls that may wait their whole time at once.
const WAITING_AT_ONCE: u32 = 32;
/// Shortest wait of a poll, however many partitions there are.
const MIN_WAIT: Duration = Duration::from_millis(50);
/// Calls under way when the same is asked of many partitions.
const ASK_AT_ONCE: usize = 16;

/// What a consumer does where the messages that come next for it were trimmed away meanwhile, or were
/// gone already when it began at an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTrimmed {
    /// Ends with the error, which has the offsets that are there.
    #[default]
    Fail,
    /// Goes on with the first kept message.
    Start,
    /// Goes on behind what is there.
    End,
}

/// What a consumer reads and how.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// Partitions to read; empty: all.
    pub partitions: Vec<u32>,
    /// Where each of them starts.
    pub from: Position,
    /// Where each of them ends: the first offset not read. A partition that is not named goes on for ever.
    pub until: BTreeMap<u32, u64>,
    /// Read from this node's replicas only.
    pub at_node: Option<u64>,
    /// Bytes per poll. Default 4 MiB.
    pub poll_bytes: u32,
    /// Bytes held at once over all partitions. Default 64 MiB.
    pub buffer_bytes: u32,
    /// Longest wait of one poll at the end of a partition. Default 5 s.
    pub max_wait: Duration,
    /// What to do about messages that are gone. Default: fail.
    pub on_trimmed: OnTrimmed,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        ConsumerOptions {
            partitions: Vec::new(),
            from: Position::First,
            until: BTreeMap::new(),
            at_node: None,
            poll_bytes: 4 << 20,
            buffer_bytes: 64 << 20,
            max_wait: Duration::from_secs(5),
            on_trimmed: OnTrimmed::Fail,
        }
    }
}

impl ConsumerOptions {
    /// What each of so many partitions asks for.
    ///
    /// Servers bound the calls under way on a connection. Polls that wait take one each, so the more
    /// partitions there are, the shorter each waits: otherwise those behind the bound would starve.
    fn poll_for(&self, partitions: usize) -> PollOptions {
        let partitions = u32::try_from(partitions).unwrap_or(u32::MAX).max(1);
        let max_bytes = (self.buffer_bytes / partitions.saturating_add(1)).max(MIN_POLL_BYTES);
        let max_wait = match partitions > WAITING_AT_ONCE {
            true => (self.max_wait * WAITING_AT_ONCE / partitions).max(MIN_WAIT),
            false => self.max_wait,
        };
        PollOptions {
            max_bytes: max_bytes.min(self.poll_bytes),
            min_bytes: 0,
            max_wait,
            linearizable: false,
            at_node: self.at_node,
        }
    }
}

/// Why reading stopped.
#[derive(Debug, Clone, Error)]
pub enum ConsumeError {
    /// The servers refused or did not answer.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// The topic has no such partition.
    #[error("partition {partition} of topic {topic} does not exist")]
    UnknownPartition {
        /// The topic.
        topic: String,
        /// What was asked for.
        partition: u32,
    },
    /// What came back is not what was stored: it breaks the layout or a checksum.
    #[error("partition {partition}, offset {offset}, from {server}: damaged reply")]
    Damaged {
        /// The partition.
        partition: u32,
        /// The offset that was asked for.
        offset: u64,
        /// Who sent it.
        server: String,
        /// What is wrong.
        #[source]
        error: Arc<BatchError>,
    },
    /// The reply skips or repeats offsets.
    #[error("partition {partition}, from {server}: expected offset {expected}, got {got}")]
    Gap {
        /// The partition.
        partition: u32,
        /// Who sent it.
        server: String,
        /// The offset that had to come.
        expected: u64,
        /// The offset that came.
        got: u64,
    },
}

/// One reply: whole batches of one partition, and what of them was asked for.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The partition.
    pub partition: u32,
    /// First kept offset of the partition.
    pub start_offset: u64,
    /// First offset not committed, as the replica that answered knows.
    pub commit_offset: u64,
    /// Where the partition is read on.
    pub next_offset: u64,
    /// Node that answered, 0 if unsaid.
    pub served_by: u64,
    /// Offsets passed over just before these records, because they were trimmed away.
    pub skipped: u64,
    from: u64,
    below: u64,
    batches: Vec<StampedBatch>,
}

/// A message as read.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Its offset.
    pub offset: u64,
    /// Server time, microseconds since the Unix epoch.
    pub timestamp_us: u64,
    /// Producer's time, microseconds since the Unix epoch.
    pub origin_timestamp_us: u64,
    /// The frame: id, payload, headers.
    pub frame: FrameView<'a>,
}

impl<'a> Record<'a> {
    /// The bytes.
    pub fn payload(&self) -> &'a [u8] {
        self.frame.payload
    }

    /// The producer's id.
    pub fn id(&self) -> u128 {
        self.frame.id
    }

    /// Key and value of each user header.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        // The batch was verified: its headers are well-formed, so none is left out here.
        imprint_proto::batch::user_headers::iter(self.frame.user_headers)
            .map_while(Result::ok)
            .map(|header| (header.key, header.value))
    }

    /// The message's key, if it was sent with one.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.headers()
            .find(|(key, _)| *key == crate::KEY_HEADER.as_bytes())
            .map(|(_, value)| value)
    }
}

impl Fetched {
    /// The records asked for, in offset order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let wanted = self.from..self.below;
        self.batches
            .iter()
            .flat_map(records_of)
            .filter(move |record| wanted.contains(&record.offset))
    }

    /// The batches as stored. The first may begin before, the last may end after what was asked for.
    pub fn batches(&self) -> &[StampedBatch] {
        &self.batches
    }

    /// Whether everything that the replica knew to be committed has been read.
    pub fn at_end(&self) -> bool {
        self.next_offset >= self.commit_offset
    }
}

/// All records of a batch.
pub fn records_of(batch: &StampedBatch) -> impl Iterator<Item = Record<'_>> {
    let header = batch.header();
    let (base, time, origin) = (
        header.base_offset,
        header.base_timestamp,
        header.origin_timestamp,
    );
    batch.frames().map(move |frame| Record {
        offset: base.saturating_add(u64::from(frame.offset_delta)),
        timestamp_us: time,
        origin_timestamp_us: origin.saturating_add(u64::from(frame.timestamp_delta)),
        frame,
    })
}

/// Reads partitions of one topic. Dropping it ends its tasks.
#[derive(Debug)]
pub struct Consumer {
    replies: mpsc::Receiver<Result<Fetched, ConsumeError>>,
    _tasks: JoinSet<()>,
}

impl Client {
    /// A consumer of `topic`, which must exist.
    pub async fn consumer(
        &self,
        topic: &str,
        options: ConsumerOptions,
    ) -> Result<Consumer, ConsumeError> {
        let found = self.admin().get_topic(topic).await?;
        let ids: BTreeMap<u32, u64> = found
            .partitions
            .iter()
            .map(|partition| (partition.index, partition.partition_id))
            .collect();
        let chosen = if options.partitions.is_empty() {
            ids.keys().copied().collect()
        } else {
            options.partitions.clone()
        };
        let readers = chosen
            .into_iter()
            .map(|partition| match ids.get(&partition) {
                Some(id) => Ok((partition, *id)),
                None => Err(ConsumeError::UnknownPartition {
                    topic: topic.to_owned(),
                    partition,
                }),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let poll = options.poll_for(readers.len());
        let (sender, replies) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        for (partition, partition_id) in readers {
            let reader = Reader {
                client: self.clone(),
                topic: topic.to_owned(),
                partition,
                partition_id,
                position: options.from,
                until: options.until.get(&partition).copied(),
                poll,
                on_trimmed: options.on_trimmed,
            };
            tasks.spawn(reader.run(sender.clone()));
        }
        Ok(Consumer {
            replies,
            _tasks: tasks,
        })
    }

    /// The offset behind the last message acknowledged before this call, per partition.
    ///
    /// The leaders confirm that they lead, so nothing acknowledged is missed; a partition without a
    /// leader is an error.
    pub async fn confirmed_ends(
        &self,
        topic: &str,
        partitions: &[u32],
    ) -> Result<BTreeMap<u32, u64>, ClientError> {
        let poll = PollOptions {
            max_bytes: 1,
            linearizable: true,
            ..PollOptions::default()
        };
        stream::iter(partitions.iter().copied())
            .map(|partition| async move {
                let reply = self.poll(topic, partition, Position::Last(0), poll).await?;
                Ok((partition, reply.commit_offset))
            })
            .buffer_unordered(ASK_AT_ONCE)
            .try_collect()
            .await
    }
}

impl Consumer {
    /// The next reply with records, or one that says how far the replica is; `None` when every
    /// partition is read to its `until`.
    ///
    /// After a passing failure the partition is tried again by a later call; after a final one it is
    /// left out.
    pub async fn next(&mut self) -> Option<Result<Fetched, ConsumeError>> {
        self.replies.recv().await
    }
}

/// The task of one partition.
struct Reader {
    client: Client,
    topic: String,
    partition: u32,
    partition_id: u64,
    position: Position,
    until: Option<u64>,
    poll: PollOptions,
    on_trimmed: OnTrimmed,
}

impl Reader {
    async fn run(mut self, replies: mpsc::Sender<Result<Fetched, ConsumeError>>) {
        while !self.done() {
            let reply = self.fetch().await;
            let last = matches!(&reply, Err(error) if !error.is_transient());
            if replies.send(reply).await.is_err() || last {
                return;
            }
        }
    }

    fn done(&self) -> bool {
        match (self.position, self.until) {
            (Position::Offset(next), Some(until)) => next >= until,
            (_, Some(0)) => true,
            _ => false,
        }
    }

    async fn fetch(&mut self) -> Result<Fetched, ConsumeError> {
        let polled = self
            .client
            .poll(&self.topic, self.partition, self.position, self.poll)
            .await;
        let reply = match polled {
            Ok(reply) => reply,
            Err(error) => return self.reset(error),
        };
        let from = match self.position {
            Position::Offset(offset) => offset,
            _ => reply.position_offset,
        };
        let served_by = reply.served_by.clone().unwrap_or_default();
        let batches = self.checked(&reply, from, &served_by.address)?;
        // The reply's own count is believed only as far as it agrees with its batches.
        let next_offset = batches.last().map_or(from, StampedBatch::next_offset);
        self.position = Position::Offset(next_offset);
        Ok(Fetched {
            partition: self.partition,
            start_offset: reply.start_offset,
            commit_offset: reply.commit_offset,
            next_offset,
            served_by: served_by.node_id,
            skipped: 0,
            from,
            below: self.until.unwrap_or(u64::MAX),
            batches,
        })
    }

    /// Goes on elsewhere if what comes next was trimmed away, and says how much is passed over.
    fn reset(&mut self, error: ClientError) -> Result<Fetched, ConsumeError> {
        let (Position::Offset(from), Some((start, end))) = (self.position, error.offsets()) else {
            return Err(error.into());
        };
        let next_offset = match self.on_trimmed {
            // Above the log nothing was trimmed: the position is wrong.
            _ if from >= start => return Err(error.into()),
            OnTrimmed::Fail => return Err(error.into()),
            OnTrimmed::Start => start,
            OnTrimmed::End => end.max(start),
        };
        self.position = Position::Offset(next_offset);
        Ok(Fetched {
            partition: self.partition,
            start_offset: start,
            commit_offset: end,
            next_offset,
            served_by: 0,
            skipped: next_offset - from,
            from: next_offset,
            below: self.until.unwrap_or(u64::MAX),
            batches: Vec::new(),
        })
    }

    fn checked(
        &self,
        reply: &v1::PollResponse,
        from: u64,
        server: &str,
    ) -> Result<Vec<StampedBatch>, ConsumeError> {
        let damaged = |error: BatchError| ConsumeError::Damaged {
            partition: self.partition,
            offset: from,
            server: server.to_owned(),
            error: Arc::new(error),
        };
        let mut batches: Vec<StampedBatch> = Vec::new();
        for bytes in split_batches(reply.batches.clone()) {
            let batch = self.verified(bytes.map_err(damaged)?).map_err(damaged)?;
            let (first, next) = (batch.base_offset(), batch.next_offset());
            let follows = match batches.last() {
                Some(previous) => first == previous.next_offset(),
                None => first <= from && from < next,
            };
            if !follows {
                return Err(ConsumeError::Gap {
                    partition: self.partition,
                    server: server.to_owned(),
                    expected: batches.last().map_or(from, StampedBatch::next_offset),
                    got: first,
                });
            }
            batches.push(batch);
        }
        Ok(batches)
    }

    fn verified(&self, bytes: Bytes) -> Result<StampedBatch, BatchError> {
        StampedBatch::verify(bytes, self.partition_id)
    }
}

impl ConsumeError {
    /// Whether reading may go on later from the same place.
    pub fn is_transient(&self) -> bool {
        match self {
            ConsumeError::Call(error) => error.is_transient(),
            ConsumeError::UnknownPartition { .. }
            | ConsumeError::Damaged { .. }
            | ConsumeError::Gap { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_partitions_share_the_buffer_and_the_waiting() {
        let options = ConsumerOptions::default();
        let one = options.poll_for(1);
        assert_eq!((one.max_bytes, one.max_wait), (4 << 20, options.max_wait));
        let many = options.poll_for(1000);
        assert_eq!(many.max_bytes, (64 << 20) / 1001);
        assert_eq!(many.max_wait, options.max_wait * 32 / 1000);
        let most = options.poll_for(1_000_000);
        assert_eq!((most.max_bytes, most.max_wait), (MIN_POLL_BYTES, MIN_WAIT));
    }
}
