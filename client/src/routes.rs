//! Which server a call goes to: a table of what servers told us, and plain decisions over it.
//!
//! Nothing here sends anything or reads a clock; `now` comes in. Every entry is a hint: the cluster
//! answers any call anywhere, so a wrong entry costs a forward, never a wrong result.
//!
//! * *Leader*: where the last append of a partition was served, or where an error said its leader is.
//! * *Reader*: which replica answered the last poll of a partition.
//! * *Sick*: an address that could not be reached is passed over for a while that doubles with each
//!   failure. This is also what makes an advertised address that only works inside the cluster
//!   harmless: it is tried, passed over, and the given servers forward.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which an address is passed over after its first failure.
const SICK_FIRST: Duration = Duration::from_millis(500);
/// Longest such time: a server that came back is found again within it.
const SICK_MAX: Duration = Duration::from_secs(10);
/// Hints kept per table; beyond it the table starts over. Hints are cheap to learn again.
const MAX_HINTS: usize = 65_536;

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PartitionKey {
    pub topic: Arc<str>,
    pub partition: u32,
}

/// What a call would like to reach.
#[derive(Debug, Clone)]
pub(crate) enum Want {
    /// The partition's leader.
    Leader(PartitionKey),
    /// Any replica of the partition.
    Replica(PartitionKey),
    /// One node.
    Node(u64),
    /// Whoever answers.
    Any,
}

#[derive(Debug)]
struct Sick {
    until: Instant,
    failures: u32,
}

#[derive(Debug, Default)]
struct Hints {
    /// Index of the given server that unrouted calls go to.
    current: usize,
    leaders: HashMap<PartitionKey, Arc<str>>,
    readers: HashMap<PartitionKey, Arc<str>>,
    nodes: HashMap<u64, Arc<str>>,
    sick: HashMap<Arc<str>, Sick>,
}

/// The table of hints over a fixed, non-empty list of given servers.
#[derive(Debug)]
pub(crate) struct Routes {
    servers: Vec<Arc<str>>,
    hints: Mutex<Hints>,
}

impl Routes {
    /// `first` chooses the server that unrouted calls start at.
    pub fn new(servers: Vec<Arc<str>>, first: u64) -> Routes {
        let count = servers.len().max(1) as u64;
        let hints = Hints {
            current: (first % count) as usize,
            ..Hints::default()
        };
        Routes {
            servers,
            hints: Mutex::new(hints),
        }
    }

    pub fn servers(&self) -> &[Arc<str>] {
        &self.servers
    }

    /// The address for the next attempt. `tried` are those that failed in this round of the call.
    pub fn pick(&self, want: &Want, tried: &[Arc<str>], now: Instant) -> Arc<str> {
        let hints = self.hints.lock();
        let usable = |address: &Arc<str>| !hints.is_sick(address, now) && !tried.contains(address);
        if let Some(hinted) = hints.preferred(want)
            && usable(hinted)
        {
            return Arc::clone(hinted);
        }
        let count = self.servers.len();
        let in_turn = || (0..count).map(|step| &self.servers[(hints.current + step) % count]);
        in_turn()
            .find(|address| usable(address))
            .or_else(|| in_turn().find(|address| !tried.contains(address)))
            .unwrap_or(&self.servers[hints.current % count])
            .clone()
    }

    /// Whether every given server is among `tried`.
    pub fn exhausted(&self, tried: &[Arc<str>]) -> bool {
        self.servers.iter().all(|server| tried.contains(server))
    }

    pub fn learn_leader(&self, key: &PartitionKey, address: &str) {
        learn(&mut self.hints.lock().leaders, key, address);
    }

    pub fn learn_reader(&self, key: &PartitionKey, address: &str) {
        learn(&mut self.hints.lock().readers, key, address);
    }

    pub fn learn_node(&self, node: u64, address: &str) {
        if node != 0 {
            learn(&mut self.hints.lock().nodes, &node, address);
        }
    }

    /// `address` answered, whatever it said.
    pub fn reached(&self, address: &str) {
        self.hints.lock().sick.remove(address);
    }

    /// `address` could not be reached or went silent: hints to it are dropped and others go first.
    pub fn failed(&self, address: &Arc<str>, now: Instant) {
        let mut hints = self.hints.lock();
        hints.leaders.retain(|_, hinted| hinted != address);
        hints.readers.retain(|_, hinted| hinted != address);
        if self.servers.get(hints.current) == Some(address) {
            hints.current = (hints.current + 1) % self.servers.len();
        }
        let failures = hints.sick.get(address).map_or(0, |sick| sick.failures);
        let pause = SICK_FIRST
            .saturating_mul(1 << failures.min(5))
            .min(SICK_MAX);
        let sick = Sick {
            until: now + pause,
            failures: failures + 1,
        };
        hints.sick.insert(Arc::clone(address), sick);
    }

    /// The server at `address` answered that it can't: what led there is forgotten, and unrouted calls
    /// begin elsewhere, since a node that is cut off or starting says so for a while.
    pub fn refused(&self, want: &Want, address: &Arc<str>) {
        let mut hints = self.hints.lock();
        if self.servers.get(hints.current) == Some(address) {
            hints.current = (hints.current + 1) % self.servers.len();
        }
        match want {
            Want::Leader(key) if hints.leaders.get(key) == Some(address) => {
                hints.leaders.remove(key);
            }
            Want::Replica(key) if hints.readers.get(key) == Some(address) => {
                hints.readers.remove(key);
            }
            _ => {}
        }
    }
}

impl Hints {
    fn preferred(&self, want: &Want) -> Option<&Arc<str>> {
        match want {
            Want::Leader(key) => self.leaders.get(key),
            Want::Replica(key) => self.readers.get(key).or_else(|| self.leaders.get(key)),
            Want::Node(node) => self.nodes.get(node),
            Want::Any => None,
        }
    }

    fn is_sick(&self, address: &Arc<str>, now: Instant) -> bool {
        self.sick.get(address).is_some_and(|sick| sick.until > now)
    }
}

fn learn<K: Clone + Eq + std::hash::Hash>(
    table: &mut HashMap<K, Arc<str>>,
    key: &K,
    address: &str,
) {
    if address.is_empty() || table.get(key).is_some_and(|known| &**known == address) {
        return;
    }
    if table.len() >= MAX_HINTS {
        table.clear();
    }
    table.insert(key.clone(), Arc::from(address));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> Routes {
        Routes::new(["a:1", "b:1", "c:1"].map(Arc::from).to_vec(), 0)
    }

    fn key() -> PartitionKey {
        PartitionKey {
            topic: "t".into(),
            partition: 0,
        }
    }

    #[test]
    fn the_leader_is_asked_until_it_fails() {
        let (routes, now) = (routes(), Instant::now());
        let want = Want::Leader(key());
        assert_eq!(&*routes.pick(&want, &[], now), "a:1");
        routes.learn_leader(&key(), "c:1");
        let leader = routes.pick(&want, &[], now);
        assert_eq!(&*leader, "c:1");
        routes.failed(&leader, now);
        assert_eq!(&*routes.pick(&want, &[], now), "a:1");
    }

    #[test]
    fn a_sick_address_is_passed_over_until_its_time_is_up() {
        let (routes, now) = (routes(), Instant::now());
        routes.failed(&"a:1".into(), now);
        routes.learn_leader(&key(), "a:1");
        let want = Want::Leader(key());
        assert_eq!(&*routes.pick(&want, &[], now), "b:1");
        assert_eq!(&*routes.pick(&want, &[], now + SICK_MAX), "a:1");
    }

    #[test]
    fn a_round_tries_each_given_server_even_if_all_are_sick() {
        let (routes, now) = (routes(), Instant::now());
        let mut tried: Vec<Arc<str>> = Vec::new();
        while !routes.exhausted(&tried) {
            let next = routes.pick(&Want::Any, &tried, now);
            assert!(!tried.contains(&next));
            routes.failed(&next, now);
            tried.push(next);
        }
        assert_eq!(tried.len(), 3);
    }

    #[test]
    fn readers_fall_back_to_the_leader() {
        let (routes, now) = (routes(), Instant::now());
        let want = Want::Replica(key());
        routes.learn_leader(&key(), "b:1");
        assert_eq!(&*routes.pick(&want, &[], now), "b:1");
        routes.learn_reader(&key(), "c:1");
        let reader = routes.pick(&want, &[], now);
        assert_eq!(&*reader, "c:1");
        routes.refused(&want, &reader);
        assert_eq!(&*routes.pick(&want, &[], now), "b:1");
    }

    #[test]
    fn a_node_is_asked_at_its_own_address_once_known() {
        let (routes, now) = (routes(), Instant::now());
        assert_eq!(&*routes.pick(&Want::Node(2), &[], now), "a:1");
        routes.learn_node(2, "b:1");
        assert_eq!(&*routes.pick(&Want::Node(2), &[], now), "b:1");
    }
}
