//! The job that takes appended entries to the disk.
//!
//! All disk changes of a journal pass through one queue and are done in its order by one job at a time: writes are gathered
//! up to the next thing that is not a write, done with one vectored call and one sync, then everybody who waited for them is
//! told. Work that needs the state log hands the job over to the state log's callback and ends; the callback starts it
//! again. So no thread waits for another one, and nothing can wait for itself when jobs run inline.
//!
//! # What happens when the disk is full?
//!
//! A write or a new file that finds no space is left for later: the step is kept, the job ends, and the node's
//! [`crate::disk::SpaceGate`] starts it again when there may be room. Writing the same bytes to the same place again is right
//! because no sync came between; a sync is never asked for again. Nobody is told anything meanwhile, so nothing is
//! acknowledged. [`Journal::stop_waiting`] and the end of the node end the wait: everybody is told that it failed, which is no
//! reason for the process to exit.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use imprint_proto::batch::StampedBatch;

use super::segment::Segment;
use super::{Done, Inner, Journal, LogPos, failed_before};
use crate::disk::{DiskFile, OpenMode, SpaceLevel, is_no_space};
use crate::statelog::Record;

/// Plans work when all before it is done; may change the log in memory.
pub(super) type Plan = Box<dyn FnOnce(&Arc<Journal>) -> io::Result<Vec<Work>> + Send>;
/// Works on files.
pub(super) type OnDisk = Box<dyn FnOnce(&Journal) -> io::Result<()> + Send>;

/// One thing to do, in the order of the queue.
pub(super) enum Work {
    /// Write a batch.
    Write {
        segment: Arc<Segment>,
        pos: u64,
        batch: StampedBatch,
    },
    /// Seal the active segment, if there is one, and make the next.
    Roll {
        seal: Option<Arc<Segment>>,
        create: Arc<Segment>,
    },
    /// Have records synced in the state log.
    State(Vec<Record>),
    /// Work on files.
    Disk(OnDisk),
    /// Decide what to do next; put in front of the queue.
    Plan(Plan),
    /// Everything before is synced, up to this place and offset.
    Done {
        upto: Option<LogPos>,
        offset: u64,
        done: Done,
    },
    /// Everything before is done: tell.
    Tell(Done),
}

/// What waits for the job.
#[derive(Default)]
pub(super) struct Queue {
    work: VecDeque<Work>,
    /// Bytes of batches that are not synced.
    pub unsynced_bytes: u64,
    running: bool,
    /// What found no space and is to be done again before anything else.
    parked: Option<Step>,
    /// Bytes of recent sync groups, a moving average.
    group_bytes: u64,
}

impl Queue {
    pub fn push(&mut self, work: Work) {
        if let Work::Write { batch, .. } = &work {
            self.unsynced_bytes += batch.len();
        }
        self.work.push_back(work);
    }

    fn push_front(&mut self, more: Vec<Work>) {
        for work in more.into_iter().rev() {
            self.work.push_front(work);
        }
    }
}

/// What the job does next.
enum Step {
    Write(Run),
    Roll {
        seal: Option<Arc<Segment>>,
        create: Arc<Segment>,
    },
    State(Vec<Record>, Vec<Finished>),
    Disk(OnDisk),
    Plan(Plan),
    Finish(Vec<Finished>),
}

/// Somebody to tell.
enum Finished {
    Synced {
        upto: Option<LogPos>,
        offset: u64,
        done: Done,
    },
    Told(Done),
}

impl Finished {
    fn call(self, result: io::Result<()>) {
        match self {
            Self::Synced { done, .. } | Self::Told(done) => done(result),
        }
    }
}

/// A run that did not reach the disk.
enum Unwritten {
    /// To be done again when there is room.
    NoSpace(io::Error, Step),
    /// Final.
    Failed(io::Error, Vec<Finished>),
}

/// Batches that lie back to back in one segment, and who waits for them.
struct Run {
    segment: Arc<Segment>,
    pos: u64,
    end: u64,
    batches: Vec<StampedBatch>,
    finished: Vec<Finished>,
}

/// Zeros are only written ahead for groups smaller than this: large ones carry their metadata cheaply, and writing twice
/// would cost more than it saves.
const ZERO_BELOW_GROUP_BYTES: u64 = 256 << 10;

/// Zeros are written in pieces of this size, so that the writer waits for one piece at most.
const ZERO_PIECE: usize = 128 << 10;

static ZEROS: [u8; ZERO_PIECE] = [0; ZERO_PIECE];

impl Inner {
    fn next_step(&mut self, max_bytes: u64) -> Option<Step> {
        if let Some(step) = self.queue.parked.take() {
            return Some(step);
        }
        let Some(work) = self.queue.work.pop_front() else {
            self.queue.running = false;
            return None;
        };
        Some(match work {
            Work::Write {
                segment,
                pos,
                batch,
            } => Step::Write(self.gather(segment, pos, batch, max_bytes)),
            Work::Roll { seal, create } => Step::Roll { seal, create },
            Work::State(records) => self.gather_records(records),
            Work::Disk(act) => Step::Disk(act),
            Work::Plan(plan) => Step::Plan(plan),
            Work::Done { upto, offset, done } => {
                self.gather_finished(Finished::Synced { upto, offset, done })
            }
            Work::Tell(done) => self.gather_finished(Finished::Told(done)),
        })
    }

    fn gather(
        &mut self,
        segment: Arc<Segment>,
        pos: u64,
        batch: StampedBatch,
        max_bytes: u64,
    ) -> Run {
        let end = pos + batch.len();
        let mut run = Run {
            segment,
            pos,
            end,
            batches: vec![batch],
            finished: Vec::new(),
        };
        while let Some(work) = self.queue.work.pop_front() {
            match work {
                Work::Write {
                    segment,
                    pos,
                    batch,
                } if Arc::ptr_eq(&segment, &run.segment)
                    && pos == run.end
                    && run.end - run.pos + batch.len() <= max_bytes =>
                {
                    run.end += batch.len();
                    run.batches.push(batch);
                }
                Work::Done { upto, offset, done } => {
                    run.finished.push(Finished::Synced { upto, offset, done })
                }
                Work::Tell(done) => run.finished.push(Finished::Told(done)),
                other => {
                    self.queue.work.push_front(other);
                    break;
                }
            }
        }
        run
    }

    fn gather_records(&mut self, first: Vec<Record>) -> Step {
        let mut records = first;
        let mut finished = Vec::new();
        while let Some(work) = self.queue.work.pop_front() {
            match work {
                Work::State(more) => records.extend(more),
                Work::Done { upto, offset, done } => {
                    finished.push(Finished::Synced { upto, offset, done })
                }
                Work::Tell(done) => finished.push(Finished::Told(done)),
                other => {
                    self.queue.work.push_front(other);
                    break;
                }
            }
        }
        Step::State(records, finished)
    }

    fn gather_finished(&mut self, first: Finished) -> Step {
        let mut finished = vec![first];
        while let Some(work) = self.queue.work.pop_front() {
            match work {
                Work::Done { upto, offset, done } => {
                    finished.push(Finished::Synced { upto, offset, done })
                }
                Work::Tell(done) => finished.push(Finished::Told(done)),
                other => {
                    self.queue.work.push_front(other);
                    break;
                }
            }
        }
        Step::Finish(finished)
    }

    /// Moves the synced position. Returns the new synced offset if it rose.
    fn note_synced(&mut self, finished: &[Finished], data_end: Option<u64>) -> Option<u64> {
        let before = self.synced_offset;
        let ends = finished.iter().filter_map(|f| match f {
            Finished::Synced { upto, offset, .. } => Some((*upto, *offset)),
            Finished::Told(_) => None,
        });
        for (upto, offset) in ends {
            self.synced = self.synced.max(upto);
            self.synced_offset = self.synced_offset.max(offset);
        }
        self.synced_offset = self.synced_offset.max(data_end.unwrap_or(0));
        (self.synced_offset > before).then_some(self.synced_offset)
    }
}

impl Journal {
    /// Starts the job unless it runs. Called without locks.
    pub(super) fn start(self: &Arc<Self>) {
        {
            let mut inner = self.inner.lock();
            if inner.queue.running {
                return;
            }
            inner.queue.running = true;
        }
        self.run_job();
    }

    fn run_job(self: &Arc<Self>) {
        let journal = Arc::clone(self);
        self.io.offload.run(Box::new(move || journal.work()));
    }

    /// Queues work and has it done. A failed or closed journal tells everybody in it.
    pub(super) fn enqueue(self: &Arc<Self>, work: Vec<Work>) {
        let refused = {
            let mut inner = self.inner.lock();
            match inner.failed.clone() {
                Some(reason) => Some((reason, work)),
                None => {
                    work.into_iter().for_each(|w| inner.queue.push(w));
                    None
                }
            }
        };
        match refused {
            None => self.start(),
            Some((reason, work)) => tell_all(work, &reason),
        }
    }

    /// Queues work and waits for it.
    pub(super) async fn perform(self: &Arc<Self>, mut work: Vec<Work>) -> io::Result<()> {
        let (tell, told) = tokio::sync::oneshot::channel();
        work.push(Work::Tell(Box::new(move |result| drop(tell.send(result)))));
        self.enqueue(work);
        told.await.unwrap_or_else(|_| Err(failed_before("stopped")))
    }

    /// The job: exactly one runs, or waits for the state log, while the queue says `running`.
    fn work(self: Arc<Self>) {
        loop {
            let step = self.inner.lock().next_step(self.cfg.sync_group_bytes);
            let result = match step {
                None => return,
                Some(Step::State(records, finished)) => return self.hand_over(records, finished),
                Some(Step::Write(run)) => match self.write(run) {
                    Ok(()) => Ok(()),
                    Err(Unwritten::NoSpace(error, step)) => return self.park(step, &error),
                    Err(Unwritten::Failed(error, finished)) => {
                        self.fail(&error.to_string(), finished);
                        Ok(())
                    }
                },
                Some(Step::Roll { seal, create }) => match self.roll(seal.as_ref(), &create) {
                    Err(error) if self.io.space.may_pass(&error) => {
                        return self.park(Step::Roll { seal, create }, &error);
                    }
                    rolled => {
                        if let (Some(sealed), Ok(())) = (&seal, &rolled) {
                            self.digest_sealed(sealed);
                        }
                        rolled
                    }
                },
                Some(Step::Disk(act)) => act(&self),
                Some(Step::Plan(plan)) => {
                    plan(&self).map(|more| self.inner.lock().queue.push_front(more))
                }
                Some(Step::Finish(finished)) => {
                    self.finish(finished, None);
                    Ok(())
                }
            };
            if let Err(error) = result {
                self.fail(&error.to_string(), Vec::new());
            }
        }
    }

    /// Has records synced; the job goes on when they are.
    fn hand_over(self: &Arc<Self>, records: Vec<Record>, finished: Vec<Finished>) {
        let journal = Arc::clone(self);
        let then = move |result: io::Result<()>| {
            match result {
                Ok(()) => journal.finish(finished, None),
                Err(error) => journal.fail(&error.to_string(), finished),
            }
            journal.run_job();
        };
        self.state.append(records, Box::new(then));
    }

    /// Leaves a step that found no space to be done when there is room. The job ends here, and goes on from the gate.
    fn park(self: &Arc<Self>, step: Step, error: &io::Error) {
        let ends = {
            let mut inner = self.inner.lock();
            inner.queue.parked = Some(step);
            inner.stop_waiting || self.io.space.is_closed()
        };
        if ends {
            return self.give_up(error);
        }
        tracing::debug!(group = self.group, %error, "the journal waits for room on the disk");
        let journal = Arc::clone(self);
        self.io.space.wait(self.group, move || journal.run_job());
        // Asked to stop waiting in between: the one who asked found nobody.
        if self.inner.lock().stop_waiting {
            self.io.space.retry_one(self.group);
        }
    }

    /// Ends without a failure of the disk: everybody is told, the process goes on.
    fn give_up(self: &Arc<Self>, error: &io::Error) {
        let reason = format!("closed while it waited for room on the disk: {error}");
        let (_, parked, work) = self.take_all(&reason);
        self.inner.lock().queue.running = false;
        tell(parked, &reason);
        tell_all(work, &reason);
    }

    /// From now on nothing waits for room on the disk: what finds none fails, and so does what waits already.
    pub fn stop_waiting(self: &Arc<Self>) {
        self.inner.lock().stop_waiting = true;
        self.io.space.retry_one(self.group);
    }

    /// Whether [`Journal::stop_waiting`] was called.
    pub(crate) fn stops_waiting(&self) -> bool {
        self.inner.lock().stop_waiting
    }

    fn write(self: &Arc<Self>, run: Run) -> Result<(), Unwritten> {
        if let Err(error) = self.write_run(&run) {
            return Err(if self.io.space.may_pass(&error) {
                Unwritten::NoSpace(error, Step::Write(run))
            } else {
                Unwritten::Failed(error, run.finished)
            });
        }
        let Run {
            segment,
            pos,
            end,
            batches,
            finished,
        } = run;
        let data_end = batches.last().map(StampedBatch::next_offset);
        let zero_ahead = {
            let mut inner = self.inner.lock();
            let queue = &mut inner.queue;
            queue.unsynced_bytes = queue.unsynced_bytes.saturating_sub(end - pos);
            queue.group_bytes = (queue.group_bytes * 3 + (end - pos)) / 4;
            queue.group_bytes < ZERO_BELOW_GROUP_BYTES
        };
        self.finish(finished, data_end);
        if zero_ahead {
            self.zero_ahead(&segment);
        }
        Ok(())
    }

    /// Writes, a second time if the reserve made room, and syncs once.
    fn write_run(&self, run: &Run) -> io::Result<()> {
        let file = self.active_file(&run.segment)?;
        {
            let mut extent = run.segment.extent.lock();
            extent.frontier = extent.frontier.max(run.end);
        }
        let mut parts: Vec<&[u8]> = Vec::with_capacity(run.batches.len() * 2);
        for batch in &run.batches {
            let (header, blob) = batch.parts();
            parts.push(header);
            parts.push(blob);
        }
        let write = || file.write_all_at(&parts, run.pos);
        self.io.space.with_reserve(self.io.disk.as_ref(), write)?;
        file.sync_data()
    }

    /// The segment's file, open for writing while it is active.
    pub(super) fn active_file(&self, segment: &Segment) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = segment.with(|body| body.file.clone().filter(|_| !body.sealed)) {
            return Ok(file);
        }
        let file = self.io.disk.open(&segment.path(), OpenMode::Write)?;
        segment.with(|body| body.file = Some(Arc::clone(&file)));
        Ok(file)
    }

    /// Tells everybody whose entries are synced, after moving the marks.
    fn finish(self: &Arc<Self>, finished: Vec<Finished>, data_end: Option<u64>) {
        if self.io.has_failed() {
            return tell(finished, "the disk has failed");
        }
        let risen = {
            let mut inner = self.inner.lock();
            if let Some(reason) = inner.failed.clone() {
                drop(inner);
                return tell(finished, &reason);
            }
            let risen = inner.note_synced(&finished, data_end);
            let synced_index = inner.synced.map_or(0, |pos| pos.index);
            inner.tail.shrink(self.cfg.tail_cache_bytes, synced_index);
            risen
        };
        if let Some(synced_offset) = risen {
            self.state.note_synced(self.group, synced_offset);
        }
        self.room.notify_waiters();
        finished.into_iter().for_each(|f| f.call(Ok(())));
    }

    fn roll(&self, seal: Option<&Arc<Segment>>, create: &Segment) -> io::Result<()> {
        if let Some(old) = seal {
            self.seal(old)?;
        }
        let disk = self.io.disk.as_ref();
        let create_new = || disk.open(&create.path(), OpenMode::CreateNew);
        let file = self.io.space.with_reserve(disk, create_new)?;
        create.with(|body| body.file = Some(file));
        self.io.disk.sync_dir(&self.dir)
    }

    /// Cuts the zeros off the end. The segment's bytes are final then.
    fn seal(&self, segment: &Arc<Segment>) -> io::Result<()> {
        segment.extent.lock().closed = true;
        let file = self.active_file(segment)?;
        let len = segment.len();
        if file.len()? != len {
            file.set_len(len)?;
        }
        file.sync_all()?;
        segment.with(|body| body.sealed = true);
        self.keep_warm(segment);
        Ok(())
    }

    /// Starts writing zeros ahead of the active end if little is left of them.
    fn zero_ahead(self: &Arc<Self>, segment: &Arc<Segment>) {
        let step = self.cfg.zero_step_bytes;
        let segment_bytes = self.roll_settings().segment_bytes;
        {
            let mut extent = segment.extent.lock();
            let left = extent.zeroed_end.saturating_sub(extent.frontier);
            let busy = extent.zeroing || extent.closed;
            // What little room there is goes to data.
            let short = self.io.space.level() != SpaceLevel::Enough;
            if step == 0 || busy || short || left > step / 2 || extent.frontier >= segment_bytes {
                return;
            }
            extent.zeroing = true;
        }
        let (journal, segment) = (Arc::clone(self), Arc::clone(segment));
        self.io
            .offload
            .run(Box::new(move || journal.write_zeros(&segment, step)));
    }

    fn write_zeros(self: &Arc<Self>, segment: &Segment, step: u64) {
        let from = {
            let extent = segment.extent.lock();
            extent.zeroed_end.max(extent.frontier)
        };
        let to = (from + step).min(self.roll_settings().segment_bytes.max(from));
        // A handle of its own: the system tells each handle once of a failed write, and the data's must hear of it too.
        let Ok(file) = self.io.disk.open(&segment.path(), OpenMode::Write) else {
            // Trimmed or dropped meanwhile.
            segment.extent.lock().stop_zeros();
            return;
        };
        match zero_range(file.as_ref(), segment, from, to) {
            Ok(()) => {
                let mut extent = segment.extent.lock();
                extent.zeroing = false;
                extent.zeroed_end = extent.zeroed_end.max(to);
            }
            Err(error) => {
                segment.extent.lock().stop_zeros();
                if is_no_space(&error) {
                    tracing::warn!(%error, "no zeros ahead of the end any more");
                } else {
                    self.fail(&error.to_string(), Vec::new());
                }
            }
        }
    }

    /// Final: everybody who waits is told, everybody who comes is refused.
    fn fail(self: &Arc<Self>, reason: &str, finished: Vec<Finished>) {
        let (first, parked, work) = self.take_all(reason);
        if first {
            let what = format!("group {}: {reason}", self.group);
            self.io.fatal(Some(self.group), &what);
        }
        tell(finished.into_iter().chain(parked), reason);
        tell_all(work, reason);
    }

    /// Notes the failure; gives whether it is the first, and all who wait.
    fn take_all(&self, reason: &str) -> (bool, Vec<Finished>, VecDeque<Work>) {
        let taken = {
            let mut inner = self.inner.lock();
            let first = inner.failed.is_none();
            inner.failed.get_or_insert_with(|| reason.into());
            let parked = match inner.queue.parked.take() {
                Some(Step::Write(run)) => run.finished,
                _ => Vec::new(),
            };
            (first, parked, std::mem::take(&mut inner.queue.work))
        };
        self.room.notify_waiters();
        taken
    }
}

fn tell(finished: impl IntoIterator<Item = Finished>, reason: &str) {
    finished
        .into_iter()
        .for_each(|f| f.call(Err(failed_before(reason))));
}

fn tell_all(work: impl IntoIterator<Item = Work>, reason: &str) {
    for item in work {
        match item {
            Work::Done { done, .. } | Work::Tell(done) => done(Err(failed_before(reason))),
            _ => {}
        }
    }
}

/// Writes zeros into a range, but never where the writer has claimed space.
fn zero_range(file: &dyn DiskFile, segment: &Segment, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let extent = segment.extent.lock();
        if extent.closed {
            return Ok(());
        }
        at = at.max(extent.frontier);
        let len = ZERO_PIECE.min(usize::try_from(to.saturating_sub(at)).unwrap_or(ZERO_PIECE));
        file.write_all_at(&[&ZEROS[..len]], at)?;
        at += len as u64;
    }
    file.sync_data()
}
