//! Floods of connections and of lines about them.

use std::time::Duration;

use bytes::Bytes;
use imprint_raft::rpc::{Class, Hello, RpcConfig};

use super::support::*;

#[tokio::test(start_paused = true)]
async fn a_flood_of_connections_pushes_itself_out_and_hurts_nobody() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let b = node(&net, 2).await;
    let peer = a.peer(&b);
    let echo = peer.call(ECHO, Bytes::new().into(), bulk(1000)).await;
    echo.expect("an echo");
    let flood = {
        let (net, addr) = (net.clone(), b.addr.clone());
        tokio::spawn(async move {
            let mut open = std::collections::VecDeque::new();
            loop {
                open.push_back(RawConn::dial(&net, &addr).await);
                if open.len() > 1000 {
                    open.pop_front();
                }
                // 10,000 a second.
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stats = &b.table.stats().server;
    assert!(stats.pushed_out.get() > 200);
    // Hello: at most the 64 places, the present peer, and who is just being told that there are too many.
    assert!(
        stats.connections.get() <= 64 + 16,
        "{}",
        stats.connections.get()
    );
    for _ in 0..20 {
        let vote = peer.call(ECHO, Bytes::new().into(), urgent(20)).await;
        vote.expect("an echo");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A node that isn't connected yet finds its way through.
    let c = node(&net, 3).await;
    let echo = c.peer(&b).call(ECHO, Bytes::new().into(), bulk(1000)).await;
    echo.expect("an echo");
    assert_eq!(a.table.stats().peer(b.id).deaths.get(), 0);
    flood.abort();
}

#[tokio::test(start_paused = true)]
async fn a_refused_hello_is_written_once_and_then_once_a_minute_by_both_sides() {
    let net = MemNet::new();
    let logged = Logged::begin();
    let own = Hello {
        cluster_id: Some([8; 16]),
        ..hello_of(1)
    };
    let stranger = node_with(&net, own, RpcConfig::default()).await;
    let b = node(&net, 2).await;
    stranger.peer(&b);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let by_caller = || logged.with(&["peer=\"node 2\"", "class=\"urgent\"", "refused"]);
    let by_callee = || logged.with(&["no hello with this connection", "belongs to cluster"]);
    let attempts = b.table.stats().server.strangers.get();
    assert!(attempts > 10, "{attempts}");
    assert_eq!((by_caller().len(), by_callee().len()), (1, 1));
    tokio::time::sleep(Duration::from_secs(5 * 60)).await;
    for lines in [by_caller(), by_callee()] {
        assert!((5..=6).contains(&lines.len()), "{lines:#?}");
        assert!(lines[0].contains("unwritten=0") && !lines[1].contains("unwritten=0"));
        assert!(lines[0].contains("cluster 0808"), "{}", lines[0]);
    }
    // Something new is said at once.
    b.recorder.refuse("not even then");
    let (before, other) = (by_callee().len(), RawConn::dial(&net, &b.addr).await);
    drop(other);
    settle().await;
    assert_eq!(by_callee().len(), before);
    assert_eq!(logged.with(&["it hung up without a hello"]).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flapping_connection_does_not_fill_the_log() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let b = node(&net, 2).await;
    let peer = a.peer(&b);
    let logged = Logged::begin();
    for _ in 0..500 {
        let echo = peer.call(ECHO, Bytes::new().into(), bulk(1000)).await;
        echo.expect("an echo");
        net.cut(&b.addr);
        settle().await;
    }
    let lines = logged.with(&["class=\"bulk\""]);
    assert!((2..=20).contains(&lines.len()), "{} lines", lines.len());
}

#[tokio::test(start_paused = true)]
async fn garbage_costs_its_own_connection_and_one_line() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let b = node(&net, 2).await;
    let peer = a.peer(&b);
    let logged = Logged::begin();
    for seed in 0..200_u64 {
        let mut bytes: Vec<u8> = (0..300_u64)
            .map(|n| {
                (n.wrapping_mul(seed * 2 + 1)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    >> 56) as u8
            })
            .collect();
        let mut conn = if seed % 2 == 0 {
            RawConn::dial(&net, &b.addr).await
        } else {
            RawConn::greeted(&net, &b.addr, 3, Class::Bulk).await
        };
        // With the right version it is the checksum that must catch it.
        bytes[0] = 2;
        // It may hang up before all of it is out.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut conn.0, &bytes).await;
        assert!(conn.read().await.is_none(), "{seed}");
        let echo = peer.call(ECHO, Bytes::new().into(), bulk(50)).await;
        echo.expect("an echo");
    }
    let stats = &b.table.stats().server;
    assert_eq!((stats.strangers.get(), stats.bad_frames.get()), (100, 100));
    assert!(a.table.is_alive(b.id));
    let lines = logged.with(&["node"]).len() + logged.with(&["bad bytes"]).len();
    assert!(lines < 200, "{lines} lines for 200 connections");
}
