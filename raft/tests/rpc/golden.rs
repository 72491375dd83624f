//! The golden frames, byte for byte, through the real server and the real caller.

use bytes::Bytes;
use imprint_raft::rpc::{Class, RpcConfig};
use serde_json::Value;

use super::support::*;

const VECTORS: &str = include_str!("../../../proto/tests/vectors/rpc.json");

fn vectors(of: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(VECTORS).expect("JSON");
    all[of].as_array().expect("a list").clone()
}

fn bytes_of(entry: &Value, field: &str) -> Vec<u8> {
    hex(entry[field].as_str().expect("hex"))
}

fn number(entry: &Value, field: &str) -> u32 {
    u32::try_from(entry[field].as_u64().expect("a number")).expect("32 bits")
}

/// What the server sent, cut by the table of the frame and not by the code under test.
async fn read_by_hand(conn: &mut RawConn) -> Option<(u8, u32, u32)> {
    use tokio::io::AsyncReadExt;
    let mut header = [0; 26];
    conn.0.read_exact(&mut header).await.ok()?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    assert_eq!(word(1), crc32c::crc32c(&header[5..]), "header checksum");
    assert_eq!(header[5], 0, "compression");
    let mut payload = vec![0; word(6) as usize];
    conn.0.read_exact(&mut payload).await.ok()?;
    let sum = xxhash_rust::xxh64::xxh64(&payload, 0);
    assert_eq!(header[18..26], sum.to_le_bytes(), "payload checksum");
    Some((header[0], word(10), word(14)))
}

#[tokio::test(start_paused = true)]
async fn every_golden_frame_is_read_and_answered_by_the_server() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
    for entry in vectors("frames") {
        let frame = [
            bytes_of(&entry, "header_hex"),
            bytes_of(&entry, "payload_hex"),
        ]
        .concat();
        conn.send_bytes(&frame).await;
        let answer = read_by_hand(&mut conn).await.expect("a reply");
        let status = match number(&entry, "meta") {
            // A second hello; the node status of the vectors isn't a ping; no method has the number of a status.
            1 => 503,
            2 => 500,
            _ => 404,
        };
        assert_eq!(
            answer,
            (2, status, number(&entry, "correlation_id")),
            "{entry}"
        );
    }
    assert!(conn.echoes().await);
    assert_eq!(b.table.stats().server.bad_frames.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_damaged_golden_frame_gets_what_it_says() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    let payload = bytes_of(&vectors("frames")[0], "payload_hex");
    for entry in vectors("frame_negatives") {
        let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
        conn.send_bytes(&[bytes_of(&entry, "header_hex"), payload.clone()].concat())
            .await;
        let expected = entry["expect"].as_str().expect("words");
        let answer = read_by_hand(&mut conn).await;
        if expected.contains("505") {
            assert_eq!(answer, Some((2, 505, 1)), "{entry}");
            assert!(conn.echoes().await, "{entry}");
        } else {
            assert!(expected.contains("close"), "{entry}");
            assert_eq!(answer, None, "{entry}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn golden_replies_are_read_by_the_caller() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let mut raw = RawPeer::listen(&net, &addr_of(2)).await;
    a.table.add(hello_of(2).node_id, addr_of(2));
    let peer = a.table.get(hello_of(2).node_id).expect("a peer");
    let call = peer.start(ECHO, Bytes::from_static(b"question").into(), bulk(5000));
    let mut urgent = Vec::new();
    let mut conn = raw.accept_bulk(2, &mut urgent).await;
    let (request, _) = conn.read().await.expect("a request");
    // Nobody waits for the ids of the vectors: they are skipped, whatever is in them.
    let all = vectors("frames");
    for entry in &all {
        let frame = [
            bytes_of(entry, "header_hex"),
            bytes_of(entry, "payload_hex"),
        ]
        .concat();
        if number(entry, "correlation_id") != request.correlation_id {
            conn.send_bytes(&frame).await;
        }
    }
    conn.send(200, request.correlation_id, b"answer").await;
    assert_eq!(call.await.expect("an answer"), "answer");
    let skipped = all
        .iter()
        .filter(|entry| number(entry, "correlation_id") != request.correlation_id);
    assert_eq!(
        a.table
            .stats()
            .peer(peer.node().expect("a node"))
            .unknown_replies
            .get(),
        skipped.count() as u64
    );
}

#[tokio::test(start_paused = true)]
async fn the_refusals_of_a_frame_have_the_numbers_of_the_table() {
    let net = MemNet::new();
    let config = RpcConfig {
        max_frame_bytes: 20_000,
        ..RpcConfig::default()
    };
    let b = node_with(&net, hello_of(2), config).await;
    let mut conn = RawConn::greeted(&net, &b.addr, 1, Class::Bulk).await;
    conn.send(ECHO, 9, &[7; 20_001]).await;
    let (status, reason) = conn.read_error().await;
    assert_eq!(
        (status, reason.as_str()),
        (413, "a payload of 20001 bytes is over the limit of 20000")
    );
}
