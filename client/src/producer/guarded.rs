//! Appends that are repeated after a lost answer and yet stored once.
//!
//! Every attempt at a batch names the same offset `at`, the committed end of the partition, as the one
//! it must get. A server stores it only there, so of all attempts, answered or lost or still on their
//! way, at most one is ever stored: once anything stands at `at`, the rest are refused for good.
//!
//! What does a refusal mean? That something stands at `at`, or is about to. A confirmed read says what:
//! our own batch (by the id of its first message) counts as stored; another producer's means that ours
//! never will be there, and the next round names the new committed end; nothing yet means that the
//! refusing leader was about to lose it, and the same offset is tried again.
//!
//! Why only committed ends? They never move back, so an old attempt at a lower offset stays refused.
//!
//! The price: producers that share a partition refuse each other and go round again. This is for a
//! partition's only writer, or one of few.

use super::ProduceError;
use super::lane::Stored;
use crate::client::{Client, PollOptions, Position, SendOptions};
use crate::error::{CONNECTION_LOST, ClientError, Outcome};
use crate::options::RetryUnknown;
use imprint_proto::batch::{ProducerBatch, StampedBatch, split_batches};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Code;

/// Longest wait for what stands at an offset to be committed, before the offset is tried again.
const LOOK_WAIT: Duration = Duration::from_millis(500);
/// The reason with which a server refuses another offset than the expected one.
const OFFSET_MISMATCH: &str = "OFFSET_MISMATCH";

/// What stands at the offset that a batch was to get.
enum Found {
    Ours(Stored),
    /// Somebody else's; the committed end is behind it.
    Theirs {
        end: u64,
    },
    Nothing,
}

/// The guarded appends of one partition.
#[derive(Debug)]
pub(super) struct Guard {
    client: Client,
    topic: String,
    partition: u32,
    /// The committed end, once known: where the next batch has to go.
    end: Option<u64>,
}

impl Guard {
    pub fn new(client: Client, topic: &str, partition: u32) -> Guard {
        Guard {
            client,
            topic: topic.to_owned(),
            partition,
            end: None,
        }
    }

    /// Appends `batch`, whose first message has the id `first_id`, which nobody else uses.
    pub async fn append(
        &mut self,
        batch: &ProducerBatch,
        first_id: u128,
    ) -> Result<Stored, ProduceError> {
        let deadline = Instant::now() + self.client.options().deadline;
        loop {
            let at = self.known_end().await?;
            let options = SendOptions {
                expected_offset: Some(at),
                retry_unknown: RetryUnknown::Guarded,
            };
            let sent = self
                .client
                .send(&self.topic, self.partition, batch, options)
                .await;
            let refused = match sent {
                Ok(reply) => {
                    let stored = Stored {
                        base_offset: reply.base_offset,
                        timestamp_us: reply.base_timestamp_us,
                        epoch: reply.leader_epoch,
                    };
                    return Ok(self.stored(stored, reply.last_offset + 1));
                }
                Err(error) if error.reason() == Some(OFFSET_MISMATCH) => error,
                Err(error) => {
                    // It may come to stand there yet; the next batch has to look.
                    self.end = None;
                    return Err(error.into());
                }
            };
            match self.look(at, first_id).await? {
                Found::Ours(stored) => return Ok(stored),
                Found::Theirs { end } => self.end = Some(end),
                Found::Nothing => {}
            }
            if Instant::now() >= deadline {
                return Err(refused.into());
            }
        }
    }

    fn stored(&mut self, stored: Stored, end: u64) -> Stored {
        self.end = Some(end);
        stored
    }

    async fn known_end(&mut self) -> Result<u64, ClientError> {
        if let Some(end) = self.end {
            return Ok(end);
        }
        let reply = self.confirmed(Position::Last(0), Duration::ZERO).await?;
        self.end = Some(reply.commit_offset);
        Ok(reply.commit_offset)
    }

    async fn look(&mut self, at: u64, first_id: u128) -> Result<Found, ClientError> {
        let reply = self.confirmed(Position::Offset(at), LOOK_WAIT).await?;
        let Some(bytes) = split_batches(reply.batches.clone()).next() else {
            return Ok(Found::Nothing);
        };
        let batch = bytes
            .and_then(StampedBatch::verify_unbound)
            .map_err(|error| damaged(error.to_string()))?;
        let first = batch.frames().next().map(|frame| frame.id);
        if batch.base_offset() != at || first != Some(first_id) {
            let end = reply.commit_offset;
            return Ok(Found::Theirs { end });
        }
        let epoch = reply.epochs.first().map_or(0, |range| range.epoch);
        let stored = Stored {
            base_offset: at,
            timestamp_us: batch.base_timestamp(),
            epoch,
        };
        Ok(Found::Ours(self.stored(stored, batch.next_offset())))
    }

    async fn confirmed(
        &self,
        position: Position,
        max_wait: Duration,
    ) -> Result<crate::v1::PollResponse, ClientError> {
        let options = PollOptions {
            max_bytes: 1,
            max_wait,
            linearizable: true,
            ..PollOptions::default()
        };
        self.client
            .poll(&self.topic, self.partition, position, options)
            .await
    }
}

/// The reply that would have told is damaged, so nobody knows.
fn damaged(message: String) -> ClientError {
    ClientError::local(
        Code::DataLoss,
        CONNECTION_LOST,
        format!("damaged reply while looking for a batch: {message}"),
        Outcome::Unknown,
        "",
    )
}
