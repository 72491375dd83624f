//! Strangers, and what both sides say about them.

use imprint_raft::rpc::{Hello, RpcConfig, RpcError};

use super::support::*;

async fn refused_by(net: &MemNet, caller: Hello, callee: &Node) -> String {
    let caller = node_with(net, caller, RpcConfig::default()).await;
    let call = caller
        .peer(callee)
        .call(ECHO, Vec::new().into(), bulk(1000))
        .await;
    match call.expect_err("refused") {
        RpcError::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_stranger_is_refused_and_told_why() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    let own = |id| Hello {
        peer_address: addr_of(id),
        ..hello_of(id)
    };
    let other_cluster = Hello {
        cluster_id: Some([8; 16]),
        ..own(3)
    };
    assert!(
        refused_by(&net, other_cluster, &b)
            .await
            .contains("cluster")
    );
    let too_new = Hello {
        earliest_version: 5,
        latest_version: 6,
        ..own(4)
    };
    assert!(
        refused_by(&net, too_new, &b)
            .await
            .contains("no logical version in common")
    );
    b.recorder.refuse("storage id is not the one known here");
    assert!(refused_by(&net, own(5), &b).await.contains("storage id"));
    assert!(b.table.stats().server.strangers.get() >= 3);
    assert_eq!(b.recorder.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_cluster_may_ask() {
    let net = MemNet::new();
    let b = node(&net, 2).await;
    let unformed = Hello {
        cluster_id: None,
        ..hello_of(1)
    };
    let a = node_with(&net, unformed, RpcConfig::default()).await;
    a.table
        .call_address(&b.addr, ECHO, Vec::new().into(), urgent(1000))
        .await
        .expect("an echo");
}

#[tokio::test(start_paused = true)]
async fn another_node_at_the_address_is_not_taken_for_the_peer() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let b = node(&net, 2).await;
    a.table.add(hello_of(3).node_id, b.addr.clone());
    let peer = a.table.get(hello_of(3).node_id).expect("a peer");
    let error = peer
        .call(ECHO, Vec::new().into(), bulk(1000))
        .await
        .expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("node 2 answered where node 3 was expected"),
        "{error}"
    );
    assert!(!a.table.is_alive(hello_of(3).node_id));
}

#[tokio::test(start_paused = true)]
async fn the_caller_refuses_a_stranger_that_would_take_it() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    let mut imposter = RawPeer::listen(&net, &addr_of(2)).await;
    a.table.add(hello_of(2).node_id, addr_of(2));
    let peer = a.table.get(hello_of(2).node_id).expect("a peer");
    let call = peer.start(ECHO, Vec::new().into(), bulk(1000));
    let answer = async {
        loop {
            let mut conn = imposter.accept().await;
            let (header, _) = conn.read().await.expect("a hello");
            let other = Hello {
                cluster_id: Some([8; 16]),
                ..hello_of(2)
            };
            let payload = imprint_proto::envelope::encode(&other);
            conn.send(200, header.correlation_id, &payload).await;
            assert!(conn.read().await.is_none(), "hung up");
        }
    };
    tokio::select! {
        error = call => assert!(matches!(error, Err(RpcError::Refused { .. })), "{error:?}"),
        () = answer => {}
    }
}

#[tokio::test(start_paused = true)]
async fn one_connection_too_many_is_told_so() {
    let net = MemNet::new();
    let config = RpcConfig {
        max_connections: 1,
        ..RpcConfig::default()
    };
    let b = node_with(&net, hello_of(2), config).await;
    let _first = RawConn::dial(&net, &b.addr).await;
    settle().await;
    assert!(
        refused_by(&net, hello_of(1), &b)
            .await
            .contains("too many connections")
    );
    assert!(b.table.stats().server.over_limit.get() >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_has_a_bounded_number_of_connections_and_the_oldest_one_goes() {
    let net = MemNet::new();
    let config = RpcConfig {
        max_connections_per_peer: 2,
        ..RpcConfig::default()
    };
    let b = node_with(&net, hello_of(2), config).await;
    let class = imprint_raft::rpc::Class::Bulk;
    let mut oldest = RawConn::greeted(&net, &b.addr, 1, class).await;
    let mut second = RawConn::greeted(&net, &b.addr, 1, class).await;
    let mut third = RawConn::greeted(&net, &b.addr, 1, class).await;
    assert!(oldest.read().await.is_none());
    assert!(second.echoes().await && third.echoes().await);
    // A new process of the node: those of the old one are dead.
    let mut fresh = RawConn::dial(&net, &b.addr).await;
    fresh
        .hello(
            Hello {
                incarnation: 999,
                ..hello_of(1)
            },
            class,
        )
        .await;
    fresh.read().await.expect("an answer");
    assert!(second.read().await.is_none() && third.read().await.is_none());
    assert!(fresh.echoes().await);
}
