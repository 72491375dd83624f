//! `imprint log inspect`: which kind of file it is, and the small ones.

mod segment;
mod statelog;

use super::super::args::GlobalArgs;
use super::super::exit::CliError;
use super::super::output;
use super::args::InspectArgs;
use super::show::{Out, file_error, lines, value_of};
use bytes::Bytes;
use imprint_proto::envelope::{self, EnvelopeError};
use imprint_raft::disk::{Disk, DiskFile, OpenMode, RealDisk};
use imprint_raft::offline::fields::hex;
use imprint_raft::offline::kind::FRONT_LEN;
use imprint_raft::offline::{Field, Fields, FileKind, recognise, small};
use serde_json::{Value, json};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::formation::FormationRecord;

/// Shows the files; one with damage does not keep the next from being shown.
pub fn run(global: &GlobalArgs, args: &InspectArgs) -> Result<(), CliError> {
    let mut damaged = Vec::new();
    for path in &args.files {
        match one(global, args, path) {
            Err(CliError::Fault(found)) => damaged.push(found),
            other => other?,
        }
    }
    match damaged.is_empty() {
        true => Ok(()),
        false => Err(CliError::Fault(damaged.join("; "))),
    }
}

fn one(global: &GlobalArgs, args: &InspectArgs, path: &Path) -> Result<(), CliError> {
    let wrap = |error| file_error(path, error);
    if path.is_dir() {
        return Err(CliError::Usage(format!(
            "{}: a directory; `imprint log check` looks at those",
            path.display()
        )));
    }
    let file = RealDisk.open(path, OpenMode::Read).map_err(wrap)?;
    let kind = kind_of(path, file.as_ref()).map_err(wrap)?;
    let Some(kind) = kind else {
        return Err(CliError::Usage(format!(
            "{}: not a file of a data directory: its name says nothing, and it begins neither like a segment nor like a \
             state log",
            path.display()
        )));
    };
    let subject = Subject { path, file, kind };
    match kind {
        FileKind::Segment(_) | FileKind::SegmentTail { .. } => {
            segment::show(&subject, args, Out::streaming(global.output)?)
        }
        FileKind::StateLog => statelog::show(&subject, args, Out::streaming(global.output)?),
        _ => small_file(global, &subject),
    }
}

/// The file that is looked at.
struct Subject<'a> {
    path: &'a Path,
    file: Arc<dyn DiskFile>,
    kind: FileKind,
}

impl Subject<'_> {
    fn error(&self, error: io::Error) -> CliError {
        file_error(self.path, error)
    }

    fn fault(&self, found: impl std::fmt::Display) -> CliError {
        CliError::Fault(format!("{}: {found}", self.path.display()))
    }
}

fn kind_of(path: &Path, file: &dyn DiskFile) -> io::Result<Option<FileKind>> {
    let mut front = [0; FRONT_LEN];
    let got = file.read_at(&mut front, 0)?;
    Ok(recognise(path, front.get(..got).unwrap_or_default()))
}

fn small_file(global: &GlobalArgs, subject: &Subject<'_>) -> Result<(), CliError> {
    let bytes = match subject.kind {
        // Nothing is in them.
        FileKind::Lock | FileKind::Reserve => Bytes::new(),
        _ => small::read_small(&RealDisk, subject.path).map_err(|e| subject.error(e))?,
    };
    let (name, decoded) = match subject.kind {
        FileKind::Identity => ("identity", small::identity(bytes)),
        FileKind::Formation => ("formation", formation(bytes)),
        FileKind::Snapshot => ("snapshot", small::snapshot(bytes)),
        FileKind::Digest => ("digest", small::digest(bytes)),
        FileKind::DamageMark => ("damaged", small::damage_mark(bytes)),
        FileKind::Suspect => ("suspect", small::suspect(bytes)),
        FileKind::Reserve => ("reserve", length(subject)),
        _ => ("lock", length(subject)),
    };
    let fields = decoded.map_err(|error| subject.fault(error))?;
    let mut value = json!({ "type": name, "file": subject.path.display().to_string() });
    if let Value::Object(object) = &mut value {
        object.extend(value_of(&fields));
    }
    output::document(global.output, &value, || {
        format!("{}: {name}\n{}", subject.path.display(), lines(&fields))
    })
}

fn length(subject: &Subject<'_>) -> Result<Fields, EnvelopeError> {
    let bytes = subject.file.len().ok();
    Ok(vec![("bytes", bytes.into())])
}

/// What a formation record says.
pub fn formation(bytes: Bytes) -> Result<Fields, EnvelopeError> {
    let record: FormationRecord = envelope::decode_checked(bytes)?;
    let members = record.members.iter().map(|member| -> Fields {
        vec![
            ("node_id", member.node_id.into()),
            ("address", member.address.as_str().into()),
            ("storage_id", hex(&member.storage_id).into()),
            ("replica_id", member.replica_id.into()),
        ]
    });
    Ok(vec![
        ("cluster_id", hex(&record.cluster_id).into()),
        ("members", Field::Many(members.collect())),
    ])
}
