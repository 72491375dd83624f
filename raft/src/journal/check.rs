//! Checking a sealed segment: everything in it, read from the medium, held against the digest of its sealing.
//!
//! A check finds damage that nobody has read yet. What it finds is marked; a segment that it finds good loses its marks. The
//! first check after sealing writes the digest, in the background and from what the page cache still has; later ones read
//! past it.

use std::io;
use std::sync::Arc;

use super::damage::{BadRange, Companion, DamageKind, is_lost, lost_range};
use super::digest::SealedDigest;
use super::segment::Segment;
use super::survey::{Order, Pace, Piece, SurveyError, Surveyed, survey};
use super::{Journal, SegmentDigest};
use crate::disk::OpenMode;

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// First offset of the segment.
    pub base_offset: u64,
    /// Offset after its last.
    pub end_offset: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Its digest, if all of it is good.
    pub digest: Option<SegmentDigest>,
    /// What is bad, now marked.
    pub damage: Vec<BadRange>,
}

/// Why a segment was not checked to its end.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// There is no such segment, or it was trimmed away meanwhile.
    #[error("no segment begins at offset {0}")]
    NoSegment(u64),
    /// It is still written.
    #[error("the segment at offset {0} is not sealed")]
    NotSealed(u64),
    /// The caller's pace ended it.
    #[error("stopped")]
    Stopped,
    /// The disk, in a way that says nothing of the segment.
    #[error("checking a segment")]
    Io(#[from] io::Error),
}

impl From<SurveyError> for CheckError {
    fn from(error: SurveyError) -> Self {
        match error {
            SurveyError::Stopped => Self::Stopped,
            SurveyError::Io(error) => Self::Io(error),
        }
    }
}

/// A sealed segment, as it was when a check began.
struct Sealed {
    segment: Arc<Segment>,
    end_offset: u64,
    /// Count of changes of its file.
    version: u32,
}

/// Whether a check reads what is in memory, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Medium,
    Cache,
}

impl Journal {
    /// Reads a sealed segment past the page cache and checks all of it. `pace` is told how many bytes are about to be read,
    /// may wait, and says whether to go on. Marks what is bad. Blocks.
    pub fn check_segment(&self, base_offset: u64, pace: Pace<'_>) -> Result<Checked, CheckError> {
        let sealed = self.sealed_segment(base_offset)?;
        self.check_from(Source::Medium, &sealed, pace)
    }

    /// The good runs of a sealed segment and the bad ranges between them. Marks nothing. Blocks; reads everything.
    pub fn survey(&self, base_offset: u64) -> Result<Vec<Piece>, CheckError> {
        let sealed = self.sealed_segment(base_offset)?;
        let (segment, end) = (&sealed.segment, sealed.end_offset);
        let surveyed = self.survey_sealed(Source::Medium, segment, end, &mut |_| true)?;
        Ok(surveyed.pieces)
    }

    /// The digest of a sealed segment as its digest file has it: what it held when it was last checked in full. `None` if
    /// there is no such file.
    pub fn known_digest(&self, base_offset: u64) -> Option<SegmentDigest> {
        let sealed = self.sealed_segment(base_offset).ok()?;
        let of = (self.group, base_offset, sealed.end_offset);
        let read = SealedDigest::read(self.io.disk.as_ref(), &sealed.segment.path(), of);
        read.ok()?.map(|digest| digest.as_segment_digest())
    }

    /// The kept digests of sealed segments from the one at `from_offset` on, at most `max` of them. Blocks: reads a small file
    /// for each.
    pub fn kept_digests(&self, from_offset: u64, max: usize) -> Vec<SegmentDigest> {
        let segments = self.segments().into_iter();
        let sealed = segments.filter(|s| s.sealed && s.base_offset >= from_offset);
        let digests = sealed.filter_map(|segment| self.known_digest(segment.base_offset));
        digests.take(max).collect()
    }

    /// Marks a sealed segment whose every batch checks as not the one that belongs here: other replicas agree on other
    /// bytes. Blocks.
    pub fn mark_foreign(&self, base_offset: u64) -> Result<(), CheckError> {
        let sealed = self.sealed_segment(base_offset)?;
        let range = BadRange {
            path: sealed.segment.path(),
            segment_base: base_offset,
            from_byte: 0,
            to_byte: None,
            from_offset: base_offset,
            to_offset: sealed.end_offset,
            kind: DamageKind::Foreign,
            found: "a majority of the replicas holds other bytes: an old or foreign copy"
                .to_owned(),
        };
        Companion::Digest.remove(self.io.disk.as_ref(), &sealed.segment.path())?;
        self.conclude(&sealed, None, None, vec![range])
    }

    /// The digest of a freshly sealed segment, in the background.
    pub(super) fn digest_sealed(self: &Arc<Self>, segment: &Arc<Segment>) {
        let (journal, base) = (Arc::clone(self), segment.name.base_offset);
        self.io.offload.run(Box::new(move || {
            let checked = journal
                .sealed_segment(base)
                .and_then(|sealed| journal.check_from(Source::Cache, &sealed, &mut |_| true));
            if let Err(error) = checked {
                tracing::debug!(group = journal.group, base, %error, "no digest yet");
            }
        }));
    }

    /// Removes what is beside a segment that goes.
    pub(super) fn forget_beside(&self, segment: &Segment) -> io::Result<()> {
        let mut version = segment.beside.lock();
        *version += 1;
        self.damage.set(segment.name.base_offset, Vec::new());
        Companion::remove_all(self.io.disk.as_ref(), &segment.path())
    }

    /// Removes what is beside a segment that will be written again, but for marks of what is kept of it.
    pub(super) fn uncover(&self, segment: &Segment) -> io::Result<()> {
        let mut version = segment.beside.lock();
        *version += 1;
        Companion::Digest.remove(self.io.disk.as_ref(), &segment.path())?;
        self.save_marks(&segment.path(), segment.name.base_offset);
        self.io.disk.sync_dir(&self.dir)
    }

    fn sealed_segment(&self, base_offset: u64) -> Result<Sealed, CheckError> {
        let there = self.inner.lock().shape.segment_by_offset(base_offset);
        let segment = there
            .filter(|segment| segment.name.base_offset == base_offset)
            .ok_or(CheckError::NoSegment(base_offset))?;
        let end_offset = self.sealed_end(&segment);
        if !segment.with(|body| body.sealed) {
            return Err(CheckError::NotSealed(base_offset));
        }
        let version = *segment.beside.lock();
        Ok(Sealed {
            segment,
            end_offset,
            version,
        })
    }

    fn check_from(
        &self,
        from: Source,
        sealed: &Sealed,
        pace: Pace<'_>,
    ) -> Result<Checked, CheckError> {
        let Sealed {
            segment,
            end_offset,
            ..
        } = sealed;
        let end_offset = *end_offset;
        let surveyed = match self.survey_sealed(from, segment, end_offset, pace) {
            Ok(surveyed) => surveyed,
            Err(CheckError::Io(error)) if is_lost(&error) => {
                return self.check_lost(sealed, &error);
            }
            Err(error) => return Err(error),
        };
        let base_offset = segment.name.base_offset;
        let disk = self.io.disk.as_ref();
        let known =
            SealedDigest::read(disk, &segment.path(), (self.group, base_offset, end_offset))?;
        let found = sealed_digest(self.group, base_offset, end_offset, &surveyed);
        let damage: Vec<BadRange> = match (found, known) {
            (Some(found), Some(known)) if found != known => {
                vec![foreign(segment, end_offset, &found, &known)]
            }
            _ => surveyed.bad().cloned().collect(),
        };
        self.conclude(sealed, found, known, damage.clone())?;
        Ok(Checked {
            base_offset,
            end_offset,
            bytes: surveyed.file_len,
            digest: found
                .filter(|_| damage.is_empty())
                .map(|digest| digest.as_segment_digest()),
            damage,
        })
    }

    fn survey_sealed(
        &self,
        from: Source,
        segment: &Segment,
        end_offset: u64,
        pace: Pace<'_>,
    ) -> Result<Surveyed, CheckError> {
        let file = self.io.disk.open(&segment.path(), OpenMode::Read)?;
        if from == Source::Medium {
            file.drop_cached()?;
        }
        let order = Order {
            path: &segment.path(),
            group: self.group,
            base_offset: segment.name.base_offset,
            end_offset,
            sealed: true,
        };
        Ok(survey(file.as_ref(), &order, pace)?)
    }

    /// A file that can't even be opened is damage, unless it went in good order meanwhile.
    fn check_lost(&self, sealed: &Sealed, error: &io::Error) -> Result<Checked, CheckError> {
        let range = lost_range(&sealed.segment, sealed.end_offset, error);
        self.conclude(sealed, None, None, vec![range.clone()])?;
        Ok(Checked {
            base_offset: sealed.segment.name.base_offset,
            end_offset: sealed.end_offset,
            bytes: 0,
            digest: None,
            damage: vec![range],
        })
    }

    /// Marks, or unmarks and keeps the digest, unless the segment is another one by now.
    fn conclude(
        &self,
        sealed: &Sealed,
        found: Option<SealedDigest>,
        known: Option<SealedDigest>,
        damage: Vec<BadRange>,
    ) -> Result<(), CheckError> {
        let segment = &sealed.segment;
        let base_offset = segment.name.base_offset;
        // Who changes the file holds this lock, so what is written beside it is still true of it.
        let version = segment.beside.lock();
        let there = {
            let inner = self.inner.lock();
            inner.shape.segments.iter().any(|s| Arc::ptr_eq(s, segment))
        };
        let same = there && self.sealed_end(segment) == sealed.end_offset;
        if !same || *version != sealed.version {
            return Err(CheckError::NoSegment(base_offset));
        }
        if !damage.is_empty() {
            for range in &damage {
                tracing::error!(
                    group = self.group, path = %range.path.display(), from_offset = range.from_offset,
                    to_offset = range.to_offset, found = range.found, "a check found damage"
                );
            }
            self.set_marks(segment, damage);
            return Ok(());
        }
        let marked = self.damage.of_segment(base_offset);
        let was_foreign = marked.iter().any(|range| range.kind == DamageKind::Foreign);
        if was_foreign && known.is_none() {
            // Nothing here can tell whether it is the right content by now.
            return Ok(());
        }
        if let Some(found) = found {
            // Not known if the file could not be opened at the start.
            segment.with(|body| body.len = found.bytes);
            if known.is_none() {
                found.write(self.io.disk.as_ref(), &segment.path())?;
            }
        }
        self.set_marks(segment, Vec::new());
        Ok(())
    }
}

/// The digest of a segment of which nothing is bad.
pub(super) fn sealed_digest(
    group: u64,
    base_offset: u64,
    end_offset: u64,
    surveyed: &Surveyed,
) -> Option<SealedDigest> {
    let mut pieces = surveyed.good();
    let whole = pieces.next()?;
    let all_good = pieces.next().is_none() && surveyed.bad().next().is_none();
    all_good.then_some(SealedDigest {
        group,
        base_offset,
        bytes: whole.to_byte,
        end_offset,
        first_stamp_us: whole.first_stamp_us,
        last_stamp_us: whole.last_stamp_us,
        xxh3: surveyed.xxh3,
    })
}

fn foreign(
    segment: &Segment,
    end_offset: u64,
    found: &SealedDigest,
    known: &SealedDigest,
) -> BadRange {
    BadRange {
        path: segment.path(),
        segment_base: segment.name.base_offset,
        from_byte: 0,
        to_byte: None,
        from_offset: segment.name.base_offset,
        to_offset: end_offset,
        kind: DamageKind::Foreign,
        found: format!(
            "old or foreign content: {} bytes of hash {:016x}, sealed were {} of {:016x}",
            found.bytes, found.xxh3, known.bytes, known.xxh3
        ),
    }
}
