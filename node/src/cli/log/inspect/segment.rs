//! A segment, batch by batch.

use super::super::super::exit::CliError;
use super::super::super::time::format_micros;
use super::super::args::InspectArgs;
use super::super::show::{Out, preview, put_bytes};
use super::Subject;
use imprint_proto::batch::{FrameView, StampedBatch};
use imprint_raft::journal::SegmentName;
use imprint_raft::offline::FileKind;
use imprint_raft::offline::segment::{Damage, Piece, SegmentReader, Start};
use serde_json::{Map, Value, json};
use std::io;

/// What was seen so far.
#[derive(Default)]
struct Totals {
    batches: u64,
    messages: u64,
    bytes: u64,
    next_offset: Option<u64>,
    damaged: u64,
    damaged_bytes: u64,
    /// The limit was reached before the end.
    stopped: bool,
}

/// Shows the file; damage is the error that it ends with.
pub fn show(subject: &Subject<'_>, args: &InspectArgs, mut out: Out) -> Result<(), CliError> {
    let name = match subject.kind {
        FileKind::Segment(name) => name,
        _ => None,
    };
    let mut reader =
        SegmentReader::new(subject.file.as_ref(), name, None).map_err(|e| subject.error(e))?;
    heading(&mut out, subject, name, reader.file_len())?;
    let start = match (args.from_offset, args.at_byte) {
        (Some(offset), _) => Start::Offset(offset),
        (None, Some(pos)) => Start::Byte(pos),
        (None, None) => Start::Front,
    };
    reader.start_at(start).map_err(|e| subject.error(e))?;
    let mut totals = Totals::default();
    while let Some(piece) = reader.next_piece().map_err(|e| subject.error(e))? {
        piece_line(&mut out, args, &piece, &mut totals)?;
        let shown = totals.batches + totals.damaged;
        if args.limit.is_some_and(|limit| shown >= limit) {
            totals.stopped = reader.position() < reader.file_len();
            break;
        }
    }
    out.line(|| end_value(&totals), || end_text(&totals))?;
    out.finish()?;
    match totals.damaged {
        0 => Ok(()),
        ranges => Err(subject.fault(format_args!(
            "{ranges} damaged range(s), {} bytes",
            totals.damaged_bytes
        ))),
    }
}

fn heading(
    out: &mut Out,
    subject: &Subject<'_>,
    name: Option<SegmentName>,
    file_bytes: u64,
) -> io::Result<()> {
    let path = subject.path.display().to_string();
    let cut_at = match subject.kind {
        FileKind::SegmentTail { at } => Some(at),
        _ => None,
    };
    let value = || {
        json!({
            "type": "segment",
            "file": path,
            "base_offset": name.map(|name| name.base_offset),
            "first_index": name.map(|name| name.first_index),
            "term": name.map(|name| name.term),
            "cut_at": cut_at,
            "file_bytes": file_bytes,
        })
    };
    out.line(value, || match (name, cut_at) {
        (Some(name), _) => format!(
            "{path}: segment from offset {}, index {}, term {}; {file_bytes} bytes",
            name.base_offset, name.first_index, name.term
        ),
        (None, Some(at)) => {
            format!("{path}: what was cut off a segment at its byte {at}; {file_bytes} bytes")
        }
        (None, None) => {
            format!("{path}: a segment, by its first bytes; {file_bytes} bytes")
        }
    })?;
    out.heading(|| {
        row(&[
            "POSITION", "OFFSETS", "MESSAGES", "BYTES", "PART", "TIME", "ORIGIN", "CHECKS",
        ])
    })
}

/// Columns of fixed widths, since the widest is not known before the end.
fn row(cells: &[&str; 8]) -> String {
    let [
        pos,
        offsets,
        messages,
        bytes,
        partition,
        time,
        origin,
        checks,
    ] = cells;
    format!(
        "{pos:12}  {offsets:22}  {messages:8}  {bytes:9}  {partition:6}  {time:27}  {origin:27}  {checks}"
    )
}

fn piece_line(
    out: &mut Out,
    args: &InspectArgs,
    piece: &Piece,
    totals: &mut Totals,
) -> io::Result<()> {
    match piece {
        Piece::Batch { pos, batch } => {
            totals.batches += 1;
            totals.messages += u64::from(batch.message_count());
            totals.bytes += batch.len();
            totals.next_offset = Some(batch.next_offset());
            out.line(|| batch_value(*pos, batch), || batch_text(*pos, batch))?;
            if args.frames || args.payload {
                for frame in batch.frames() {
                    out.line(
                        || frame_value(batch, &frame, args.payload),
                        || frame_text(batch, &frame, args.payload),
                    )?;
                }
            }
            Ok(())
        }
        Piece::Damage(damage) => {
            totals.damaged += 1;
            totals.damaged_bytes += damage.to_byte - damage.from_byte;
            out.line(|| damage_value(damage), || damage_text(damage))
        }
        Piece::Zeros { from, to } => out.line(
            || json!({ "type": "zeros", "position": from, "to": to }),
            || {
                format!(
                    "{from:<12}  zeros to the end: {} bytes written ahead",
                    to - from
                )
            },
        ),
    }
}

fn batch_value(pos: u64, batch: &StampedBatch) -> Value {
    let header = batch.header();
    json!({
        "type": "batch",
        "position": pos,
        "base_offset": header.base_offset,
        "next_offset": batch.next_offset(),
        "messages": header.message_count,
        "bytes": header.batch_length,
        "partition_id": header.partition_id,
        "timestamp_us": header.base_timestamp,
        "time": format_micros(header.base_timestamp),
        "origin_timestamp_us": header.origin_timestamp,
        "checksum": format!("{:016x}", header.batch_checksum),
        "ok": true,
    })
}

fn batch_text(pos: u64, batch: &StampedBatch) -> String {
    let header = batch.header();
    row(&[
        &pos.to_string(),
        &format!("{}..{}", header.base_offset, batch.next_offset()),
        &header.message_count.to_string(),
        &header.batch_length.to_string(),
        &header.partition_id.to_string(),
        &format_micros(header.base_timestamp),
        &format_micros(header.origin_timestamp),
        "ok",
    ])
}

fn frame_value(batch: &StampedBatch, frame: &FrameView<'_>, whole: bool) -> Value {
    let mut value = json!({
        "type": "message",
        "offset": frame.offset(batch.base_offset()),
        "id": format!("{:032x}", frame.id),
        "origin_timestamp_us": frame.origin_timestamp(batch.header().origin_timestamp),
        "timestamp_delta_us": frame.timestamp_delta,
        "payload_bytes": frame.payload.len(),
        "user_headers_bytes": frame.user_headers.len(),
        "checksum": format!("{:016x}", frame.checksum),
    });
    if let Value::Object(fields) = &mut value {
        if !frame.user_headers.is_empty() {
            fields.insert("headers".to_owned(), headers_value(frame));
        }
        if whole {
            put_bytes(fields, "payload", frame.payload);
        } else {
            fields.insert("preview".to_owned(), preview(frame.payload, false).into());
        }
    }
    value
}

fn headers_value(frame: &FrameView<'_>) -> Value {
    let one = |header: Result<_, imprint_proto::batch::user_headers::HeadersError>| {
        let mut fields = Map::new();
        match header {
            Ok(imprint_proto::batch::user_headers::UserHeaderView {
                key_kind,
                key,
                value_kind,
                value,
            }) => {
                fields.insert("key_kind".to_owned(), key_kind.to_string().into());
                put_bytes(&mut fields, "key", key);
                fields.insert("value_kind".to_owned(), value_kind.to_string().into());
                put_bytes(&mut fields, "value", value);
            }
            Err(error) => drop(fields.insert("error".to_owned(), error.to_string().into())),
        }
        Value::Object(fields)
    };
    frame.headers().map(one).collect()
}

fn frame_text(batch: &StampedBatch, frame: &FrameView<'_>, whole: bool) -> String {
    let headers: Vec<String> = frame
        .headers()
        .map(|header| match header {
            Ok(header) => format!(
                "{}={}",
                preview(header.key, false),
                preview(header.value, false)
            ),
            Err(error) => error.to_string(),
        })
        .collect();
    let headers = match headers.is_empty() {
        true => String::new(),
        false => format!(", headers {}", headers.join(" ")),
    };
    format!(
        "  {:>10}  id {:032x}, +{} us, {} + {} bytes{headers}: {}",
        frame.offset(batch.base_offset()),
        frame.id,
        frame.timestamp_delta,
        frame.payload.len(),
        frame.user_headers.len(),
        preview(frame.payload, whole)
    )
}

fn damage_value(damage: &Damage) -> Value {
    json!({
        "type": "damage",
        "position": damage.from_byte,
        "to": damage.to_byte,
        "from_offset": damage.from_offset,
        "to_offset": damage.to_offset,
        "found": damage.found,
        "header": damage.header.map(|header| json!({
            "base_offset": header.base_offset,
            "messages": header.message_count,
            "bytes": header.batch_length,
            "partition_id": header.partition_id,
            "timestamp_us": header.base_timestamp,
        })),
        "ok": false,
    })
}

fn damage_text(damage: &Damage) -> String {
    let offset = |offset: Option<u64>| offset.map_or("?".to_owned(), |offset| offset.to_string());
    let offsets = format!(
        "{}..{}",
        offset(damage.from_offset),
        offset(damage.to_offset)
    );
    let bytes = damage.to_byte - damage.from_byte;
    let goes_on = match damage.to_offset {
        Some(_) => "",
        None => "; no good batch follows",
    };
    format!(
        "{:<12}  {offsets:22}  DAMAGED: {bytes} bytes up to {}: {}{goes_on}",
        damage.from_byte, damage.to_byte, damage.found
    )
}

fn end_value(totals: &Totals) -> Value {
    json!({
        "type": "end",
        "batches": totals.batches,
        "messages": totals.messages,
        "bytes": totals.bytes,
        "next_offset": totals.next_offset,
        "damaged_ranges": totals.damaged,
        "damaged_bytes": totals.damaged_bytes,
        "stopped_at_limit": totals.stopped,
    })
}

fn end_text(totals: &Totals) -> String {
    let next = totals
        .next_offset
        .map_or(String::new(), |next| format!(", next offset {next}"));
    let damage = match totals.damaged {
        0 => "no damage".to_owned(),
        ranges => format!(
            "{ranges} damaged range(s) of {} bytes",
            totals.damaged_bytes
        ),
    };
    let stopped = if totals.stopped {
        "; stopped at --limit"
    } else {
        ""
    };
    format!(
        "{} batches, {} messages, {} bytes{next}; {damage}{stopped}",
        totals.batches, totals.messages, totals.bytes
    )
}
