//! Digests and marks of damage: files beside a segment that say something about it.

use std::path::Path;

use imprint_proto::envelope::{self, EnvelopeError};

use super::group::{FETCH, Known};
use super::look::Look;
use super::{Checker, Failed, Fix, Item, NewDigest, Range, Verdict};
use crate::journal::SegmentName;
use crate::journal::damage::{Companion, DamageKind, DamageRecord};
use crate::journal::digest::SealedDigest;
use crate::offline::small::read_small;

impl Checker<'_> {
    /// The digest and the marks of a segment, after the segment itself was looked at.
    pub(super) fn beside(
        &mut self,
        known: &Known<'_>,
        segment: &Path,
        name: &SegmentName,
        next: Option<&SegmentName>,
        looked: &Look,
    ) -> Result<(), Failed> {
        let trusted = self.digest(known, segment, name, next.is_some(), looked)?;
        self.marks(known, segment, name, looked, trusted)
    }

    /// What a file beside a segment says; `None` if there is none.
    fn read_beside<T: envelope::Envelope>(
        &self,
        path: &Path,
    ) -> Result<Option<Result<T, String>>, Failed> {
        if !self.exists(path)? {
            return Ok(None);
        }
        let bytes = read_small(self.disk, path).map_err(|e| (path.to_owned(), e))?;
        let decoded = envelope::decode_checked::<T>(bytes);
        Ok(Some(
            decoded.map_err(|error: EnvelopeError| error.to_string()),
        ))
    }

    /// Says whether the digest confirms the segment.
    fn digest(
        &mut self,
        known: &Known<'_>,
        segment: &Path,
        name: &SegmentName,
        sealed: bool,
        looked: &Look,
    ) -> Result<bool, Failed> {
        let path = Companion::Digest.path(segment);
        let Some(stored) = self.read_beside::<SealedDigest>(&path)? else {
            return Ok(false);
        };
        let item =
            |verdict, found: String| Item::new("digest", Some(known.group), &path, verdict, found);
        if !sealed {
            let found = "beside a segment that is not sealed: nothing reads it".to_owned();
            self.push(item(Verdict::Note, found).fix(Fix::Remove(path.clone())));
            return Ok(false);
        }
        let Some(found) = looked.digest else {
            return Ok(false);
        };
        let of_this = |digest: &SealedDigest| {
            (digest.group, digest.base_offset, digest.end_offset)
                == (found.group, found.base_offset, found.end_offset)
        };
        let problem = match stored {
            Ok(stored) if stored == found => return Ok(true),
            Ok(stored) if of_this(&stored) => {
                let range = Range {
                    from_byte: 0,
                    to_byte: Some(looked.file_len),
                    from_offset: Some(found.base_offset),
                    to_offset: Some(found.end_offset),
                };
                let text = format!(
                    "all batches are valid, but not those that were sealed: {} bytes of hash {:016x}, sealed were {} of {:016x}",
                    found.bytes, found.xxh3, stored.bytes, stored.xxh3
                );
                let item = Item::new(
                    "segment",
                    Some(known.group),
                    segment,
                    Verdict::Damaged,
                    text,
                );
                let fix = Fix::Fill {
                    group: known.group,
                    segment: *name,
                };
                self.push(item.at(range).todo(FETCH).fix(fix));
                return Ok(false);
            }
            Ok(_) => "of another segment".to_owned(),
            Err(error) => error,
        };
        let fix = Fix::Digest(Box::new(NewDigest {
            segment: segment.to_owned(),
            digest: found,
        }));
        let todo = "nothing: it is made again by the next check of the segment; so does a repair";
        self.push(item(Verdict::Mends, problem).todo(todo).fix(fix));
        Ok(false)
    }

    fn marks(
        &mut self,
        known: &Known<'_>,
        segment: &Path,
        name: &SegmentName,
        looked: &Look,
        trusted: bool,
    ) -> Result<(), Failed> {
        let path = Companion::Damaged.path(segment);
        let Some(stored) = self.read_beside::<DamageRecord>(&path)? else {
            return Ok(());
        };
        let fully_good = looked.digest.is_some() && !self.has_damage(segment);
        let item =
            |verdict, found: String| Item::new("mark", Some(known.group), &path, verdict, found);
        let (ranges, foreign) = match &stored {
            Ok(record) => (
                record.ranges.len(),
                record
                    .ranges
                    .iter()
                    .any(|range| range.kind() == DamageKind::Foreign),
            ),
            Err(_) => (0, false),
        };
        let says = match stored {
            Ok(_) => format!("marks {ranges} range(s) of {} as damaged", name.base_offset),
            Err(error) => format!("can't be read, so the whole segment counts as damaged: {error}"),
        };
        if !fully_good {
            self.push(item(Verdict::Note, says));
        } else if foreign && !trusted {
            let found = format!(
                "{says}; the batches are valid, and no digest tells whether they belong here"
            );
            self.push(item(Verdict::Damaged, found).todo(FETCH));
        } else {
            let found = format!("{says}; a full check finds nothing wrong");
            self.push(item(Verdict::Mends, found).fix(Fix::Remove(path.clone())));
        }
        Ok(())
    }

    fn has_damage(&self, path: &Path) -> bool {
        let mut own = self.items.iter().filter(|item| item.path == path);
        own.any(|item| item.verdict == Verdict::Damaged)
    }

    /// Files beside segments that are not there.
    pub(super) fn orphans(
        &mut self,
        known: &Known<'_>,
        segments: &[SegmentName],
        beside: &[(SegmentName, Companion, String)],
    ) -> Result<(), Failed> {
        let mut gone_ranges = Vec::new();
        for (name, kind, file) in beside {
            if segments.contains(name) {
                continue;
            }
            let path = known.dir.join(file);
            let gone = name.base_offset < known.kept.start_offset || !known.by_state;
            match kind {
                Companion::Digest if !gone => {
                    let stored = self.read_beside::<SealedDigest>(&path)?;
                    let Some(Ok(digest)) = stored
                        .filter(|stored| stored.as_ref().is_ok_and(|d| d.group == known.group))
                    else {
                        self.stranger(&path);
                        continue;
                    };
                    let range = Range {
                        from_byte: 0,
                        to_byte: Some(digest.bytes),
                        from_offset: Some(digest.base_offset),
                        to_offset: Some(digest.end_offset),
                    };
                    gone_ranges.push((digest.base_offset, digest.end_offset));
                    let found = "the segment is gone, its digest is there";
                    let segment = known.dir.join(name.file_name());
                    let item = Item::new(
                        "segment",
                        Some(known.group),
                        &segment,
                        Verdict::Damaged,
                        found,
                    );
                    let fix = Fix::Fill {
                        group: known.group,
                        segment: *name,
                    };
                    self.push(item.at(range).todo(FETCH).fix(fix));
                }
                Companion::Damaged if !gone => {
                    let found = "marks a segment that is not there";
                    self.push(Item::new(
                        "mark",
                        Some(known.group),
                        &path,
                        Verdict::Note,
                        found,
                    ));
                }
                _ => self.unfinished(Some(known.group), &path),
            }
        }
        // What digests tell the names of need not be said a second time as a gap.
        self.items.retain(|item| {
            let explained = |range: Range| covered(&gone_ranges, range);
            item.group != Some(known.group)
                || item.area != "gap"
                || !item.range.is_some_and(explained)
        });
        Ok(())
    }
}

/// Whether ranges of offsets, in order, cover a range without a hole.
fn covered(by: &[(u64, u64)], range: Range) -> bool {
    let (Some(mut at), Some(to)) = (range.from_offset, range.to_offset) else {
        return false;
    };
    for (from, end) in by {
        if *from == at {
            at = *end;
        }
    }
    at >= to
}
