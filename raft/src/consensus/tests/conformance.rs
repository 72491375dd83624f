//! openraft's own storage suite, against the journal on real files.

use bytes::Bytes;
use imprint_proto::batch::StampedBatch;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;
use tokio::sync::watch;

use super::super::Machine;
use super::super::catchup::CatchUpLimit;
use super::super::machine::{GroupMachine, SnapshotEvery};
use super::super::store::{Installing, LogStore, OnDamage};
use super::super::types::TypeConfig;
use super::cluster::real_io;
use crate::journal::{Journal, JournalConfig};
use crate::statelog::StateLog;

struct RealFiles;

/// A state of nothing: the suite asks for snapshots of everything applied.
struct Nothing;

impl Machine for Nothing {
    fn fresh(&self) -> Box<dyn Machine> {
        Box::new(Nothing)
    }

    fn apply(&mut self, _batch: &StampedBatch) -> Bytes {
        Bytes::new()
    }

    fn snapshot(&self) -> Bytes {
        Bytes::new()
    }

    fn restore(&mut self, _snapshot: Bytes) -> Result<(), String> {
        Ok(())
    }
}

impl StoreBuilder<TypeConfig, LogStore, GroupMachine, TempDir> for RealFiles {
    async fn build(&self) -> Result<(TempDir, LogStore, GroupMachine), StorageError<TypeConfig>> {
        let dir = TempDir::new().expect("a temporary directory");
        let path = dir.path().to_owned();
        let io = real_io();
        let open_io = io.clone();
        let journal = tokio::task::spawn_blocking(move || {
            let state = StateLog::open(open_io.clone(), &path.join("state")).expect("state log");
            let group = path.join("groups").join("1");
            Journal::open(open_io, group, state, 1, JournalConfig::default()).expect("journal")
        })
        .await
        .expect("opening does not panic");
        let (commit, _) = watch::channel(0);
        let every = SnapshotEvery {
            bytes: u64::MAX,
            entries: u64::MAX,
        };
        let machine = GroupMachine::open(&journal, Box::new(Nothing), every, commit)
            .await
            .expect("a fresh journal has a resume point");
        let store = LogStore::new(
            journal,
            watch::channel(OnDamage::Fail).1,
            CatchUpLimit::new(0),
            Installing::none(),
        );
        Ok((dir, store, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_passes_the_conformance_suite() {
    Suite::<TypeConfig, LogStore, GroupMachine, RealFiles, TempDir>::test_store(&RealFiles)
        .await
        .expect("the suite passes");
}
