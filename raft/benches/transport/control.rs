//! What the machine does without the transport: bytes over TCP on loopback, through the same seam and runtime.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imprint_raft::seams::{BoxStream, Net, TcpNet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::load::Latencies;

async fn connected() -> (BoxStream, BoxStream) {
    let mut listener = TcpNet.listen("127.0.0.1:0").await.expect("listening");
    let addr = listener.local_addr().expect("an address").to_string();
    let (near, far) = tokio::join!(TcpNet.dial(&addr), listener.accept());
    (near.expect("dialled"), far.expect("accepted").0)
}

/// Sends `messages` times `payload`, each with its length in front; the receiver reads each whole, and says so after the
/// last one.
pub async fn copy(payload: Arc<Bytes>, messages: usize) -> Duration {
    let (mut near, mut far) = connected().await;
    let receiver = tokio::spawn(async move {
        let mut buffer = Vec::new();
        for _ in 0..messages {
            let len = far.read_u32_le().await.expect("a length");
            buffer.resize(len as usize, 0);
            far.read_exact(&mut buffer).await.expect("a message");
        }
        far.write_u8(1).await.expect("the end said");
    });
    let begun = Instant::now();
    let sender = tokio::spawn(async move {
        let len = u32::try_from(payload.len()).expect("small");
        for _ in 0..messages {
            near.write_all(&len.to_le_bytes()).await.expect("a length");
            near.write_all(&payload).await.expect("a message");
        }
        near.read_u8().await.expect("the end heard");
    });
    sender.await.expect("sent");
    let took = begun.elapsed();
    receiver.await.expect("received");
    took
}

/// Round trips of `size` bytes, one at a time.
pub async fn echo(size: usize, calls: usize) -> Latencies {
    let (mut near, mut far) = connected().await;
    let server = tokio::spawn(async move {
        let mut buffer = vec![0; size];
        while far.read_exact(&mut buffer).await.is_ok() {
            far.write_all(&buffer).await.expect("echoed");
        }
    });
    let client = tokio::spawn(async move {
        let mut buffer = vec![7; size];
        let mut latencies = Latencies::begin(calls);
        for call in 0..calls + calls / 10 {
            let begun = Instant::now();
            near.write_all(&buffer).await.expect("sent");
            near.read_exact(&mut buffer).await.expect("echoed");
            // The first tenth warms up.
            if call >= calls / 10 {
                latencies.add(begun.elapsed());
            }
        }
        latencies.end()
    });
    let latencies = client.await.expect("measured");
    server.await.expect("ended");
    latencies
}
