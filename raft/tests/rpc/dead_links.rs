//! One of a peer's two connections is dead and says nothing, while the other one lives: the network has forgotten it, or
//! a box between has. It alone is given up, and nobody is declared dead for it.

use std::time::Duration;

use bytes::Bytes;
use imprint_raft::rpc::{Class, Phase, RpcConfig, RpcError};
use tokio::time::Instant;

use super::support::*;

/// Node 1 with both connections to node 2; the urgent one is link 0, the bulk one link 1.
async fn connected(net: &MemNet) -> (Node, Node) {
    let a = node(net, 1).await;
    let b = node(net, 2).await;
    let peer = a.peer(&b);
    for options in [urgent(1000), bulk(1000)] {
        let echo = peer.call(ECHO, Bytes::new().into(), options);
        echo.await.expect("an echo");
    }
    assert_eq!(net.dials(&b.addr).len(), 2);
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn a_dead_bulk_connection_is_given_up_while_the_urgent_one_lives() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    let peer = a.peer(&b);
    net.set_link(&b.addr, 1, Flow::Swallowed);
    let dead = Instant::now();
    // As replication does: each attempt has a time-out of its own, and another follows.
    let failed = loop {
        match peer.call(ECHO, Bytes::new().into(), bulk(700)).await {
            Err(RpcError::Timeout { phase, .. }) => assert_eq!(phase, Phase::Reply),
            other => break other,
        }
    };
    assert!(
        matches!(failed, Err(RpcError::Disconnected { .. })),
        "{failed:?}"
    );
    let echo = peer.call(ECHO, Bytes::new().into(), bulk(700)).await;
    echo.expect("on a new connection");
    let config = RpcConfig::default();
    assert!(
        dead.elapsed() <= config.silence_timeout * 2,
        "{:?}",
        dead.elapsed()
    );
    let stats = a.table.stats().peer(b.id);
    assert_eq!(
        (
            stats.silent.get(),
            stats.deaths.get(),
            stats.disconnects.get()
        ),
        (1, 0, 1)
    );
    assert!(a.table.is_alive(b.id));
    assert_eq!(net.dials(&b.addr).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_dead_urgent_connection_is_given_up_while_the_bulk_one_lives() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    let peer = a.peer(&b);
    let busy = {
        let peer = peer.clone();
        tokio::spawn(async move {
            loop {
                let echo = peer.call(ECHO, Bytes::new().into(), bulk(700)).await;
                echo.expect("an echo");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    net.set_link(&b.addr, 0, Flow::Swallowed);
    let dead = Instant::now();
    while peer
        .call(ECHO, Bytes::new().into(), urgent(50))
        .await
        .is_err()
    {
        assert!(a.table.is_alive(b.id), "after {:?}", dead.elapsed());
    }
    // Half of the time that a death takes, and the ping that had just been answered.
    assert!(
        dead.elapsed() < Duration::from_millis(700),
        "{:?}",
        dead.elapsed()
    );
    assert!(a.table.is_alive(b.id) && !busy.is_finished());
    let stats = a.table.stats().peer(b.id);
    assert_eq!((stats.deaths.get(), stats.disconnects.get()), (0, 1));
    busy.abort();
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_no_dead_connection() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    let peer = a.peer(&b);
    let held = peer.start(HELD, Bytes::new().into(), bulk(120_000));
    tokio::time::sleep(Duration::from_secs(60)).await;
    b.recorder.take_held().remove(0).ok(Vec::new());
    held.await.expect("answered after a minute");
    let stats = a.table.stats().peer(b.id);
    assert_eq!((stats.silent.get(), stats.disconnects.get()), (0, 0));
    assert_eq!(peer.in_flight(Class::Bulk), 0);
}

#[tokio::test(start_paused = true)]
async fn a_large_frame_on_a_slow_link_is_no_dead_connection() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    let peer = a.peer(&b);
    let payload = Bytes::from(vec![7; 200_000]);
    let call = peer.start(ECHO, payload.clone().into(), bulk(120_000));
    // Some KiB go through between the pauses: for half a minute nothing comes back.
    for _ in 0..40 {
        net.set_link(&b.addr, 1, Flow::Frozen);
        tokio::time::sleep(Duration::from_millis(900)).await;
        net.thaw();
        for _ in 0..40 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(call.await.expect("an echo").len(), payload.len());
    assert_eq!(a.table.stats().peer(b.id).silent.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_end_with_the_table_and_not_only_with_its_last_owner() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    let mut events = a.table.subscribe();
    a.table.close();
    assert_eq!(
        events.recv().await,
        Some(imprint_raft::rpc::PeerEvent::Down(b.id))
    );
    // The table itself is still held.
    assert_eq!(events.recv().await, None);
    assert_eq!(a.table.subscribe().recv().await, None);
    assert!(a.table.alive().is_empty() && !a.table.is_alive(b.id));
}
