//! Messages as text, for people with a gRPC command line. The same way as `Send` and `Poll`.

use super::{Core, batch_limits};
use crate::{
    failure::{Failure, Reason},
    forward::CallContext,
};
use bytes::Bytes;
use imprint_proto::{
    batch::{
        BatchBuilder, BuildError, FrameView, Message, StampedBatch, split_batches,
        user_headers::{HeaderValue, UserHeader},
    },
    v1,
};
use std::collections::HashMap;

/// Messages in an answer when the caller doesn't say.
const DEFAULT_MAX_MESSAGES: u32 = 100;

impl Core {
    /// Appends messages given as text, as one batch.
    pub async fn send_text(
        &self,
        request: v1::SendTextRequest,
        context: &CallContext,
    ) -> Result<v1::SendResponse, Failure> {
        let batch = self.build(&request.messages)?;
        let request = v1::SendRequest {
            topic: request.topic,
            partition: request.partition,
            batch,
            expected_offset: None,
        };
        self.send(request, context).await
    }

    fn build(&self, messages: &[v1::TextMessage]) -> Result<Bytes, Failure> {
        let mut builder = BatchBuilder::new(batch_limits(self.limits()));
        let now = self.parts.clock.now_micros();
        for message in messages {
            let mut id = [0; 16];
            self.parts.entropy.fill(&mut id);
            let mut headers: Vec<UserHeader<'_>> = message
                .headers
                .iter()
                .map(|(key, value)| UserHeader::text(key, value))
                .collect();
            headers.sort_by_key(|header| match header.key {
                HeaderValue::String(key) => key,
                _ => "",
            });
            let message = Message {
                id: u128::from_le_bytes(id),
                origin_timestamp_us: now,
                payload: message.text.as_bytes(),
                headers: &headers,
            };
            builder.push(message).map_err(|e| build_failure(&e))?;
        }
        let batch = builder.build().map_err(|e| build_failure(&e))?;
        Ok(batch.into_bytes())
    }

    /// Reads messages as text.
    pub async fn poll_text(
        &self,
        request: v1::PollTextRequest,
        context: &CallContext,
    ) -> Result<v1::PollTextResponse, Failure> {
        let poll = v1::PollRequest {
            topic: request.topic,
            partition: request.partition,
            position: request.position,
            max_wait_ms: request.max_wait_ms,
            ..v1::PollRequest::default()
        };
        let answer = self.poll(poll, context).await?;
        let wanted = match request.max_messages {
            0 => DEFAULT_MAX_MESSAGES,
            given => given,
        };
        let mut records = Vec::new();
        let mut next_offset = answer.next_offset;
        for batch in split_batches(answer.batches) {
            let corrupt = |error: &dyn std::fmt::Display| {
                Failure::new(
                    Reason::Corrupt,
                    format!("a stored batch can't be read: {error}"),
                )
            };
            let batch = batch.map_err(|e| corrupt(&e))?;
            let batch = StampedBatch::from_contiguous(batch).map_err(|e| corrupt(&e))?;
            for frame in batch.frames() {
                let offset = frame.offset(batch.base_offset());
                if offset < answer.position_offset {
                    continue;
                }
                if records.len() >= wanted as usize {
                    next_offset = next_offset.min(offset);
                    break;
                }
                records.push(record(&frame, offset, batch.base_timestamp()));
            }
        }
        Ok(v1::PollTextResponse {
            records,
            next_offset,
        })
    }
}

fn record(frame: &FrameView<'_>, offset: u64, timestamp_us: u64) -> v1::TextRecord {
    let text = String::from_utf8_lossy(frame.payload);
    v1::TextRecord {
        offset,
        timestamp_us,
        binary: matches!(text, std::borrow::Cow::Owned(_)),
        text: text.into_owned(),
        headers: headers(frame),
    }
}

/// Headers as text; values that are not text are shown as they would be written in a program.
fn headers(frame: &FrameView<'_>) -> HashMap<String, String> {
    frame
        .headers()
        .filter_map(Result::ok)
        .map(|header| {
            let header = header.decoded();
            (show(header.key), show(header.value))
        })
        .collect()
}

fn show(value: HeaderValue<'_>) -> String {
    match value {
        HeaderValue::String(text) => text.to_string(),
        HeaderValue::Raw(bytes) | HeaderValue::Other(_, bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        HeaderValue::Bool(value) => value.to_string(),
        HeaderValue::Int8(value) => value.to_string(),
        HeaderValue::Int16(value) => value.to_string(),
        HeaderValue::Int32(value) => value.to_string(),
        HeaderValue::Int64(value) => value.to_string(),
        HeaderValue::Int128(value) => value.to_string(),
        HeaderValue::Uint8(value) => value.to_string(),
        HeaderValue::Uint16(value) => value.to_string(),
        HeaderValue::Uint32(value) => value.to_string(),
        HeaderValue::Uint64(value) => value.to_string(),
        HeaderValue::Uint128(value) => value.to_string(),
        HeaderValue::Float32(value) => value.to_string(),
        HeaderValue::Float64(value) => value.to_string(),
    }
}

fn build_failure(error: &BuildError) -> Failure {
    let reason = match error {
        BuildError::BatchFull { .. } | BuildError::TooManyMessages { .. } => Reason::BatchTooLarge,
        _ => Reason::InvalidArgument,
    };
    let problem = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    Failure::field(reason, "messages", problem)
}
