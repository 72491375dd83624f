//! openraft's log storage over the journal.
//!
//! A thin translation: the journal owns order, stamping, syncing and recovery. What this layer
//! adds is openraft's contract:
//!
//! * `append` returns when the entries are readable; its callback fires when they are synced.
//! * A vote or a truncation waits for the appends before it, so that storage I/O is one sequence.
//! * `purge` records a position and deletes nothing that no trim has passed: openraft calls it up to
//!   a snapshot's last entry right after an install.
//! * openraft hands an append over that follows on a snapshot whose installation is still under way:
//!   it waits here.
//! * Opening reads no sealed segment: terms come from the control log.
//! * What is reported as committed is never ahead of the journal: the journal clamps it at open.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, impls};
use tokio::sync::watch;

use super::catchup::CatchUpLimit;
use super::types::{
    AppRecord, Entry, LogId, TypeConfig, Vote, from_journal, log_id, log_pos, to_journal,
};
use crate::disk::offloaded;
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

/// The most that is read at once to be applied, unless a single batch is larger. Bytes.
const APPLY_READ_MAX_BYTES: u64 = 1 << 20;

/// Log storage and log reader of one group; clones share the journal.
#[derive(Clone, Debug)]
pub(crate) struct LogStore {
    journal: Arc<Journal>,
    on_damage: watch::Receiver<OnDamage>,
    limit: Arc<CatchUpLimit>,
    installing: Installing,
    /// Until openraft has found the terms; see [`LogStore::placeholder`].
    opening: Arc<AtomicBool>,
}

impl LogStore {
    pub(crate) fn new(
        journal: Arc<Journal>,
        on_damage: watch::Receiver<OnDamage>,
        limit: Arc<CatchUpLimit>,
        installing: Installing,
    ) -> Self {
        LogStore {
            journal,
            on_damage,
            limit,
            installing,
            opening: Arc::default(),
        }
    }

    /// For a log that is the state itself: nothing in it is applied again at the start, so openraft only looks for terms
    /// and memberships there, and the batches need not be read.
    pub(crate) fn without_replay(self) -> Self {
        self.opening.store(true, Ordering::Release);
        self
    }

    /// Ends what [`LogStore::without_replay`] began, if openraft did not look for terms.
    pub(crate) fn set_open(&self) {
        self.opening.store(false, Ordering::Release);
    }

    /// Reads entries; waits where they are damaged until they are repaired.
    async fn read(&self, from: u64, to: u64, max_bytes: u64) -> io::Result<Vec<Entry>> {
        let mut damage = self.journal.watch_damage();
        let mut on_damage = self.on_damage.clone();
        loop {
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
                read => return to_entries(read?),
            }
        }
    }

    /// Reads for a follower: at the tail at once, behind it as fast as the node's limit says.
    async fn read_for_peer(&self, from: u64, to: u64, max_bytes: u64) -> io::Result<Vec<Entry>> {
        if let Some(entries) = self.journal.read_cached(from, to, max_bytes) {
            return to_entries(entries);
        }
        self.limit.ready().await;
        let entries = self.read(from, to, max_bytes).await?;
        self.limit.charge(entries.iter().map(data_bytes).sum());
        Ok(entries)
    }

    /// What stands for a batch while openraft opens: it asks for one entry to learn its term. A blank of the same place says
    /// that without reading a segment, which may be damaged.
    fn placeholder(&self, from: u64, to: u64) -> Option<Entry> {
        let one = from.checked_add(1) == Some(to);
        if !one || !self.opening.load(Ordering::Acquire) {
            return None;
        }
        let pos = self.journal.data_pos(from)?;
        Some(Entry::new_blank(log_id(pos)))
    }
}

fn to_entries(stored: Vec<StoredEntry>) -> io::Result<Vec<Entry>> {
    stored
        .into_iter()
        .map(|entry| from_journal(entry).map_err(io::Error::other))
        .collect()
}

fn data_bytes(entry: &Entry) -> u64 {
    match &entry.payload {
        EntryPayload::Normal(AppRecord::Stamped(batch)) => batch.len(),
        _ => 0,
    }
}

/// How many installations of snapshots are under way in a group; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Installing(Arc<watch::Sender<usize>>);

impl Installing {
    pub(crate) fn none() -> Self {
        Installing(Arc::new(watch::Sender::new(0)))
    }

    /// One more, until what is returned is dropped.
    pub(crate) fn begin(&self) -> InstallingGuard {
        self.0.send_modify(|count| *count += 1);
        InstallingGuard(self.clone())
    }

    async fn wait_for_none(&self) {
        // The sender lives as long as this does.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

/// See [`Installing::begin`].
pub(crate) struct InstallingGuard(Installing);

impl Drop for InstallingGuard {
    fn drop(&mut self) {
        self.0
            .0
            .send_modify(|count| *count = count.saturating_sub(1));
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

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (from, to) = bounds(&range);
        if let Some(entry) = self.placeholder(from, to) {
            return Ok(vec![entry]);
        }
        self.read(from, to, u64::MAX).await
    }

    /// In pieces: what a replica that was away has to apply may be larger than its memory.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let store = self.clone();
        let pieces = futures_util::stream::unfold(Some(from), move |from| {
            let store = store.clone();
            async move {
                let from = from.filter(|from| *from < to)?;
                let piece = store.read(from, to, APPLY_READ_MAX_BYTES).await;
                // An empty piece ends the stream, and openraft sees that entries are missing.
                let next = match &piece {
                    Ok(entries) => entries.last().map(|last| last.log_id().index + 1),
                    Err(_) => None,
                };
                let entries: Vec<Result<Entry, io::Error>> = match piece {
                    Ok(entries) => entries.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error)],
                };
                Some((futures_util::stream::iter(entries), next))
            }
        });
        Box::pin(pieces.flatten())
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
        self.read_for_peer(start, end, APPEND_ENTRIES_MAX_BYTES)
            .await
    }

    async fn get_key_log_ids(
        &mut self,
        range: RangeInclusive<LogId>,
    ) -> Result<Vec<LogId>, io::Error> {
        self.set_open();
        let (from, to) = (log_pos(range.start()), log_pos(range.end()));
        let ends = self.journal.term_ends(from, to);
        Ok(ends.into_iter().map(log_id).collect())
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
        let entries: Vec<_> = entries.into_iter().map(to_journal).collect();
        let end = self.journal.last().map_or(0, |last| last.index + 1);
        if entries
            .first()
            .is_some_and(|first| first.pos().index != end)
        {
            self.installing.wait_for_none().await;
        }
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
