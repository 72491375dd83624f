//! Commands to the controller and its answers, as bytes.
//!
//! A command is a checksummed envelope with a kind and a body; the kinds are pinned numbers. It
//! travels as the payload of one frame in a batch, so the controller's log has the same layout as
//! any other. A kind or body that this version can't read is answered with `Unknown` and changes
//! nothing; features keep it from being written while such a version is a member.

use super::records::{NodeRecord, TopicRecord};
use bytes::Bytes;
use imprint_proto::{
    batch::{AdmittedBatch, BatchBuilder, Message},
    envelope,
    limits::BatchLimits,
};
use std::collections::BTreeMap;

/// Something that changes the controller's state.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Adds a node or brings its record up to date.
    RegisterNode(NodeRecord),
    CreateTopic(CreateTopic),
    DeleteTopic {
        name: String,
    },
    UpdateTopic(UpdateTopic),
}

envelope! {
    /// Creates a topic with all its partitions.
    #[derive(Debug, Clone, PartialEq)]
    pub struct CreateTopic: version 0, compat 0 {
        name: String,
        partitions: u32,
        /// 0: three, or as many as there are nodes if fewer.
        replication: u32,
        settings: BTreeMap<String, String>,
        token: [u8; 16],
    }
}

envelope! {
    /// Changes a topic's settings, all or nothing.
    #[derive(Debug, Clone, PartialEq)]
    pub struct UpdateTopic: version 0, compat 0 {
        name: String,
        set: BTreeMap<String, String>,
        /// Back to the default.
        unset: Vec<String>,
    }
}

envelope! {
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct Text: version 0, compat 0 { text: String, }
}

envelope! {
    /// Kind and body of a command.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct CommandRecord: version 0, compat 0 {
        kind: u32,
        body: Bytes,
    }
}

mod kind {
    pub const REGISTER_NODE: u32 = 1;
    pub const CREATE_TOPIC: u32 = 2;
    pub const DELETE_TOPIC: u32 = 3;
    pub const UPDATE_TOPIC: u32 = 4;
}

/// A command that can't be read or written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommandError {
    #[error("a command of kind {0} is not known to this version")]
    Kind(u32),
    #[error("a command can't be read: {0}")]
    Envelope(#[from] imprint_proto::envelope::EnvelopeError),
    #[error("a command doesn't fit a batch: {0}")]
    Batch(String),
}

impl Command {
    pub fn encode(&self) -> Bytes {
        let (kind, body) = match self {
            Self::RegisterNode(node) => (kind::REGISTER_NODE, envelope::encode(node)),
            Self::CreateTopic(create) => (kind::CREATE_TOPIC, envelope::encode(create)),
            Self::DeleteTopic { name } => {
                let text = Text { text: name.clone() };
                (kind::DELETE_TOPIC, envelope::encode(&text))
            }
            Self::UpdateTopic(update) => (kind::UPDATE_TOPIC, envelope::encode(update)),
        };
        envelope::encode_checked(&CommandRecord { kind, body })
    }

    pub fn decode(bytes: Bytes) -> Result<Self, CommandError> {
        let record: CommandRecord = envelope::decode_checked(bytes)?;
        Ok(match record.kind {
            kind::REGISTER_NODE => Self::RegisterNode(envelope::decode(record.body)?),
            kind::CREATE_TOPIC => Self::CreateTopic(envelope::decode(record.body)?),
            kind::DELETE_TOPIC => Self::DeleteTopic {
                name: envelope::decode::<Text>(record.body)?.text,
            },
            kind::UPDATE_TOPIC => Self::UpdateTopic(envelope::decode(record.body)?),
            other => return Err(CommandError::Kind(other)),
        })
    }
}

/// A batch for group 0 with this one command. `timestamp_us` is the proposer's time, for people.
pub fn batch_for(command: Bytes, timestamp_us: u64) -> Result<AdmittedBatch, CommandError> {
    let limits = BatchLimits::default();
    let failed = |error: &dyn std::fmt::Display| CommandError::Batch(error.to_string());
    let mut builder = BatchBuilder::new(limits);
    let message = Message {
        id: 0,
        origin_timestamp_us: timestamp_us,
        payload: &command,
        headers: &[],
    };
    builder.push(message).map_err(|e| failed(&e))?;
    let batch = builder.build().map_err(|e| failed(&e))?;
    AdmittedBatch::admit(batch.into_bytes(), 0, &limits).map_err(|(e, _)| failed(&e))
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Done, or found done.
    Done,
    AlreadyExists,
    NotFound,
    /// Something in the command can't be accepted; the answer names the field.
    Invalid,
    /// More nodes are needed.
    NotEnoughNodes,
    /// The command can't be read by this version.
    Unknown,
}

const VERDICTS: &[(Verdict, u32)] = &[
    (Verdict::Done, 0),
    (Verdict::AlreadyExists, 1),
    (Verdict::NotFound, 2),
    (Verdict::Invalid, 3),
    (Verdict::NotEnoughNodes, 4),
    (Verdict::Unknown, 5),
];

/// What the proposer hears.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub verdict: Verdict,
    /// The field that is wrong, if it's about one.
    pub field: String,
    /// For people; empty when done.
    pub reason: String,
    /// The topic created, updated or deleted.
    pub topic: Option<TopicRecord>,
}

envelope! {
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct AnswerRecord: version 0, compat 0 {
        verdict: u32,
        field: String,
        reason: String,
        topic: Option<TopicRecord>,
    }
}

impl Answer {
    pub fn done() -> Self {
        Self::refused(Verdict::Done, "")
    }

    pub fn topic(topic: TopicRecord) -> Self {
        Self {
            topic: Some(topic),
            ..Self::done()
        }
    }

    pub fn refused(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self {
            verdict,
            field: String::new(),
            reason: reason.into(),
            topic: None,
        }
    }

    pub fn topic_not_found(name: &str) -> Self {
        Self::refused(Verdict::NotFound, format!("there is no topic {name:?}"))
    }

    pub fn invalid(refusal: super::settings::Refusal) -> Self {
        Self {
            field: refusal.field,
            ..Self::refused(Verdict::Invalid, refusal.problem)
        }
    }

    pub fn encode(&self) -> Bytes {
        let verdict = VERDICTS
            .iter()
            .find(|(verdict, _)| *verdict == self.verdict)
            .map_or(u32::MAX, |(_, number)| *number);
        envelope::encode(&AnswerRecord {
            verdict,
            field: self.field.clone(),
            reason: self.reason.clone(),
            topic: self.topic.clone(),
        })
    }

    pub fn decode(bytes: Bytes) -> Result<Self, CommandError> {
        let record: AnswerRecord = envelope::decode(bytes)?;
        let verdict = VERDICTS
            .iter()
            .find(|(_, number)| *number == record.verdict)
            .map_or(Verdict::Unknown, |(verdict, _)| *verdict);
        Ok(Self {
            verdict,
            field: record.field,
            reason: record.reason,
            topic: record.topic,
        })
    }
}
