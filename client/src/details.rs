//! Reads what a server says about an error beyond its code: the `google.rpc.Status` in the
//! `grpc-status-details-bin` trailer, and the `imprint-*` metadata that repeats the essentials.
//!
//! Both are optional and neither is trusted to be well-formed: what does not decode is left out, the
//! code and message stay.

use prost::Message;
use std::collections::HashMap;
use std::time::Duration;
use tonic::metadata::MetadataMap;

/// The domain of Imprint's own reasons in `google.rpc.ErrorInfo`.
pub const ERROR_DOMAIN: &str = "imprint";

/// One argument that the server refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldViolation {
    /// Path of the field in the request.
    pub field: String,
    /// What is wrong with it.
    pub description: String,
}

/// The leader that a server pointed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderHint {
    /// Its node id, 0 if unsaid.
    pub node_id: u64,
    /// Its client address, `host:port`; empty if unsaid.
    pub address: String,
}

/// Everything found beside the code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Details {
    pub reason: Option<String>,
    pub leader: Option<LeaderHint>,
    /// Start (first kept) and end (first unwritten) offset.
    pub offsets: Option<(u64, u64)>,
    pub violations: Vec<FieldViolation>,
    pub retry_after: Option<Duration>,
}

impl Details {
    pub fn of(status: &tonic::Status) -> Details {
        let mut details = Details::from_trailer(status.details());
        details.add_metadata(status.metadata());
        details
    }

    fn from_trailer(bytes: &[u8]) -> Details {
        let mut details = Details::default();
        let Ok(status) = RpcStatus::decode(bytes) else {
            return details;
        };
        for any in status.details {
            match any.type_url.rsplit('/').next().unwrap_or_default() {
                "google.rpc.ErrorInfo" => details.add_error_info(&any.value),
                "google.rpc.RetryInfo" => details.add_retry_info(&any.value),
                "google.rpc.BadRequest" => details.add_bad_request(&any.value),
                _ => {}
            }
        }
        details
    }

    fn add_error_info(&mut self, value: &[u8]) {
        if let Ok(info) = ErrorInfo::decode(value)
            && info.domain == ERROR_DOMAIN
            && !info.reason.is_empty()
        {
            self.reason = Some(info.reason);
        }
    }

    fn add_retry_info(&mut self, value: &[u8]) {
        self.retry_after = RetryInfo::decode(value)
            .ok()
            .and_then(|info| info.retry_delay)
            .and_then(|delay| {
                let (seconds, nanos) = (
                    u64::try_from(delay.seconds).ok()?,
                    u32::try_from(delay.nanos).ok()?,
                );
                Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos.into()))
            });
    }

    fn add_bad_request(&mut self, value: &[u8]) {
        let Ok(bad) = BadRequest::decode(value) else {
            return;
        };
        self.violations
            .extend(bad.field_violations.into_iter().map(|one| FieldViolation {
                field: one.field,
                description: one.description,
            }));
    }

    fn add_metadata(&mut self, metadata: &MetadataMap) {
        let text = |key: &str| metadata.get(key).and_then(|value| value.to_str().ok());
        let number = |key: &str| text(key).and_then(|value| value.parse::<u64>().ok());
        if self.reason.is_none() {
            self.reason = text("imprint-reason").map(str::to_owned);
        }
        let (node, address) = (
            number("imprint-leader-node"),
            text("imprint-leader-address"),
        );
        if node.is_some() || address.is_some() {
            self.leader = Some(LeaderHint {
                node_id: node.unwrap_or(0),
                address: address.unwrap_or_default().to_owned(),
            });
        }
        if let (Some(start), Some(end)) =
            (number("imprint-start-offset"), number("imprint-end-offset"))
        {
            self.offsets = Some((start, end));
        }
    }
}

/// `google.rpc.Status`. Only the fields that are read, with their numbers.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<AnyMessage>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyMessage {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ErrorInfo {
    #[prost(string, tag = "1")]
    pub reason: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(map = "string, string", tag = "3")]
    pub metadata: HashMap<String, String>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub retry_delay: Option<DurationMessage>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DurationMessage {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.rpc.BadRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BadRequest {
    #[prost(message, repeated, tag = "1")]
    pub field_violations: Vec<FieldViolationMessage>,
}

/// `google.rpc.BadRequest.FieldViolation`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldViolationMessage {
    #[prost(string, tag = "1")]
    pub field: String,
    #[prost(string, tag = "2")]
    pub description: String,
}
