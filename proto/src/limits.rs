//! Every bound of the wire formats, with its reason.
//!
//! A limit is inclusive: the value itself is accepted, one more is refused. What an operator may
//! change has a default and a ceiling; the rest is fixed. `GetLimits` reports them to clients.

use crate::batch::{FRAME_HEADER_LEN, HEADER_LEN};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Bytes of one gRPC message that a client accepts unless told otherwise.
pub const GRPC_DEFAULT_MESSAGE_BYTES: u64 = 4 * MIB;

/// Room beside the batch in a gRPC message, for topic, positions and epochs.
pub const GRPC_WRAPPER_BYTES: u64 = 4 * KIB;

/// Bytes of a batch, header included: the most that passes gRPC clients which keep their defaults.
pub const DEFAULT_MAX_BATCH_BYTES: u64 = GRPC_DEFAULT_MESSAGE_BYTES - GRPC_WRAPPER_BYTES;

/// The most that `max_batch_bytes` may be set to. A batch is held in memory whole on its way
/// through, several of them at once, and a follower reads none that is longer.
pub const CEILING_MAX_BATCH_BYTES: u64 = 64 * MIB;

/// The least that `max_batch_bytes` may be set to: the header and one frame with an empty payload.
pub const FLOOR_MAX_BATCH_BYTES: u64 = (HEADER_LEN + FRAME_HEADER_LEN) as u64;

/// Messages of a batch. Bounds what is kept per frame while a batch is admitted (8 bytes each).
pub const DEFAULT_MAX_MESSAGES: u32 = 1_000_000;

/// Bytes of one message's user headers; they are walked at admission, payloads are not.
pub const DEFAULT_MAX_USER_HEADERS_BYTES: u32 = 100_000;

/// Bytes of a user header's key, and of its value. The least is 1 for both.
pub const DEFAULT_MAX_HEADER_FIELD_BYTES: u32 = 255;

/// Bytes of batches in a poll reply, unless the first batch alone is longer.
pub const DEFAULT_MAX_POLL_BYTES: u64 = DEFAULT_MAX_BATCH_BYTES;

/// Milliseconds that a poll may wait for data: below the idle time-outs of common proxies (60 s).
pub const MAX_POLL_WAIT_MS: u32 = 30_000;

/// Bytes of a topic's name: fits a file name of 255 bytes with a suffix.
pub const MAX_TOPIC_NAME_BYTES: u32 = 249;

/// Partitions of a topic. Each is a Raft group with files of its own on several nodes.
pub const MAX_PARTITIONS_PER_TOPIC: u32 = 1000;

/// Bytes of one frame's payload between nodes, before and after decompression: a batch at its
/// ceiling and the envelope that carries it.
pub const DEFAULT_MAX_FRAME_BYTES: u32 = (CEILING_MAX_BATCH_BYTES + 8 * MIB) as u32;

/// Payloads below this many bytes are sent as they are, even where compression was asked for: the
/// gain is less than a packet.
pub const DEFAULT_COMPRESS_MIN_BYTES: usize = 1024;

/// Envelopes inside envelopes. The deepest of ours has four; a type that contains itself stops
/// here instead of at the end of the stack.
pub const MAX_ENVELOPE_DEPTH: u32 = 32;

const _: () = {
    assert!(DEFAULT_MAX_BATCH_BYTES <= CEILING_MAX_BATCH_BYTES);
    assert!(FLOOR_MAX_BATCH_BYTES <= DEFAULT_MAX_BATCH_BYTES);
    assert!((DEFAULT_MAX_FRAME_BYTES as u64) > CEILING_MAX_BATCH_BYTES);
    assert!(
        DEFAULT_MAX_USER_HEADERS_BYTES as u64 + FLOOR_MAX_BATCH_BYTES < DEFAULT_MAX_BATCH_BYTES
    );
    assert!(DEFAULT_MAX_POLL_BYTES >= DEFAULT_MAX_BATCH_BYTES);
};

/// What admission and the builder hold a batch to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Bytes of the whole batch, header included.
    pub max_batch_bytes: u64,
    /// Messages in the batch.
    pub max_messages: u32,
    /// Bytes of one message's user headers block.
    pub max_user_headers_bytes: u32,
    /// Bytes of one user header's key, and of its value.
    pub max_header_field_bytes: u32,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            max_batch_bytes: DEFAULT_MAX_BATCH_BYTES,
            max_messages: DEFAULT_MAX_MESSAGES,
            max_user_headers_bytes: DEFAULT_MAX_USER_HEADERS_BYTES,
            max_header_field_bytes: DEFAULT_MAX_HEADER_FIELD_BYTES,
        }
    }
}

impl BatchLimits {
    /// Bytes that a batch may have: `max_batch_bytes`, but never more than the ceiling, since no
    /// follower would take it.
    pub fn batch_bytes(&self) -> u64 {
        self.max_batch_bytes.min(CEILING_MAX_BATCH_BYTES)
    }
}
