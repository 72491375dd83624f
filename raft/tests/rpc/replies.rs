//! Replies cost memory where they wait: on the node that answers until the peer has taken them, on the caller's until the
//! call has.

use std::time::Duration;

use bytes::Bytes;
use imprint_raft::rpc::{Class, REPLY_CHARGED_FROM, RpcConfig, RpcError};

use super::support::*;

const KIB: usize = 1024;

fn config() -> RpcConfig {
    RpcConfig {
        max_frame_bytes: 200 * KIB,
        server_bulk_reply_bytes: 1000 * KIB,
        server_bulk_peer_bytes: 600 * KIB,
        max_reply_bytes: 300 * KIB,
        ..RpcConfig::default()
    }
}

/// Node 2 keeps `count` requests of node `id`, which reads nothing.
async fn asked(net: &MemNet, b: &Node, id: u64, count: u32) -> RawConn {
    let mut conn = RawConn::greeted(net, &b.addr, id, Class::Bulk).await;
    let before = b.recorder.count();
    for n in 0..count {
        conn.send(HELD, 100 + n, b"x").await;
    }
    b.recorder.payloads(before + count as usize).await;
    conn
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_of_large_replies_costs_its_share_and_hears_503() {
    let net = MemNet::new();
    let b = node_with(&net, hello_of(2), config()).await;
    let mut slow = asked(&net, &b, 1, 20).await;
    let large = Bytes::from(vec![7; 150 * KIB]);
    for reply in b.recorder.take_held() {
        reply.ok(vec![large.clone()]);
    }
    let stats = &b.table.stats().server;
    // Four fit into 600 KiB; the link takes some bytes of the first.
    assert_eq!(stats.reply_bytes.get(), 600 * KIB as u64);
    assert_eq!(stats.refused_replies.get(), 16);
    // Another peer has its own share.
    let mut other = asked(&net, &b, 3, 1).await;
    b.recorder.take_held().remove(0).ok(vec![large.clone()]);
    assert_eq!(other.read().await.expect("a reply").0.meta, 200);
    let mut statuses = Vec::new();
    for _ in 0..20 {
        let (header, payload) = slow.read().await.expect("a reply");
        statuses.push(header.meta);
        if header.meta == 503 {
            let error: RawError = imprint_proto::envelope::decode(payload).expect("an error");
            assert!(
                error
                    .reason
                    .contains("153600 bytes: 614400 of 614400 are held"),
                "{}",
                error.reason
            );
        }
    }
    statuses.sort_unstable();
    assert_eq!((statuses[3], statuses[4]), (200, 503));
    settle().await;
    assert_eq!(stats.reply_bytes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stalls_is_cut_off_and_its_replies_are_freed() {
    let net = MemNet::new();
    let b = node_with(&net, hello_of(2), config()).await;
    let mut slow = asked(&net, &b, 1, 4).await;
    for reply in b.recorder.take_held() {
        reply.ok(vec![Bytes::from(vec![7; 150 * KIB])]);
    }
    // A byte now and then is not reading.
    for _ in 0..11 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let _ = tokio::io::AsyncReadExt::read_u8(&mut slow.0).await;
    }
    settle().await;
    let stats = &b.table.stats().server;
    assert_eq!(
        (
            stats.stalled.get(),
            stats.reply_bytes.get(),
            stats.connections.get()
        ),
        (1, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn small_replies_find_room_whatever_is_held() {
    let net = MemNet::new();
    let b = node_with(&net, hello_of(2), config()).await;
    let mut slow = asked(&net, &b, 1, 6).await;
    let sizes = [150, 150, 150, 150, 64, 65].map(|kib| kib * KIB);
    for (reply, size) in b.recorder.take_held().into_iter().zip(sizes) {
        reply.ok(vec![Bytes::from(vec![7; size])]);
    }
    assert_eq!(sizes[4], REPLY_CHARGED_FROM);
    let mut statuses = Vec::new();
    for _ in sizes {
        statuses.push(slow.read().await.expect("a reply").0.meta);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 503]);
}

#[tokio::test(start_paused = true)]
async fn a_reply_over_the_limit_is_the_handlers_fault() {
    let net = MemNet::new();
    let b = node_with(&net, hello_of(2), config()).await;
    let mut conn = asked(&net, &b, 1, 1).await;
    let reply = b.recorder.take_held().remove(0);
    reply.ok(vec![Bytes::from(vec![7; 200 * KIB + 1])]);
    let (status, reason) = conn.read_error().await;
    assert_eq!(
        (status, reason.as_str()),
        (500, "the reply of 204801 bytes is over the limit of 204800")
    );
}

#[tokio::test(start_paused = true)]
async fn replies_that_their_callers_leave_lying_are_bounded_too() {
    let net = MemNet::new();
    let a = node_with(&net, hello_of(1), config()).await;
    let b = node_with(&net, hello_of(2), config()).await;
    let peer = a.peer(&b);
    let payload = Bytes::from(vec![7; 100 * KIB]);
    let calls: Vec<_> = (0..5)
        .map(|_| peer.start(ECHO, payload.clone().into(), bulk(60_000)))
        .collect();
    b.recorder.payloads(5).await;
    settle().await;
    assert_eq!(peer.reply_bytes(Class::Bulk), 300 * KIB);
    let mut dropped = 0;
    for call in calls {
        match call.await {
            Ok(echo) => assert_eq!(echo, payload),
            Err(error) => {
                let said = RpcError::ReplyDropped {
                    peer: "node 2".into(),
                    method: "forward",
                    bytes: 100 * KIB as u64,
                    held: 300 * KIB,
                    limit: 300 * KIB,
                };
                assert_eq!(error, said);
                assert!(error.outcome_unknown() && error.is_retriable());
                dropped += 1;
            }
        }
    }
    assert_eq!(dropped, 2);
    let stats = a.table.stats().peer(b.id);
    assert_eq!(
        (stats.dropped_replies.get(), stats.disconnects.get()),
        (2, 0)
    );
    assert_eq!(peer.reply_bytes(Class::Bulk), 0);
    let echo = peer.call(ECHO, payload.into(), bulk(1000)).await;
    echo.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_handler_can_see_that_nobody_waits_any_more() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    let conn = asked(&net, &b, 1, 1).await;
    let reply = b.recorder.take_held().remove(0);
    assert!(reply.is_wanted());
    drop(conn);
    settle().await;
    assert!(!reply.is_wanted());
}
