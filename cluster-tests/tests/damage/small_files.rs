//! Every small file in turn empty, one byte, noise, gone. What can be derived comes back by itself; a
//! node that lost who it is or how it voted says so and ends, and is never a new node without a word.

use std::fs;
use std::path::{Path, PathBuf};

use imprint_cluster_tests::cluster::Cluster;
use imprint_cluster_tests::hold::{hold_audit, verify_equal};
use imprint_cluster_tests::load::Load;
use imprint_cluster_tests::tamper::{Harm, copy_dir, files_below, noise, set_len};

use super::{TOPIC, start};

/// Exit code of `imprint serve` when the data directory can't be used.
const EXIT_DATA_DIR: i32 = 10;
/// The node that is damaged, over and over.
const VICTIM: u64 = 3;

fn restore(copy: &Path, data_dir: &Path) {
    fs::remove_dir_all(data_dir).expect("a stopped node's directory");
    copy_dir(copy, data_dir);
}

/// Starts the victim and waits until it serves as before.
async fn comes_back(cluster: &mut Cluster) {
    cluster.start_node(VICTIM);
    cluster.wait_ready().await;
    cluster.wait_serves(TOPIC, VICTIM).await;
}

/// Starts the victim, which must end with the code for its directory and name what is wrong.
async fn refuses(cluster: &mut Cluster, what: &str, names: &[&str]) {
    let mark = cluster.log_mark(VICTIM);
    cluster.start_node(VICTIM);
    let code = cluster.wait_exit(VICTIM).await;
    let log = cluster.log_since(VICTIM, mark);
    assert_eq!(code, Some(EXIT_DATA_DIR), "{what}:\n{log}");
    for name in names {
        assert!(log.contains(name), "{what}: {name:?} is not named:\n{log}");
    }
    assert!(!log.contains("panicked"), "{what}:\n{log}");
}

/// A cluster with some messages, its victim stopped, and a copy of the victim's directory.
async fn with_stopped_victim(crash: bool) -> (Cluster, PathBuf, PathBuf) {
    let (mut cluster, topic) = start().await;
    let load = Load::start(&cluster, TOPIC, 2);
    load.wait_for(300).await;
    let ledger = load.finish().await;
    hold_audit(&cluster, &topic, &ledger).await;
    match crash {
        true => cluster.kill(VICTIM),
        false => assert_eq!(cluster.stop(VICTIM), Some(0)),
    }
    let (data_dir, copy) = (
        cluster.node(VICTIM).data_dir.clone(),
        cluster.dir().join("copy"),
    );
    copy_dir(&data_dir, &copy);
    (cluster, data_dir, copy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_identity_or_vote_is_refused_with_the_file_and_the_repair() {
    let (mut cluster, data_dir, copy) = with_stopped_victim(true).await;
    for harm in Harm::ALL {
        let what = format!("identity {harm:?}");
        harm.strike(&data_dir.join("identity"));
        let left = fs::read(data_dir.join("identity")).ok();
        refuses(&mut cluster, &what, &["identity", "restore"]).await;
        assert_eq!(
            fs::read(data_dir.join("identity")).ok(),
            left,
            "{what}: changed"
        );
        restore(&copy, &data_dir);

        let what = format!("both state logs {harm:?}");
        harm.strike(&data_dir.join("state/a.log"));
        harm.strike(&data_dir.join("state/b.log"));
        refuses(&mut cluster, &what, &["state", "restore"]).await;
        restore(&copy, &data_dir);
    }
    comes_back(&mut cluster).await;
    verify_equal(&cluster, TOPIC).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_derived_comes_back_by_itself() {
    let (mut cluster, data_dir, _) = with_stopped_victim(false).await;
    for harm in Harm::ALL {
        for name in ["formation", "state/a.log", "state/b.log", "lock"] {
            eprintln!("{name} {harm:?}");
            harm.strike(&data_dir.join(name));
            comes_back(&mut cluster).await;
            cluster.kill(VICTIM);
        }
        // Whatever the meta store consists of, all of it at once.
        eprintln!("meta {harm:?}");
        harm_meta(&data_dir, harm);
        comes_back(&mut cluster).await;
        cluster.kill(VICTIM);
    }
    comes_back(&mut cluster).await;
    verify_equal(&cluster, TOPIC).await;
    let log = cluster.log_of(VICTIM);
    assert!(!log.contains("new node"), "{log}");
}

fn harm_meta(data_dir: &Path, harm: Harm) {
    let meta = data_dir.join("meta");
    match harm {
        Harm::Absent => fs::remove_dir_all(&meta).expect("it is there"),
        Harm::Empty => files_below(&meta).iter().for_each(|file| set_len(file, 0)),
        Harm::OneByte => files_below(&meta).iter().for_each(|file| set_len(file, 7)),
        Harm::Random => files_below(&meta).iter().for_each(|file| {
            let len = file
                .metadata()
                .expect("it is there")
                .len()
                .clamp(64, 1 << 20);
            let len = usize::try_from(len).expect("bounded");
            fs::write(file, noise(len)).expect("a writable file");
        }),
    }
}
