//! Frames by hand against the server: what it must survive, and what it must not forgive.

use std::time::Duration;

use imprint_proto::frame::{Compression, FRAME_HEADER_LEN, FrameHeader};
use imprint_raft::rpc::{Class, RpcConfig, methods};
use tokio::time::Instant;

use super::support::*;

async fn greeted(net: &MemNet, config: RpcConfig) -> (Node, RawConn) {
    let b = node_with(net, hello_of(2), config).await;
    let conn = RawConn::greeted(net, &b.addr, 1, Class::Bulk).await;
    (b, conn)
}

/// The golden ping: its header passes every check, its payload is no ping.
const GOLDEN_HEADER: &str = "029441de88001400000002000000020000004d75fb32c6c07b17";
const GOLDEN_PAYLOAD: &str = "01000e00000007000000010100f2052a01000000";

#[tokio::test(start_paused = true)]
async fn the_golden_frame_is_read() {
    let net = MemNet::new();
    let (_b, mut conn) = greeted(&net, RpcConfig::default()).await;
    conn.send_bytes(&hex(GOLDEN_HEADER)).await;
    conn.send_bytes(&hex(GOLDEN_PAYLOAD)).await;
    let (header, _) = conn.read().await.expect("a reply");
    assert_eq!(
        (header.version, header.meta, header.correlation_id),
        (2, 500, 2)
    );
    assert!(conn.echoes().await);
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_anywhere_in_the_header_is_noticed() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    for at in 0..FRAME_HEADER_LEN {
        let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
        let mut header = hex(GOLDEN_HEADER);
        header[at] ^= 0x01;
        conn.send_bytes(&header).await;
        conn.send_bytes(&hex(GOLDEN_PAYLOAD)).await;
        if at == 0 {
            let (status, reason) = conn.read_error().await;
            assert_eq!(status, 505, "{reason}");
            assert!(conn.echoes().await);
        } else {
            assert!(conn.read().await.is_none(), "byte {at}");
        }
    }
    assert_eq!(
        b.table.stats().server.bad_frames.get(),
        FRAME_HEADER_LEN as u64 - 1
    );
    assert_eq!(b.recorder.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn contradictions_close_the_connection() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    let payload = b"0123456789";
    let good = FrameHeader::for_payload(Compression::None, ECHO, 5, &[payload.to_vec().into()]);
    let wrong_sum = FrameHeader {
        payload_checksum: good.payload_checksum ^ 1,
        ..good
    };
    let not_zstd = FrameHeader {
        compression: Compression::Zstd,
        ..good
    };
    let mut unknown = good.encode();
    unknown[5] = 7;
    let sum = crc32c::crc32c(&unknown[5..]);
    unknown[1..5].copy_from_slice(&sum.to_le_bytes());
    for header in [wrong_sum.encode(), not_zstd.encode(), unknown] {
        let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
        conn.send_bytes(&header).await;
        conn.send_bytes(payload).await;
        assert!(conn.read().await.is_none());
    }
    let mut garbage = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
    // It may hang up before all of it is out.
    let _ = tokio::io::AsyncWriteExt::write_all(&mut garbage.0, &[0x02; 4096]).await;
    assert!(garbage.read().await.is_none());
    assert_eq!(b.recorder.count(), 0);
    assert_eq!(b.table.stats().server.bad_frames.get(), 4);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_skipped_and_the_connection_kept() {
    let net = MemNet::new();
    let config = RpcConfig {
        max_frame_bytes: 20_000,
        ..RpcConfig::default()
    };
    let (b, mut conn) = greeted(&net, config).await;
    conn.send(4711, 10, &[1; 1000]).await;
    assert_eq!(conn.read_error().await.0, 404);
    conn.send(ECHO, 11, &[1; 20_001]).await;
    assert_eq!(conn.read_error().await.0, 413);
    let mut other_version = frame(ECHO, 12, &[1; 1000]);
    other_version[0] = 9;
    conn.send_bytes(&other_version).await;
    assert_eq!(conn.read_error().await.0, 505);
    conn.hello(hello_of(1), Class::Bulk).await;
    assert_eq!(conn.read_error().await.0, 503);
    assert!(conn.echoes().await);
    assert_eq!(b.recorder.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_comes_before_the_body() {
    let net = MemNet::new();
    let config = RpcConfig {
        max_frame_bytes: 20_000,
        ..RpcConfig::default()
    };
    let (b, mut conn) = greeted(&net, config).await;
    let header = FrameHeader {
        payload_size: u32::MAX,
        ..FrameHeader::for_payload(Compression::None, ECHO, 11, &[])
    };
    conn.send_bytes(&header.encode()).await;
    assert_eq!(conn.read_error().await.0, 413);
    assert_eq!(b.table.stats().server.memory_bytes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_decompressed_size_is_paid_for_and_capped() {
    let net = MemNet::new();
    let config = RpcConfig {
        max_frame_bytes: 20_000,
        ..RpcConfig::default()
    };
    let b = node_with(&net, hello_of(2), config).await;
    let send = async |plain: &[u8], lie: Option<u8>| {
        let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
        let mut packed = zstd::bulk::compress(plain, 1).expect("compressed");
        if let Some(size) = lie {
            // A frame header with a one-byte content size.
            assert_eq!(packed[4], 0x20);
            packed[5] = size;
        }
        let header = FrameHeader::for_payload(Compression::Zstd, ECHO, 5, &[packed.clone().into()]);
        conn.send_bytes(&[&header.encode()[..], &packed].concat())
            .await;
        let reply = conn.read().await;
        (
            reply.map(|(header, payload)| (header.meta, payload.len())),
            conn,
        )
    };
    assert_eq!(send(&[0; 20_000], None).await.0, Some((200, 20_000)));
    let (reply, mut conn) = send(&[0; 20_001], None).await;
    assert_eq!(reply.map(|(meta, _)| meta), Some(413));
    assert!(conn.echoes().await);
    assert_eq!(send(&[0; 100], Some(10)).await.0, None);
    assert_eq!(send(&[0; 100], Some(101)).await.0, None);
    settle().await;
    assert_eq!(b.table.stats().server.memory_bytes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn half_a_frame_does_not_hold_memory_for_ever() {
    let net = MemNet::new();
    let (b, mut conn) = greeted(&net, RpcConfig::default()).await;
    let whole = frame(ECHO, 5, &[1; 1000]);
    conn.send_bytes(&whole[..500]).await;
    settle().await;
    assert_eq!(b.table.stats().server.memory_bytes.get(), 1000);
    let begun = Instant::now();
    assert!(conn.read().await.is_none());
    assert_eq!(seconds(begun), 10);
    settle().await;
    let stats = &b.table.stats().server;
    assert_eq!(
        (
            stats.memory_bytes.get(),
            stats.stalled.get(),
            stats.in_flight.get()
        ),
        (0, 1, 0)
    );
    let mut half_header = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
    half_header.send_bytes(&whole[..13]).await;
    assert!(half_header.read().await.is_none());
    assert_eq!(stats.stalled.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_hello_ends() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    let mut silent = RawConn::dial(&net, &b.addr).await;
    let begun = Instant::now();
    assert!(silent.read().await.is_none());
    assert_eq!(seconds(begun), 2);
    let mut hasty = RawConn::dial(&net, &b.addr).await;
    hasty.send(ECHO, 7, b"x").await;
    assert_eq!(hasty.read_error().await.0, 503);
    assert!(hasty.read().await.is_none());
    let mut old = RawConn::dial(&net, &b.addr).await;
    let mut hello = frame(methods::HELLO, 1, b"");
    hello[0] = 1;
    old.send_bytes(&hello).await;
    assert_eq!(old.read_error().await.0, 505);
    let mut fat = RawConn::dial(&net, &b.addr).await;
    let header = FrameHeader {
        payload_size: 16 * 1024 + 1,
        ..FrameHeader::for_payload(Compression::None, methods::HELLO, 1, &[])
    };
    fat.send_bytes(&header.encode()).await;
    assert_eq!(fat.read_error().await.0, 413);
    let mut nonsense = RawConn::dial(&net, &b.addr).await;
    nonsense.send(methods::HELLO, 1, b"nonsense").await;
    assert!(nonsense.read().await.is_none());
    assert_eq!(b.table.stats().server.strangers.get(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_silent_for_long_is_closed() {
    let net = MemNet::new();
    let (b, mut conn) = greeted(&net, RpcConfig::default()).await;
    conn.send(HELD, 5, b"x").await;
    b.recorder.payloads(1).await;
    // Not while the peer waits for us.
    tokio::time::sleep(Duration::from_secs(200)).await;
    b.recorder.take_held().remove(0).ok(Vec::new());
    assert_eq!(conn.read().await.expect("a reply").0.correlation_id, 5);
    assert!(conn.echoes().await);
    let begun = Instant::now();
    assert!(conn.read().await.is_none());
    assert_eq!(seconds(begun), 60);
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_are_bounded_and_more_are_not_read() {
    let net = MemNet::new();
    let config = RpcConfig {
        server_in_flight_calls: 3,
        ..RpcConfig::default()
    };
    let (b, mut conn) = greeted(&net, config).await;
    for id in 0..5 {
        conn.send(HELD, 10 + id, b"x").await;
    }
    settle().await;
    assert_eq!(b.recorder.count(), 3);
    for reply in b.recorder.take_held() {
        reply.ok(Vec::new());
    }
    b.recorder.payloads(5).await;
    assert_eq!(conn.read().await.expect("a reply").0.correlation_id, 10);
}

#[tokio::test(start_paused = true)]
async fn when_the_budget_is_gone_bulk_waits_and_urgent_does_not() {
    let net = MemNet::new();
    let config = RpcConfig {
        server_bulk_bytes: 20_000,
        max_frame_bytes: 20_000,
        ..RpcConfig::default()
    };
    let (b, mut conn) = greeted(&net, config).await;
    let mut other = RawConn::greeted(&net, &b.addr, 3, Class::Bulk).await;
    conn.send(HELD, 5, &[1; 15_000]).await;
    b.recorder.payloads(1).await;
    let second = tokio::spawn(async move {
        other.send(ECHO, 6, &[1; 15_000]).await;
        other.read().await.expect("an echo").0.meta
    });
    settle().await;
    assert_eq!(
        (
            b.recorder.count(),
            b.table.stats().server.memory_bytes.get()
        ),
        (1, 15_000)
    );
    let mut urgent = RawConn::greeted(&net, &b.addr, 4, Class::Urgent).await;
    assert!(urgent.echoes().await);
    assert!(!second.is_finished());
    b.recorder.take_held().remove(0).ok(Vec::new());
    assert_eq!(second.await.expect("joined"), 200);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_its_replies_is_cut_off_and_costs_no_memory_then() {
    let net = MemNet::new();
    let (b, mut conn) = greeted(&net, RpcConfig::default()).await;
    conn.send(ECHO, 5, &[1; 15_000]).await;
    b.recorder.payloads(1).await;
    settle().await;
    let stats = &b.table.stats().server;
    assert_eq!(
        (stats.memory_bytes.get(), stats.in_flight.get()),
        (15_000, 1)
    );
    // Once more, so that even reading it all later shows the end.
    tokio::time::sleep(Duration::from_secs(11)).await;
    settle().await;
    assert_eq!(
        (
            stats.memory_bytes.get(),
            stats.in_flight.get(),
            stats.stalled.get()
        ),
        (0, 0, 1)
    );
    assert!(conn.read().await.is_none());
}
