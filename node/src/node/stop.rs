//! The end of a node in good order.
//!
//! 1. No new writes; waiting polls answer.
//! 2. What is being appended ends.
//! 3. Leaders move to other nodes, so that nobody waits for an election.
//! 4. The servers stop accepting and finish the calls in flight.
//! 5. Replicas close and leave the mark of a clean stop.
//!
//! Each step has a bound; what isn't done by then is cut off as by a crash, which is always safe.

use super::RunningNode;
use crate::backend::Replica;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Appends that were taken end within a round trip; this is patience with a slow disk.
const APPENDS_PATIENCE: Duration = Duration::from_secs(2);
/// A hand-over takes milliseconds; a follower that lags may need longer than it is worth.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl RunningNode {
    /// Stops the node in good order.
    pub async fn shutdown(mut self) {
        tracing::info!("stopping");
        self.core.stop_taking_calls();
        let appends_ended = || self.core.append_bytes_in_flight() == 0;
        wait_until(APPENDS_PATIENCE, appends_ended).await;
        self.hand_over().await;
        self.close.send_replace(true);
        let servers = std::mem::take(&mut self.servers).join_all();
        let in_time = tokio::time::timeout(self.config.shutdown_grace, servers).await;
        if in_time.is_err() {
            tracing::warn!("calls in flight were cut off");
        }
        self.background.abort_all();
        // Nobody watches the disk any more: what waits for room gives up.
        self.io.space.close();
        self.groups.shutdown().await;
        self.peers.close();
        drop(self.rpc);
        self.storage.close().await;
        tracing::info!("stopped");
    }

    fn led_here(&self) -> Vec<Arc<dyn Replica>> {
        let replicas = &self.core.parts.replicas;
        let mut groups = replicas.open_groups();
        groups.push(crate::core::CONTROLLER);
        let open = groups.into_iter().filter_map(|group| replicas.get(group));
        open.filter(|replica| replica.is_leader()).collect()
    }

    /// Asks another replica of each group led here to take over, and waits until some has.
    async fn hand_over(&self) {
        let led = self.led_here();
        let asked = futures_util::future::join_all(led.iter().map(|replica| replica.step_down()));
        let asked: Vec<bool> = match tokio::time::timeout(HAND_OVER_PATIENCE, asked).await {
            Ok(asked) => asked,
            Err(_) => return,
        };
        let handed: Vec<_> = led
            .iter()
            .zip(asked)
            .filter_map(|(replica, asked)| asked.then_some(replica))
            .collect();
        let moved = || handed.iter().all(|replica| !replica.is_leader());
        wait_until(HAND_OVER_PATIENCE, moved).await;
    }
}

async fn wait_until(patience: Duration, done: impl Fn() -> bool) {
    let deadline = Instant::now() + patience;
    while !done() && Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
