//! What stays open after use: one least-recently-used list for all logs of a node.
//!
//! A thing that is read now and then keeps a file open and something in memory that makes the next read cheap. How many do,
//! and how many bytes they hold in memory, is bounded here for the whole node, so that neither grows with the number of
//! logs. What falls over a bound is told to cool down and opens itself again when it is read next.
//!
//! * The list never keeps anything alive: a thing that is dropped closes its file by itself, its place goes at the latest
//!   when a bound is reached.
//! * The one used last always stays, whatever its size.
//! * [`Cooling::cool_down`] is called without the list's lock. It may find the thing in use again: the worst that follows
//!   is one more opening.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Files that stay open unless said otherwise.
pub const DEFAULT_WARM_FILES: usize = 128;
/// Bytes of indexes that stay in memory unless said otherwise: what 128 segments of 256 MiB need.
pub const DEFAULT_WARM_BYTES: u64 = 16 << 20;

/// Something that can close its file and forget what it can read again.
pub trait Cooling: Send + Sync {
    /// Where the list notes its place; nobody else touches it.
    fn place(&self) -> &AtomicU64;
    /// Closes and forgets.
    fn cool_down(&self);
}

/// See the module's text.
pub struct WarmFiles {
    max_files: usize,
    max_bytes: u64,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// By place; the greatest was used last.
    warm: BTreeMap<u64, Entry>,
    last_place: u64,
    bytes: u64,
}

struct Entry {
    thing: Weak<dyn Cooling>,
    bytes: u64,
}

impl Default for WarmFiles {
    fn default() -> Self {
        Self::new(DEFAULT_WARM_FILES, DEFAULT_WARM_BYTES)
    }
}

impl List {
    fn remove(&mut self, place: u64) -> Option<Entry> {
        let entry = self.warm.remove(&place)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn drop_dead(&mut self) {
        let bytes = &mut self.bytes;
        self.warm.retain(|_, entry| {
            let alive = entry.thing.strong_count() > 0;
            *bytes -= if alive { 0 } else { entry.bytes };
            alive
        });
    }
}

impl WarmFiles {
    /// At most `max_files` things stay warm, and fewer if they hold more than `max_bytes` together.
    pub fn new(max_files: usize, max_bytes: u64) -> Self {
        Self {
            max_files,
            max_bytes,
            list: Mutex::default(),
        }
    }

    /// Files that may stay open.
    pub fn max_files(&self) -> usize {
        self.max_files
    }

    /// Things that are warm, and the bytes that they hold in memory.
    pub fn usage(&self) -> (usize, u64) {
        let mut list = self.list.lock();
        list.drop_dead();
        (list.warm.len(), list.bytes)
    }

    /// Notes that a thing was just used and what it holds in memory; cools down what is over a bound.
    pub fn touch(&self, thing: &Arc<impl Cooling + 'static>, bytes: u64) {
        let cold = {
            let mut list = self.list.lock();
            let place = thing.place().load(Ordering::Relaxed);
            let same = |entry: &Entry| std::ptr::addr_eq(entry.thing.as_ptr(), Arc::as_ptr(thing));
            let mine = list.warm.get(&place).filter(|entry| same(entry));
            if mine.is_some_and(|entry| place == list.last_place && entry.bytes == bytes) {
                return;
            }
            if mine.is_some() {
                list.remove(place);
            }
            list.last_place += 1;
            let place = list.last_place;
            thing.place().store(place, Ordering::Relaxed);
            let weak = Arc::downgrade(thing);
            list.bytes += bytes;
            list.warm.insert(place, Entry { thing: weak, bytes });
            self.over_bound(&mut list)
        };
        cold.iter().for_each(|thing| thing.cool_down());
    }

    fn is_over(&self, list: &List) -> bool {
        list.warm.len() > 1 && (list.warm.len() > self.max_files || list.bytes > self.max_bytes)
    }

    fn over_bound(&self, list: &mut List) -> Vec<Arc<dyn Cooling>> {
        if self.is_over(list) {
            list.drop_dead();
        }
        let mut cold = Vec::new();
        while self.is_over(list) {
            let Some((oldest, _)) = list.warm.first_key_value() else {
                break;
            };
            let oldest = *oldest;
            cold.extend(list.remove(oldest).and_then(|entry| entry.thing.upgrade()));
        }
        cold
    }
}

impl fmt::Debug for WarmFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = self.list.lock();
        f.debug_struct("WarmFiles")
            .field("files", &list.warm.len())
            .field("bytes", &list.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[derive(Default)]
    struct Thing {
        place: AtomicU64,
        cold: AtomicBool,
    }

    impl Cooling for Thing {
        fn place(&self) -> &AtomicU64 {
            &self.place
        }

        fn cool_down(&self) {
            self.cold.store(true, Ordering::Relaxed);
        }
    }

    fn things(count: usize) -> Vec<Arc<Thing>> {
        (0..count).map(|_| Arc::default()).collect()
    }

    fn cold(things: &[Arc<Thing>]) -> Vec<bool> {
        let is_cold = |thing: &Arc<Thing>| thing.cold.load(Ordering::Relaxed);
        things.iter().map(is_cold).collect()
    }

    #[test]
    fn the_one_unused_for_longest_cools_down_first() {
        let (warm, things) = (WarmFiles::new(2, u64::MAX), things(3));
        for n in [0, 1, 0, 2] {
            warm.touch(&things[n], 1);
        }
        assert_eq!(cold(&things), [false, true, false]);
        assert_eq!(warm.usage(), (2, 2));
    }

    #[test]
    fn bytes_have_a_bound_too_but_the_last_one_stays() {
        let (warm, things) = (WarmFiles::new(10, 100), things(3));
        warm.touch(&things[0], 10);
        warm.touch(&things[1], 90);
        assert_eq!(cold(&things), [false; 3]);
        warm.touch(&things[1], 91);
        assert_eq!(cold(&things), [true, false, false]);
        warm.touch(&things[2], 1_000);
        assert_eq!(cold(&things), [true, true, false]);
        assert_eq!(warm.usage(), (1, 1_000));
    }

    #[test]
    fn what_is_gone_holds_no_place() {
        let (warm, mut things) = (WarmFiles::new(2, u64::MAX), things(3));
        warm.touch(&things[0], 1);
        warm.touch(&things[1], 1);
        things.remove(1);
        warm.touch(&things[1], 1);
        assert_eq!(cold(&things), [false, false]);
    }
}
