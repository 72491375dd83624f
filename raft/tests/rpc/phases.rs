//! Failure 4 of five: a time-out that begins while the request is still local. One line says in which phase a call died
//! and what the phases before took; one test for each phase.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use imprint_raft::rpc::{Phase, RpcConfig, RpcError};
use imprint_raft::seams::{BoxStream, Wrap};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::support::*;

fn part(len: usize) -> Bytes {
    Bytes::from(vec![b'x'; len])
}

/// Node 1 with a bulk connection to node 2, and a pool of 1 KiB.
async fn connected(net: &MemNet) -> (Node, Node) {
    let config = RpcConfig {
        bulk_pool_bytes: 1024,
        // Only the calls' own time-outs are to end them.
        liveness_timeout: Duration::from_secs(3600),
        stall_timeout: Duration::from_secs(3600),
        silence_timeout: Duration::from_secs(3600),
        ..RpcConfig::default()
    };
    let a = node_with(net, hello_of(1), config.clone()).await;
    let b = node_with(net, hello_of(2), config).await;
    let echo = a.peer(&b).call(ECHO, Bytes::new().into(), bulk(1000)).await;
    echo.expect("an echo");
    (a, b)
}

/// Milliseconds that a line says for a phase.
fn spent(line: &str, phase: &str) -> f64 {
    let (_, rest) = line
        .split_once(&format!(" {phase}_ms="))
        .expect("the phase");
    let number = rest.split(' ').next().expect("a number");
    number.parse().expect("a number")
}

/// The call times out after 250 ms in `phase`; gives the line about it.
fn assert_phase(logged: &Logged, failed: Result<Bytes, RpcError>, phase: Phase) -> String {
    match failed {
        Err(RpcError::Timeout { phase: died_in, .. }) => assert_eq!(died_in, phase),
        other => panic!("{other:?}"),
    }
    let lines = logged.with(&["call timed out", "WARN"]);
    let [line] = &lines[..] else {
        panic!("one line and not {lines:?}");
    };
    for word in [
        "peer=\"node 2\"",
        "method=\"forward\"",
        "timeout_ms=250.0",
        &format!("phase={phase}"),
    ] {
        assert!(line.contains(word), "{word} is not in {line}");
    }
    let waited = spent(line, phase.name());
    assert!((249.0..=251.0).contains(&waited), "{line}");
    for other in Phase::ALL.into_iter().filter(|other| *other != phase) {
        assert!(spent(line, other.name()) < 1.0, "{other}: {line}");
    }
    line.clone()
}

/// And the counters say the same.
fn assert_counted(a: &Node, b: &Node, phase: Phase) {
    let stats = a.table.stats().peer(b.id);
    let method = stats.method(ECHO);
    let waited = method.waits_us[phase as usize].get();
    assert!(waited >= 249_000, "{waited} us in {phase}");
    let timeouts = method.timeouts.each_ref().map(|count| count.get());
    let mut expected = [0; 5];
    expected[phase as usize] = 1;
    assert_eq!(timeouts, expected);
}

#[tokio::test(start_paused = true)]
async fn failure_4_of_5_a_timeout_that_begins_while_the_request_waits_for_memory() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    net.freeze();
    let peer = a.peer(&b);
    let _stuck = peer.start(ECHO, part(900).into(), bulk(60_000));
    settle().await;
    let logged = Logged::begin();
    let failed = peer.call(ECHO, part(900).into(), bulk(250)).await;
    let line = assert_phase(&logged, failed.clone(), Phase::Memory);
    assert!(
        line.contains("correlation_id=0 ") && line.contains("in_flight=1 "),
        "{line}"
    );
    assert!(!failed.expect_err("timed out").outcome_unknown());
    assert_counted(&a, &b, Phase::Memory);
}

#[tokio::test(start_paused = true)]
async fn failure_4_of_5_a_timeout_that_begins_while_the_request_waits_for_its_turn() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    net.freeze();
    let peer = a.peer(&b);
    // It's in the socket by half, and what comes behind it has its bytes but not its turn.
    let _stuck = peer.start(ECHO, part(500).into(), bulk(60_000));
    settle().await;
    let logged = Logged::begin();
    let failed = peer.call(ECHO, part(10).into(), bulk(250)).await;
    let line = assert_phase(&logged, failed.clone(), Phase::Dispatch);
    assert!(line.contains("correlation_id=0 "), "{line}");
    assert!(!failed.expect_err("timed out").outcome_unknown());
    assert_counted(&a, &b, Phase::Dispatch);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_half_written_times_out_in_write() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    net.freeze();
    let logged = Logged::begin();
    let failed = a.peer(&b).call(ECHO, part(500).into(), bulk(250)).await;
    let line = assert_phase(&logged, failed.clone(), Phase::Write);
    assert!(!line.contains("correlation_id=0 "), "{line}");
    assert!(failed.expect_err("timed out").outcome_unknown());
    assert_counted(&a, &b, Phase::Write);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_flush_does_not_return_times_out_in_flush() {
    let net = MemNet::new();
    let stuck = Arc::new(AtomicBool::new(false));
    let a = wrapped_node(&net.wrapped(Arc::new(NoFlush(Arc::clone(&stuck)))), 1).await;
    let b = node(&net, 2).await;
    let peer = a.peer(&b);
    let hello = peer.call(ECHO, Bytes::new().into(), bulk(1000)).await;
    hello.expect("an echo");
    stuck.store(true, Relaxed);
    let logged = Logged::begin();
    let failed = peer.call(ECHO, part(5).into(), bulk(250)).await;
    assert_phase(&logged, failed, Phase::Flush);
    assert_counted(&a, &b, Phase::Flush);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_answered_times_out_in_reply() {
    let net = MemNet::new();
    let (a, b) = connected(&net).await;
    b.recorder.hold_all();
    let logged = Logged::begin();
    let failed = a.peer(&b).call(ECHO, part(5).into(), bulk(250)).await;
    let line = assert_phase(&logged, failed, Phase::Reply);
    assert!(line.contains("in_flight=1 "), "{line}");
    assert_counted(&a, &b, Phase::Reply);
}

/// Takes bytes, and never says that they have gone, while the flag is up.
#[derive(Debug)]
struct NoFlush(Arc<AtomicBool>);

#[async_trait]
impl Wrap for NoFlush {
    async fn outgoing(&self, _addr: &str, stream: BoxStream) -> io::Result<BoxStream> {
        let stuck = Arc::clone(&self.0);
        Ok(Box::new(NoFlushStream { stream, stuck }))
    }

    async fn incoming(&self, _from: SocketAddr, stream: BoxStream) -> io::Result<BoxStream> {
        Ok(stream)
    }
}

struct NoFlushStream {
    stream: BoxStream,
    stuck: Arc<AtomicBool>,
}

impl AsyncRead for NoFlushStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.stuck.load(Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for NoFlushStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stuck.load(Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
