//! A cut that a crash interrupted: row a of the table.

use super::{OpenError, Opening};
use crate::disk::OpenMode;
use crate::journal::damage::{BadRange, Companion, DamageBook, DamageKind};
use crate::journal::segment::Segment;
use crate::journal::walk::Window;
use crate::statelog::PendingCut;

impl Opening<'_> {
    /// Row a. Finds the cut by walking, since nothing is known of the segments yet.
    pub(super) fn finish_cut(&self, cut: PendingCut) -> Result<(), OpenError> {
        let segments = self.segments()?;
        let (kept, gone): (Vec<_>, Vec<_>) = segments
            .iter()
            .partition(|segment| !cut.whole && segment.name.base_offset < cut.offset);
        for segment in gone.iter().rev() {
            Companion::remove_all(self.disk, &segment.path()).map_err(|e| self.io(e))?;
            self.disk
                .remove_file(&segment.path())
                .map_err(|e| self.io(e))?;
        }
        self.disk.sync_dir(self.dir).map_err(|e| self.io(e))?;
        let Some(segment) = kept.last() else {
            return Ok(());
        };
        self.uncover(segment, cut.offset).map_err(|e| self.io(e))?;
        let file = self
            .disk
            .open(&segment.path(), OpenMode::Write)
            .map_err(|e| self.io(e))?;
        let mut pos = 0;
        let mut offset = segment.name.base_offset;
        let mut window = Window::new(file.as_ref());
        while offset < cut.offset {
            let bytes = window
                .get(pos, imprint_proto::batch::HEADER_LEN, 16 << 10)
                .map_err(|e| self.io(e))?;
            let header = imprint_proto::batch::BatchHeader::decode_checked(bytes)
                .and_then(|header| header.verify_chain(offset, 0).map(|()| header))
                .map_err(|e| {
                    let path = segment.path();
                    let found = e.to_string();
                    let range = BadRange {
                        path,
                        segment_base: segment.name.base_offset,
                        from_byte: pos,
                        to_byte: None,
                        from_offset: offset,
                        to_offset: cut.offset,
                        kind: DamageKind::Bytes,
                        found,
                    };
                    OpenError::Corrupt(range)
                })?;
            pos += header.batch_length;
            offset = header.next_offset().unwrap_or(u64::MAX);
        }
        file.set_len(pos)
            .and_then(|()| file.sync_all())
            .map_err(|e| self.io(e))
    }

    /// What is beside the segment that will be written again must not tell of what is cut off.
    fn uncover(&self, segment: &Segment, end: u64) -> std::io::Result<()> {
        Companion::Digest.remove(self.disk, &segment.path())?;
        if self
            .disk
            .exists(&Companion::Damaged.path(&segment.path()))?
        {
            let (base, book) = (segment.name.base_offset, DamageBook::default());
            let marks = DamageBook::load(self.disk, &segment.path(), segment.name, self.group);
            book.set(base, marks);
            book.cut(end);
            book.save(self.disk, &segment.path(), base, self.group)?;
        }
        self.disk.sync_dir(self.dir)
    }
}
