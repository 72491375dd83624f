//! Every type of this crate that travels between nodes, or rests on a disk, in an envelope; and every
//! reader of such bytes that does more than to read one envelope.
//!
//! For the corpus and the fuzzers. A test compares [`all`] with what the source declares, so nothing
//! can be left off; a reader of a peer's bytes is put on [`decoders`] by whoever writes it.

use crate::controller::ControllerMachine;
use crate::controller::command::{self, Answer, Command};
use crate::controller::records;
use crate::failure::{Failure, Reason};
use crate::forward::{ForwardReply, ForwardRequest, ops, wire};
use crate::{formation, room};
use bytes::Bytes;
use imprint_proto::envelope::{self, Decoder, Envelope, Kind, Shape, Specimens};
use imprint_proto::ids::NodeId;

/// Every type.
pub fn all() -> Vec<Kind> {
    vec![
        Kind::of::<formation::FormationRecord>(),
        Kind::of::<formation::FoundingMember>(),
        Kind::of::<formation::WhoIsReply>(),
        Kind::of::<room::RoomNote>(),
        Kind::of::<command::CreateTopic>(),
        Kind::of::<command::UpdateTopic>(),
        Kind::of::<command::Text>(),
        Kind::of::<command::CommandRecord>(),
        Kind::of::<command::AnswerRecord>(),
        Kind::of::<records::NodeRecord>(),
        Kind::of::<records::TopicRecord>(),
        Kind::of::<records::RollRecord>(),
        Kind::of::<records::PartitionRecord>(),
        Kind::of::<records::ReplicaRecord>(),
        Kind::of::<records::StateRecord>(),
        Kind::of::<ops::ReplicaQuery>(),
        Kind::of::<ops::ReplicaState>(),
        Kind::of::<ops::DamageWire>(),
        Kind::of::<ops::ReplicaDetails>(),
        Kind::of::<wire::RequestHead>(),
        Kind::of::<wire::ReplyHead>(),
        Kind::of::<wire::FailureRecord>(),
    ]
}

/// Every reader.
pub fn decoders() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "a command to the controller",
            read: |bytes| Command::decode(bytes).is_ok(),
            seeds: || commands().iter().map(Command::encode).collect(),
        },
        Decoder {
            name: "the controller's answer",
            read: |bytes| Answer::decode(bytes).is_ok(),
            seeds: || vec![Answer::done().encode(), Answer::topic(full()).encode()],
        },
        Decoder {
            name: "the controller's state",
            read: |bytes| ControllerMachine::new().0.restore_state(bytes).is_ok(),
            seeds: || vec![envelope::encode_checked(&full::<records::StateRecord>())],
        },
        Decoder {
            name: "a forwarded call",
            read: |bytes| ForwardRequest::decode(bytes).is_ok(),
            seeds: forwarded,
        },
        Decoder {
            name: "the answer to a forwarded call",
            read: |bytes| ForwardReply::decode(bytes).is_ok(),
            seeds: answers,
        },
    ]
}

fn full<T: Envelope>() -> T {
    T::specimen(&mut Specimens::new(Shape::Full))
}

fn commands() -> [Command; 4] {
    [
        Command::RegisterNode(full()),
        Command::CreateTopic(full()),
        Command::DeleteTopic {
            name: "orders".to_owned(),
        },
        Command::UpdateTopic(full()),
    ]
}

fn forwarded() -> Vec<Bytes> {
    let head = wire::RequestHead {
        op: ops::Op::Send.number(),
        listener: "host".to_owned(),
        timeout_ms: 3000,
        hops_left: 1,
    };
    let parts = wire::join(envelope::encode(&head), Bytes::from_static(b"body"));
    vec![parts.concat().into()]
}

fn answers() -> Vec<Bytes> {
    let failure = Failure::field(Reason::InvalidArgument, "name", "is bad")
        .with_leader(Some(NodeId(3)))
        .with_range(4, 9)
        .with_fact("topic", "t");
    let replies = [
        ForwardReply(Ok(Bytes::from_static(b"body"))),
        ForwardReply(Err(failure)),
    ];
    let parts = replies.into_iter().map(ForwardReply::encode);
    parts.map(|parts| parts.concat().into()).collect()
}
