//! The one error of a call, and what may be done about it.
//!
//! Why three outcomes? Whether a write happened is the first thing a caller needs to know. `NotSent`
//! and `Refused` say that it did not; `Unknown` says that nobody here can tell: the request left and
//! no answer came. Unknown is never turned into either of the others by a retry: a call that had one
//! unknown attempt stays unknown unless a later attempt succeeded.

use crate::details::{Details, FieldViolation, LeaderHint};
use std::fmt;
use std::time::Duration;
use tonic::{Code, ConnectError, Status, TimeoutExpired};

/// Whether the server can have acted on the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No attempt reached a server.
    NotSent,
    /// A server answered that it did not do it.
    Refused,
    /// At least one attempt was sent and not answered.
    Unknown,
}

/// Why a call failed. Cheap to move and to clone.
#[derive(Clone)]
pub struct ClientError(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    code: Code,
    message: String,
    outcome: Outcome,
    server: String,
    attempts: u32,
    /// Made on this side; no server said it.
    made_here: bool,
    details: Details,
}

/// Reason given when no server could be reached.
pub const UNREACHABLE: &str = "UNREACHABLE";
/// Reason given when a connection broke while a call was under way.
pub const CONNECTION_LOST: &str = "CONNECTION_LOST";
/// Reason given when the time for an attempt was over before an answer came. A server that answers in
/// time says `DEADLINE_EXCEEDED` (nothing was done) or `OUTCOME_UNKNOWN` instead.
pub const NO_ANSWER: &str = "NO_ANSWER";

impl ClientError {
    /// Makes sense of a failed attempt at `server`.
    pub(crate) fn from_status(status: &Status, server: &str) -> ClientError {
        // A status that was made on this side carries the transport's error as its source; one that
        // came from the server has none.
        match std::error::Error::source(status) {
            Some(source) if is_connect_error(source) => ClientError::local(
                Code::Unavailable,
                UNREACHABLE,
                root_message(source),
                Outcome::NotSent,
                server,
            ),
            Some(source) if chain(source).any(|error| error.is::<TimeoutExpired>()) => {
                ClientError::timed_out(server)
            }
            Some(source) => ClientError::local(
                Code::Unavailable,
                CONNECTION_LOST,
                root_message(source),
                Outcome::Unknown,
                server,
            ),
            None => ClientError::from_server(status, server),
        }
    }

    fn from_server(status: &Status, server: &str) -> ClientError {
        let details = Details::of(status);
        let outcome = outcome_of(status.code(), details.reason.as_deref());
        ClientError(Box::new(Inner {
            code: status.code(),
            message: status.message().to_owned(),
            outcome,
            server: server.to_owned(),
            attempts: 1,
            made_here: false,
            details,
        }))
    }

    /// An error that this side found by itself.
    pub(crate) fn local(
        code: Code,
        reason: &str,
        message: String,
        outcome: Outcome,
        server: &str,
    ) -> ClientError {
        ClientError(Box::new(Inner {
            code,
            message,
            outcome,
            server: server.to_owned(),
            attempts: 1,
            made_here: true,
            details: Details {
                reason: Some(reason.to_owned()),
                ..Details::default()
            },
        }))
    }

    /// An attempt at `server` that was given up when its time was over.
    pub(crate) fn timed_out(server: &str) -> ClientError {
        ClientError::local(
            Code::DeadlineExceeded,
            NO_ANSWER,
            "no answer in time".to_owned(),
            Outcome::Unknown,
            server,
        )
    }

    /// The same error as the end of a call that took `attempts`, one of which may have been lost.
    pub(crate) fn after(mut self, attempts: u32, any_unknown: bool) -> ClientError {
        self.0.attempts = attempts;
        if any_unknown {
            self.0.outcome = Outcome::Unknown;
        }
        self
    }

    /// The canonical gRPC code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The stable reason, a word in capitals; see `docs/errors.md`.
    pub fn reason(&self) -> Option<&str> {
        self.0.details.reason.as_deref()
    }

    /// What happened, for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the request can have taken effect.
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// The server of the last attempt, `host:port`; empty if there was none.
    pub fn server(&self) -> &str {
        &self.0.server
    }

    /// How often it was tried.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Where the server said the leader is.
    pub fn leader(&self) -> Option<&LeaderHint> {
        self.0.details.leader.as_ref()
    }

    /// Start (first kept) and end (first unwritten) offset of the log, when a position was outside it.
    pub fn offsets(&self) -> Option<(u64, u64)> {
        self.0.details.offsets
    }

    /// The arguments that were refused.
    pub fn violations(&self) -> &[FieldViolation] {
        &self.0.details.violations
    }

    /// How long the server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.details.retry_after
    }

    /// Whether the server was not there or went silent, rather than answering.
    pub(crate) fn is_silence(&self) -> bool {
        self.0.made_here
    }

    /// Whether the same call may succeed later, its outcome left aside.
    pub fn is_transient(&self) -> bool {
        match self.code() {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => true,
            // A quota that will free itself says when; one that will not, does not.
            Code::ResourceExhausted => self.retry_after().is_some(),
            Code::Aborted => self.retry_after().is_some(),
            _ => false,
        }
    }
}

/// What a server's refusal says about a write.
///
/// Without a reason the code decides: deadline, cancellation and failures inside the server leave it
/// open. A code that names a refusal is one.
fn outcome_of(code: Code, reason: Option<&str>) -> Outcome {
    match (code, reason) {
        (_, Some("OUTCOME_UNKNOWN")) => Outcome::Unknown,
        (Code::Unavailable, Some(_)) => Outcome::Refused,
        // Said by a server: the time was over before it did anything.
        (Code::DeadlineExceeded, Some("DEADLINE_EXCEEDED")) => Outcome::Refused,
        (
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Internal
            | Code::Unknown
            | Code::DataLoss,
            _,
        ) => Outcome::Unknown,
        _ => Outcome::Refused,
    }
}

fn is_connect_error(source: &(dyn std::error::Error + 'static)) -> bool {
    chain(source).any(|error| error.is::<ConnectError>())
}

fn chain<'a>(
    first: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(first), |error| error.source())
}

/// The innermost message: the outer ones only say that there was a transport error.
fn root_message(source: &(dyn std::error::Error + 'static)) -> String {
    chain(source)
        .last()
        .map_or_else(|| source.to_string(), ToString::to_string)
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.message().is_empty() {
            self.code().description()
        } else {
            self.message()
        })?;
        // The message often is the only violation's description already.
        let unsaid = |v: &&FieldViolation| !self.message().contains(&*v.description);
        for violation in self.violations().iter().filter(unsaid) {
            write!(f, "; {}: {}", violation.field, violation.description)?;
        }
        if let Some((start, end)) = self.offsets() {
            write!(f, "; the log holds offsets {start}..{end}")?;
        }
        if self.attempts() > 1 {
            write!(f, "; after {} attempts", self.attempts())?;
        }
        Ok(())
    }
}

impl fmt::Debug for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for ClientError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::details::{
        AnyMessage, BadRequest, DurationMessage, ErrorInfo, FieldViolationMessage, RetryInfo,
        RpcStatus,
    };
    use prost::Message as _;
    use tonic::metadata::MetadataMap;

    fn any(name: &str, message: &impl prost::Message) -> AnyMessage {
        AnyMessage {
            type_url: format!("type.googleapis.com/google.rpc.{name}"),
            value: message.encode_to_vec(),
        }
    }

    fn detailed(code: Code, details: Vec<AnyMessage>) -> Status {
        let body = RpcStatus {
            code: code as i32,
            message: String::new(),
            details,
        };
        Status::with_details(code, "said", body.encode_to_vec().into())
    }

    #[test]
    fn reads_reason_delay_and_violations_from_the_trailer() {
        let info = ErrorInfo {
            reason: "OVERLOADED".into(),
            domain: crate::details::ERROR_DOMAIN.into(),
            ..ErrorInfo::default()
        };
        let delay = RetryInfo {
            retry_delay: Some(DurationMessage {
                seconds: 1,
                nanos: 500_000_000,
            }),
        };
        let bad = BadRequest {
            field_violations: vec![FieldViolationMessage {
                field: "name".into(),
                description: "too long".into(),
            }],
        };
        let details = vec![
            any("ErrorInfo", &info),
            any("RetryInfo", &delay),
            any("BadRequest", &bad),
        ];
        let error = ClientError::from_status(&detailed(Code::ResourceExhausted, details), "a:1");
        assert_eq!(error.reason(), Some("OVERLOADED"));
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1500)));
        assert_eq!(error.violations()[0].field, "name");
        assert_eq!(error.to_string(), "said; name: too long");
        assert!(error.is_transient());
        assert_eq!(error.outcome(), Outcome::Refused);
    }

    #[test]
    fn reads_leader_and_offsets_from_metadata() {
        let mut metadata = MetadataMap::new();
        let mut set = |key: &'static str, value: &str| {
            metadata.insert(key, value.parse().unwrap());
        };
        set("imprint-reason", "OUT_OF_RANGE");
        set("imprint-leader-node", "3");
        set("imprint-leader-address", "c:7460");
        set("imprint-start-offset", "10");
        set("imprint-end-offset", "20");
        let status = Status::with_metadata(Code::OutOfRange, "outside", metadata);
        let error = ClientError::from_status(&status, "a:1");
        assert_eq!(error.reason(), Some("OUT_OF_RANGE"));
        assert_eq!(error.offsets(), Some((10, 20)));
        let hint = error.leader().unwrap();
        assert_eq!((hint.node_id, hint.address.as_str()), (3, "c:7460"));
    }

    #[test]
    fn a_damaged_trailer_leaves_code_and_message() {
        let status = Status::with_details(Code::NotFound, "no topic", vec![0xff; 9].into());
        let error = ClientError::from_status(&status, "a:1");
        assert_eq!(error.code(), Code::NotFound);
        assert_eq!(error.message(), "no topic");
        assert_eq!(error.reason(), None);
    }

    #[test]
    fn a_bare_deadline_or_internal_error_leaves_the_outcome_open() {
        for code in [
            Code::DeadlineExceeded,
            Code::Internal,
            Code::Unknown,
            Code::Unavailable,
        ] {
            assert_eq!(outcome_of(code, None), Outcome::Unknown, "{code:?}");
        }
        assert_eq!(
            outcome_of(Code::Unavailable, Some("NO_LEADER")),
            Outcome::Refused
        );
        assert_eq!(outcome_of(Code::InvalidArgument, None), Outcome::Refused);
    }
}
