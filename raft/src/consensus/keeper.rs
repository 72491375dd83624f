//! What keeps a replica's log short: a snapshot when one is due, then purging what it covers.
//!
//! One task per replica. It is told when a trim was applied or when a state has grown, and it looks once at the start, for
//! what a stop in between left undone: a snapshot without its purge, or a purge without its record.
//!
//! openraft purges no further than the last snapshot that its core knows of, so the task waits for the core to know. It never
//! decides how far: [`super::machine`] says so. A purge that a lagging follower's replication holds up is done by
//! openraft later.

use std::time::Duration;

use openraft::errors::Fatal;
use tokio::task::JoinHandle;

use super::group::GroupRaft;
use super::machine::GroupMachine;
use super::snapshot::Place;
use super::types::{TypeConfig, log_id};

/// How long a snapshot may take before it is asked for again, or left for the next turn.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(30);
/// Snapshots taken in one turn: more only if the log grows as fast as they are written.
const SNAPSHOTS_PER_TURN: usize = 4;

/// Ends the task when the replica goes.
#[derive(Debug)]
pub(super) struct KeeperTask(JoinHandle<()>);

impl Drop for KeeperTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts the task.
pub(super) fn spawn(raft: GroupRaft, machine: GroupMachine) -> KeeperTask {
    machine.note_due();
    KeeperTask(tokio::spawn(Keeper { raft, machine }.run()))
}

struct Keeper {
    raft: GroupRaft,
    machine: GroupMachine,
}

impl Keeper {
    /// Until the core stops.
    async fn run(self) {
        loop {
            self.machine.wait_due().await;
            if self.turn().await.is_err() {
                return;
            }
        }
    }

    async fn turn(&self) -> Result<(), Fatal<TypeConfig>> {
        for _ in 0..SNAPSHOTS_PER_TURN {
            if !self.machine.wants_snapshot() {
                break;
            }
            let mut built = self.machine.watch_built();
            built.mark_unchanged();
            self.raft.trigger().snapshot().await?;
            // Asked again below if it was not taken, since another was on its way.
            let _ = tokio::time::timeout(SNAPSHOT_PATIENCE, built.changed()).await;
        }
        match self.machine.purge_target() {
            Some(target) => self.purge(target).await,
            None => Ok(()),
        }
    }

    async fn purge(&self, target: Place) -> Result<(), Fatal<TypeConfig>> {
        let journal = self.machine.journal();
        if journal.purged().is_some_and(|purged| purged >= target.pos) {
            return Ok(());
        }
        let wanted = Some(log_id(target.pos));
        let known = self.raft.wait(Some(SNAPSHOT_PATIENCE));
        let known = known.metrics(|m| m.snapshot >= wanted, "the core knows the snapshot");
        if known.await.is_err() {
            // Not yet: the next turn tries again. A stopped core ends the task there.
            return Ok(());
        }
        if self.machine.keeps_state() && journal.trim(target.next_offset).await.is_err() {
            // The journal has failed and told so.
            return Ok(());
        }
        self.raft.trigger().purge_log(target.pos.index).await
    }
}
