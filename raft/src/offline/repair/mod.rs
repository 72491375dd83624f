//! Putting right what can be put right without a cluster.
//!
//! A repair is a check, the plan that follows from it, and the plan carried out step by step; a dry run ends after the plan.
//! Repairing twice changes nothing the second time. Nothing is deleted but files that say nothing: bytes that were ever the
//! log's are set aside in `quarantine/`.
//!
//! # Why may a start's own recovery be run here?
//!
//! Torn tails, begun cuts and segments that hold nothing are decided by the state log alone, so the outcome is the same
//! whoever does it. [`Fix::Recover`] opens the journal as a node would, and closes it again.

mod fill;
mod give_up;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use fill::{Source, SourceError};
pub use give_up::{GiveUpError, Loss, give_up, loss};

use super::check::{Fix, GROUPS, Place, Report, STATE, Verdict, group_id};
use crate::disk::{self, Disk, Io};
use crate::journal::{Journal, JournalConfig, OpenError};
use crate::meta::number_of;
use crate::quarantine::Quarantine;
use crate::statelog::open::mend_copies;
use crate::statelog::{Presence, StateLog, StateLogError};

/// One thing that a repair does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// In words.
    pub what: String,
    /// The file or directory.
    pub path: PathBuf,
    /// The group that it belongs to.
    pub group: Option<u64>,
    pub(crate) fix: Fix,
}

/// Why a step was not done. The directory is as it was before the step.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The state log.
    #[error(transparent)]
    State(#[from] StateLogError),
    /// The group is damaged in a way that a start refuses.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The other directory does not have what is needed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The disk.
    #[error("{}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// What a repair would do about a report, in the order in which it is done. Damage is only filled if there is a `source`.
pub fn plan(report: &Report, source: Option<&Source>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for item in &report.items {
        let Some(fix) = item.fix.clone() else {
            continue;
        };
        if matches!(fix, Fix::Fill { .. } | Fix::FillGap { .. }) && source.is_none() {
            continue;
        }
        if steps.iter().any(|step| step.fix == fix) {
            continue;
        }
        steps.push(Step {
            what: in_words(&fix).to_owned(),
            path: item.path.clone(),
            group: item.group,
            fix,
        });
    }
    // A stranger may be all that is left of something that an unreadable state log would explain.
    if report
        .of(Verdict::Damaged)
        .any(|item| item.area == "state log")
    {
        steps.retain(|step| !matches!(step.fix, Fix::SetAside(_)));
    }
    steps.sort_by_key(|step| rank(&step.fix));
    steps
}

fn rank(fix: &Fix) -> u8 {
    match fix {
        Fix::MendStateLog => 0,
        Fix::Fill { .. } | Fix::FillGap { .. } => 1,
        Fix::Recover(_) => 2,
        Fix::Digest(_) => 3,
        Fix::Remove(_) => 4,
        Fix::SetAside(_) => 5,
    }
}

fn in_words(fix: &Fix) -> &'static str {
    match fix {
        Fix::MendStateLog => {
            "write both copies with the good records; what differs goes to quarantine"
        }
        Fix::Recover(_) => "recover as the next start would; cut bytes go to quarantine",
        Fix::Remove(_) => "remove",
        Fix::Digest(_) => "write the digest anew from the checked segment",
        Fix::SetAside(_) => "move to quarantine",
        Fix::FillGap { .. } => "take the missing segments from the other directory",
        Fix::Fill { .. } => {
            "take the segment from the other directory; the damaged bytes go to quarantine"
        }
    }
}

/// Carries a plan out. The caller holds the directory's lock. Each step is told to `done` with its outcome; one that fails
/// does not keep the next from being tried.
pub fn apply(
    io: &Io,
    place: &Place,
    steps: &[Step],
    source: Option<&Source>,
    done: &mut dyn FnMut(&Step, Result<(), RepairError>),
) {
    let mut repairer = Repairer {
        io,
        data: &place.data,
        state: None,
    };
    for step in steps {
        let result = repairer.step(step, source);
        done(step, result);
    }
}

struct Repairer<'a> {
    io: &'a Io,
    data: &'a Path,
    /// Opened when a step needs it: opening changes it.
    state: Option<Arc<StateLog>>,
}

impl Repairer<'_> {
    fn step(&mut self, step: &Step, source: Option<&Source>) -> Result<(), RepairError> {
        let disk = self.io.disk.as_ref();
        let wrap = |source| RepairError::Io {
            path: step.path.clone(),
            source,
        };
        match &step.fix {
            Fix::MendStateLog => mend_copies(disk, &self.data.join(STATE)).map_err(Into::into),
            Fix::Recover(group) => self.recover(*group),
            Fix::Remove(path) => remove(disk, path).map_err(wrap),
            Fix::Digest(new) => new.digest.write(disk, &new.segment).map_err(wrap),
            Fix::SetAside(path) => self.set_aside(path).map_err(wrap),
            Fix::Fill { group, segment } => match source {
                Some(source) => source
                    .fill(disk, self.data, *group, segment)
                    .map_err(Into::into),
                None => Ok(()),
            },
            Fix::FillGap {
                group,
                from_offset,
                to_offset,
            } => match source {
                Some(source) => source
                    .fill_gap(disk, self.data, *group, *from_offset..*to_offset)
                    .map_err(Into::into),
                None => Ok(()),
            },
        }
    }

    /// Moves a file or directory to the quarantine of the data directory.
    fn set_aside(&self, path: &Path) -> io::Result<()> {
        let now_us = self.io.clock.now_micros();
        let quarantine = Quarantine::new(self.io.disk.as_ref(), self.data, now_us);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let what = match (number_of(&name), group_id(&name)) {
            (Some(_), _) => name.into_owned(),
            (None, Some(_)) => format!("group-{name}-unknown-to-state-log"),
            (None, None) => format!("unknown-{name}"),
        };
        quarantine.set_aside(path, &what).map(drop)
    }

    fn recover(&mut self, group: u64) -> Result<(), RepairError> {
        let state = match &self.state {
            Some(state) => Arc::clone(state),
            None => {
                let dir = self.data.join(STATE);
                let state = StateLog::open_with(self.io.clone(), &dir, Presence::MustExist)?;
                self.state = Some(Arc::clone(&state));
                state
            }
        };
        recover(self.io, self.data, state, group).map_err(Into::into)
    }
}

/// Opens a group's journal, which recovers it. Nothing is written by it afterwards.
fn recover(io: &Io, data: &Path, state: Arc<StateLog>, group: u64) -> Result<(), OpenError> {
    let dir = data.join(GROUPS).join(format!("{group:020}"));
    Journal::open(io.clone(), dir, state, group, JournalConfig::default()).map(drop)
}

fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    disk.remove_file(path)?;
    disk.sync_dir(disk::parent(path)?)
}
