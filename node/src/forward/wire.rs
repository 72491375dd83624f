//! The bytes of a forwarded call and of its answer.
//!
//! The body stays a part of its own, after the envelope, so that a batch is not copied into it:
//! a request or reply is `u32 head length | head envelope | body`.

use super::{CallContext, ops::Op};
use crate::failure::{Failure, Reason};
use bytes::{Buf, Bytes};
use imprint_proto::{envelope, ids::NodeId};
use std::time::Duration;
use tokio::time::Instant;

envelope! {
    /// Everything about a forwarded call but its body.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct RequestHead: version 0, compat 0 {
        op: u32,
        listener: String,
        /// Milliseconds left for it.
        timeout_ms: u64,
        hops_left: u8,
    }
}

envelope! {
    /// Everything about the answer but its body.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct ReplyHead: version 0, compat 0 {
        failure: Option<FailureRecord>,
    }
}

envelope! {
    /// A [`Failure`].
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct FailureRecord: version 0, compat 0 {
        reason: u32,
        message: String,
        leader: Option<u64>,
        range_start: Option<u64>,
        range_end: u64,
        retry_after_ms: Option<u64>,
        field: Option<String>,
        problem: String,
        fact_names: Vec<String>,
        fact_values: Vec<String>,
    }
}

/// A forwarded call that can't be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    #[error("the message ends within its head")]
    Short,
    #[error("the head can't be read: {0}")]
    Head(#[from] imprint_proto::envelope::EnvelopeError),
}

/// A call for another node.
#[derive(Debug, Clone)]
pub struct ForwardRequest {
    /// `None`: an operation that this version doesn't know.
    pub op: Option<Op>,
    pub context: CallContext,
    pub body: Bytes,
}

pub(crate) fn join(head: Bytes, body: Bytes) -> Vec<Bytes> {
    let length = u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes();
    vec![Bytes::copy_from_slice(&length), head, body]
}

fn split(mut bytes: Bytes) -> Result<(Bytes, Bytes), WireError> {
    if bytes.len() < 4 {
        return Err(WireError::Short);
    }
    let length = bytes.get_u32_le() as usize;
    if bytes.len() < length {
        return Err(WireError::Short);
    }
    let head = bytes.split_to(length);
    Ok((head, bytes))
}

/// Parts of a request; one hop fewer than `context` had.
pub fn encode_request(op: Op, context: &CallContext, body: Bytes) -> Vec<Bytes> {
    let head = RequestHead {
        op: op.number(),
        listener: context.listener.clone(),
        timeout_ms: u64::try_from(context.left().as_millis()).unwrap_or(u64::MAX),
        hops_left: context.hops_left.saturating_sub(1),
    };
    join(envelope::encode(&head), body)
}

impl ForwardRequest {
    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let (head, body) = split(bytes)?;
        let head: RequestHead = envelope::decode(head)?;
        let timeout = Duration::from_millis(head.timeout_ms.min(MAX_TIMEOUT_MS));
        Ok(Self {
            op: Op::from_number(head.op),
            context: CallContext {
                listener: head.listener,
                deadline: Instant::now() + timeout,
                hops_left: head.hops_left.min(super::MAX_HOPS),
            },
            body,
        })
    }
}

/// An hour: more than any deadline or wait that configuration allows.
const MAX_TIMEOUT_MS: u64 = 3_600_000;

/// What came of a forwarded call.
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardReply(pub Result<Bytes, Failure>);

impl ForwardReply {
    pub fn encode(self) -> Vec<Bytes> {
        let (failure, body) = match self.0 {
            Ok(body) => (None, body),
            Err(failure) => (Some(to_record(failure)), Bytes::new()),
        };
        join(envelope::encode(&ReplyHead { failure }), body)
    }

    pub fn decode(bytes: Bytes) -> Result<Self, WireError> {
        let (head, body) = split(bytes)?;
        let head: ReplyHead = envelope::decode(head)?;
        Ok(Self(match head.failure {
            None => Ok(body),
            Some(record) => Err(from_record(record)),
        }))
    }
}

fn to_record(failure: Failure) -> FailureRecord {
    let (field, problem) = failure.field.map(|field| *field).unzip();
    let (fact_names, fact_values) = failure.facts.into_iter().unzip();
    FailureRecord {
        reason: failure.reason.number(),
        message: failure.message,
        leader: failure.leader.map(|node| node.0),
        range_start: failure.range.map(|(start, _)| start),
        range_end: failure.range.map_or(0, |(_, end)| end),
        retry_after_ms: failure
            .retry_after
            .map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
        field,
        problem: problem.unwrap_or_default(),
        fact_names,
        fact_values,
    }
}

fn from_record(record: FailureRecord) -> Failure {
    let reason = Reason::from_number(record.reason);
    Failure {
        reason,
        message: record.message,
        leader: record.leader.map(NodeId),
        range: record.range_start.map(|start| (start, record.range_end)),
        retry_after: record.retry_after_ms.map(Duration::from_millis),
        field: record.field.map(|field| Box::new((field, record.problem))),
        facts: record
            .fact_names
            .into_iter()
            .zip(record.fact_values)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(parts: Vec<Bytes>) -> Bytes {
        parts.concat().into()
    }

    #[test]
    fn a_request_loses_one_hop() {
        let context = CallContext::new("host", Duration::from_secs(3));
        let body = Bytes::from_static(b"body");
        let bytes = whole(encode_request(Op::Send, &context, body.clone()));
        let read = ForwardRequest::decode(bytes).expect("request");
        assert_eq!((read.op, read.body), (Some(Op::Send), body));
        assert_eq!(read.context.listener, "host");
        assert_eq!(read.context.hops_left, super::super::MAX_HOPS - 1);
        assert!(read.context.left() <= Duration::from_secs(3));
    }

    #[test]
    fn a_failure_arrives_as_it_was() {
        let mut failure = Failure::field(Reason::InvalidArgument, "name", "is bad")
            .with_leader(Some(NodeId(3)))
            .with_range(4, 9)
            .with_fact("topic", "t");
        failure.retry_after = Some(Duration::from_millis(250));
        let reply = ForwardReply(Err(failure));
        let read = ForwardReply::decode(whole(reply.clone().encode()));
        assert_eq!(read, Ok(reply));
        let reply = ForwardReply(Ok(Bytes::from_static(b"x")));
        assert_eq!(
            ForwardReply::decode(whole(reply.clone().encode())),
            Ok(reply)
        );
    }

    #[test]
    fn every_cut_is_refused_or_shortens_the_body() {
        let bytes = whole(ForwardReply(Err(Failure::no_leader("x"))).encode());
        for cut in 0..bytes.len() {
            assert!(ForwardReply::decode(bytes.slice(..cut)).is_err(), "{cut}");
        }
    }
}
