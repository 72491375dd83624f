//! One copy of a state log, record by record.

use super::super::super::exit::CliError;
use super::super::args::InspectArgs;
use super::super::show::{Out, inline, value_of};
use super::Subject;
use imprint_raft::offline::statelog::{Frame, FrameReader, describe};
use serde_json::{Value, json};

/// Shows the file; damage is the error that it ends with.
pub fn show(subject: &Subject<'_>, args: &InspectArgs, mut out: Out) -> Result<(), CliError> {
    if args.from_offset.is_some() {
        return Err(CliError::Usage(
            "--from-offset is for segments; a state log takes --at-byte".to_owned(),
        ));
    }
    let mut reader = FrameReader::new(subject.file.as_ref()).map_err(|e| subject.error(e))?;
    reader.start_at(args.at_byte.unwrap_or(0));
    let path = subject.path.display().to_string();
    let file_bytes = subject.file.len().map_err(|e| subject.error(e))?;
    out.line(
        || json!({ "type": "state_log", "file": path, "file_bytes": file_bytes }),
        || format!("{path}: state log; {file_bytes} bytes"),
    )?;
    out.heading(|| {
        format!(
            "{:10}  {:6}  {:16}  {:6}  FIELDS",
            "POSITION", "BYTES", "RECORD", "GROUP"
        )
    })?;
    let (mut records, mut bad) = (0u64, Vec::new());
    while let Some(frame) = reader.next_frame().map_err(|e| subject.error(e))? {
        out.line(|| frame_value(&frame), || frame_text(&frame))?;
        match &frame {
            Frame::Record { record: Ok(_), .. } => records += 1,
            Frame::Record { pos, .. } => bad.push(*pos),
            Frame::Bad { from, .. } => bad.push(*from),
            Frame::Zeros { .. } => {}
        }
        let shown = records + bad.len() as u64;
        if args.limit.is_some_and(|limit| shown >= limit) {
            break;
        }
    }
    out.line(
        || json!({ "type": "end", "records": records, "damaged_ranges": bad.len() }),
        || format!("{records} records, {} damaged range(s)", bad.len()),
    )?;
    out.finish()?;
    match bad.first() {
        None => Ok(()),
        Some(first) => Err(subject.fault(format_args!(
            "{} damaged range(s), the first at byte {first}",
            bad.len()
        ))),
    }
}

fn frame_value(frame: &Frame) -> Value {
    match frame {
        Frame::Record {
            pos,
            len,
            record: Ok(record),
        } => {
            let (kind, group, fields) = describe(record);
            let mut value = json!({
                "type": "record", "position": pos, "bytes": len, "kind": kind, "group": group, "ok": true,
            });
            if let Value::Object(object) = &mut value {
                object.extend(value_of(&fields));
            }
            value
        }
        Frame::Record {
            pos,
            len,
            record: Err(found),
        } => {
            json!({ "type": "not_understood", "position": pos, "bytes": len, "found": found, "ok": false })
        }
        Frame::Bad { from, to, found } => {
            json!({ "type": "damage", "position": from, "to": to, "found": found, "ok": false })
        }
        Frame::Zeros { from, to } => json!({ "type": "zeros", "position": from, "to": to }),
    }
}

fn frame_text(frame: &Frame) -> String {
    match frame {
        Frame::Record {
            pos,
            len,
            record: Ok(record),
        } => {
            let (kind, group, fields) = describe(record);
            let group = group.map_or("-".to_owned(), |group| group.to_string());
            format!(
                "{pos:<10}  {len:<6}  {kind:16}  {group:6}  {}",
                inline(&fields)
            )
        }
        Frame::Record {
            pos,
            len,
            record: Err(found),
        } => format!("{pos:<10}  {len:<6}  NOT UNDERSTOOD: {found}"),
        Frame::Bad { from, to, found } => {
            format!("{from:<10}  {:<6}  DAMAGED up to {to}: {found}", to - from)
        }
        Frame::Zeros { from, to } => format!("{from:<10}  zeros to the end: {} bytes", to - from),
    }
}
