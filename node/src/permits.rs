//! Bytes in flight, bounded before anything is queued.
//!
//! A permit is taken for the size of a batch before it is proposed and given back when the answer
//! is there, nested: the partition's share within the node's. Taking never waits: what doesn't fit
//! is refused, so that overload shows at once and at the edge. A permit lives as long as the bytes it
//! pays for, also when the caller has gone.

use crate::failure::{Failure, Reason};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A number of bytes of which some are in use.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
        })
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Takes `bytes` if they fit. More than the whole budget fits only when nothing is in use, so
    /// that one large request is slow rather than impossible.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let fits = |used: u64| {
            let after = used.checked_add(bytes)?;
            (after <= self.limit || used == 0).then_some(after)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .ok()?;
        Some(Permit {
            budget: Arc::clone(self),
            bytes,
        })
    }
}

/// Bytes of a budget, given back when dropped.
#[derive(Debug)]
pub struct Permit {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Permit {
    /// Gives back what isn't needed after all.
    pub fn shrink_to(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.budget.used.fetch_sub(surplus, Ordering::Relaxed);
        self.bytes -= surplus;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What an append holds until it is answered.
#[derive(Debug)]
pub struct AppendPermit {
    _node: Permit,
    _partition: Permit,
}

/// The budgets for appends through this node.
#[derive(Debug)]
pub struct AppendBudgets {
    node: Arc<Budget>,
    partition_limit: u64,
    partitions: Mutex<HashMap<u64, Arc<Budget>>>,
}

impl AppendBudgets {
    pub fn new(node_bytes: u64, partition_bytes: u64) -> Self {
        Self {
            node: Budget::new(node_bytes),
            partition_limit: partition_bytes,
            partitions: Mutex::new(HashMap::new()),
        }
    }

    /// Bytes of batches in flight on this node.
    pub fn used(&self) -> u64 {
        self.node.used()
    }

    pub fn take(&self, partition_id: u64, bytes: u64) -> Result<AppendPermit, Failure> {
        let refused = |what: String, limit: u64| {
            Failure::new(
                Reason::OverloadedBytes,
                format!(
                    "{bytes} more bytes would exceed the {limit} that {what} may have in flight"
                ),
            )
        };
        let node = self
            .node
            .take(bytes)
            .ok_or_else(|| refused("this node".into(), self.node.limit()))?;
        let partition = self
            .partition(partition_id)
            .take(bytes)
            .ok_or_else(|| refused(format!("partition {partition_id}"), self.partition_limit))?;
        Ok(AppendPermit {
            _node: node,
            _partition: partition,
        })
    }

    fn partition(&self, id: u64) -> Arc<Budget> {
        let mut partitions = self.partitions.lock();
        let fresh = || Budget::new(self.partition_limit);
        Arc::clone(partitions.entry(id).or_insert_with(fresh))
    }

    /// Forgets a partition that is no more.
    pub fn forget(&self, partition_id: u64) {
        self.partitions.lock().remove(&partition_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_comes_back_when_dropped() {
        let budgets = AppendBudgets::new(100, 60);
        let first = budgets.take(1, 60).expect("fits");
        let refused = budgets.take(1, 1).expect_err("the partition is full");
        assert_eq!(refused.reason, Reason::OverloadedBytes);
        assert!(refused.retry_after.is_some());
        let second = budgets.take(2, 40).expect("another partition");
        assert!(budgets.take(3, 1).is_err(), "the node is full");
        drop((first, second));
        assert_eq!(budgets.used(), 0);
        assert!(budgets.take(1, 60).is_ok());
    }

    #[test]
    fn a_refused_partition_gives_the_nodes_share_back() {
        let budgets = AppendBudgets::new(1000, 10);
        let _held = budgets.take(1, 10).expect("fits");
        assert!(budgets.take(1, 5).is_err());
        assert_eq!(budgets.used(), 10);
    }

    #[test]
    fn one_oversized_request_passes_alone() {
        let budget = Budget::new(10);
        let mut alone = budget.take(50).expect("nothing else is in use");
        assert!(budget.take(1).is_none());
        alone.shrink_to(4);
        assert_eq!(budget.used(), 4);
        drop(alone);
        assert_eq!(budget.used(), 0);
    }
}
