//! The newest entries, kept in memory.
//!
//! Everything that is not synced yet is here and nowhere else; above that it keeps what fits its bound, so that followers
//! and readers at the tail are served without the disk. Entries are in index order without gaps.

use std::collections::VecDeque;

use imprint_proto::batch::StampedBatch;

use super::StoredEntry;

/// See the module's text.
#[derive(Debug, Default)]
pub struct TailCache {
    entries: VecDeque<TailEntry>,
    bytes: u64,
}

#[derive(Debug)]
struct TailEntry {
    offset: u64,
    entry: StoredEntry,
}

/// What a control entry is counted as, beside its content.
const ENTRY_OVERHEAD_BYTES: u64 = 96;

fn cost(entry: &StoredEntry) -> u64 {
    ENTRY_OVERHEAD_BYTES
        + match entry {
            StoredEntry::Data { batch, .. } => batch.len(),
            StoredEntry::Control { .. } => 0,
        }
}

impl TailCache {
    /// Index of the first entry kept.
    pub fn first_index(&self) -> Option<u64> {
        self.entries.front().map(|kept| kept.entry.pos().index)
    }

    /// The offset at which the first entry kept stands: all data below is on the disk.
    pub fn first_offset(&self) -> Option<u64> {
        self.entries.front().map(|kept| kept.offset)
    }

    /// The offset of the first batch stamped at or after a time, if the tail alone can tell; inside, `None` for no batch.
    pub fn offset_for_time(&self, stamp_us: u64) -> Option<Option<u64>> {
        let mut batches = self.entries.iter().filter_map(|kept| match &kept.entry {
            StoredEntry::Data { batch, .. } => Some(batch),
            StoredEntry::Control { .. } => None,
        });
        batches
            .next()
            .filter(|first| first.base_timestamp() < stamp_us)?;
        Some(
            batches
                .find(|batch| batch.base_timestamp() >= stamp_us)
                .map(StampedBatch::base_offset),
        )
    }

    /// Adds the log's next entry, which stands at `offset`.
    pub fn push(&mut self, offset: u64, entry: StoredEntry) {
        self.bytes += cost(&entry);
        self.entries.push_back(TailEntry { offset, entry });
    }

    /// Drops old entries beyond the bound, but none above `synced_index`.
    pub fn shrink(&mut self, max_bytes: u64, synced_index: u64) {
        while self.bytes > max_bytes {
            if self.first_index().is_none_or(|first| first > synced_index) {
                return;
            }
            if let Some(gone) = self.entries.pop_front() {
                self.bytes -= cost(&gone.entry);
            }
        }
    }

    /// Drops everything from an index on.
    pub fn truncate(&mut self, from_index: u64) {
        let kept = self
            .entries
            .partition_point(|kept| kept.entry.pos().index < from_index);
        for gone in self.entries.drain(kept..) {
            self.bytes -= cost(&gone.entry);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// The entry of this index.
    pub fn get(&self, index: u64) -> Option<&StoredEntry> {
        self.entries_from(index).next()
    }

    /// Entries from this index on; nothing if the index is not kept.
    pub fn entries_from(&self, index: u64) -> impl Iterator<Item = &StoredEntry> {
        let skip = self
            .first_index()
            .and_then(|first| index.checked_sub(first));
        let skip = skip
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(usize::MAX);
        self.entries.iter().skip(skip).map(|kept| &kept.entry)
    }

    /// Entries from the batch on that holds this offset, if that batch is kept.
    pub fn batches_from(&self, offset: u64) -> Option<impl Iterator<Item = &StoredEntry>> {
        // Several entries may stand at one offset: the data batch is the last of them.
        let behind = self.entries.partition_point(|kept| kept.offset <= offset);
        let at = behind.checked_sub(1)?;
        let holds = match &self.entries.get(at)?.entry {
            StoredEntry::Data { batch, .. } => offset < batch.next_offset(),
            StoredEntry::Control { .. } => false,
        };
        holds.then(|| self.entries.iter().skip(at).map(|kept| &kept.entry))
    }
}
