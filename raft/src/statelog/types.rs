//! What Raft can't lose, as plain values: positions, votes, control entries, and the kept state of one group.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use imprint_proto::envelope::{self, EnvelopeError};

/// Where an entry stands in its group's Raft log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPos {
    /// Term of the leader that wrote it; clients know it as the epoch.
    pub term: u64,
    /// Raft index.
    pub index: u64,
}

impl fmt::Display for LogPos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

/// A vote as it was last saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VoteRecord {
    /// The term it belongs to.
    pub term: u64,
    /// The replica voted for.
    pub voted_for: Option<u64>,
    /// Whether that replica is known to have won.
    pub committed: bool,
}

/// When a segment ends. What is in force is a function of the log, so that segments end at the same places on all replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollSettings {
    /// A batch that would take a segment past this many bytes opens a new one.
    pub segment_bytes: u64,
    /// A batch stamped this many microseconds or more after its segment's first batch opens a new one.
    pub segment_span_us: Option<u64>,
}

imprint_proto::envelope! {
    /// The content of a settings entry.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct RollBody: version 0, compat 0 {
        segment_bytes: u64,
        segment_span_us: Option<u64>,
    }
}

impl RollSettings {
    /// As the content of an entry, in the state log and on the way to a peer.
    pub fn encode(self) -> Bytes {
        envelope::encode(&RollBody {
            segment_bytes: self.segment_bytes,
            segment_span_us: self.segment_span_us,
        })
    }

    /// From the content of an entry.
    pub fn decode(bytes: Bytes) -> Result<Self, EnvelopeError> {
        let RollBody {
            segment_bytes,
            segment_span_us,
        } = envelope::decode(bytes)?;
        Ok(Self {
            segment_bytes,
            segment_span_us,
        })
    }
}

/// What a control entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlKind {
    /// A leader's first entry.
    Blank,
    /// A membership, encoded by whoever wrote it.
    Membership(Bytes),
    /// Everything below this offset may go.
    Trim {
        /// First offset to keep.
        upto: u64,
    },
    /// A batch that was not taken, and why: an encoded outcome.
    Void(Bytes),
    /// From here on segments end by these settings.
    Settings(RollSettings),
}

/// A control entry but for its index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Term of the leader that wrote it.
    pub term: u64,
    /// The log's next offset where it stands: all data below was synced before it was.
    pub offset: u64,
    /// What it says.
    pub kind: ControlKind,
}

/// How far a group's log is known to be good, made durable without anybody waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// All data below this offset was synced here.
    pub synced_offset: u64,
    /// The highest position known to be committed; may be ahead of this node's log after a crash.
    pub committed: Option<LogPos>,
}

/// A cut of the log that was begun: it is finished before anything else happens to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingCut {
    /// Next offset of the log after the cut; everything from it on goes.
    pub offset: u64,
    /// Everything below goes too: the log begins anew at `offset`.
    pub whole: bool,
}

/// Where a log ended when it was closed in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanStop {
    /// Base offset of the active segment.
    pub segment: u64,
    /// Bytes of batches in it.
    pub len: u64,
    /// The log's next offset.
    pub next_offset: u64,
}

/// All that the state log keeps of one group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupState {
    /// The last vote.
    pub vote: Option<VoteRecord>,
    /// Control entries by index.
    pub controls: BTreeMap<u64, Control>,
    /// Entries up to here are gone for Raft, whether or not their bytes are.
    pub purged: Option<LogPos>,
    /// First offset to keep.
    pub start_offset: u64,
    /// The log's next offset if there is no segment.
    pub empty_end: u64,
    /// See [`Marks`].
    pub marks: Marks,
    /// See [`PendingCut`].
    pub cut: Option<PendingCut>,
    /// The replica that lives here.
    pub replica: Option<u64>,
    /// Set if the last run closed this log in order.
    pub clean: Option<CleanStop>,
}

impl GroupState {
    /// All data below this offset must be there: the mark, or a control entry that was synced after its data.
    pub fn must_have(&self) -> u64 {
        let by_controls = self.controls.values().next_back().map_or(0, |c| c.offset);
        by_controls.max(self.marks.synced_offset)
    }
}
