//! Frames by hand against the caller.

use bytes::Bytes;
use imprint_proto::frame::{Compression, FrameHeader};
use imprint_raft::rpc::{RpcConfig, RpcError, RpcPeer};
use std::sync::Arc;

use super::support::*;

struct Setup {
    a: Node,
    peer: Arc<RpcPeer>,
    raw: RawPeer,
    urgent: Vec<RawConn>,
}

async fn setup(net: &MemNet) -> Setup {
    let config = RpcConfig {
        max_frame_bytes: 20_000,
        ..RpcConfig::default()
    };
    let a = node_with(net, hello_of(1), config).await;
    let raw = RawPeer::listen(net, &addr_of(2)).await;
    a.table.add(hello_of(2).node_id, addr_of(2));
    let peer = a.table.get(hello_of(2).node_id).expect("a peer");
    Setup {
        a,
        peer,
        raw,
        urgent: Vec::new(),
    }
}

impl Setup {
    /// Begins a call and gives its request, as it came in.
    async fn call(
        &mut self,
        on: Option<RawConn>,
    ) -> (
        impl Future<Output = Result<Bytes, RpcError>> + use<>,
        RawConn,
        FrameHeader,
    ) {
        let call = self
            .peer
            .start(ECHO, Bytes::from_static(b"question").into(), bulk(5000));
        let mut conn = match on {
            Some(conn) => conn,
            None => self.raw.accept_bulk(2, &mut self.urgent).await,
        };
        let (header, payload) = conn.read().await.expect("a request");
        assert_eq!(
            (header.meta, payload.as_ref()),
            (ECHO, b"question".as_ref())
        );
        (call, conn, header)
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_for_nobody_is_skipped_and_counted() {
    let net = MemNet::new();
    let mut setup = setup(&net).await;
    let (call, mut conn, request) = setup.call(None).await;
    conn.send(200, 77_777, &[1; 5000]).await;
    conn.send(200, request.correlation_id, b"answer").await;
    assert_eq!(call.await.expect("a reply"), "answer");
    // The same again: now it's for nobody.
    conn.send(200, request.correlation_id, b"answer").await;
    let (call, mut conn, next) = setup.call(Some(conn)).await;
    assert_ne!(next.correlation_id, request.correlation_id);
    conn.send(200, next.correlation_id, b"answer").await;
    call.await.expect("a reply");
    assert_eq!(
        setup
            .a
            .table
            .stats()
            .peer(hello_of(2).node_id)
            .unknown_replies
            .get(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_another_version_fails_its_call_alone() {
    let net = MemNet::new();
    let mut setup = setup(&net).await;
    let (call, mut conn, request) = setup.call(None).await;
    let mut reply = frame(505, request.correlation_id, b"whatever it says");
    reply[0] = 3;
    conn.send_bytes(&reply).await;
    let error = call.await.expect_err("another version");
    assert_eq!(
        error,
        RpcError::Version {
            peer: "node 2".into(),
            theirs: 3
        }
    );
    let (call, mut conn, next) = setup.call(Some(conn)).await;
    conn.send(200, next.correlation_id, b"answer").await;
    call.await.expect("a reply");
}

#[tokio::test(start_paused = true)]
async fn replies_that_contradict_themselves_end_the_connection_and_all_calls_on_it() {
    let net = MemNet::new();
    let mut setup = setup(&net).await;
    let bad_sum = |id| {
        let good =
            FrameHeader::for_payload(Compression::None, 200, id, &[Bytes::from_static(b"answer")]);
        let header = FrameHeader {
            payload_checksum: !good.payload_checksum,
            ..good
        };
        [&header.encode()[..], b"answer"].concat()
    };
    let too_large = |id| {
        let good = FrameHeader::for_payload(Compression::None, 200, id, &[]);
        FrameHeader {
            payload_size: 20_001,
            ..good
        }
        .encode()
        .to_vec()
    };
    let no_envelope = |id| frame(503, id, b"not an envelope");
    let bomb = |id| {
        let packed = zstd::bulk::compress(&[0; 20_001], 1).expect("compressed");
        let header = FrameHeader::for_payload(Compression::Zstd, 200, id, &[packed.clone().into()]);
        [&header.encode()[..], &packed].concat()
    };
    let half = |id| frame(200, id, &[1; 100])[..60].to_vec();
    let bad: [&dyn Fn(u32) -> Vec<u8>; 5] = [&bad_sum, &too_large, &no_envelope, &bomb, &half];
    for reply in bad {
        let (first, conn, request) = setup.call(None).await;
        let (second, mut conn, _) = setup.call(Some(conn)).await;
        conn.send_bytes(&reply(request.correlation_id)).await;
        for call in [first, second] {
            let error = call.await.expect_err("disconnected");
            assert!(
                matches!(
                    error,
                    RpcError::Disconnected { .. } | RpcError::Timeout { .. }
                ),
                "{error}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_no_bytes_costs_its_pool_and_no_more() {
    let net = MemNet::new();
    let mut setup = setup(&net).await;
    let (_call, _conn, _) = setup.call(None).await;
    // The test's end of the connection is never read again.
    let part = Bytes::from(vec![1; 15_000]);
    let calls: Vec<_> = (0..100_000)
        .map(|_| setup.peer.start(ECHO, part.clone().into(), bulk(60_000)))
        .take_while(|_| {
            setup.peer.reserved_bytes(imprint_raft::rpc::Class::Bulk) < 80 * 1024 * 1024 - 15_026
        })
        .collect();
    assert_eq!(calls.len(), (80 * 1024 * 1024) / 15_026 - 1);
    settle().await;
    assert!(setup.peer.reserved_bytes(imprint_raft::rpc::Class::Bulk) <= 80 * 1024 * 1024);
    let begun = tokio::time::Instant::now();
    let first = calls
        .into_iter()
        .next()
        .expect("a call")
        .await
        .expect_err("cut off");
    assert!(matches!(first, RpcError::Disconnected { .. }), "{first}");
    assert_eq!(seconds(begun), 10);
}
