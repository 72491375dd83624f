//! The simulated outside world: network, clock and randomness as functions of the seed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use imprint_client::{Ambient, Dial};
use imprint_raft::consensus::seed_this_thread;
use imprint_raft::seams::{BoxStream, Clock, Entropy, Listener, Net};
use rand10::SeedableRng;
use rand10::rngs::StdRng;

/// Simulated wall clocks start here: some moment, microseconds since the Unix epoch.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// Seeds everything that libraries draw from the process or the thread.
pub fn make_deterministic(seed: u64) {
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    seed_this_thread(Some(seed));
}

/// The simulated network.
#[derive(Debug, Default, Clone, Copy)]
pub struct SimNet;

async fn connect(address: &str) -> io::Result<turmoil::net::TcpStream> {
    turmoil::net::TcpStream::connect(address.to_owned()).await
}

#[async_trait]
impl Net for SimNet {
    async fn dial(&self, addr: &str) -> io::Result<BoxStream> {
        Ok(Box::new(connect(addr).await?))
    }

    async fn listen(&self, addr: &str) -> io::Result<Box<dyn Listener>> {
        let listener = turmoil::net::TcpListener::bind(addr.to_owned()).await?;
        Ok(Box::new(SimListener(listener)))
    }
}

struct SimListener(turmoil::net::TcpListener);

impl std::fmt::Debug for SimListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimListener")
    }
}

#[async_trait]
impl Listener for SimListener {
    async fn accept(&mut self) -> io::Result<(BoxStream, SocketAddr)> {
        let (stream, from) = self.0.accept().await?;
        Ok((Box::new(stream), from))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A dial that nobody answers ends: the simulated network does not retransmit.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

impl Dial for SimNet {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<imprint_client::BoxStream>> {
        let address = address.to_owned();
        Box::pin(async move {
            let stream = tokio::time::timeout(DIAL_TIMEOUT, connect(&address))
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(Box::new(stream) as imprint_client::BoxStream)
        })
    }
}

/// Wall-clock time that runs with the simulation.
#[derive(Debug, Default, Clone, Copy)]
pub struct SimClock;

impl Clock for SimClock {
    fn now_micros(&self) -> u64 {
        let elapsed = turmoil::sim_elapsed().unwrap_or_default();
        EPOCH_US + u64::try_from(elapsed.as_micros()).unwrap_or(0)
    }
}

/// Numbers that follow from a seed and from how many were drawn.
#[derive(Debug, Clone)]
pub struct SimEntropy(Arc<AtomicU64>);

impl SimEntropy {
    pub fn new(seed: u64) -> Self {
        SimEntropy(Arc::new(AtomicU64::new(seed)))
    }

    /// splitmix64.
    fn next(&self) -> u64 {
        let z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

impl Ambient for SimEntropy {
    fn random_u64(&self) -> u64 {
        self.next()
    }

    fn wall_micros(&self) -> u64 {
        SimClock.now_micros()
    }
}
