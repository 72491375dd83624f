//! What repair and scrub have done since the node started.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters, changed by repair and scrub.
#[derive(Debug, Default)]
pub struct RepairStats {
    mended: AtomicU64,
    mended_bytes: AtomicU64,
    failed: AtomicU64,
    scrubbed: AtomicU64,
    scrubbed_bytes: AtomicU64,
    found: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepairCounts {
    /// Segments that were repaired from other replicas.
    pub segments_repaired: u64,
    /// Bytes fetched for them.
    pub bytes_fetched: u64,
    /// Tries that did not succeed.
    pub failures: u64,
    /// Sealed segments that were re-read.
    pub segments_scrubbed: u64,
    /// Bytes re-read.
    pub bytes_scrubbed: u64,
    /// Segments that the scrub found damaged.
    pub scrub_findings: u64,
}

impl RepairStats {
    pub(crate) fn mended(&self, bytes: u64) {
        self.mended.fetch_add(1, Ordering::Relaxed);
        self.mended_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn scrubbed(&self, bytes: u64) {
        self.scrubbed.fetch_add(1, Ordering::Relaxed);
        self.scrubbed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    /// All of them.
    pub fn counts(&self) -> RepairCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RepairCounts {
            segments_repaired: read(&self.mended),
            bytes_fetched: read(&self.mended_bytes),
            failures: read(&self.failed),
            segments_scrubbed: read(&self.scrubbed),
            bytes_scrubbed: read(&self.scrubbed_bytes),
            scrub_findings: read(&self.found),
        }
    }
}
