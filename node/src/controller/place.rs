//! Where new replicas go: to the nodes with the fewest, so that every node ends up with the same
//! share, and with the preferred leadership going round in the same way.

use std::collections::BTreeMap;

/// How much each node has already; nodes that are not a key get nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    /// Node id to (replicas, preferred leaderships).
    nodes: BTreeMap<u64, (u64, u64)>,
}

impl Load {
    pub fn new(nodes: impl IntoIterator<Item = u64>) -> Self {
        Self {
            nodes: nodes.into_iter().map(|node| (node, (0, 0))).collect(),
        }
    }

    /// Counts one partition's nodes, the preferred leader first.
    pub fn count(&mut self, replicas: impl IntoIterator<Item = u64>) {
        for (i, node) in replicas.into_iter().enumerate() {
            if let Some((replicas, leaders)) = self.nodes.get_mut(&node) {
                *replicas += 1;
                *leaders += u64::from(i == 0);
            }
        }
    }

    /// Chooses the nodes of one more partition, the preferred leader first, and counts them.
    /// Gives fewer than `replication` only if there are fewer nodes.
    pub fn place(&mut self, replication: usize) -> Vec<u64> {
        let mut nodes: Vec<u64> = self.nodes.keys().copied().collect();
        nodes.sort_by_key(|node| (self.nodes[node].0, *node));
        nodes.truncate(replication);
        nodes.sort_by_key(|node| (self.nodes[node].1, *node));
        self.count(nodes.iter().copied());
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_and_leaders_are_spread_evenly() {
        for (nodes, replication, partitions) in [(3, 3, 12), (5, 3, 50), (4, 2, 30), (1, 1, 4)] {
            let mut load = Load::new(1..=nodes);
            for _ in 0..partitions {
                let placed = load.place(replication);
                let distinct: std::collections::BTreeSet<u64> = placed.iter().copied().collect();
                assert_eq!(distinct.len(), replication);
            }
            let spread = |values: Vec<u64>| {
                values.iter().max().expect("some") - values.iter().min().expect("some")
            };
            assert!(
                spread(load.nodes.values().map(|v| v.0).collect()) <= 1,
                "{load:?}"
            );
            assert!(
                spread(load.nodes.values().map(|v| v.1).collect()) <= 2,
                "{load:?}"
            );
        }
    }
}
