//! Segments by their names: what is listed, in which order, and what is noted of each before it is read.

use std::path::Path;
use std::sync::Arc;

use super::active::Active;
use super::{OpenError, Opening};
use crate::journal::damage::{is_lost, lost_range};
use crate::journal::segment::{Segment, SegmentName};

impl Opening<'_> {
    /// The segments by their names, in order.
    pub(super) fn segments(&self) -> Result<Vec<Arc<Segment>>, OpenError> {
        let names = self.disk.list(self.dir).map_err(|e| self.io(e))?;
        let mut found: Vec<SegmentName> = names
            .iter()
            .filter_map(|name| SegmentName::parse(name))
            .collect();
        found.sort_unstable();
        for pair in found.windows(2) {
            let [before, after] = pair else { continue };
            let rises =
                before.base_offset < after.base_offset && before.first_index < after.first_index;
            if !rises || before.term > after.term {
                let path = self.dir.join(after.file_name());
                return Err(
                    self.inconsistent(&path, format!("does not follow {}", before.file_name()))
                );
            }
        }
        let dir: Arc<Path> = self.dir.into();
        Ok(found
            .into_iter()
            .map(|name| Arc::new(Segment::new(&dir, name)))
            .collect())
    }

    /// Whether every term was begun by something before its first segment: row ab.
    pub(super) fn check_terms(&self, segments: &[Arc<Segment>]) -> Result<(), OpenError> {
        let mut begun = self.kept.purged.map_or(0, |purged| purged.term);
        for (n, segment) in segments.iter().enumerate() {
            let name = segment.name;
            let before = self.kept.controls.range(..name.first_index).next_back();
            begun = begun.max(before.map_or(0, |(_, control)| control.term));
            // What began the first one's term may be forgotten.
            if n > 0 && name.term > begun {
                let found = format!("begins in term {}, which no entry begins", name.term);
                return Err(self.inconsistent(&segment.path(), found));
            }
            begun = begun.max(name.term);
        }
        Ok(())
    }

    /// Whether a segment's name fits between the control entries around its first batch.
    pub(super) fn check_name(&self, name: &SegmentName) -> Result<(), OpenError> {
        let controls = &self.kept.controls;
        let before = controls.range(..name.first_index).next_back();
        let behind = controls.range(name.first_index..).next();
        let fits_before =
            before.is_none_or(|(_, c)| c.offset <= name.base_offset && c.term <= name.term);
        let fits_behind = behind.is_none_or(|(index, c)| {
            *index > name.first_index && c.offset > name.base_offset && c.term >= name.term
        });
        if fits_before && fits_behind {
            return Ok(());
        }
        let found = "does not fit between the control entries".to_owned();
        Err(self.inconsistent(&self.dir.join(name.file_name()), found))
    }

    /// Notes what is known of each segment.
    pub(super) fn describe(
        &self,
        segments: &[Arc<Segment>],
        active: Option<Active>,
    ) -> Result<(), OpenError> {
        let Some((last, sealed)) = segments.split_last() else {
            return Ok(());
        };
        for (n, segment) in sealed.iter().enumerate() {
            let len = match self.disk.file_len(&segment.path()) {
                Ok(len) => len,
                // The range is excluded; the rest of the log is as good as before.
                Err(error) if is_lost(&error) => {
                    let behind = segments.get(n + 1);
                    let end = behind.map_or(u64::MAX, |next| next.name.base_offset);
                    let range = lost_range(segment, end, &error);
                    self.damage.set(segment.name.base_offset, vec![range]);
                    0
                }
                Err(error) => return Err(self.io(error)),
            };
            segment.with(|body| (body.len, body.sealed) = (len, true));
        }
        let Some(Active { walked, file }) = active else {
            return Ok(());
        };
        let file_len = file.len().map_err(|e| self.io(e))?;
        {
            let mut extent = last.extent.lock();
            (extent.frontier, extent.zeroed_end) = (walked.end, file_len.max(walked.end));
        }
        last.with(|body| {
            body.len = walked.end;
            body.first_stamp = walked.first_stamp;
            body.last_stamp = walked.last.map_or(0, |spot| spot.stamp);
            body.index = Some(walked.index);
            body.file = Some(file);
        });
        Ok(())
    }
}
