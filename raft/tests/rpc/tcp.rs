//! The same over TCP on loopback, in real time.

use std::sync::Arc;

use bytes::Bytes;
use imprint_raft::rpc::{Hello, PeerEvent, RpcConfig};
use imprint_raft::seams::{Net, TcpNet};

use super::support::*;

async fn tcp_node(id: u64) -> Node {
    let listener = TcpNet.listen("127.0.0.1:0").await.expect("listening");
    let peer_address = listener.local_addr().expect("an address").to_string();
    node_on(
        Arc::new(TcpNet),
        listener,
        Hello {
            peer_address,
            ..hello_of(id)
        },
        RpcConfig::default(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_calls_and_a_few_large_ones() {
    let (a, b) = (tcp_node(1).await, tcp_node(2).await);
    let peer = a.peer(&b);
    let large = Bytes::from(vec![5; 8 * 1024 * 1024]);
    let big: Vec<_> = (0..3)
        .map(|_| {
            peer.start(
                ECHO,
                vec![large.clone(), Bytes::from_static(b"end")].into(),
                bulk(20_000),
            )
        })
        .collect();
    let small: Vec<_> = (0..1000u32)
        .map(|n| {
            peer.start(
                ECHO,
                Bytes::copy_from_slice(&n.to_le_bytes()).into(),
                urgent(20_000),
            )
        })
        .collect();
    for (n, call) in (0..1000u32).zip(small) {
        assert_eq!(call.await.expect("an echo").as_ref(), n.to_le_bytes());
    }
    for call in big {
        let reply = call.await.expect("an echo");
        assert_eq!(
            (reply.len(), &reply[reply.len() - 3..]),
            (large.len() + 3, b"end".as_ref())
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_goes_is_noticed() {
    let (a, mut b) = (tcp_node(1).await, tcp_node(2).await);
    let mut events = a.table.subscribe();
    a.peer(&b);
    assert_eq!(
        events.recv().await,
        Some(PeerEvent::Up {
            node: b.id,
            new_process: false
        })
    );
    b.server = None;
    assert_eq!(events.recv().await, Some(PeerEvent::Down(b.id)));
}
