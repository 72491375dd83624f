//! From a [`Failure`] to the status on the wire: canonical code, `google.rpc.Status` details, and
//! the essentials again as text metadata for clients that don't decode details.
//!
//! The few messages of `google.rpc` that are needed are declared here; their field numbers are
//! those of the published definitions.

use super::{DOMAIN, Failure};
use bytes::Bytes;
use imprint_proto::ids::NodeId;
use prost::Message;
use std::collections::BTreeMap;
use tonic::metadata::{MetadataMap, MetadataValue};

#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<AnyMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyMessage {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ErrorInfo {
    #[prost(string, tag = "1")]
    pub reason: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub metadata: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub retry_delay: Option<WireDuration>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireDuration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BadRequest {
    #[prost(message, repeated, tag = "1")]
    pub field_violations: Vec<FieldViolation>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FieldViolation {
    #[prost(string, tag = "1")]
    pub field: String,
    #[prost(string, tag = "2")]
    pub description: String,
}

fn any(name: &str, message: &impl Message) -> AnyMessage {
    AnyMessage {
        type_url: format!("type.googleapis.com/google.rpc.{name}"),
        value: message.encode_to_vec().into(),
    }
}

/// Facts by name, as they stand in ErrorInfo and, prefixed, in the metadata.
fn facts(failure: &Failure, leader_address: Option<&str>) -> BTreeMap<String, String> {
    let mut facts: BTreeMap<String, String> = failure.facts.iter().cloned().collect();
    if let Some(leader) = failure.leader {
        facts.insert("leader-node".into(), leader.0.to_string());
    }
    if let Some(address) = leader_address {
        facts.insert("leader-address".into(), address.to_string());
    }
    if let Some((start, end)) = failure.range {
        facts.insert("start-offset".into(), start.to_string());
        facts.insert("end-offset".into(), end.to_string());
    }
    facts
}

/// The facts that are repeated as text metadata.
const IN_METADATA: &[&str] = &[
    "leader-node",
    "leader-address",
    "start-offset",
    "end-offset",
];

fn metadata(reason: &str, facts: &BTreeMap<String, String>) -> MetadataMap {
    let mut map = MetadataMap::new();
    map.insert("imprint-reason", text(reason));
    for name in IN_METADATA {
        let key = tonic::metadata::MetadataKey::from_bytes(format!("imprint-{name}").as_bytes());
        if let (Ok(key), Some(value)) = (key, facts.get(*name)) {
            map.insert(key, text(value));
        }
    }
    map
}

/// Text that a header can't carry becomes empty rather than failing the call.
fn text(value: &str) -> tonic::metadata::MetadataValue<tonic::metadata::Ascii> {
    value
        .parse()
        .unwrap_or_else(|_| MetadataValue::from_static(""))
}

pub(super) fn status(
    failure: Failure,
    address: impl Fn(NodeId) -> Option<String>,
) -> tonic::Status {
    let leader_address = failure.leader.and_then(address);
    let facts = facts(&failure, leader_address.as_deref());
    let metadata = metadata(failure.reason.name(), &facts);
    let mut details = vec![any(
        "ErrorInfo",
        &ErrorInfo {
            reason: failure.reason.name().to_string(),
            domain: DOMAIN.to_string(),
            metadata: facts,
        },
    )];
    if let Some(delay) = failure.retry_after {
        let retry_delay = WireDuration {
            seconds: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(delay.subsec_nanos()).unwrap_or(0),
        };
        let retry_delay = Some(retry_delay);
        details.push(any("RetryInfo", &RetryInfo { retry_delay }));
    }
    if let Some((field, description)) = failure.field.map(|field| *field) {
        let field_violations = vec![FieldViolation { field, description }];
        details.push(any("BadRequest", &BadRequest { field_violations }));
    }
    let code = failure.reason.code();
    let body = RpcStatus {
        code: code as i32,
        message: failure.message.clone(),
        details,
    };
    let body = body.encode_to_vec().into();
    tonic::Status::with_details_and_metadata(code, failure.message, body, metadata)
}

#[cfg(test)]
mod tests {
    use super::super::{Failure, Reason};
    use super::*;
    use tonic::Code;

    fn decode(status: &tonic::Status) -> RpcStatus {
        RpcStatus::decode(status.details()).expect("details")
    }

    #[test]
    fn a_range_is_in_details_and_metadata() {
        let failure = Failure::new(Reason::OffsetOutOfRange, "past the end").with_range(3, 9);
        let status = failure.into_status(|_| None);
        assert_eq!(status.code(), Code::OutOfRange);
        let metadata = status.metadata();
        assert_eq!(
            metadata.get("imprint-reason").expect("reason"),
            "OFFSET_OUT_OF_RANGE"
        );
        assert_eq!(metadata.get("imprint-start-offset").expect("start"), "3");
        assert_eq!(metadata.get("imprint-end-offset").expect("end"), "9");
        let body = decode(&status);
        assert_eq!(body.code, Code::OutOfRange as i32);
        assert_eq!(
            body.details[0].type_url,
            "type.googleapis.com/google.rpc.ErrorInfo"
        );
        let info = ErrorInfo::decode(body.details[0].value.clone()).expect("info");
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            ("OFFSET_OUT_OF_RANGE", "imprint")
        );
        assert_eq!(info.metadata["end-offset"], "9");
    }

    #[test]
    fn a_leader_hint_uses_the_callers_listener() {
        let failure = Failure::no_leader("partition 7").with_leader(Some(NodeId(2)));
        let status = failure.into_status(|node| Some(format!("host-{}:7460", node.0)));
        let metadata = status.metadata();
        assert_eq!(metadata.get("imprint-leader-node").expect("node"), "2");
        assert_eq!(
            metadata.get("imprint-leader-address").expect("address"),
            "host-2:7460"
        );
        let retry = RetryInfo::decode(decode(&status).details[1].value.clone()).expect("retry");
        assert_eq!(retry.retry_delay.expect("delay").nanos, 100_000_000);
    }

    #[test]
    fn a_bad_field_is_named() {
        let failure = Failure::field(
            Reason::InvalidArgument,
            "partitions",
            "0 is not in 1..=1000",
        );
        let status = failure.into_status(|_| None);
        let body = decode(&status);
        let bad = BadRequest::decode(body.details[1].value.clone()).expect("violations");
        assert_eq!(bad.field_violations[0].field, "partitions");
        assert_eq!(status.message(), "partitions: 0 is not in 1..=1000");
    }
}
