//! openraft's log storage over the journal.
//!
//! A thin translation: the journal owns order, stamping, syncing and recovery. What this layer
//! adds is openraft's contract:
//!
//! * `append` returns when the entries are readable; its callback fires when they are synced.
//! * A vote or a truncation waits for the appends before it, so that storage I/O is one sequence.
//! * `purge` records a position and deletes nothing: openraft calls it up to a snapshot's last
//!   entry right after an install, and only a trim may delete segments.
//! * What is reported as committed is never ahead of the journal: the journal clamps it at open.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{OptionalSend, impls};
use tokio::sync::watch;

use super::types::{Entry, LogId, TypeConfig, Vote, from_journal, log_id, log_pos, to_journal};
use crate::disk::Io;
use crate::journal::{Journal, StoredEntry, VoteRecord};

/// The most that one AppendEntries carries, unless a single batch is larger. Bytes.
pub(crate) const APPEND_ENTRIES_MAX_BYTES: u64 = 1 << 20;

/// What a read does that meets damage: openraft takes a failed read for the end of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDamage {
    /// Fails: while the replica starts, so that it is repaired first.
    Fail,
    /// Waits for the repair.
    Wait,
    /// Fails: the replica stops.
    Stop,
}

/// Log storage and log reader of one group; clones share the journal.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    journal: Arc<Journal>,
    on_damage: watch::Receiver<OnDamage>,
}

impl LogStore {
    pub(crate) fn new(journal: Arc<Journal>, on_damage: watch::Receiver<OnDamage>) -> Self {
        LogStore { journal, on_damage }
    }

    /// Reads entries; waits where they are damaged until they are repaired.
    async fn read(&self, from: u64, to: u64, max_bytes: u64) -> io::Result<Vec<Entry>> {
        let mut damage = self.journal.watch_damage();
        let mut on_damage = self.on_damage.clone();
        let stored = loop {
            damage.borrow_and_update();
            match read_entries(&self.journal, from, to, max_bytes).await {
                Err(_)
                    if *on_damage.borrow_and_update() == OnDamage::Wait
                        && self.journal.is_damaged() =>
                {
                    tokio::select! {
                        _ = damage.changed() => {}
                        _ = on_damage.changed() => {}
                    }
                }
                read => break read?,
            }
        };
        stored
            .into_iter()
            .map(|entry| from_journal(entry).map_err(io::Error::other))
            .collect()
    }
}

/// Reads entries without blocking the runtime: from the cached tail, else on the offload.
pub(crate) async fn read_entries(
    journal: &Arc<Journal>,
    from: u64,
    to: u64,
    max_bytes: u64,
) -> io::Result<Vec<StoredEntry>> {
    if let Some(entries) = journal.read_cached(from, to, max_bytes) {
        return Ok(entries);
    }
    let reader = Arc::clone(journal);
    offloaded(journal.io(), move || reader.read(from, to, max_bytes)).await?
}

/// Runs blocking work where it may block.
pub(crate) async fn offloaded<T: Send + 'static>(
    io: &Io,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    // The receiver is only gone when its task was cancelled.
    io.offload.run(Box::new(move || drop(tell.send(work()))));
    told.await
        .map_err(|_| io::Error::other("the blocking work did not finish"))
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (from, to) = bounds(&range);
        self.read(from, to, u64::MAX).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.journal.vote().map(|record| Vote {
            leader_id: impls::leader_id_std::LeaderId {
                term: record.term,
                voted_for: record.voted_for.unwrap_or(0),
            },
            committed: record.committed,
        }))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, APPEND_ENTRIES_MAX_BYTES).await
    }
}

fn bounds<RB: RangeBounds<u64>>(range: &RB) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        Ok(LogState {
            last_purged_log_id: self.journal.purged().map(log_id),
            last_log_id: self.journal.last().map(log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let record = VoteRecord {
            term: vote.leader_id.term,
            voted_for: Some(vote.leader_id.voted_for),
            committed: vote.committed,
        };
        self.journal.save_vote(record).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(id) = committed {
            self.journal.note_committed(log_pos(&id));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.journal.committed().map(log_id))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: IOFlushed<TypeConfig>,
    ) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        // The only bound on what waits for a slow disk: openraft's core waits here, and so do its
        // proposers and the leader's replication stream.
        self.journal.wait_for_room().await;
        let entries = entries.into_iter().map(to_journal).collect();
        self.journal
            .append(
                entries,
                Box::new(move |result| callback.io_completed(result)),
            )
            .map_err(io::Error::other)
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        self.journal
            .truncate_after(last_log_id.map(|id| id.index))
            .await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.journal.purge(log_pos(&log_id)).await
    }
}
