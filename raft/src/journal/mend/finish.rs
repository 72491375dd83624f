//! The end of a mend: the new file is proved, the bad bytes set aside, and the one put in the other's place.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Ending, Mend, Output};
use crate::journal::check::sealed_digest;
use crate::journal::damage::{Companion, DamageKind};
use crate::journal::digest::SealedDigest;
use crate::journal::quarantine::{Quarantine, Reason};
use crate::journal::segment::Segment;
use crate::journal::survey::{Order, SurveyError, survey};
use crate::journal::{Journal, SegmentDigest};

/// What a mend did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mended {
    /// The segments that were put in place, as they are now.
    pub segments: Vec<SegmentDigest>,
    /// Batches that came from peers.
    pub fetched_batches: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
}

/// Why a segment was not mended. What was there is as it was, unless the last step failed: then the new file is in place.
#[derive(Debug, thiserror::Error)]
pub enum MendError {
    /// No segment begins there, and none is known to be missing there.
    #[error("no segment begins at offset {0}")]
    NoSegment(u64),
    /// The journal still writes it: it has to be closed for that.
    #[error("the segment at offset {0} is the active one")]
    Active(u64),
    /// Batches are still wanted.
    #[error("offsets from {0} on are still missing")]
    NotWhole(u64),
    /// The segment was cut or trimmed away meanwhile.
    #[error("the segment at offset {0} changed meanwhile")]
    Changed(u64),
    /// What was put together does not fit before what follows.
    #[error("the mended segment ends before entry {found:?}, the next one begins with {expected}")]
    Junction {
        /// Index of the next segment's first batch.
        expected: u64,
        /// Index that follows on what was put together.
        found: Option<u64>,
    },
    /// The new file is not what was written.
    #[error("{}: does not read back as it was written", .0.display())]
    Recheck(PathBuf),
    /// The disk.
    #[error("mending a segment")]
    Io(#[from] io::Error),
}

/// A new file that was proved.
struct Proved {
    path: PathBuf,
    digest: SealedDigest,
    output: Output,
}

impl Mend {
    /// Puts the new file in the place of the old one. Blocks.
    pub fn finish(mut self) -> Result<Mended, MendError> {
        if let Some(wanted) = self.wanted() {
            return Err(MendError::NotWhole(wanted.offset));
        }
        self.check_junction()?;
        let proved = self.prove()?;
        match self.journal.clone() {
            None => {
                self.set_aside()?;
                self.replace(&proved)?;
            }
            Some(journal) => self.replace_in(&journal, &proved)?,
        }
        self.made.clear();
        for one in &proved {
            tracing::warn!(
                group = self.plan.group, path = %one.path.display(), bytes = one.output.len,
                fetched = self.fetched_batches, "mended"
            );
        }
        Ok(Mended {
            segments: proved
                .iter()
                .map(|one| one.digest.as_segment_digest())
                .collect(),
            fetched_batches: self.fetched_batches,
            fetched_bytes: self.fetched_bytes,
        })
    }

    fn base_name(&self, proved: &[Proved]) -> String {
        let first = proved.first().map(|one| one.output.name);
        let name = self.plan.name.or(first);
        name.map_or_else(String::new, |name| name.file_name())
    }

    /// Indexes that were counted here have to meet those that follow.
    fn check_junction(&self) -> Result<(), MendError> {
        let Ending::Segment {
            first_index: expected,
        } = self.plan.ending
        else {
            return Ok(());
        };
        let found = self.expected().and_then(Result::ok).map(|pos| pos.index);
        if found == Some(expected) {
            return Ok(());
        }
        Err(MendError::Junction { expected, found })
    }

    /// Syncs the new files and reads them back from the medium.
    fn prove(&mut self) -> Result<Vec<Proved>, MendError> {
        let outputs = std::mem::take(&mut self.outputs);
        let mut proved = Vec::with_capacity(outputs.len());
        let bases: Vec<u64> = outputs.iter().map(|out| out.name.base_offset).collect();
        for (n, output) in outputs.into_iter().enumerate() {
            let end_offset = bases.get(n + 1).copied().unwrap_or(self.offset);
            let path = self.plan.dir.join(output.name.file_name());
            output.file.sync_all()?;
            output.file.drop_cached()?;
            let (group, base_offset) = (self.plan.group, output.name.base_offset);
            let order = Order {
                path: &path,
                group,
                base_offset,
                end_offset,
                sealed: true,
            };
            let surveyed = match survey(output.file.as_ref(), &order, &mut |_| true) {
                Ok(surveyed) => surveyed,
                Err(SurveyError::Io(error)) => return Err(error.into()),
                Err(SurveyError::Stopped) => return Err(MendError::Recheck(path)),
            };
            let digest = sealed_digest(group, base_offset, end_offset, &surveyed)
                .filter(|digest| digest.bytes == output.len)
                .ok_or_else(|| MendError::Recheck(path.clone()))?;
            proved.push(Proved {
                path,
                digest,
                output,
            });
        }
        Ok(proved)
    }

    /// Copies what the old file holds and the new one does not.
    fn set_aside(&self) -> io::Result<()> {
        let (Some(name), Some(source)) = (self.plan.name, &self.source) else {
            return Ok(());
        };
        let disk = self.plan.disk.as_ref();
        let path = self.plan.dir.join(name.file_name());
        let quarantine = Quarantine::of(disk, &self.plan.dir, self.plan.group)?;
        let file_len = source.len()?;
        // The tail of a segment that was still written: what is behind the last batch kept.
        let tail = match self.plan.ending {
            Ending::Segment { .. } => file_len,
            Ending::Log | Ending::Cut => self.copied_to,
        };
        for range in &self.bad {
            let reason = match range.kind {
                DamageKind::Foreign => Reason::Foreign,
                _ => Reason::Damaged,
            };
            let to = range.to_byte.unwrap_or(file_len).min(tail);
            if range.from_byte < to {
                quarantine.copy(reason, &path, source.as_ref(), range.from_byte..to)?;
            }
        }
        let reason = match self.plan.ending {
            Ending::Cut => Reason::CutBegun,
            _ => Reason::TornTail,
        };
        if let Some(end) = nonzero_end(source.as_ref(), tail, file_len)? {
            quarantine.copy(reason, &path, source.as_ref(), tail..end)?;
        }
        Ok(())
    }

    /// Renames the new files over the old names: at the log's begin the last first, so that what is there is never a log
    /// with a hole.
    fn replace(&self, proved: &[Proved]) -> io::Result<()> {
        let disk = self.plan.disk.as_ref();
        let at_begin = self.plan.may_begin_below || self.plan.name.is_none();
        let backwards = at_begin && matches!(self.plan.ending, Ending::Segment { .. });
        let mut order: Vec<&Proved> = proved.iter().collect();
        if backwards {
            order.reverse();
        }
        for one in order {
            let filled = Companion::Mend.path(&one.path);
            match disk.rename(&filled, &one.path) {
                // Something that is no file has the segment's name.
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                    let quarantine = Quarantine::of(disk, &self.plan.dir, self.plan.group)?;
                    quarantine.take(Reason::Foreign, &one.path)?;
                    disk.rename(&filled, &one.path)?;
                }
                renamed => renamed?,
            }
            disk.sync_dir(&self.plan.dir)?;
        }
        for (n, one) in proved.iter().enumerate() {
            let last = n + 1 == proved.len();
            let written_on = last && !matches!(self.plan.ending, Ending::Segment { .. });
            if written_on {
                Companion::Digest.remove(disk, &one.path)?;
            } else {
                one.digest.write(disk, &one.path)?;
            }
            Companion::Damaged.remove(disk, &one.path)?;
        }
        disk.sync_dir(&self.plan.dir)
    }

    /// As [`Mend::replace`], while a journal serves the log: nobody else changes the segment's files meanwhile, and the
    /// journal knows the new ones at once. Who still reads the old file finishes with it.
    fn replace_in(&self, journal: &Arc<Journal>, proved: &[Proved]) -> Result<(), MendError> {
        let base = self.plan.base;
        let known: Vec<Arc<Segment>> = {
            let inner = journal.inner.lock();
            let inside = |s: &&Arc<Segment>| (base..self.plan.end).contains(&s.name.base_offset);
            inner
                .shape
                .segments
                .iter()
                .filter(inside)
                .cloned()
                .collect()
        };
        let _held: Vec<_> = known
            .iter()
            .map(|segment| {
                let mut version = segment.beside.lock();
                *version += 1;
                version
            })
            .collect();
        if !journal.still_there(base, self.plan.end, &known) {
            return Err(MendError::Changed(base));
        }
        self.set_aside()?;
        self.replace(proved)?;
        let there = |one: &Proved| {
            let known = known.iter().find(|s| s.name == one.output.name);
            let segment = match known {
                Some(segment) => Arc::clone(segment),
                None => Arc::new(Segment::new(&self.plan.dir, one.output.name)),
            };
            segment.with(|body| {
                (body.file, body.index) = (None, None);
                (body.len, body.sealed) = (one.output.len, true);
                body.first_stamp = Some(one.digest.first_stamp_us);
            });
            segment
        };
        journal.put_segments(proved.iter().map(there).collect());
        journal.damage.set(base, Vec::new());
        // A reader of the old file may have written the mark again.
        journal.save_marks(&self.plan.dir.join(self.base_name(proved)), base);
        Ok(())
    }
}

impl Drop for Mend {
    /// What was not finished is not left lying about; what a crash leaves the next start removes.
    fn drop(&mut self) {
        for path in &self.made {
            drop(self.plan.disk.remove_file(path));
        }
    }
}

/// End of the last byte at or behind `from` that is not zero; what can't be read counts as zeros.
fn nonzero_end(
    file: &dyn crate::disk::DiskFile,
    from: u64,
    file_len: u64,
) -> io::Result<Option<u64>> {
    let mut window = crate::journal::walk::Window::new(file);
    match crate::journal::walk::last_nonzero(&mut window, from, file_len) {
        Err(error) if crate::journal::damage::is_lost(&error) => Ok(None),
        other => other,
    }
}

impl Journal {
    /// Whether the sealed segments of a range are still those of before.
    fn still_there(&self, base: u64, end: u64, known: &[Arc<Segment>]) -> bool {
        let inner = self.inner.lock();
        let now: Vec<_> = inner
            .shape
            .segments
            .iter()
            .filter(|s| (base..end).contains(&s.name.base_offset))
            .collect();
        let same =
            now.len() == known.len() && now.iter().zip(known).all(|(a, b)| Arc::ptr_eq(a, b));
        let sealed = known.iter().all(|segment| segment.with(|body| body.sealed));
        let next = inner
            .shape
            .segments
            .iter()
            .find(|s| s.name.base_offset >= end);
        let trimmed = known.is_empty() && end <= inner.shape.start_offset;
        same && sealed && !trimmed && next.is_some()
    }

    /// Puts mended segments into the log's list. Counts as a cut, so that a reader of the old files looks again.
    fn put_segments(&self, mended: Vec<Arc<Segment>>) {
        let mut inner = self.inner.lock();
        let segments = &mut inner.shape.segments;
        for segment in mended {
            let at = segments.partition_point(|s| s.name.base_offset < segment.name.base_offset);
            match segments.get(at) {
                Some(there) if there.name == segment.name => {}
                _ => segments.insert(at, segment),
            }
        }
        inner.shape.cuts += 1;
    }
}
