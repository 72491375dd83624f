//! Peers that are slow, half dead or mad, and what the others feel of it: nothing.

use std::time::Duration;

use bytes::Bytes;
use imprint_proto::frame::{Compression, FrameHeader};
use imprint_raft::rpc::{Class, RpcConfig};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::support::*;

const KIB: usize = 1024;

fn config() -> RpcConfig {
    RpcConfig {
        max_frame_bytes: 100 * KIB,
        server_bulk_bytes: 150 * KIB,
        server_bulk_peer_bytes: 100 * KIB,
        ..RpcConfig::default()
    }
}

/// A connection of node `id` that has announced a frame, and sent half of it.
async fn half_a_frame(net: &MemNet, addr: &str, id: u64, bytes: usize) -> RawConn {
    let mut conn = RawConn::greeted(net, addr, id, Class::Bulk).await;
    let frame = frame(ECHO, 5, &vec![1; bytes]);
    conn.send_bytes(&frame[..frame.len() / 2]).await;
    conn
}

#[tokio::test(start_paused = true)]
async fn one_peers_half_frames_take_its_share_and_nothing_of_the_others() {
    let net = MemNet::new();
    let b = node_with(&net, hello_of(2), config()).await;
    let a = node(&net, 1).await;
    let peer = a.peer(&b);
    let mut mad = Vec::new();
    for _ in 0..4 {
        mad.push(half_a_frame(&net, &b.addr, 3, 60 * KIB).await);
    }
    settle().await;
    let stats = &b.table.stats().server;
    // One has its bytes, the second waits for the share and not in the pool's queue.
    assert_eq!(stats.memory_bytes.get(), 60 * KIB as u64);
    for _ in 0..20 {
        let echo = peer.call(ECHO, vec![Bytes::from(vec![7; 80 * KIB])].into(), bulk(50));
        echo.await.expect("an echo");
    }
    assert!(a.table.is_alive(b.id));
    // They are cut off one after the other as they stall.
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!(
        (stats.memory_bytes.get(), stats.stalled.get()),
        (0, mad.len() as u64)
    );
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_trickles_in_is_cut_off() {
    let net = MemNet::new();
    let b = node_with(&net, hello_of(2), config()).await;
    let mut conn = half_a_frame(&net, &b.addr, 1, 60 * KIB).await;
    let begun = Instant::now();
    while conn.0.write_u8(1).await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(begun.elapsed() < Duration::from_secs(25));
    }
    let stats = &b.table.stats().server;
    assert_eq!((stats.stalled.get(), stats.memory_bytes.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn bulk_never_delays_what_is_urgent() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let b = node(&net, 2).await;
    let peer = a.peer(&b);
    for options in [urgent(1000), bulk(1000)] {
        let echo = peer.call(ECHO, Bytes::new().into(), options).await;
        echo.expect("an echo");
    }
    net.set_link(&b.addr, 1, Flow::Frozen);
    let bulky: Vec<_> = (0..300)
        .map(|_| peer.start(ECHO, Bytes::from(vec![1; 100 * KIB]).into(), bulk(60_000)))
        .collect();
    settle().await;
    assert_eq!(b.recorder.count(), 2);
    for _ in 0..100 {
        let vote = peer.call(ECHO, Bytes::from_static(b"vote").into(), urgent(5));
        vote.await.expect("while 30 MiB are queued and stand still");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(a.table.stats().peer(b.id).deaths.get(), 0);
    drop(bulky);
}

#[tokio::test(start_paused = true)]
async fn sizes_that_nobody_has_memory_for_are_refused_before_any() {
    let net = MemNet::new();
    let b = node_with(&net, hello_of(2), config()).await;
    let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
    let announced = |bytes: u32, id: u32| FrameHeader {
        payload_size: bytes,
        ..FrameHeader::for_payload(Compression::None, ECHO, id, &[])
    };
    conn.send_bytes(&announced(u32::MAX, 11).encode()).await;
    let (status, reason) = conn.read_error().await;
    assert_eq!(
        (status, reason.as_str()),
        (
            413,
            "a payload of 4294967295 bytes is over the limit of 102400"
        )
    );
    let stats = &b.table.stats().server;
    assert_eq!(
        (stats.memory_bytes.get(), stats.bytes_received.get()),
        (0, 0)
    );
    // What would decompress to more than that is refused by its first bytes.
    let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
    let packed = zstd::bulk::compress(&vec![0; 101 * KIB], 1).expect("compressed");
    let header =
        FrameHeader::for_payload(Compression::Zstd, ECHO, 12, &[Bytes::from(packed.clone())]);
    conn.send_bytes(&[&header.encode()[..], &packed].concat())
        .await;
    let (status, reason) = conn.read_error().await;
    assert_eq!(
        (status, reason.as_str()),
        (
            413,
            "a payload, decompressed, of 103424 bytes is over the limit of 102400"
        )
    );
    assert!(conn.echoes().await);
}
