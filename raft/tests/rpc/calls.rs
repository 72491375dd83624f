//! Two nodes: order, bounds, phases, failures.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use imprint_raft::rpc::{CallOptions, Class, Phase, RpcConfig, RpcError, methods};
use tokio::time::Instant;

use super::support::*;

async fn pair(net: &MemNet, config: RpcConfig) -> (Node, Node) {
    let a = node_with(net, hello_of(1), config.clone()).await;
    let b = node_with(net, hello_of(2), config).await;
    (a, b)
}

fn part(len: usize) -> Bytes {
    Bytes::from(vec![b'x'; len])
}

#[tokio::test(start_paused = true)]
async fn a_payload_in_parts_arrives_as_one() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    for options in [bulk(1000), urgent(1000)] {
        let parts = vec![
            Bytes::from_static(b"head"),
            part(3000),
            Bytes::from_static(b"tail"),
        ];
        let reply = a
            .peer(&b)
            .call(ECHO, parts.clone().into(), options)
            .await
            .expect("an echo");
        assert_eq!(reply, parts.concat());
    }
    assert_eq!(b.recorder.last_conn().peer, a.id);
    let nothing = a
        .peer(&b)
        .call(ECHO, Vec::new().into(), bulk(1000))
        .await
        .expect("an echo");
    assert!(nothing.is_empty());
}

#[tokio::test(start_paused = true)]
async fn calls_arrive_in_the_order_in_which_they_were_begun() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    let peer = a.peer(&b);
    let calls: Vec<_> = (0..200u32)
        .map(|n| {
            peer.start(
                HELD,
                Bytes::copy_from_slice(&n.to_le_bytes()).into(),
                bulk(60_000),
            )
        })
        .collect();
    let seen = b.recorder.payloads(200).await;
    let numbers: Vec<u32> = seen
        .iter()
        .map(|p| u32::from_le_bytes(p.as_ref().try_into().expect("4 bytes")))
        .collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    // Answered in the opposite order, each call still gets its own reply.
    for (n, reply) in b.recorder.take_held().into_iter().enumerate().rev() {
        reply.ok(vec![Bytes::from(n.to_string())]);
    }
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.expect("a reply"), n.to_string());
    }
}

/// A pool of 1 KiB, and a frozen link that keeps the first call from leaving.
async fn clogged(net: &MemNet) -> (Node, Node, impl Future<Output = Result<Bytes, RpcError>>) {
    let config = RpcConfig {
        bulk_pool_bytes: 1024,
        max_waiting_calls: 3,
        ..RpcConfig::default()
    };
    let (a, b) = pair(net, config).await;
    a.peer(&b)
        .call(ECHO, Vec::new().into(), bulk(1000))
        .await
        .expect("a connection");
    net.freeze();
    let stuck = a.peer(&b).start(ECHO, part(800).into(), bulk(60_000));
    settle().await;
    (a, b, stuck)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_times_out_before_dispatch_gives_its_slot_back() {
    let net = MemNet::new();
    let (a, b, stuck) = clogged(&net).await;
    let peer = a.peer(&b);
    let starved = peer.start(ECHO, part(900).into(), bulk(50));
    let behind = peer.start(ECHO, part(100).into(), bulk(60_000));
    settle().await;
    // The small one fits, but doesn't overtake.
    assert_eq!(peer.reserved_bytes(Class::Bulk), 826);
    match starved.await {
        Err(RpcError::Timeout {
            phase: Phase::Memory,
            method: "forward",
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
    settle().await;
    assert_eq!(peer.reserved_bytes(Class::Bulk), 826 + 126);
    net.thaw();
    stuck.await.expect("an echo");
    behind.await.expect("an echo");
    let sizes: Vec<usize> = b
        .recorder
        .payloads(3)
        .await
        .iter()
        .map(Bytes::len)
        .collect();
    assert_eq!(sizes, [0, 800, 100]);
    let stats = a.table.stats().peer(b.id);
    assert_eq!(stats.method(ECHO).timeouts[Phase::Memory as usize].get(), 1);
}

#[tokio::test(start_paused = true)]
async fn bytes_come_back_to_the_pool_when_they_have_left_and_not_before() {
    let net = MemNet::new();
    let (a, b, stuck) = clogged(&net).await;
    let peer = a.peer(&b);
    // The caller gives up while its frame is half written.
    drop(stuck);
    settle().await;
    assert_eq!(
        (
            peer.in_flight(Class::Bulk),
            peer.reserved_bytes(Class::Bulk)
        ),
        (0, 826)
    );
    net.thaw();
    settle().await;
    assert_eq!(peer.reserved_bytes(Class::Bulk), 0);
    // Its reply is for nobody; the connection goes on.
    peer.call(ECHO, Vec::new().into(), bulk(1000))
        .await
        .expect("an echo");
    let stats = a.table.stats().peer(b.id);
    assert_eq!(
        (stats.unknown_replies.get(), stats.disconnects.get()),
        (1, 0)
    );
    assert_eq!(stats.method(ECHO).cancelled.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_phase_of_a_timeout_says_where_the_call_stood() {
    let net = MemNet::new();
    let (a, b, stuck) = clogged(&net).await;
    let peer = a.peer(&b);
    let phase = |error: RpcError| match error {
        RpcError::Timeout { phase, .. } => phase,
        other => panic!("{other:?}"),
    };
    let queued = peer
        .call(ECHO, part(10).into(), bulk(20))
        .await
        .expect_err("timed out");
    assert_eq!(phase(queued.clone()), Phase::Dispatch);
    assert!(!queued.outcome_unknown());
    tokio::time::advance(Duration::from_secs(1)).await;
    drop(stuck);
    let writing = {
        let config = RpcConfig::default();
        let c = node_with(&net, hello_of(3), config).await;
        net.thaw();
        let peer = c.peer(&b);
        peer.call(ECHO, Vec::new().into(), bulk(1000))
            .await
            .expect("a connection");
        net.freeze();
        peer.call(ECHO, part(800).into(), bulk(20))
            .await
            .expect_err("timed out")
    };
    assert_eq!(phase(writing), Phase::Write);
    net.thaw();
    let unanswered = peer
        .call(HELD, part(1).into(), bulk(20))
        .await
        .expect_err("timed out");
    assert!(unanswered.outcome_unknown());
    assert_eq!(phase(unanswered), Phase::Reply);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_sent_fails_at_once() {
    let net = MemNet::new();
    let config = RpcConfig {
        bulk_pool_bytes: 1024,
        max_frame_bytes: 64 * 1024,
        ..RpcConfig::default()
    };
    let (a, b) = pair(&net, config).await;
    let peer = a.peer(&b);
    for (options, len, limit) in [
        (bulk(1000), 1024, 1024),
        (urgent(1000), 64 * 1024 + 1, 64 * 1024),
    ] {
        let error = peer
            .start(ECHO, part(len).into(), options)
            .now_or_never()
            .expect("at once");
        assert_eq!(
            error,
            Err(RpcError::TooLarge {
                peer: "node 2".into(),
                bytes: len,
                limit
            })
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_bounded_and_the_next_call_hears_it_at_once() {
    let net = MemNet::new();
    let (a, b, stuck) = clogged(&net).await;
    let peer = a.peer(&b);
    let waiting: Vec<_> = (0..3)
        .map(|_| peer.start(ECHO, part(900).into(), bulk(60_000)))
        .collect();
    let refused = peer
        .start(ECHO, part(1).into(), bulk(60_000))
        .now_or_never()
        .expect("at once");
    assert!(
        matches!(
            refused,
            Err(RpcError::Overloaded {
                waiting_calls: 3,
                waiting_bytes: 2778,
                ..
            })
        ),
        "{refused:?}"
    );
    // Votes and heartbeats have a pool of their own.
    assert!(
        peer.start(ECHO, part(1).into(), urgent(60_000))
            .now_or_never()
            .is_none()
    );
    net.thaw();
    stuck.await.expect("an echo");
    for call in waiting {
        call.await.expect("an echo");
    }
    assert_eq!(a.table.stats().peer(b.id).overloaded.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_fails_what_is_on_it_and_the_next_call_dials() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    let peer = a.peer(&b);
    let calls: Vec<_> = (0..5)
        .map(|_| peer.start(HELD, part(10).into(), bulk(60_000)))
        .collect();
    b.recorder.payloads(5).await;
    net.cut(&b.addr);
    for call in calls {
        let error = call.await.expect_err("disconnected");
        assert!(matches!(error, RpcError::Disconnected { .. }), "{error}");
        assert!(error.is_retriable() && error.outcome_unknown());
    }
    peer.call(ECHO, part(10).into(), bulk(1000))
        .await
        .expect("an echo");
    assert_eq!(peer.in_flight(Class::Bulk), 0);
}

#[tokio::test(start_paused = true)]
async fn attempts_to_connect_back_off_and_calls_fail_at_once_meanwhile() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let options = || bulk(1000);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        let call = a
            .table
            .call_address("node-9:7000", ECHO, Vec::new().into(), options());
        let error = call.await.expect_err("nobody there");
        assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
        assert!(!error.outcome_unknown());
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    // An address without a node starts the same way and stays at 200 ms.
    let gaps: Vec<u128> = net
        .dials(&addr_of(9))
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_millis())
        .collect();
    assert!(
        gaps.iter().take(2).eq([50, 100].iter()) && gaps.iter().skip(2).all(|gap| *gap == 200),
        "{gaps:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn back_off_doubles_to_two_seconds() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    // Liveness alone keeps trying, on the urgent connection.
    a.table.add(hello_of(2).node_id, addr_of(2));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let gaps: Vec<u128> = net
        .dials(&addr_of(2))
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_millis())
        .collect();
    // Each is the back-off, rounded up to the next ping.
    assert_eq!(gaps, [100, 100, 200, 400, 800, 1600, 2000, 2000, 2000]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_network_costs_a_call_no_more_than_the_time_for_connecting() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    net.silence(true);
    let peer = a.peer(&b);
    let begun = Instant::now();
    let error = peer
        .call(ECHO, Vec::new().into(), bulk(60_000))
        .await
        .expect_err("no connection");
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
    assert_eq!(seconds(begun), 1);
    let error = peer
        .call(ECHO, Vec::new().into(), bulk(300))
        .await
        .expect_err("no connection");
    assert!(
        matches!(
            error,
            RpcError::Timeout {
                phase: Phase::Dispatch,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_moved_is_dialled_at_its_new_address() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    a.peer(&b)
        .call(ECHO, Vec::new().into(), bulk(1000))
        .await
        .expect("an echo");
    let elsewhere = "elsewhere:1".to_owned();
    let _moved = node_on(
        std::sync::Arc::new(net.clone()),
        imprint_raft::seams::Net::listen(&net, &elsewhere)
            .await
            .expect("listening"),
        hello_of(2),
        RpcConfig::default(),
    );
    a.table.add(b.id, elsewhere.clone());
    let peer = a.table.get(b.id).expect("a peer");
    settle().await;
    peer.call(ECHO, Vec::new().into(), bulk(1000))
        .await
        .expect("an echo");
    assert_eq!(peer.address(), elsewhere);
    assert!(!net.dials(&elsewhere).is_empty());
}

#[tokio::test(start_paused = true)]
async fn errors_come_with_status_and_reason() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    let peer = a.peer(&b);
    let remote = |error: RpcError| match error {
        RpcError::Remote { status, reason, .. } => (status, reason),
        other => panic!("{other:?}"),
    };
    let dropped = peer
        .call(DROPPED, part(1).into(), bulk(1000))
        .await
        .expect_err("no answer");
    assert_eq!(remote(dropped), (500, "the handler gave no answer".into()));
    let unknown = peer
        .call(12345, part(1).into(), bulk(1000))
        .await
        .expect_err("unknown");
    assert_eq!(remote(unknown).0, 404);
    let call = peer.start(HELD, part(1).into(), bulk(1000));
    b.recorder.payloads(2).await;
    b.recorder.take_held().remove(0).error(503, "not yet");
    let not_ready = call.await.expect_err("not ready");
    assert!(not_ready.is_retriable() && !not_ready.outcome_unknown());
    assert_eq!(remote(not_ready), (503, "not yet".into()));
}

#[tokio::test(start_paused = true)]
async fn compression_is_for_those_who_ask_and_have_enough() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    let peer = a.peer(&b);
    let packed = |class| CallOptions {
        compress: true,
        ..CallOptions {
            class,
            ..bulk(1000)
        }
    };
    let sent = || a.table.stats().peer(b.id).method(ECHO).bytes_sent.get();
    for (payload, options, on_wire) in [
        (part(1023), packed(Class::Bulk), 1023..=1023),
        (part(1024), bulk(1000), 1024..=1024),
        (part(1024), packed(Class::Bulk), 1..=100),
        (part(1_000_000), packed(Class::Urgent), 1..=1000),
    ] {
        let before = sent();
        let reply = peer
            .call(ECHO, payload.clone().into(), options)
            .await
            .expect("an echo");
        assert_eq!(reply, payload);
        assert!(
            on_wire.contains(&(sent() - before)),
            "{} for {}",
            sent() - before,
            payload.len()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_removed_peer_fails_its_calls() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    let peer = a.peer(&b);
    let pending = peer.start(HELD, part(1).into(), bulk(60_000));
    b.recorder.payloads(1).await;
    a.table.remove(b.id);
    let closed = Err(RpcError::Closed {
        peer: "node 2".into(),
    });
    assert_eq!(pending.await, closed);
    assert_eq!(peer.call(ECHO, part(1).into(), bulk(1000)).await, closed);
    assert!(a.table.get(b.id).is_none());
}

#[tokio::test(start_paused = true)]
async fn calls_to_an_address_need_no_node_id_and_their_number_is_bounded() {
    let net = MemNet::new();
    let config = RpcConfig {
        max_address_peers: 2,
        ..RpcConfig::default()
    };
    let (a, b) = pair(&net, config).await;
    for _ in 0..2 {
        let reply = a
            .table
            .call_address(&b.addr, ECHO, part(3).into(), urgent(1000))
            .await;
        assert_eq!(reply.expect("an echo").len(), 3);
    }
    assert_eq!(net.dials(&b.addr).len(), 1);
    for other in 10..15 {
        a.table
            .call_address(&addr_of(other), ECHO, part(3).into(), urgent(1000))
            .await
            .expect_err("nobody");
    }
    a.table
        .call_address(&b.addr, ECHO, part(3).into(), urgent(1000))
        .await
        .expect("an echo");
    assert_eq!(net.dials(&b.addr).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_connection_is_closed_by_the_caller_and_made_again() {
    let net = MemNet::new();
    let (a, b) = pair(&net, RpcConfig::default()).await;
    a.table
        .call_address(&b.addr, ECHO, part(3).into(), bulk(1000))
        .await
        .expect("an echo");
    tokio::time::sleep(Duration::from_secs(31)).await;
    settle().await;
    assert_eq!(b.table.stats().server.connections.get(), 0);
    a.table
        .call_address(&b.addr, ECHO, part(3).into(), bulk(1000))
        .await
        .expect("an echo");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_nobody_polls_is_not_dispatched_after_its_time() {
    let net = MemNet::new();
    let (a, b, _stuck) = clogged(&net).await;
    let peer = a.peer(&b);
    let late = peer.start(ECHO, part(50).into(), bulk(20));
    tokio::time::advance(Duration::from_millis(30)).await;
    net.thaw();
    settle().await;
    assert_eq!(b.recorder.count(), 2);
    let error = late.await.expect_err("timed out");
    assert!(
        matches!(
            error,
            RpcError::Timeout {
                phase: Phase::Dispatch,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(methods::name(ECHO), "forward");
}
