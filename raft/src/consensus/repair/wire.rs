//! The messages of repair: pieces of a log asked for by offset, digests of sealed segments, and where a log begins.
//!
//! A reply to [`ReadLogMessage`] is one envelope with the batches' bytes back to back behind it, so that they are neither
//! copied into a message nor sent twice.

use bytes::Bytes;
use imprint_proto::batch::{BatchError, StampedBatch};
use imprint_proto::envelope::{self, EnvelopeError};

use crate::journal::{LogPos, RepairBatch, SegmentDigest};

imprint_proto::envelope! {
    /// Asks for batches of a group from the one that holds `from_offset`. With `word` set, a leader first confirms that it
    /// leads, so that its end tells what was never committed.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ReadLogMessage: version 0, compat 0 {
        group: u64,
        from_offset: u64,
        max_bytes: u64,
        word: bool,
    }
}

imprint_proto::envelope! {
    /// One batch that follows: its place in the log, its length, and the first offset of the segment that it lies in.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct PieceWire: version 0, compat 0 {
        term: u64,
        index: u64,
        bytes: u64,
        segment_base: u64,
    }
}

imprint_proto::envelope! {
    /// The answer: what the replica has, and the batches that follow. `leads`: the replica confirmed just now that it leads.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct ReadLogReply: version 0, compat 0 {
        start_offset: u64,
        end_offset: u64,
        leads: bool,
        pieces: Vec<PieceWire>,
    }
}

imprint_proto::envelope! {
    /// Asks for the digests of a group's sealed segments from one offset on.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct DigestsMessage: version 0, compat 0 {
        group: u64,
        from_offset: u64,
    }
}

imprint_proto::envelope! {
    /// One sealed segment that was checked: XXH3-64 over its file.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct DigestWire: version 0, compat 0 {
        base_offset: u64,
        end_offset: u64,
        xxh3: u64,
    }
}

imprint_proto::envelope! {
    /// The answer: in order, at most [`MAX_DIGESTS`].
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct DigestsReply: version 0, compat 0 {
        segments: Vec<DigestWire>,
    }
}

/// Digests in one answer.
pub(crate) const MAX_DIGESTS: usize = 1024;

/// An answer, checked.
#[derive(Debug)]
pub(crate) struct LogPieces {
    pub start_offset: u64,
    pub end_offset: u64,
    pub leads: bool,
    pub pieces: Vec<RepairBatch>,
}

/// Why an answer can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PiecesError {
    #[error("the answer can't be decoded: {0}")]
    Envelope(#[from] EnvelopeError),
    #[error("the answer names {wanted} bytes of batches and carries {found}")]
    Length { wanted: u64, found: usize },
    #[error("the batch of index {index} doesn't check: {source}")]
    Batch { index: u64, source: BatchError },
}

/// The parts of an answer; the batches' memory is shared.
pub(crate) fn encode_pieces(
    start_offset: u64,
    end_offset: u64,
    leads: bool,
    pieces: &[RepairBatch],
) -> Vec<Bytes> {
    let head = ReadLogReply {
        start_offset,
        end_offset,
        leads,
        pieces: pieces.iter().map(PieceWire::from).collect(),
    };
    let mut parts = Vec::with_capacity(1 + pieces.len() * 2);
    parts.push(envelope::encode(&head));
    for piece in pieces {
        let (header, blob) = piece.batch.parts();
        parts.extend([header.clone(), blob.clone()]);
    }
    parts
}

/// Takes an answer apart and checks every batch in it.
pub(crate) fn decode_pieces(group: u64, reply: Bytes) -> Result<LogPieces, PiecesError> {
    let (head, mut rest): (ReadLogReply, Bytes) = envelope::decode_prefix(reply)?;
    let wanted = head
        .pieces
        .iter()
        .fold(0u64, |sum, piece| sum.saturating_add(piece.bytes));
    if wanted != rest.len() as u64 {
        return Err(PiecesError::Length {
            wanted,
            found: rest.len(),
        });
    }
    let mut pieces = Vec::with_capacity(head.pieces.len());
    for wire in head.pieces {
        // The sum is the length of what is there, so each fits.
        let len = usize::try_from(wire.bytes)
            .unwrap_or(usize::MAX)
            .min(rest.len());
        let bytes = rest.split_to(len);
        let index = wire.index;
        let batch = StampedBatch::verify(bytes, group)
            .map_err(|source| PiecesError::Batch { index, source })?;
        pieces.push(RepairBatch {
            pos: LogPos {
                term: wire.term,
                index,
            },
            segment_base: wire.segment_base,
            batch,
        });
    }
    Ok(LogPieces {
        start_offset: head.start_offset,
        end_offset: head.end_offset,
        leads: head.leads,
        pieces,
    })
}

impl From<&RepairBatch> for PieceWire {
    fn from(piece: &RepairBatch) -> Self {
        PieceWire {
            term: piece.pos.term,
            index: piece.pos.index,
            bytes: piece.batch.len(),
            segment_base: piece.segment_base,
        }
    }
}

impl From<&SegmentDigest> for DigestWire {
    fn from(digest: &SegmentDigest) -> Self {
        DigestWire {
            base_offset: digest.base_offset,
            end_offset: digest.end_offset,
            xxh3: digest.xxh3,
        }
    }
}
