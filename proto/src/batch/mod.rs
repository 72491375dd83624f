//! The batch: the one layout messages travel and rest in.
//!
//! ```text
//! batch = [header: 256 bytes][blob: frames back to back]
//! frame = [frame header: 48 bytes][payload][user headers]
//! ```
//!
//! The same bytes are the body of a send, the replicated entry, the segment record and the reply to
//! a poll. A batch takes three steps, each a type that the next one consumes:
//!
//! | type | made by | promises |
//! |---|---|---|
//! | [`ProducerBatch`] | [`BatchBuilder::build`] | passes admission under the builder's limits |
//! | [`AdmittedBatch`] | [`AdmittedBatch::admit`] | every admission rule holds; partition known |
//! | [`StampedBatch`] | [`AdmittedBatch::stamp`], [`StampedBatch::verify`] | offset and time are final, bytes never change again |
//!
//! # What does each checksum cover?
//!
//! Both are XXH3-64 with seed 0. A frame's covers its own bytes from 8 to its end, which lie
//! together, so one call over one slice checks it. The batch's covers six header fields and then
//! the frames' checksums, so that stamping writes 44 bytes of header fields and never reads the
//! blob, and yet a changed payload still shows.
//!
//! # What is not here?
//!
//! Where batches are kept, in which order, and who may append them. This module sees one batch at a
//! time; [`StampedBatch::verify_chain`] is its only look at a neighbour.

mod admit;
mod build;
mod frame;
mod header;
mod stamp;
pub mod user_headers;

pub use admit::{AdmissionError, AdmittedBatch, StampError};
pub use build::{BatchBuilder, BuildError, Message, ProducerBatch};
pub use frame::{FrameIter, FrameView, TilingError};
pub use header::BatchHeader;
pub use stamp::{BatchError, SplitBatches, StampedBatch, peek_length, split_batches};
pub use user_headers::{HeaderKind, HeaderValue, HeadersError, UserHeader, UserHeaderView};

/// Bytes of the batch header.
pub const HEADER_LEN: usize = 256;

/// Bytes of a frame header.
pub const FRAME_HEADER_LEN: usize = 48;

/// Key of the user header, on a batch's first frame, that names an idempotent producer. Producers
/// must not use it for anything else.
pub const PRODUCER_HEADER_KEY: &str = "imprint.producer";
