//! The files beside segments: marks are loaded, what was left unfinished is removed, and a digest without its segment tells
//! that the segment is missing. All from the names in the directory; only what has no segment is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{OpenError, Opening};
use crate::journal::damage::{BadRange, Companion, DamageBook, DamageKind};
use crate::journal::digest::SealedDigest;
use crate::journal::segment::{Segment, SegmentName};
use crate::journal::shape::Shape;

impl Opening<'_> {
    fn companions(&self) -> Result<Vec<(SegmentName, Companion, String)>, OpenError> {
        let names = self.disk.list(self.dir).map_err(|e| self.io(e))?;
        let found = names.into_iter().filter_map(|name| {
            let (segment, kind) = Companion::parse(&name)?;
            Some((segment, kind, name))
        });
        Ok(found.collect())
    }

    /// Loads the marks of all segments, also of those that are missing.
    pub(super) fn load_marks(&self, segments: &[Arc<Segment>]) -> Result<(), OpenError> {
        let there: BTreeSet<SegmentName> = segments.iter().map(|segment| segment.name).collect();
        for (name, kind, _) in self.companions()? {
            let path = self.dir.join(name.file_name());
            let ranges = match kind {
                Companion::Damaged => DamageBook::load(self.disk, &path, name, self.group),
                Companion::Digest if !there.contains(&name) => self.gone(name)?,
                _ => continue,
            };
            let behind =
                segments.partition_point(|segment| segment.name.base_offset <= name.base_offset);
            let end = segments.get(behind).map(|next| next.name.base_offset);
            let mut all = self.damage.of_segment(name.base_offset);
            all.extend(ranges);
            for range in &mut all {
                range.to_offset = range.to_offset.min(end.unwrap_or(u64::MAX));
            }
            self.damage.set(name.base_offset, all);
        }
        Ok(())
    }

    /// A digest without its segment.
    fn gone(&self, name: SegmentName) -> Result<Vec<BadRange>, OpenError> {
        let path = self.dir.join(name.file_name());
        let digest = SealedDigest::read_any(self.disk, &path).map_err(|e| self.io(e))?;
        let of_this = digest
            .filter(|digest| (digest.group, digest.base_offset) == (self.group, name.base_offset));
        let range = of_this.map(|digest| BadRange {
            path,
            segment_base: name.base_offset,
            from_byte: 0,
            to_byte: None,
            from_offset: name.base_offset,
            to_offset: digest.end_offset,
            kind: DamageKind::Missing,
            found: "the segment's file is gone, its digest is there".to_owned(),
        });
        Ok(range.into_iter().collect())
    }

    /// All data below this offset must be there: what the state log says, and what was found damaged in the last segment
    /// after it was synced.
    pub(super) fn must_have(&self, segments: &[Arc<Segment>]) -> u64 {
        let last = segments.last();
        let marked = last.map(|last| self.damage.of_segment(last.name.base_offset));
        let ends = marked.iter().flatten().map(|range| range.to_offset);
        // A mark that can't be read says nothing of offsets.
        let marked = ends.filter(|offset| *offset < u64::MAX).max();
        self.kept.must_have().max(marked.unwrap_or(0))
    }

    /// Removes what belongs to no segment of this log, or was not finished, and takes marks back to the log.
    pub(super) fn tidy(&self, shape: &Shape) -> Result<(), OpenError> {
        let inside = shape.start_offset..shape.next_offset;
        let there: BTreeSet<SegmentName> = shape.segments.iter().map(|s| s.name).collect();
        let mut removed = false;
        for (name, kind, file) in self.companions()? {
            let marked = self.damage.of_segment(name.base_offset);
            let wanted = there.contains(&name)
                || marked
                    .iter()
                    .any(|range| range.from_offset < inside.end && range.to_offset > inside.start);
            let unfinished = matches!(kind, Companion::Mend | Companion::Unfinished);
            if unfinished || !wanted {
                let path = self.dir.join(file);
                self.disk.remove_file(&path).map_err(|e| self.io(e))?;
                removed = true;
            }
            if !wanted {
                self.damage.set(name.base_offset, Vec::new());
            }
        }
        if removed {
            self.disk.sync_dir(self.dir).map_err(|e| self.io(e))?;
        }
        for range in self.damage.all() {
            tracing::error!(
                group = self.group, path = %range.path.display(), from_offset = range.from_offset,
                to_offset = range.to_offset, found = range.found, "marked as damaged"
            );
        }
        self.damage.cut(shape.next_offset);
        Ok(())
    }
}
