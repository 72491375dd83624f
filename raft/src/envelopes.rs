//! Every type of this crate that travels between nodes, or rests on a disk, in an envelope; and every
//! reader of such bytes that does more than to read one envelope.
//!
//! For the corpus and the fuzzers. A test compares [`all`] with what the source declares, so nothing
//! can be left off; a reader of a peer's bytes is put on [`decoders`] by whoever writes it.

use bytes::Bytes;
use imprint_proto::batch::{AdmittedBatch, BatchBuilder, Message, StampedBatch};
use imprint_proto::envelope::{self, Decoder, Kind};
use imprint_proto::limits::BatchLimits;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesRequest, StreamAppendError};

use crate::consensus::codec::{self, AppendMessage, StreamResult};
use crate::consensus::repair::wire as repair;
use crate::consensus::snapshot::{self, Snap};
use crate::consensus::suspect;
use crate::consensus::types::{self, AppRecord, Entry, Vote, decode_membership};
use crate::identity::Identity;
use crate::journal::void::{VoidBody, VoidOutcome};
use crate::journal::{LogPos, RepairBatch, RollSettings, damage, digest};
use crate::meta::MetaValue;
use crate::rpc::{hello, liveness};
use crate::statelog::record::{self, Record};
use crate::statelog::types as state;

/// Every type.
pub fn all() -> Vec<Kind> {
    [messages(), at_rest()].concat()
}

fn messages() -> Vec<Kind> {
    vec![
        Kind::of::<hello::Hello>(),
        Kind::of::<hello::HelloRequest>(),
        Kind::of::<hello::ErrorReply>(),
        Kind::of::<liveness::PingMessage>(),
        Kind::of::<codec::VoteWire>(),
        Kind::of::<codec::LogIdWire>(),
        Kind::of::<codec::EntryWire>(),
        Kind::of::<codec::AppendMessage>(),
        Kind::of::<codec::AppendReply>(),
        Kind::of::<codec::VoteMessage>(),
        Kind::of::<codec::VoteReply>(),
        Kind::of::<codec::TransferMessage>(),
        Kind::of::<codec::SnapshotMessage>(),
        Kind::of::<codec::QuiesceMessage>(),
        Kind::of::<codec::QuiesceItem>(),
        Kind::of::<codec::QuiesceReply>(),
        Kind::of::<codec::GroupStateMessage>(),
        Kind::of::<codec::GroupStateReply>(),
        Kind::of::<repair::ReadLogMessage>(),
        Kind::of::<repair::PieceWire>(),
        Kind::of::<repair::ReadLogReply>(),
        Kind::of::<repair::DigestsMessage>(),
        Kind::of::<repair::DigestWire>(),
        Kind::of::<repair::DigestsReply>(),
    ]
}

fn at_rest() -> Vec<Kind> {
    vec![
        Kind::of::<types::MembershipRecord>(),
        Kind::of::<types::MemberRecord>(),
        Kind::of::<snapshot::SnapshotRecord>(),
        Kind::of::<snapshot::SnapshotBody>(),
        Kind::of::<suspect::SuspectRecord>(),
        Kind::of::<suspect::SuspectTail>(),
        Kind::of::<Identity>(),
        Kind::of::<VoidBody>(),
        Kind::of::<damage::RangeRecord>(),
        Kind::of::<damage::DamageRecord>(),
        Kind::of::<digest::SealedDigest>(),
        Kind::of::<MetaValue>(),
        Kind::of::<record::StateRecord>(),
        Kind::of::<record::Numbers>(),
        Kind::of::<record::ControlBody>(),
        Kind::of::<state::RollBody>(),
    ]
}

/// The group of the batches in the seeds.
const GROUP: u64 = 3;

/// Every reader.
pub fn decoders() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "AppendEntries",
            read: |bytes| {
                let message = envelope::decode::<AppendMessage>(bytes);
                message.is_ok_and(|message| codec::append_request(message).is_ok())
            },
            seeds: append_seeds,
        },
        Decoder {
            name: "the answer to AppendEntries",
            read: |bytes| codec::decode_append_reply(bytes).is_ok(),
            seeds: append_reply_seeds,
        },
        Decoder {
            name: "the answer to RequestVote",
            read: |bytes| codec::decode_vote_reply(bytes).is_ok(),
            seeds: || vec![specimen::<codec::VoteReply>()],
        },
        Decoder {
            name: "batches for a repair",
            read: |bytes| repair::decode_pieces(GROUP, bytes).is_ok(),
            seeds: repair_seeds,
        },
        Decoder {
            name: "a membership",
            read: |bytes| decode_membership(bytes).is_ok(),
            seeds: || {
                vec![
                    membership_bytes(),
                    types::encode_membership(&Default::default()),
                ]
            },
        },
        Decoder {
            name: "a snapshot",
            read: |bytes| Snap::from_file(bytes).is_ok(),
            seeds: || vec![snap().file_bytes()],
        },
        Decoder {
            name: "where a leader's log begins",
            read: |bytes| snapshot::start_cut(bytes).is_ok(),
            seeds: || {
                let machine = Bytes::new();
                vec![Snap { machine, ..snap() }.file_bytes()]
            },
        },
        Decoder {
            name: "a record of the state log",
            read: |bytes| record::decode(bytes).is_ok(),
            seeds: record_seeds,
        },
        Decoder {
            name: "the outcome of a void entry",
            read: |bytes| VoidOutcome::decode(bytes).is_ok(),
            seeds: || vec![void().encode(), VoidOutcome::Other { kind: 9 }.encode()],
        },
        Decoder {
            name: "the settings of an entry",
            read: |bytes| RollSettings::decode(bytes).is_ok(),
            seeds: || vec![ROLL.encode()],
        },
    ]
}

fn specimen<T: envelope::Envelope>() -> Bytes {
    (Kind::of::<T>().specimen)(envelope::Shape::Full, T::VERSION)
}

const ROLL: RollSettings = RollSettings {
    segment_bytes: 1 << 20,
    segment_span_us: Some(7),
};

fn void() -> VoidOutcome {
    VoidOutcome::OffsetOverflow {
        next: 9,
        message_count: 3,
    }
}

/// A batch of two messages, stamped.
fn batch() -> Option<StampedBatch> {
    let limits = BatchLimits::default();
    let mut builder = BatchBuilder::new(limits);
    for payload in [&b"one"[..], b"two"] {
        let message = Message {
            id: 1,
            origin_timestamp_us: 2,
            payload,
            headers: &[],
        };
        builder.push(message).ok()?;
    }
    let built = builder.build().ok()?.into_bytes();
    let admitted = AdmittedBatch::admit(built, GROUP, &limits).ok()?;
    admitted.stamp(41, 42).ok()
}

fn membership_bytes() -> Bytes {
    let members = (1..=3).map(|id| {
        let record = types::MemberRecord {
            node_id: id,
            address: format!("node-{id}:1"),
        };
        (id, record)
    });
    envelope::encode(&types::MembershipRecord {
        configs: vec![vec![1, 2], vec![2, 3]],
        nodes: members.collect(),
    })
}

fn pos(index: u64) -> LogPos {
    LogPos { term: 5, index }
}

fn vote() -> Vote {
    let wire = codec::VoteWire {
        term: 5,
        candidate: 2,
        committed: true,
    };
    wire.vote()
}

/// One entry of each kind.
fn entries() -> Vec<Entry> {
    let normal = |record| Some(EntryPayload::Normal(record));
    let payloads = [
        Some(EntryPayload::Blank),
        decode_membership(membership_bytes())
            .ok()
            .map(EntryPayload::Membership),
        batch().and_then(|batch| normal(AppRecord::Stamped(batch))),
        normal(AppRecord::Void(void().encode())),
        normal(AppRecord::Trim { upto: 7 }),
        normal(AppRecord::Settings(ROLL)),
    ];
    let numbered = (1..).zip(payloads.into_iter().flatten());
    numbered
        .map(|(index, payload)| Entry::new(types::log_id(pos(index)), payload))
        .collect()
}

fn append_seeds() -> Vec<Bytes> {
    let message = |entries: Vec<Entry>| {
        let first = entries.first().map_or(1, |entry| entry.log_id.index);
        let request = AppendEntriesRequest {
            vote: vote(),
            prev_log_id: Some(types::log_id(pos(first - 1))),
            leader_commit: None,
            entries,
        };
        let parts = codec::encode_append(GROUP, 1, &request);
        parts.map(|parts| Bytes::from(parts.concat())).ok()
    };
    let mut seeds: Vec<Bytes> = message(entries()).into_iter().collect();
    seeds.extend(
        entries()
            .into_iter()
            .filter_map(|entry| message(vec![entry])),
    );
    seeds
}

fn append_reply_seeds() -> Vec<Bytes> {
    let results: [StreamResult; 3] = [
        Ok(Some(types::log_id(pos(4)))),
        Err(StreamAppendError::Conflict(types::log_id(pos(3)))),
        Err(StreamAppendError::HigherVote(vote())),
    ];
    results.iter().map(codec::encode_append_reply).collect()
}

fn repair_seeds() -> Vec<Bytes> {
    let batch = batch().into_iter();
    let pieces: Vec<RepairBatch> = batch
        .map(|batch| RepairBatch {
            pos: pos(3),
            segment_base: 0,
            batch,
        })
        .collect();
    let parts = repair::encode_pieces(0, 43, true, &pieces);
    vec![parts.concat().into()]
}

fn snap() -> Snap {
    Snap {
        last: types::log_id(pos(9)),
        membership: Default::default(),
        next_offset: 4,
        last_stamp_us: 5,
        settings: Some((pos(2), ROLL)),
        machine: Bytes::from_static(b"state"),
    }
}

fn record_seeds() -> Vec<Bytes> {
    let cut = state::PendingCut {
        offset: 4,
        whole: true,
    };
    let kept = state::GroupState {
        vote: Some(state::VoteRecord {
            term: 5,
            voted_for: Some(2),
            committed: false,
        }),
        controls: controls(),
        purged: Some(pos(1)),
        start_offset: 3,
        empty_end: 4,
        marks: state::Marks {
            synced_offset: 9,
            committed: Some(pos(8)),
        },
        cut: Some(cut),
        replica: Some(1),
        clean: Some(state::CleanStop {
            segment: 0,
            len: 9,
            next_offset: 9,
        }),
    };
    let mut records = record::records_of(GROUP, &kept);
    let purged = kept.purged;
    let (group, from_index) = (GROUP, 2);
    records.extend([
        Record::Head { generation: 3 },
        Record::Flush { synced_len: 9 },
        Record::CutBegin {
            group,
            from_index,
            cut,
            purged,
        },
        Record::CutDone { group },
        Record::Purged { group, pos: pos(1) },
        Record::Start {
            group,
            start_offset: 3,
        },
        Record::ControlsDropped { group, below: 2 },
        Record::Opened,
        Record::Dropped { group },
    ]);
    records.iter().map(payload_of).collect()
}

/// A record without its frame.
fn payload_of(record: &Record) -> Bytes {
    let mut framed = bytes::BytesMut::new();
    record::encode_into(record, &mut framed);
    framed.freeze().slice(record::FRAME_OVERHEAD..)
}

fn controls() -> std::collections::BTreeMap<u64, state::Control> {
    let kinds = [
        state::ControlKind::Blank,
        state::ControlKind::Membership(membership_bytes()),
        state::ControlKind::Trim { upto: 7 },
        state::ControlKind::Void(void().encode()),
        state::ControlKind::Settings(ROLL),
    ];
    let controls = kinds.into_iter().map(|kind| state::Control {
        term: 5,
        offset: 2,
        kind,
    });
    (1..).zip(controls).collect()
}
