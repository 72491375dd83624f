//! Data directories of earlier versions stay readable, and life goes on in them.

use imprint_cluster_tests::cluster::Cluster;
use imprint_cluster_tests::fixture::{self, Expected, TOPIC};
use imprint_cluster_tests::hold::hold_audit;
use imprint_cluster_tests::ledger::Ledger;
use imprint_cluster_tests::load::Load;
use imprint_cluster_tests::tamper::copy_dir;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_earlier_data_directory_is_read_back_and_appended_to() {
    let fixtures = fixture::all();
    assert!(!fixtures.is_empty(), "none is there");
    for dir in fixtures {
        eprintln!("{}", dir.display());
        let expected = Expected::read(&dir);
        assert!(!expected.messages.is_empty(), "{}", dir.display());
        let copy = |cluster: &Cluster| {
            for node in &cluster.nodes {
                copy_dir(&dir.join(format!("node-{}", node.id)), &node.data_dir);
            }
        };
        let cluster = Cluster::start_on(copy).await;
        let topic = cluster.client().admin().get_topic(TOPIC).await;
        let topic = topic.expect("the topic is known");
        let mut before = Ledger::default();
        expected.add_to(&mut before);
        hold_audit(&cluster, &topic, &before).await;

        let load = Load::start(&cluster, TOPIC, 2);
        load.wait_for(50).await;
        let mut ledger = load.finish().await;
        expected.add_to(&mut ledger);
        hold_audit(&cluster, &topic, &ledger).await;
    }
}
