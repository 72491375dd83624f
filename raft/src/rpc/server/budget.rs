//! The server's memory in bytes: requests and replies apart, urgent connections and bulk ones apart, and of each pool a
//! share that one peer can't exceed.
//!
//! Whoever wants bytes gets them of its peer's share first, and only then of the pool that all peers have in common. So a
//! peer that sends half a frame, or takes no replies, can use up its share and no more: what it waits for, it waits for in
//! its own queue, and the others find the pool as it was.
//!
//! Requests wait, because a socket that isn't read tells its sender to slow down. Replies don't: their work is done, and
//! whoever waits for room with a reply in hand holds just what there is no room for.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use imprint_proto::ids::NodeId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::rpc::client::Class;
use crate::rpc::config::RpcConfig;

/// Bytes that all connections of a class have in common, and what one peer may have of them.
#[derive(Debug)]
struct Pool {
    all: Arc<Semaphore>,
    bytes: usize,
    share: usize,
    /// Largest payload that has room in a share and in a frame.
    payload: usize,
}

impl Pool {
    fn new(bytes: usize, share: usize, frame: usize) -> Self {
        let share = share.min(bytes);
        Pool {
            all: Arc::new(Semaphore::new(bytes)),
            bytes,
            share,
            payload: frame.min(share),
        }
    }
}

#[derive(Debug)]
struct Pools {
    requests: Pool,
    replies: Pool,
}

/// A peer's shares; they live as long as a connection or a permit does.
#[derive(Debug, Default)]
struct Shares {
    requests: Weak<Semaphore>,
    replies: Weak<Semaphore>,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Budgets {
    urgent: Pools,
    bulk: Pools,
    shares: Mutex<BTreeMap<(NodeId, bool), Shares>>,
}

impl Budgets {
    pub(crate) fn new(config: &RpcConfig) -> Self {
        let pools = |requests, replies, share| Pools {
            requests: Pool::new(requests, share, config.max_frame_bytes),
            replies: Pool::new(replies, share, config.max_frame_bytes),
        };
        Budgets {
            urgent: pools(
                config.server_urgent_bytes,
                config.server_urgent_reply_bytes,
                config.server_urgent_peer_bytes,
            ),
            bulk: pools(
                config.server_bulk_bytes,
                config.server_bulk_reply_bytes,
                config.server_bulk_peer_bytes,
            ),
            shares: Mutex::default(),
        }
    }

    /// What a connection of `peer` may use.
    pub(crate) fn of(&self, peer: NodeId, class: Class) -> (Allowance, Allowance) {
        let pools = match class {
            Class::Urgent => &self.urgent,
            Class::Bulk => &self.bulk,
        };
        let mut shares = self.shares.lock();
        // Connections and permits are bounded, and so are the shares that they keep.
        shares
            .retain(|_, shares| shares.requests.strong_count() + shares.replies.strong_count() > 0);
        let own = shares.entry((peer, class == Class::Urgent)).or_default();
        (
            Allowance::of(&pools.requests, &mut own.requests),
            Allowance::of(&pools.replies, &mut own.replies),
        )
    }
}

/// What one connection may use of a pool.
#[derive(Debug, Clone)]
pub(crate) struct Allowance {
    share: Arc<Semaphore>,
    all: Arc<Semaphore>,
    limit: usize,
    pool: usize,
    payload: usize,
}

/// Bytes of a share and of its pool, given back when dropped.
#[derive(Debug)]
pub(crate) struct Bytes {
    _share: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl Bytes {
    pub(crate) fn count(&self) -> u64 {
        self.all.num_permits() as u64
    }
}

impl Allowance {
    fn of(pool: &Pool, share: &mut Weak<Semaphore>) -> Self {
        let alive = share.upgrade();
        let alive = alive.unwrap_or_else(|| Arc::new(Semaphore::new(pool.share)));
        *share = Arc::downgrade(&alive);
        Allowance {
            share: alive,
            all: Arc::clone(&pool.all),
            limit: pool.share,
            pool: pool.bytes,
            payload: pool.payload,
        }
    }

    /// Largest payload that is ever taken, in bytes.
    pub(crate) fn largest_payload(&self) -> usize {
        self.payload
    }

    /// Most that can ever be had at a time, in bytes.
    pub(crate) fn limit(&self) -> usize {
        // A permit is counted in 32 bits.
        self.limit.min(u32::MAX as usize)
    }

    /// Waits for bytes; None for none at all. More than the limit are never asked for.
    pub(crate) async fn take(&self, bytes: u64) -> Option<Bytes> {
        let permits = u32::try_from(bytes).ok().filter(|permits| *permits > 0)?;
        // Never closed.
        let share = Arc::clone(&self.share).acquire_many_owned(permits).await;
        let all = Arc::clone(&self.all).acquire_many_owned(permits).await;
        Some(Bytes {
            _share: share.ok()?,
            all: all.ok()?,
        })
    }

    /// Bytes at once, or the words that say why not.
    pub(crate) fn try_take(&self, bytes: usize) -> Result<Bytes, String> {
        let taken = |of: &Arc<Semaphore>| {
            let permits = u32::try_from(bytes).ok()?;
            Arc::clone(of).try_acquire_many_owned(permits).ok()
        };
        let Some(share) = taken(&self.share) else {
            return Err(self.no_room(bytes, "this peer", &self.share, self.limit));
        };
        let Some(all) = taken(&self.all) else {
            return Err(self.no_room(bytes, "all peers", &self.all, self.pool));
        };
        Ok(Bytes { _share: share, all })
    }

    fn no_room(&self, bytes: usize, whose: &str, of: &Semaphore, limit: usize) -> String {
        let held = limit.saturating_sub(of.available_permits());
        format!(
            "no room for a reply of {bytes} bytes: {held} of {limit} are held by replies that {whose} have not taken"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn budgets() -> Budgets {
        Budgets::new(&RpcConfig {
            server_bulk_bytes: 100,
            server_bulk_reply_bytes: 100,
            server_bulk_peer_bytes: 60,
            ..RpcConfig::default()
        })
    }

    #[test]
    fn a_peer_gets_its_share_and_the_rest_is_for_others() {
        let budgets = budgets();
        let (a, _) = budgets.of(A, Class::Bulk);
        let (again, _) = budgets.of(A, Class::Bulk);
        let (b, _) = budgets.of(B, Class::Bulk);
        let held = a.take(60).now_or_never().flatten().expect("bytes");
        assert_eq!(held.count(), 60);
        // Another connection of the same peer waits, and not in the way of the others.
        let mut waiting = Box::pin(again.take(60));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(b.take(40).now_or_never().flatten().is_some());
        drop(held);
        assert!(waiting.now_or_never().flatten().is_some());
    }

    #[test]
    fn a_share_outlives_its_connection_while_bytes_are_held() {
        let budgets = budgets();
        let (_, replies) = budgets.of(A, Class::Bulk);
        let held = replies.try_take(50).expect("bytes");
        drop(replies);
        let (_, replies) = budgets.of(A, Class::Bulk);
        let refused = replies.try_take(11).expect_err("over the share");
        assert!(
            refused.contains("11 bytes: 50 of 60") && refused.contains("this peer"),
            "{refused}"
        );
        drop((held, replies));
        budgets.of(B, Class::Bulk);
        assert_eq!(budgets.shares.lock().len(), 1);
    }

    #[test]
    fn the_pool_is_the_limit_of_all_shares_together() {
        let budgets = budgets();
        let (_, a) = budgets.of(A, Class::Bulk);
        let (_, b) = budgets.of(B, Class::Bulk);
        let _held = a.try_take(60).expect("bytes");
        let refused = b.try_take(41).expect_err("over the pool");
        assert!(
            refused.contains("60 of 100") && refused.contains("all peers"),
            "{refused}"
        );
        let (urgent, _) = budgets.of(A, Class::Urgent);
        assert!(urgent.take(1000).now_or_never().flatten().is_some());
    }

    #[test]
    fn nothing_costs_nothing() {
        let (requests, _) = budgets().of(A, Class::Bulk);
        assert!(requests.take(0).now_or_never().expect("at once").is_none());
    }
}
