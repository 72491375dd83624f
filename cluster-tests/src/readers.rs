//! Readers that follow a log while things happen to it, and complain at the first thing that can't be right.
//!
//! A reader starts at offset 0 and goes on from what it got. Offsets are dense, no offset is ever seen
//! with two payloads, and only retention may move a reader: then the refusal names a start above what was
//! asked for, and the reader goes on there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use imprint_client::{Client, ClientError, Code, PollOptions, Position};
use imprint_proto::batch::{StampedBatch, split_batches};
use tokio::task::JoinSet;
use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::Cluster;
use crate::ledger::Ledger;

/// How long a reader waits for more.
const WAIT: Duration = Duration::from_millis(200);

/// What the readers share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Hash of the payload seen at each offset.
    seen: Mutex<BTreeMap<u64, u64>>,
    read: AtomicU64,
    moved: AtomicU64,
    broken: Mutex<Option<String>>,
}

impl Shared {
    fn complain(&self, what: String) {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.get_or_insert(what);
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, u64>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Readers at work.
pub struct Readers {
    shared: Arc<Shared>,
    readers: JoinSet<()>,
}

/// What readers have seen.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Messages read, by all readers together.
    pub read: u64,
    /// Times that retention moved a reader on.
    pub moved: u64,
}

impl Readers {
    /// Starts `count` readers at offset 0.
    pub fn start(cluster: &Cluster, topic: &str, count: u64) -> Readers {
        let shared = Arc::<Shared>::default();
        let mut readers = JoinSet::new();
        for _ in 0..count {
            let (client, shared) = (cluster.client(), Arc::clone(&shared));
            readers.spawn(read(client, topic.to_owned(), shared));
        }
        Readers { shared, readers }
    }

    /// So far.
    pub fn so_far(&self) -> Seen {
        Seen {
            read: self.shared.read.load(Ordering::Relaxed),
            moved: self.shared.moved.load(Ordering::Relaxed),
        }
    }

    /// What a reader found wrong, if one did.
    pub fn broken(&self) -> Option<String> {
        let broken = self.shared.broken.lock();
        broken.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the readers and holds what they saw against what was acknowledged.
    pub async fn finish(mut self, ledger: &Ledger) -> Result<Seen, String> {
        self.shared.stop.store(true, Ordering::Release);
        while let Some(result) = self.readers.join_next().await {
            result.map_err(|e| e.to_string())?;
        }
        if let Some(broken) = self.broken() {
            return Err(broken);
        }
        let seen = self.shared.seen();
        for (offset, text) in ledger.by_offset() {
            let hash = xxh3_64(text.as_bytes());
            if seen.get(offset).is_some_and(|found| *found != hash) {
                return Err(format!(
                    "{text:?} was acknowledged at {offset}, something else was read"
                ));
            }
        }
        Ok(self.so_far())
    }
}

async fn read(client: Client, topic: String, shared: Arc<Shared>) {
    let mut next = 0;
    while !shared.stop.load(Ordering::Acquire) {
        let options = PollOptions {
            max_wait: WAIT,
            min_bytes: 1,
            ..PollOptions::default()
        };
        let reply = client
            .poll(&topic, 0, Position::Offset(next), options)
            .await;
        let step = match reply {
            Ok(reply) => take(&shared, next, reply.batches),
            Err(error) => moved(&shared, next, &error),
        };
        match step {
            Ok(offset) => next = offset,
            Err(problem) => return shared.complain(problem),
        }
    }
}

/// Notes what came; gives where to go on.
fn take(shared: &Shared, mut next: u64, batches: Bytes) -> Result<u64, String> {
    for bytes in split_batches(batches) {
        let bytes = bytes.map_err(|e| format!("at {next}: {e}"))?;
        let batch = StampedBatch::verify_unbound(bytes).map_err(|e| format!("at {next}: {e}"))?;
        if batch.base_offset() > next || batch.next_offset() <= next {
            let (base, end) = (batch.base_offset(), batch.next_offset());
            return Err(format!("asked for {next}, got a batch of {base}..{end}"));
        }
        let mut seen = shared.seen();
        for (offset, frame) in (batch.base_offset()..).zip(batch.frames()) {
            let hash = xxh3_64(frame.payload);
            if *seen.entry(offset).or_insert(hash) != hash {
                return Err(format!("offset {offset} was read with two payloads"));
            }
        }
        shared
            .read
            .fetch_add(batch.next_offset() - next, Ordering::Relaxed);
        next = batch.next_offset();
    }
    Ok(next)
}

fn moved(shared: &Shared, next: u64, error: &ClientError) -> Result<u64, String> {
    match (error.code(), error.offsets()) {
        (Code::OutOfRange, Some((start, _))) if start > next => {
            shared.moved.fetch_add(1, Ordering::Relaxed);
            Ok(start)
        }
        // A replica that lags does not know the end yet; what it must not do is to lose what it gave out.
        (Code::OutOfRange | Code::DataLoss | Code::NotFound, _) => {
            Err(format!("reading at {next}: {error}"))
        }
        _ => Ok(next),
    }
}
