//! The one error type that callers hear of, and the one place where it becomes a gRPC status.
//!
//! Operations below have their own error enums; at the edge of a service each becomes a [`Failure`]:
//! a stable [`Reason`], a text for people, and the facts that a client can act on. A `Failure` also
//! travels between nodes when a call was forwarded, so that the client hears the same whichever node
//! it asked.

mod details;
mod reason;

pub use reason::{Reason, reference};

use imprint_proto::ids::NodeId;
use std::time::Duration;

/// Domain of every `google.rpc.ErrorInfo`.
pub const DOMAIN: &str = "imprint";

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} [{reason}]")]
pub struct Failure {
    pub reason: Reason,
    pub message: String,
    /// The node that would have done it, where one is known.
    pub leader: Option<NodeId>,
    /// First kept offset and first offset that isn't there.
    pub range: Option<(u64, u64)>,
    /// When trying again makes sense.
    pub retry_after: Option<Duration>,
    /// The request field that is wrong, and how.
    pub field: Option<Box<(String, String)>>,
    /// More facts by name.
    pub facts: Vec<(String, String)>,
}

impl Failure {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            leader: None,
            range: None,
            retry_after: reason.retry_after(),
            field: None,
            facts: Vec::new(),
        }
    }

    /// A request field that can't be accepted.
    pub fn field(reason: Reason, field: &str, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        let mut failure = Self::new(reason, format!("{field}: {problem}"));
        failure.field = Some(Box::new((field.to_string(), problem)));
        failure
    }

    pub fn with_leader(mut self, leader: Option<NodeId>) -> Self {
        self.leader = leader;
        self
    }

    pub fn with_range(mut self, start: u64, end: u64) -> Self {
        self.range = Some((start, end));
        self
    }

    pub fn with_fact(mut self, name: &str, value: impl ToString) -> Self {
        self.facts.push((name.to_string(), value.to_string()));
        self
    }

    pub fn topic_not_found(topic: &str) -> Self {
        Self::new(
            Reason::TopicNotFound,
            format!("there is no topic {topic:?}"),
        )
        .with_fact("topic", topic)
    }

    pub fn partition_not_found(topic: &str, partition: u32, partitions: usize) -> Self {
        Self::new(
            Reason::PartitionNotFound,
            format!(
                "topic {topic:?} has {partitions} partitions; there is no partition {partition}"
            ),
        )
        .with_fact("topic", topic)
        .with_fact("partitions", partitions)
    }

    pub fn no_leader(what: impl std::fmt::Display) -> Self {
        Self::new(
            Reason::NoLeader,
            format!("{what} has no leader that this node knows of"),
        )
    }

    pub fn outcome_unknown(detail: impl std::fmt::Display) -> Self {
        Self::new(
            Reason::OutcomeUnknown,
            format!(
                "the outcome is unknown, the write may have been or may yet be committed: {detail}"
            ),
        )
    }

    pub fn internal(detail: impl std::fmt::Display) -> Self {
        Self::new(Reason::Internal, detail.to_string())
    }

    /// True when nothing can have come of the call, and another try (elsewhere or later) may work.
    pub fn is_safe_to_retry(&self) -> bool {
        self.reason.is_safe_to_retry()
    }

    /// The status that the client gets. `address` gives a node's address on the listener that the
    /// caller came in on.
    pub fn into_status(self, address: impl Fn(NodeId) -> Option<String>) -> tonic::Status {
        details::status(self, address)
    }
}
