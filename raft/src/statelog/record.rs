//! Records of the state log and their bytes.
//!
//! A record is an envelope [`StateRecord`]: kind, group and a body that is an envelope of its own. In the file each is framed
//! by a magic number, a length and a checksum of everything behind: no flipped bit goes unseen, also not in an envelope's
//! header, and a reader finds its way behind a damaged spot. Applying the records of
//! a log in order to an empty state gives the state; records are never changed and kinds never reused.

use bytes::{BufMut, Bytes, BytesMut};
use imprint_proto::envelope::{self, EnvelopeError};

use super::types::{
    CleanStop, Control, ControlKind, GroupState, LogPos, Marks, PendingCut, RollSettings,
    VoteRecord,
};

/// One change of what a group keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Front of a file: which rewriting it comes from.
    Head { generation: u64 },
    /// Front of each group of records: how long the log was when all before was synced in both copies.
    Flush { synced_len: u64 },
    /// A vote.
    Vote { group: u64, vote: VoteRecord },
    /// A control entry.
    Control {
        group: u64,
        index: u64,
        control: Control,
    },
    /// A cut begins: control entries from `from_index` on are gone, and data from `cut.offset` on is about to go. A cut of
    /// the whole log says where the new one begins.
    CutBegin {
        group: u64,
        from_index: u64,
        cut: PendingCut,
        purged: Option<LogPos>,
    },
    /// The data is gone.
    CutDone { group: u64 },
    /// Marks moved.
    Marks { group: u64, marks: Marks },
    /// Entries up to here are gone for Raft.
    Purged { group: u64, pos: LogPos },
    /// The first offset to keep moved.
    Start { group: u64, start_offset: u64 },
    /// Control entries below an index are forgotten, but for the last membership and the last settings among them.
    ControlsDropped { group: u64, below: u64 },
    /// The plain fields, written when the log is compacted.
    Base {
        group: u64,
        purged: Option<LogPos>,
        start_offset: u64,
        empty_end: u64,
        cut: Option<PendingCut>,
    },
    /// Which replica lives here.
    Replica { group: u64, replica: u64 },
    /// The log was closed in order.
    CleanStop { group: u64, at: CleanStop },
    /// A new run began: clean stops from before it count no more.
    Opened,
    /// Nothing is kept of this group any more.
    Dropped { group: u64 },
}

imprint_proto::envelope! {
    /// The outer envelope of every record.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct StateRecord: version 1, compat 0 {
        kind: u8,
        group: u64,
        body: Bytes,
    }
}

imprint_proto::envelope! {
    /// A body of numbers: most records are that.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Numbers: version 1, compat 0 {
        values: Vec<u64>,
    }
}

imprint_proto::envelope! {
    /// The body of a control entry.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ControlBody: version 1, compat 0 {
        index: u64,
        term: u64,
        offset: u64,
        kind: u8,
        upto: u64,
        data: Bytes,
    }
}

/// Why a record with a good checksum is not understood.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The envelope itself.
    #[error("not a record of the state log")]
    Envelope(#[from] EnvelopeError),
    /// Written by a version that knows more.
    #[error("unknown record kind {0}")]
    UnknownKind(u8),
    /// A known kind with fewer fields than it has.
    #[error("record of kind {0} lacks fields")]
    Short(u8),
}

const HEAD: u8 = 1;
const FLUSH: u8 = 2;
const VOTE: u8 = 3;
const CONTROL: u8 = 4;
const CUT_BEGIN: u8 = 5;
const CUT_DONE: u8 = 6;
const MARKS: u8 = 7;
const PURGED: u8 = 8;
const START: u8 = 9;
const CONTROLS_DROPPED: u8 = 10;
const BASE: u8 = 11;
const REPLICA: u8 = 12;
const CLEAN_STOP: u8 = 13;
const OPENED: u8 = 14;
const DROPPED: u8 = 15;

/// Front of every frame.
pub(crate) const MAGIC: [u8; 4] = *b"IMsl";
/// Magic, length and CRC32C, the latter over length and payload.
pub(crate) const FRAME_OVERHEAD: usize = 12;
/// Longer frames are not looked at: no record comes near.
const MAX_PAYLOAD: usize = 64 << 20;

/// Appends a record, framed, to `out`.
pub fn encode_into(record: &Record, out: &mut BytesMut) {
    let payload = envelope::encode(&to_envelope(record));
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.put_slice(&MAGIC);
    out.put_u32_le(len);
    out.put_u32_le(checksum(len, &payload));
    out.put_slice(&payload);
}

fn checksum(len: u32, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&len.to_le_bytes()), payload)
}

/// Payload length that the front of a frame tells, if it looks like one.
pub(crate) fn payload_len(front: &[u8]) -> Option<usize> {
    let (magic, rest) = front.split_first_chunk()?;
    let len = u32::from_le_bytes(*rest.first_chunk()?) as usize;
    (*magic == MAGIC && len <= MAX_PAYLOAD).then_some(len)
}

/// Whether a payload is what the front of its frame says.
pub(crate) fn is_intact(front: &[u8], payload: &[u8]) -> bool {
    let stored = front.last_chunk().map(|stored| u32::from_le_bytes(*stored));
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    stored == Some(checksum(len, payload))
}

/// Reads a record from the payload of an intact frame.
pub fn decode(payload: Bytes) -> Result<Record, RecordError> {
    from_envelope(envelope::decode(payload)?)
}

fn flag(present: bool) -> u64 {
    u64::from(present)
}

fn optional_pos(pos: Option<LogPos>) -> [u64; 3] {
    let at = pos.unwrap_or_default();
    [flag(pos.is_some()), at.term, at.index]
}

fn to_envelope(record: &Record) -> StateRecord {
    let (kind, group, values) = match record {
        Record::Control {
            group,
            index,
            control,
        } => return control_envelope(*group, *index, control),
        Record::Head { generation } => (HEAD, 0, vec![*generation]),
        Record::Flush { synced_len } => (FLUSH, 0, vec![*synced_len]),
        Record::Vote { group, vote: v } => {
            let values = vec![
                v.term,
                flag(v.voted_for.is_some()),
                v.voted_for.unwrap_or(0),
                flag(v.committed),
            ];
            (VOTE, *group, values)
        }
        Record::CutBegin {
            group,
            from_index,
            cut,
            purged,
        } => {
            let [some, term, index] = optional_pos(*purged);
            (
                CUT_BEGIN,
                *group,
                vec![*from_index, cut.offset, flag(cut.whole), some, term, index],
            )
        }
        Record::CutDone { group } => (CUT_DONE, *group, vec![]),
        Record::Marks { group, marks } => {
            let [some, term, index] = optional_pos(marks.committed);
            (MARKS, *group, vec![marks.synced_offset, some, term, index])
        }
        Record::Purged { group, pos } => (PURGED, *group, vec![pos.term, pos.index]),
        Record::Start {
            group,
            start_offset,
        } => (START, *group, vec![*start_offset]),
        Record::ControlsDropped { group, below } => (CONTROLS_DROPPED, *group, vec![*below]),
        Record::Base {
            group,
            purged,
            start_offset,
            empty_end,
            cut,
        } => {
            let [some, term, index] = optional_pos(*purged);
            let cutting = [
                flag(cut.is_some()),
                cut.map_or(0, |c| c.offset),
                flag(cut.is_some_and(|c| c.whole)),
            ];
            let plain = [some, term, index, *start_offset, *empty_end];
            (BASE, *group, plain.into_iter().chain(cutting).collect())
        }
        Record::Replica { group, replica } => (REPLICA, *group, vec![*replica]),
        Record::CleanStop { group, at } => {
            (CLEAN_STOP, *group, vec![at.segment, at.len, at.next_offset])
        }
        Record::Opened => (OPENED, 0, vec![]),
        Record::Dropped { group } => (DROPPED, *group, vec![]),
    };
    StateRecord {
        kind,
        group,
        body: envelope::encode(&Numbers { values }),
    }
}

fn control_envelope(group: u64, index: u64, control: &Control) -> StateRecord {
    let (kind, upto, data) = match &control.kind {
        ControlKind::Blank => (0, 0, Bytes::new()),
        ControlKind::Membership(data) => (1, 0, data.clone()),
        ControlKind::Trim { upto } => (2, *upto, Bytes::new()),
        ControlKind::Void(data) => (3, 0, data.clone()),
        ControlKind::Settings(settings) => (4, 0, settings.encode()),
    };
    let body = ControlBody {
        index,
        term: control.term,
        offset: control.offset,
        kind,
        upto,
        data,
    };
    StateRecord {
        kind: CONTROL,
        group,
        body: envelope::encode(&body),
    }
}

fn control_from(group: u64, body: Bytes) -> Result<Record, RecordError> {
    let ControlBody {
        index,
        term,
        offset,
        kind,
        upto,
        data,
    } = envelope::decode(body)?;
    // The data lies in the buffer of the whole file: copied, so that it does not keep all of it.
    let data = Bytes::copy_from_slice(&data);
    let kind = match kind {
        0 => ControlKind::Blank,
        1 => ControlKind::Membership(data),
        2 => ControlKind::Trim { upto },
        3 => ControlKind::Void(data),
        4 => ControlKind::Settings(RollSettings::decode(data)?),
        _ => return Err(RecordError::UnknownKind(CONTROL)),
    };
    Ok(Record::Control {
        group,
        index,
        control: Control { term, offset, kind },
    })
}

fn from_envelope(outer: StateRecord) -> Result<Record, RecordError> {
    let StateRecord { kind, group, body } = outer;
    if kind == CONTROL {
        return control_from(group, body);
    }
    if !(HEAD..=DROPPED).contains(&kind) {
        return Err(RecordError::UnknownKind(kind));
    }
    let Numbers { values } = envelope::decode(body)?;
    let at = |n: usize| values.get(n).copied().ok_or(RecordError::Short(kind));
    let yes = |n: usize| at(n).map(|v| v != 0);
    let pos = |n: usize| {
        Ok::<_, RecordError>(LogPos {
            term: at(n)?,
            index: at(n + 1)?,
        })
    };
    let optional = |n: usize| Ok::<_, RecordError>(if yes(n)? { Some(pos(n + 1)?) } else { None });
    Ok(match kind {
        HEAD => Record::Head { generation: at(0)? },
        FLUSH => Record::Flush { synced_len: at(0)? },
        VOTE => {
            let voted_for = if yes(1)? { Some(at(2)?) } else { None };
            Record::Vote {
                group,
                vote: VoteRecord {
                    term: at(0)?,
                    voted_for,
                    committed: yes(3)?,
                },
            }
        }
        CUT_BEGIN => {
            let cut = PendingCut {
                offset: at(1)?,
                whole: yes(2)?,
            };
            Record::CutBegin {
                group,
                from_index: at(0)?,
                cut,
                purged: optional(3)?,
            }
        }
        CUT_DONE => Record::CutDone { group },
        MARKS => Record::Marks {
            group,
            marks: Marks {
                synced_offset: at(0)?,
                committed: optional(1)?,
            },
        },
        PURGED => Record::Purged {
            group,
            pos: pos(0)?,
        },
        START => Record::Start {
            group,
            start_offset: at(0)?,
        },
        CONTROLS_DROPPED => Record::ControlsDropped {
            group,
            below: at(0)?,
        },
        BASE => {
            let cut = if yes(5)? {
                Some(PendingCut {
                    offset: at(6)?,
                    whole: yes(7)?,
                })
            } else {
                None
            };
            Record::Base {
                group,
                purged: optional(0)?,
                start_offset: at(3)?,
                empty_end: at(4)?,
                cut,
            }
        }
        REPLICA => Record::Replica {
            group,
            replica: at(0)?,
        },
        CLEAN_STOP => {
            let at = CleanStop {
                segment: at(0)?,
                len: at(1)?,
                next_offset: at(2)?,
            };
            Record::CleanStop { group, at }
        }
        OPENED => Record::Opened,
        _ => Record::Dropped { group },
    })
}

/// The records that make `state` from nothing.
pub fn records_of(group: u64, state: &GroupState) -> Vec<Record> {
    let GroupState {
        vote,
        controls,
        purged,
        start_offset,
        empty_end,
        marks,
        cut,
        replica,
        clean,
    } = state;
    let mut records = vec![Record::Base {
        group,
        purged: *purged,
        start_offset: *start_offset,
        empty_end: *empty_end,
        cut: *cut,
    }];
    let controls = controls.iter();
    records.extend(controls.map(|(index, control)| Record::Control {
        group,
        index: *index,
        control: control.clone(),
    }));
    records.extend(vote.map(|vote| Record::Vote { group, vote }));
    records.push(Record::Marks {
        group,
        marks: *marks,
    });
    records.extend(replica.map(|replica| Record::Replica { group, replica }));
    records.extend(clean.map(|at| Record::CleanStop { group, at }));
    records
}
