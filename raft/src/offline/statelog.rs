//! One copy of a state log, frame by frame, and what its records say in words.

use std::io;

use bytes::Bytes;

use super::fields::{Field, Fields};
use crate::disk::DiskFile;
use crate::journal::walk::{Window, last_nonzero};
use crate::statelog::record::{self, FRAME_OVERHEAD, MAGIC, Record};
use crate::statelog::{Control, ControlKind, LogPos};

/// Bytes read at a time, unless a record is longer.
const WINDOW: usize = 64 << 10;

/// A part of a state log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A record with a good checksum.
    Record {
        /// First byte.
        pos: u64,
        /// Bytes, the frame's front included.
        len: u64,
        /// What it says, or why this version does not understand it.
        record: Result<Record, String>,
    },
    /// Bytes that are no frame, up to the next that is one or to the end.
    Bad {
        /// First byte.
        from: u64,
        /// First byte behind.
        to: u64,
        /// What is wrong there.
        found: String,
    },
    /// Zeros to the end of the file.
    Zeros {
        /// First byte.
        from: u64,
        /// End of the file.
        to: u64,
    },
}

/// Reads frames in order, past damage.
#[derive(Debug)]
pub struct FrameReader<'a> {
    window: Window<'a>,
    file_len: u64,
    pos: u64,
}

impl<'a> FrameReader<'a> {
    /// A reader from the front of the file.
    pub fn new(file: &'a dyn DiskFile) -> io::Result<Self> {
        Ok(Self {
            window: Window::new(file),
            file_len: file.len()?,
            pos: 0,
        })
    }

    /// Begins at this byte, or the first frame behind it.
    pub fn start_at(&mut self, pos: u64) {
        self.pos = pos.min(self.file_len);
    }

    /// The next frame, or `None` at the end of the file.
    pub fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        if self.pos >= self.file_len {
            return Ok(None);
        }
        let from = self.pos;
        let found = match self.frame_at(from)? {
            Ok(payload) => {
                let len = (FRAME_OVERHEAD + payload.len()) as u64;
                self.pos += len;
                let record = record::decode(payload).map_err(|error| error.to_string());
                return Ok(Some(Frame::Record {
                    pos: from,
                    len,
                    record,
                }));
            }
            Err(found) => found,
        };
        if last_nonzero(&mut self.window, from, self.file_len)?.is_none() {
            self.pos = self.file_len;
            let to = self.file_len;
            return Ok(Some(Frame::Zeros { from, to }));
        }
        let to = self.next_good(from + 1)?;
        self.pos = to;
        Ok(Some(Frame::Bad { from, to, found }))
    }

    /// The payload of the frame at `pos`, or what is wrong with it.
    fn frame_at(&mut self, pos: u64) -> io::Result<Result<Bytes, String>> {
        let left = self.file_len - pos;
        let front: Vec<u8> = self.window.get(pos, FRAME_OVERHEAD, WINDOW)?.to_vec();
        if front.len() < FRAME_OVERHEAD {
            return Ok(Err(format!("{left} bytes are no front of a record")));
        }
        let Some(len) = record::payload_len(&front) else {
            return Ok(Err("no record begins here".to_owned()));
        };
        let behind = left - FRAME_OVERHEAD as u64;
        if len as u64 > behind {
            return Ok(Err(format!(
                "a record of {len} bytes, the file ends after {behind} of them"
            )));
        }
        let payload = self
            .window
            .get(pos + FRAME_OVERHEAD as u64, len, WINDOW.max(len))?;
        if !record::is_intact(&front, payload) {
            return Ok(Err(format!("wrong checksum of a record of {len} bytes")));
        }
        Ok(Ok(Bytes::copy_from_slice(payload)))
    }

    fn next_good(&mut self, from: u64) -> io::Result<u64> {
        let mut at = from;
        while at < self.file_len {
            let bytes = self.window.get(at, WINDOW, WINDOW)?;
            let found = bytes
                .windows(MAGIC.len())
                .position(|window| window == MAGIC);
            let Some(skip) = found else {
                // A magic number may lie across the border.
                at += (bytes.len().saturating_sub(MAGIC.len() - 1)).max(1) as u64;
                continue;
            };
            at += skip as u64;
            if self.frame_at(at)?.is_ok() {
                return Ok(at);
            }
            at += 1;
        }
        Ok(self.file_len)
    }
}

/// A record's kind, its group, and the rest of it.
pub fn describe(record: &Record) -> (&'static str, Option<u64>, Fields) {
    match record {
        Record::Head { generation } => ("head", None, vec![("generation", (*generation).into())]),
        Record::Flush { synced_len } => ("flush", None, vec![("synced_len", (*synced_len).into())]),
        Record::Vote { group, vote } => {
            let fields = vec![
                ("term", vote.term.into()),
                ("voted_for", vote.voted_for.into()),
                ("committed", vote.committed.into()),
            ];
            ("vote", Some(*group), fields)
        }
        Record::Control {
            group,
            index,
            control,
        } => ("control", Some(*group), control_fields(*index, control)),
        Record::CutBegin {
            group,
            from_index,
            cut,
            purged,
        } => {
            let fields = vec![
                ("from_index", (*from_index).into()),
                ("offset", cut.offset.into()),
                ("whole", cut.whole.into()),
                ("purged", at(*purged)),
            ];
            ("cut_begin", Some(*group), fields)
        }
        Record::CutDone { group } => ("cut_done", Some(*group), vec![]),
        Record::Marks { group, marks } => {
            let fields = vec![
                ("synced_offset", marks.synced_offset.into()),
                ("committed", at(marks.committed)),
            ];
            ("marks", Some(*group), fields)
        }
        Record::Purged { group, pos } => ("purged", Some(*group), vec![("upto", at(Some(*pos)))]),
        Record::Start {
            group,
            start_offset,
        } => (
            "start",
            Some(*group),
            vec![("start_offset", (*start_offset).into())],
        ),
        Record::ControlsDropped { group, below } => (
            "controls_dropped",
            Some(*group),
            vec![("below", (*below).into())],
        ),
        Record::Base {
            group,
            purged,
            start_offset,
            empty_end,
            cut,
        } => {
            let fields = vec![
                ("purged", at(*purged)),
                ("start_offset", (*start_offset).into()),
                ("empty_end", (*empty_end).into()),
                ("cut_at", cut.map(|cut| cut.offset).into()),
            ];
            ("base", Some(*group), fields)
        }
        Record::Replica { group, replica } => (
            "replica",
            Some(*group),
            vec![("replica", (*replica).into())],
        ),
        Record::CleanStop { group, at } => {
            let fields = vec![
                ("segment", at.segment.into()),
                ("bytes", at.len.into()),
                ("next_offset", at.next_offset.into()),
            ];
            ("clean_stop", Some(*group), fields)
        }
        Record::Opened => ("opened", None, vec![]),
        Record::Dropped { group } => ("dropped", Some(*group), vec![]),
    }
}

fn at(pos: Option<LogPos>) -> Field {
    pos.map(|pos| pos.to_string()).into()
}

fn control_fields(index: u64, control: &Control) -> Fields {
    let bytes = |data: &Bytes| vec![("bytes", (data.len() as u64).into())];
    let (kind, more): (_, Fields) = match &control.kind {
        ControlKind::Blank => ("blank", vec![]),
        ControlKind::Membership(data) => ("membership", bytes(data)),
        ControlKind::Trim { upto } => ("trim", vec![("upto", (*upto).into())]),
        ControlKind::Void(data) => ("void", bytes(data)),
        ControlKind::Settings(roll) => {
            let fields = vec![
                ("segment_bytes", roll.segment_bytes.into()),
                ("segment_span_us", roll.segment_span_us.into()),
            ];
            ("settings", fields)
        }
    };
    let pos = LogPos {
        term: control.term,
        index,
    };
    let mut fields = vec![
        ("entry", kind.into()),
        ("at", at(Some(pos))),
        ("offset", control.offset.into()),
    ];
    fields.extend(more);
    fields
}
