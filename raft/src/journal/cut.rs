//! What changes a log other than by appending: votes, truncation, purge, trim, closing, dropping. The cut of a
//! snapshot is in [`super::begin`].
//!
//! All of it passes through the writer's queue, so it finds everything before it written and synced.
//!
//! # Why is a cut recorded before and after?
//!
//! Cutting files takes several steps, and what is cut had been synced: after a crash in the middle the synced mark would
//! tell of lost data. So the state log first says where the log will end, which also takes the marks back and forgets the
//! control entries behind; then the files are cut; then the state log says that it is done. A start that finds a begun cut
//! finishes it. New appends wait for all three, else an old valid batch might be found behind the new end.

use std::io;
use std::sync::Arc;

use super::segment::Segment;
use super::writer::Work;
use super::{Journal, LogPos, VoteRecord, failed_before};
use crate::disk::{Disk, OpenMode};
use crate::statelog::{CleanStop, PendingCut, Record, drop_controls};

impl Journal {
    /// Saves a vote, after everything appended before. Returns when it is synced.
    pub async fn save_vote(self: &Arc<Self>, vote: VoteRecord) -> io::Result<()> {
        self.perform(vec![Work::State(vec![Record::Vote {
            group: self.group,
            vote,
        }])])
        .await?;
        self.inner.lock().vote = Some(vote);
        Ok(())
    }

    /// Removes all entries behind `last`, or all that are not purged. Returns when nothing of them can come back. The caller
    /// appends nothing meanwhile.
    pub async fn truncate_after(self: &Arc<Self>, last: Option<u64>) -> io::Result<()> {
        self.perform(vec![Work::Plan(Box::new(move |journal| {
            journal.plan_truncate(last)
        }))])
        .await
    }

    /// Records that Raft needs nothing up to `upto` any more. Deletes no segment by itself: those that a trim has passed too
    /// go. `upto` may be beyond the log's end, which then moves there.
    pub async fn purge(self: &Arc<Self>, upto: LogPos) -> io::Result<()> {
        self.perform(vec![Work::Plan(Box::new(move |journal| {
            Ok(journal.plan_purge(upto))
        }))])
        .await
    }

    /// Moves the first kept offset up to `upto`, and deletes the whole segments below that are purged too; the active one
    /// stays. Returns when the new start is durable.
    pub async fn trim(self: &Arc<Self>, upto: u64) -> io::Result<()> {
        self.perform(vec![Work::Plan(Box::new(move |journal| {
            Ok(journal.plan_trim(upto))
        }))])
        .await
    }

    /// Returns when all that was appended before is synced.
    pub async fn drain(self: &Arc<Self>) -> io::Result<()> {
        self.perform(Vec::new()).await
    }

    /// Refuses further appends, waits for those before, and records a clean stop, so that the next start need not check
    /// everything.
    pub async fn close(self: &Arc<Self>) -> io::Result<()> {
        self.inner.lock().closed = true;
        self.perform(vec![Work::Plan(Box::new(|journal| {
            Ok(journal.plan_close())
        }))])
        .await
    }

    /// Forgets the group: its state first, then its directory. A crash between the two leaves a directory that no state
    /// knows.
    pub async fn drop_group(self: &Arc<Self>) -> io::Result<()> {
        self.inner.lock().closed = true;
        self.stop_waiting();
        let records = vec![Record::Dropped { group: self.group }];
        let remove = |journal: &Self| {
            let disk = journal.io.disk.as_ref();
            disk.remove_dir_all(&journal.dir)?;
            disk.sync_dir(crate::disk::parent(&journal.dir)?)
        };
        if self.inner.lock().failed.is_none() {
            let work = vec![Work::State(records), Work::Disk(Box::new(remove))];
            return self.perform(work).await;
        }
        // Its writer has given up and does nothing any more.
        self.state.append_synced(records).await?;
        let (tell, told) = tokio::sync::oneshot::channel();
        let journal = Arc::clone(self);
        let job = move || drop(tell.send(remove(&journal)));
        self.io.offload.run(Box::new(job));
        told.await.unwrap_or_else(|_| Err(failed_before("stopped")))
    }

    fn plan_truncate(self: &Arc<Self>, last: Option<u64>) -> io::Result<Vec<Work>> {
        let (keep, first_base) = {
            let inner = self.inner.lock();
            let shape = &inner.shape;
            let keep = last.and_then(|index| {
                Some(LogPos {
                    term: shape.term_at(index)?,
                    index,
                })
            });
            let keep = keep.max(shape.purged);
            if keep >= shape.last || last.is_some_and(|index| index >= shape.end_index()) {
                return Ok(Vec::new());
            }
            (
                keep,
                shape
                    .segments
                    .front()
                    .map_or(shape.next_offset, |first| first.name.base_offset),
            )
        };
        let end = match keep {
            Some(keep) => self.offset_after(keep.index)?,
            None => Some(first_base),
        };
        let end =
            end.ok_or_else(|| io::Error::other("the end of a truncation is not in the log"))?;
        let kept = self
            .inner
            .lock()
            .shape
            .segment_by_offset(end.saturating_sub(1))
            .filter(|_| end > first_base);
        let (len, stamp) = match &kept {
            Some(segment) => self.end_of_batch(segment, end)?,
            None => (0, 0),
        };
        let gone = {
            let mut inner = self.inner.lock();
            let gone = inner.shape.cut_after(keep, end, stamp);
            inner.tail.truncate(keep.map_or(0, |pos| pos.index + 1));
            inner.synced_offset = inner.synced_offset.min(end);
            inner.synced = inner.synced.min(keep);
            gone
        };
        self.state.note_synced(self.group, end);
        for base in self.damage.cut(end) {
            tracing::info!(
                group = self.group,
                base,
                end,
                "a truncation took a damaged range"
            );
        }
        if let Some(segment) = &kept {
            segment.with(|body| body.cut(len));
        }
        let from_index = keep.map_or(0, |pos| pos.index + 1);
        let cut = PendingCut {
            offset: end,
            whole: false,
        };
        let begin = Record::CutBegin {
            group: self.group,
            from_index,
            cut,
            purged: None,
        };
        let files = move |journal: &Self| journal.cut_files(&gone, kept.as_ref(), len);
        Ok(vec![
            Work::State(vec![begin]),
            Work::Disk(Box::new(files)),
            Work::State(vec![Record::CutDone { group: self.group }]),
        ])
    }

    /// Removes segments, the last first, and makes `kept` the active one, cut to `len`.
    pub(super) fn cut_files(
        &self,
        gone: &[Arc<Segment>],
        kept: Option<&Arc<Segment>>,
        len: u64,
    ) -> io::Result<()> {
        for segment in gone.iter().rev() {
            segment.extent.lock().closed = true;
            self.forget_beside(segment)?;
            remove_if_there(self.io.disk.as_ref(), segment)?;
        }
        if !gone.is_empty() {
            self.io.disk.sync_dir(&self.dir)?;
        }
        let Some(segment) = kept else { return Ok(()) };
        self.uncover(segment)?;
        let file = self.io.disk.open(&segment.path(), OpenMode::Write)?;
        segment.with(|body| {
            body.sealed = false;
            body.file = Some(Arc::clone(&file));
        });
        // Zeros on their way are done first, then cut with the rest.
        let mut extent = segment.extent.lock();
        file.set_len(len)?;
        (extent.frontier, extent.zeroed_end, extent.closed) = (len, len, false);
        drop(extent);
        file.sync_all()
    }

    pub(super) fn plan_purge(&self, upto: LogPos) -> Vec<Work> {
        {
            let mut inner = self.inner.lock();
            if inner
                .shape
                .purged
                .is_some_and(|purged| upto.index <= purged.index)
            {
                return Vec::new();
            }
            if inner.shape.purge(upto) {
                inner.tail.clear();
                inner.synced = inner.synced.max(Some(upto));
            }
        }
        let mut work = vec![Work::State(vec![Record::Purged {
            group: self.group,
            pos: upto,
        }])];
        work.extend(self.drop_expired());
        work
    }

    fn plan_trim(&self, upto: u64) -> Vec<Work> {
        let start_offset = {
            let mut inner = self.inner.lock();
            let upto = upto.min(inner.shape.next_offset);
            if upto <= inner.shape.start_offset {
                return Vec::new();
            }
            inner.shape.start_offset = upto;
            upto
        };
        let mut work = vec![Work::State(vec![Record::Start {
            group: self.group,
            start_offset,
        }])];
        work.extend(self.drop_expired());
        work
    }

    /// Forgets segments that both trim and purge have passed, then the control entries that only they needed.
    pub(super) fn drop_expired(&self) -> Vec<Work> {
        let (gone, below) = {
            let mut inner = self.inner.lock();
            let expired = inner.shape.expired();
            let gone: Vec<_> = inner.shape.segments.drain(..expired).collect();
            let below = inner.shape.useless_controls_below();
            drop_controls(&mut inner.shape.controls, below, |control| &control.kind);
            (gone, below)
        };
        let remove = move |journal: &Self| {
            for segment in &gone {
                journal.forget_beside(segment)?;
                remove_if_there(journal.io.disk.as_ref(), segment)?;
            }
            if gone.is_empty() {
                Ok(())
            } else {
                journal.io.disk.sync_dir(&journal.dir)
            }
        };
        let records = vec![Record::ControlsDropped {
            group: self.group,
            below,
        }];
        vec![Work::State(records), Work::Disk(Box::new(remove))]
    }

    fn plan_close(&self) -> Vec<Work> {
        let inner = self.inner.lock();
        let active = inner.shape.segments.back();
        let at = CleanStop {
            segment: active.map_or(inner.shape.next_offset, |segment| segment.name.base_offset),
            len: active.map_or(0, |segment| segment.len()),
            next_offset: inner.shape.next_offset,
        };
        vec![Work::State(vec![Record::CleanStop {
            group: self.group,
            at,
        }])]
    }
}

/// A segment that was appended to but not written yet may have no file.
fn remove_if_there(disk: &dyn Disk, segment: &Segment) -> io::Result<()> {
    if disk.exists(&segment.path())? {
        disk.remove_file(&segment.path())
    } else {
        Ok(())
    }
}
