//! openraft's own storage suite, against the journal on real files.

use std::sync::Arc;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;
use tokio::sync::watch;

use super::super::machine::{GroupMachine, NoMachine};
use super::super::store::LogStore;
use super::super::types::TypeConfig;
use super::cluster::real_io;
use crate::journal::{Journal, JournalConfig};
use crate::statelog::StateLog;

struct RealFiles;

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
        let machine = GroupMachine::new(io, &journal, Box::new(NoMachine), commit)
            .expect("a fresh journal has a resume point");
        Ok((
            dir,
            LogStore::new(
                Arc::clone(&journal),
                tokio::sync::watch::channel(super::super::store::OnDamage::Fail).1,
            ),
            machine,
        ))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_passes_the_conformance_suite() {
    Suite::<TypeConfig, LogStore, GroupMachine, RealFiles, TempDir>::test_store(&RealFiles)
        .await
        .expect("the suite passes");
}
