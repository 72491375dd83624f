//! The Rust client of Imprint: calls that find the right node by themselves, a producer that batches,
//! a consumer that reads ahead, and administration.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use imprint_client::{Client, ClientOptions, NewMessage, ProducerOptions};
//!
//! let client = Client::connect(&["127.0.0.1:7460"], ClientOptions::default())?;
//! let producer = client.producer("events", ProducerOptions::default()).await?;
//! let delivery = producer.send(NewMessage { payload: b"hello", ..NewMessage::default() }).await?;
//! println!("stored at {}", delivery.wait().await?.offset);
//! # Ok(())
//! # }
//! ```
//!
//! What this crate must not know: files, Raft, the internal protocol between nodes. It sees the
//! cluster only through `imprint.v1`.
//!
//! Any node answers any call, so routing here is a matter of speed alone (`routes`). What may be
//! repeated after a failure is a matter of correctness (`retry`, [`Outcome`]): a write whose answer
//! was lost is repeated only if the caller said so ([`RetryUnknown`]).

mod admin;
mod ambient;
mod client;
mod consumer;
mod details;
mod dial;
mod error;
mod options;
mod partitioner;
mod pool;
mod producer;
mod retry;
mod routes;

pub use admin::{Admin, NewTopic, TrimTopic};
pub use ambient::{Ambient, SystemAmbient};
pub use client::{Client, ConnectError, PollOptions, Position, SendOptions};
pub use consumer::{
    ConsumeError, Consumer, ConsumerOptions, Fetched, OnTrimmed, Record, records_of,
};
pub use details::{FieldViolation, LeaderHint};
pub use dial::{BoxStream, ByteStream, Dial, TcpDial};
pub use error::{CONNECTION_LOST, ClientError, NO_ANSWER, Outcome, UNREACHABLE};
pub use options::{ClientOptions, RetryUnknown};
pub use partitioner::partition_for_key;
pub use producer::{
    Delivered, Delivery, KEY_HEADER, NewMessage, ProduceError, Producer, ProducerOptions,
};

pub use imprint_proto::batch::{BatchBuilder, HeaderValue, Message, ProducerBatch, UserHeader};
pub use imprint_proto::limits::BatchLimits;
pub use imprint_proto::v1;
/// The canonical gRPC codes.
pub use tonic::Code;
