//! Who is alive, and how fast it shows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_proto::ids::NodeId;
use imprint_raft::rpc::{Hello, PeerEvent, PeerEvents, PingHook, RpcConfig};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::support::*;

const B: NodeId = NodeId(2);

fn up(node: NodeId) -> Option<PeerEvent> {
    Some(PeerEvent::Up {
        node,
        new_process: false,
    })
}

/// Node 1 with node 2 alive in its table.
async fn watching(net: &MemNet) -> (Node, Node, PeerEvents) {
    let a = node(net, 1).await;
    let b = node(net, 2).await;
    let mut events = a.table.subscribe();
    a.peer(&b);
    assert_eq!(events.recv().await, up(B));
    assert!(a.table.is_alive(B));
    (a, b, events)
}

#[tokio::test(start_paused = true)]
async fn a_killed_peer_is_dead_at_once_and_alive_as_soon_as_it_says_hello() {
    let net = MemNet::new();
    let (a, mut b, mut events) = watching(&net).await;
    let killed = Instant::now();
    b.kill(&net);
    assert_eq!(events.recv().await, Some(PeerEvent::Down(B)));
    assert!(
        killed.elapsed() < Duration::from_millis(101),
        "{:?}",
        killed.elapsed()
    );
    // Long enough for the back-off to be at its longest.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let own = Hello {
        incarnation: 999,
        ..hello_of(2)
    };
    let back = node_with(&net, own, RpcConfig::default()).await;
    let returned = Instant::now();
    back.peer(&a);
    assert_eq!(
        events.recv().await,
        Some(PeerEvent::Up {
            node: B,
            new_process: true
        })
    );
    assert!(
        returned.elapsed() < Duration::from_millis(60),
        "{:?}",
        returned.elapsed()
    );
    assert_eq!(a.table.hello_of(B).expect("a hello").incarnation, 999);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_dead_after_the_time_and_its_connections_end() {
    let net = MemNet::new();
    let (a, b, mut events) = watching(&net).await;
    let pending = a.peer(&b).start(HELD, Bytes::new().into(), bulk(60_000));
    b.recorder.payloads(1).await;
    net.freeze();
    net.silence(true);
    let silent = Instant::now();
    assert_eq!(events.recv().await, Some(PeerEvent::Down(B)));
    let after = silent.elapsed();
    assert!(
        after > Duration::from_millis(850) && after < Duration::from_millis(1150),
        "{after:?}"
    );
    pending.await.expect_err("the bulk connection ended too");
    assert!(a.table.alive().is_empty());
    net.thaw();
    net.silence(false);
    assert_eq!(events.recv().await, up(B));
    // At most the longest back-off.
    assert!(silent.elapsed() - after < Duration::from_millis(2100));
    assert_eq!(a.table.stats().peer(B).deaths.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_alone_is_no_death() {
    let net = MemNet::new();
    let (a, b, mut events) = watching(&net).await;
    net.cut(&b.addr);
    tokio::time::sleep(Duration::from_secs(3)).await;
    a.table.remove(B);
    assert_eq!(events.recv().await, Some(PeerEvent::Down(B)));
    assert_eq!(a.table.stats().peer(B).deaths.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_restarts_faster_than_it_dies_is_a_new_process() {
    let net = MemNet::new();
    let (_a, mut b, mut events) = watching(&net).await;
    b.kill(&net);
    let own = Hello {
        incarnation: 999,
        ..hello_of(2)
    };
    let _back = node_with(&net, own, RpcConfig::default()).await;
    assert_eq!(
        events.recv().await,
        Some(PeerEvent::Up {
            node: B,
            new_process: true
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_is_never_in_its_own_table() {
    let net = MemNet::new();
    let a = node(&net, 1).await;
    a.table.add(NodeId(1), addr_of(1));
    assert!(a.table.get(NodeId(1)).is_none() && a.table.nodes().is_empty());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(net.dials(&addr_of(1)).is_empty());
}

#[tokio::test(start_paused = true)]
async fn subscribers_hear_the_end_of_the_table() {
    let net = MemNet::new();
    let (a, b, mut events) = watching(&net).await;
    a.table.close();
    assert_eq!(events.recv().await, Some(PeerEvent::Down(B)));
    a.table.add(B, b.addr.clone());
    assert!(a.table.nodes().is_empty());
    drop(a);
    assert_eq!(events.recv().await, None);
}

/// Sends its name, and keeps what comes.
struct Rider {
    name: &'static str,
    got: Arc<Mutex<Vec<String>>>,
}

impl Rider {
    fn note(&self, what: &str, from: NodeId, bytes: &Bytes) {
        self.got.lock().push(format!(
            "{what} of {from}: {}",
            String::from_utf8_lossy(bytes)
        ));
    }
}

impl PingHook for Rider {
    fn ping(&self, to: NodeId) -> Bytes {
        Bytes::from(format!("{} to {to}", self.name))
    }

    fn answer(&self, from: NodeId, received: Bytes) -> Bytes {
        self.note("ping", from, &received);
        Bytes::from(format!("{} back to {from}", self.name))
    }

    fn answered(&self, from: NodeId, received: Bytes) {
        self.note("answer", from, &received);
    }
}

#[tokio::test(start_paused = true)]
async fn others_ride_on_the_pings() {
    let net = MemNet::new();
    let (a, b, _events) = watching(&net).await;
    let got = Arc::new(Mutex::new(Vec::new()));
    for (node, name) in [(&a, "a"), (&b, "b")] {
        node.table.set_ping_hook(Arc::new(Rider {
            name,
            got: Arc::clone(&got),
        }));
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(
        got.lock()[..2],
        ["ping of 1: a to 2", "answer of 2: b back to 1"]
    );
    let pings = got.lock().len() / 2;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(got.lock().len() / 2 - pings, 10);
}
