//! Attempts to connect: how they are held back, and what lifts it.

use std::time::Duration;

use bytes::Bytes;
use imprint_raft::rpc::Class;
use tokio::time::Instant;

use super::support::*;

/// Node 1, which has tried node 2 for so long that attempts are two seconds apart.
async fn given_up(net: &MemNet) -> Node {
    let a = node(net, 1).await;
    a.table.add(hello_of(2).node_id, addr_of(2));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let dials = net.dials(&addr_of(2));
    let [.., before, last] = dials[..] else {
        panic!("{dials:?}")
    };
    assert_eq!((last - before).as_secs(), 2);
    // Just after an attempt.
    while net.dials(&addr_of(2)).len() == dials.len() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    a
}

#[tokio::test(start_paused = true)]
async fn a_hello_from_the_peer_lifts_it() {
    let net = MemNet::new();
    let a = given_up(&net).await;
    let heard = Instant::now();
    let mut conn = RawConn::dial(&net, &a.addr).await;
    conn.hello(hello_of(2), Class::Urgent).await;
    conn.read().await.expect("an answer");
    let before = net.dials(&addr_of(2)).len();
    while net.dials(&addr_of(2)).len() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(
        heard.elapsed() < Duration::from_millis(60),
        "{:?}",
        heard.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_from_the_peer_lifts_it_and_not_more_than_once_a_second() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    // The peer's own connection to us is old and goes on.
    let mut conn = RawConn::greeted(&net, &a.addr, 2, Class::Urgent).await;
    a.table.add(hello_of(2).node_id, addr_of(2));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let quiet = net.dials(&addr_of(2)).len();
    while net.dials(&addr_of(2)).len() == quiet {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let called = Instant::now();
    assert!(conn.echoes().await);
    while net.dials(&addr_of(2)).len() == quiet + 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // With the next ping, and not in two seconds.
    assert!(
        called.elapsed() < Duration::from_millis(160),
        "{:?}",
        called.elapsed()
    );
    let before = net.dials(&addr_of(2)).len();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        assert!(conn.echoes().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // 0, 100, 300, 700 ms after each lift: without the bound, 100 dials.
    let dials = net.dials(&addr_of(2)).len() - before;
    assert!((20..=50).contains(&dials), "{dials}");
}

#[tokio::test(start_paused = true)]
async fn a_stranger_at_a_recycled_address_is_refused_by_both_sides() {
    let net = MemNet::new();
    let logged = Logged::begin();
    let a = node(&net, 1).await;
    let mut b = node(&net, 2).await;
    let peer = a.peer(&b);
    let echo = peer.call(ECHO, Bytes::new().into(), bulk(1000)).await;
    echo.expect("an echo");
    b.kill(&net);
    // Its address goes to a node of another cluster, which has the same number there.
    let other = imprint_raft::rpc::Hello {
        cluster_id: Some([9; 16]),
        storage_id: [99; 16],
        ..hello_of(2)
    };
    let stranger = node_with(&net, other, imprint_raft::rpc::RpcConfig::default()).await;
    stranger.table.add(a.id, a.addr.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!a.table.is_alive(b.id) && !stranger.table.is_alive(a.id));
    assert_eq!((stranger.recorder.count(), a.recorder.count()), (0, 0));
    for node in [&a, &stranger] {
        assert!(node.table.stats().server.strangers.get() > 0);
    }
    for (peer, words) in [("node 2", "refused"), ("node 1", "refused")] {
        let peer = format!("peer=\"{peer}\"");
        let lines = logged.with(&["WARN", &peer, words, "belongs to cluster"]);
        assert!(!lines.is_empty(), "{peer}");
    }
    assert!(
        !logged
            .with(&["no hello with this connection", "belongs to cluster"])
            .is_empty()
    );
}
