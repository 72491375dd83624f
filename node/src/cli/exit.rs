//! How a command fails: the error line, its hint, and the exit status.

use crate::failure::Reason;
use imprint_client::{ClientError, Code, ConnectError, ConsumeError, Outcome, ProduceError};
use std::io;
use std::process::ExitCode;
use thiserror::Error;

/// What the process says to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Something failed.
    Failed = 1,
    /// The command was given wrongly.
    Usage = 2,
    /// What was named does not exist.
    NotFound = 3,
    /// Nobody answered in time, or not now.
    Unavailable = 4,
    /// Verification found a fault.
    Fault = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> ExitCode {
        ExitCode::from(status as u8)
    }
}

/// Why a command did not do all it was asked to.
#[derive(Debug, Error)]
pub enum CliError {
    /// A call failed.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// A message could not be produced.
    #[error(transparent)]
    Produce(#[from] ProduceError),
    /// Reading failed.
    #[error(transparent)]
    Consume(#[from] ConsumeError),
    /// The servers' addresses are wrong.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The arguments don't fit together.
    #[error("{0}")]
    Usage(String),
    /// A file, stdin or stdout.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// One file in particular.
    #[error("{path}: {error}")]
    File {
        /// Its path.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// A file or directory that was named.
    #[error("{path}: no such file or directory")]
    NoSuchFile {
        /// Its path.
        path: String,
    },
    /// Reading was to start above the end.
    #[error(
        "offset {offset} of partition {partition} is above the end; the log holds offsets {start}..{end}"
    )]
    AboveEnd {
        /// The partition.
        partition: u32,
        /// What was asked for.
        offset: u64,
        /// First kept offset.
        start: u64,
        /// First offset that isn't acknowledged.
        end: u64,
    },
    /// A wait was over before what was waited for.
    #[error("{0}")]
    NotInTime(String),
    /// Verification found something.
    #[error("{0}")]
    Fault(String),
    /// A server refused one item of a call.
    #[error("{message} (reason {reason})")]
    Refused {
        /// The stable reason.
        reason: String,
        /// For people.
        message: String,
    },
    /// Some of several items failed, each reported by itself; the status is the first one's.
    #[error("{failed} of {all} failed")]
    Several {
        /// How many failed.
        failed: usize,
        /// Out of how many.
        all: usize,
        /// The status to exit with.
        status: ExitStatus,
    },
    /// The one at the keyboard said no.
    #[error("not confirmed")]
    Declined,
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// One item of a call that a server refused, with the stable reason.
    pub fn refused(reason: &str, message: &str) -> CliError {
        CliError::Refused {
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    /// The exit status.
    pub fn status(&self) -> ExitStatus {
        match self {
            CliError::Call(error)
            | CliError::Produce(ProduceError::Call(error))
            | CliError::Consume(ConsumeError::Call(error)) => status_of(error.code()),
            CliError::Produce(ProduceError::UnknownPartition { .. })
            | CliError::Consume(ConsumeError::UnknownPartition { .. })
            | CliError::NoSuchFile { .. } => ExitStatus::NotFound,
            CliError::Consume(ConsumeError::Damaged { .. } | ConsumeError::Gap { .. }) => {
                ExitStatus::Fault
            }
            CliError::Connect(_) | CliError::Usage(_) => ExitStatus::Usage,
            CliError::NotInTime(_) => ExitStatus::Unavailable,
            CliError::Fault(_) => ExitStatus::Fault,
            CliError::Refused { reason, .. } => status_of_reason(reason),
            CliError::Several { status, .. } => *status,
            CliError::Interrupted => ExitStatus::Interrupted,
            CliError::Produce(_)
            | CliError::Io(_)
            | CliError::File { .. }
            | CliError::AboveEnd { .. }
            | CliError::Declined => ExitStatus::Failed,
        }
    }

    /// Whether the reader of stdout went away, which is no error of ours.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CliError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Writes the error line and the hint to stderr.
    pub fn report(&self, color: bool) {
        // Whoever pressed Ctrl-C knows.
        if matches!(self, CliError::Interrupted) {
            return;
        }
        super::output::say(&self.lines(color));
    }

    fn lines(&self, color: bool) -> String {
        let label = if color {
            "\x1b[1;31merror:\x1b[0m"
        } else {
            "error:"
        };
        let mut lines = format!("{label} {self}");
        // A source is never printed by its wrapper, so each is said once.
        let sources =
            std::iter::successors(std::error::Error::source(self), |error| error.source());
        for source in sources {
            lines.push_str(&format!(": {source}"));
        }
        if let Some(reason) = self.call().map(reason_of) {
            lines.push_str(&format!(" (reason {reason})"));
        }
        for hint in self.hints() {
            lines.push_str(&format!("\n  hint: {hint}"));
        }
        lines
    }

    fn call(&self) -> Option<&ClientError> {
        match self {
            CliError::Call(error)
            | CliError::Produce(ProduceError::Call(error))
            | CliError::Consume(ConsumeError::Call(error)) => Some(error),
            _ => None,
        }
    }

    fn hints(&self) -> Vec<String> {
        if let CliError::Declined = self {
            return vec!["nothing was changed; --yes does it without asking".to_owned()];
        }
        let mut hints = self.call().map(call_hints).unwrap_or_default();
        if let CliError::AboveEnd { start, end, .. } = self {
            hints.push(from_hint(*start, *end));
        }
        if let CliError::Produce(ProduceError::Call(error)) = self
            && error.outcome() == Outcome::Unknown
        {
            hints.push("it is unknown whether the batch that failed was stored".to_owned());
        }
        hints
    }
}

fn call_hints(error: &ClientError) -> Vec<String> {
    let mut hints = Vec::new();
    match error.reason() {
        Some(imprint_client::UNREACHABLE) => hints.push(format!(
            "nothing answers at {}; is a node running there? --server or IMPRINT_SERVER names others",
            error.server()
        )),
        Some("NO_LEADER") => hints.push(
            "a majority of the partition's replicas has to be up; see `imprint cluster status`".to_owned(),
        ),
        _ => {}
    }
    if let Some((start, end)) = error.offsets() {
        hints.push(from_hint(start, end));
    }
    if error.reason() == Some("OUTCOME_UNKNOWN") {
        hints.push("it is unknown whether the write took effect".to_owned());
    }
    hints
}

fn from_hint(start: u64, end: u64) -> String {
    format!("--from start begins at {start}, --from end at {end}")
}

/// The stable reason, or the code's name where the server gave none.
fn reason_of(error: &ClientError) -> String {
    match error.reason() {
        Some(reason) => reason.to_owned(),
        None => screaming(&format!("{:?}", error.code())),
    }
}

/// `NotFound` as `NOT_FOUND`.
fn screaming(camel: &str) -> String {
    let mut out = String::with_capacity(camel.len() + 4);
    for (at, letter) in camel.chars().enumerate() {
        if at > 0 && letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

/// The exit status that stands for a reason, by its code.
fn status_of_reason(reason: &str) -> ExitStatus {
    let known = Reason::ALL.iter().find(|known| known.name() == reason);
    known.map_or(ExitStatus::Failed, |known| status_of(known.code()))
}

/// The exit status that stands for a gRPC code.
pub fn status_of(code: Code) -> ExitStatus {
    match code {
        Code::NotFound => ExitStatus::NotFound,
        Code::InvalidArgument => ExitStatus::Usage,
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => {
            ExitStatus::Unavailable
        }
        Code::DataLoss => ExitStatus::Fault,
        _ => ExitStatus::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_statuses() {
        for (code, status) in [
            (Code::NotFound, 3),
            (Code::InvalidArgument, 2),
            (Code::Unavailable, 4),
            (Code::DeadlineExceeded, 4),
            (Code::ResourceExhausted, 4),
            (Code::DataLoss, 5),
            (Code::AlreadyExists, 1),
            (Code::OutOfRange, 1),
            (Code::Internal, 1),
        ] {
            assert_eq!(status_of(code) as u8, status, "{code:?}");
        }
    }

    #[test]
    fn own_errors_become_statuses() {
        for (error, status) in [
            (CliError::Usage(String::new()), 2),
            (CliError::Connect(ConnectError::NoServers), 2),
            (CliError::NotInTime(String::new()), 4),
            (CliError::Fault(String::new()), 5),
            (CliError::Interrupted, 130),
            (CliError::Declined, 1),
        ] {
            assert_eq!(error.status() as u8, status, "{error}");
        }
    }

    #[test]
    fn a_code_without_a_reason_names_itself() {
        assert_eq!(screaming("NotFound"), "NOT_FOUND");
        assert_eq!(screaming("Internal"), "INTERNAL");
    }
}
