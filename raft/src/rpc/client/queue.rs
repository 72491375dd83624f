//! The order in which calls go out, and the bytes they may hold: plain data, no runtime.
//!
//! A call takes its *slot* first, a number that fixes its place, then encodes, then fills the slot. The pool's bytes are
//! given out in slot order, so filled slots are split in two: `ready` ones have their bytes, `later` ones wait for them
//! or are still being encoded. Every ready slot lies before every later one.
//!
//! Invariants:
//! * Slots leave in order. A slot given back (time-out, cancellation) doesn't hold up the ones behind it.
//! * `reserved <= capacity` at all times. Bytes come back only by [`SendQueue::release`], that is when a buffer has been
//!   written or dropped.
//! * `later` holds at most the configured number of calls and bytes.

use std::collections::BTreeMap;

/// A call's place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u64);

/// Bounds of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueLimits {
    /// Bytes of ready calls and of those being written.
    pub(crate) capacity: usize,
    pub(crate) waiting_calls: usize,
    pub(crate) waiting_bytes: usize,
}

/// Why no slot was given.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueueRefusal {
    /// It would never fit.
    TooLarge { limit: usize },
    /// Too much waits already.
    Full { calls: usize, bytes: usize },
}

#[derive(Debug)]
struct Later<T> {
    bytes: usize,
    /// None while the call is being encoded.
    call: Option<T>,
}

/// What [`SendQueue::remove`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Removed<T> {
    /// It had its bytes, which the caller now has to release.
    Ready(T, usize),
    /// It had none.
    Later,
    /// The slot had left already.
    Gone,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct SendQueue<T> {
    limits: QueueLimits,
    next: u64,
    ready: BTreeMap<Slot, (T, usize)>,
    later: BTreeMap<Slot, Later<T>>,
    reserved: usize,
    waiting_bytes: usize,
}

impl<T> SendQueue<T> {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        SendQueue {
            limits,
            next: 0,
            ready: BTreeMap::new(),
            later: BTreeMap::new(),
            reserved: 0,
            waiting_bytes: 0,
        }
    }

    /// Takes the next slot for a call of `bytes`, which must not grow by encoding.
    pub(crate) fn take_slot(&mut self, bytes: usize) -> Result<Slot, QueueRefusal> {
        if bytes > self.limits.capacity {
            return Err(QueueRefusal::TooLarge {
                limit: self.limits.capacity,
            });
        }
        let goes_through = self.later.is_empty() && self.fits(bytes);
        let over = self.later.len() >= self.limits.waiting_calls
            || self.waiting_bytes + bytes > self.limits.waiting_bytes;
        if over && !goes_through {
            return Err(QueueRefusal::Full {
                calls: self.later.len(),
                bytes: self.waiting_bytes,
            });
        }
        let slot = Slot(self.next);
        self.next += 1;
        self.later.insert(slot, Later { bytes, call: None });
        self.waiting_bytes += bytes;
        Ok(slot)
    }

    /// Fills a slot. `bytes` is the call's size after encoding, never more than announced.
    pub(crate) fn fill(&mut self, slot: Slot, call: T, bytes: usize) {
        if let Some(later) = self.later.get_mut(&slot) {
            let bytes = bytes.min(later.bytes);
            self.waiting_bytes -= later.bytes - bytes;
            *later = Later {
                bytes,
                call: Some(call),
            };
        }
    }

    /// Gives bytes to the calls that are next in order, as far as they go. The calls that got theirs are shown to
    /// `reserved`.
    pub(crate) fn promote(&mut self, mut reserved: impl FnMut(&T)) {
        while let Some(first) = self.later.first_entry() {
            let bytes = first.get().bytes;
            if first.get().call.is_none() || self.reserved + bytes > self.limits.capacity {
                return;
            }
            let slot = *first.key();
            if let Some(call) = first.remove().call {
                self.waiting_bytes -= bytes;
                self.reserved += bytes;
                reserved(&call);
                self.ready.insert(slot, (call, bytes));
            }
        }
    }

    /// Takes the call that is next, with the bytes that it holds; the caller releases them.
    pub(crate) fn pop(&mut self) -> Option<(T, usize)> {
        self.ready.pop_first().map(|(_, ready)| ready)
    }

    /// Gives a slot back.
    pub(crate) fn remove(&mut self, slot: Slot) -> Removed<T> {
        if let Some((call, bytes)) = self.ready.remove(&slot) {
            return Removed::Ready(call, bytes);
        }
        match self.later.remove(&slot) {
            Some(later) => {
                self.waiting_bytes -= later.bytes;
                Removed::Later
            }
            None => Removed::Gone,
        }
    }

    /// Takes back the bytes of a buffer that is gone. Promote afterwards.
    pub(crate) fn release(&mut self, bytes: usize) {
        self.reserved = self.reserved.saturating_sub(bytes);
    }

    /// Empties the queue of all calls that are encoded, and releases their bytes. A slot that is still being encoded
    /// stays, its call comes in by `fill`.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let ready = std::mem::take(&mut self.ready);
        let mut calls = Vec::with_capacity(ready.len());
        for (call, bytes) in ready.into_values() {
            self.release(bytes);
            calls.push(call);
        }
        let filled: Vec<Slot> = self
            .later
            .iter()
            .filter(|(_, later)| later.call.is_some())
            .map(|(slot, _)| *slot)
            .collect();
        for slot in filled {
            if let Some(later) = self.later.remove(&slot) {
                self.waiting_bytes -= later.bytes;
                calls.extend(later.call);
            }
        }
        calls
    }

    /// Whether a call could be taken by [`SendQueue::pop`].
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Calls that are queued, whatever they wait for.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.later.len()
    }

    /// Calls that wait for bytes or are being encoded, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.later.len(), self.waiting_bytes)
    }

    /// Bytes that are given out.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved
    }

    fn fits(&self, bytes: usize) -> bool {
        self.reserved + bytes <= self.limits.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(capacity: usize) -> SendQueue<char> {
        SendQueue::new(QueueLimits {
            capacity,
            waiting_calls: 3,
            waiting_bytes: 100,
        })
    }

    fn put(q: &mut SendQueue<char>, call: char, bytes: usize) -> Slot {
        let slot = q.take_slot(bytes).expect("a slot");
        q.fill(slot, call, bytes);
        q.promote(|_| ());
        slot
    }

    #[test]
    fn a_slot_that_is_still_encoding_holds_the_order() {
        let mut q = queue(10);
        let first = q.take_slot(1).expect("a slot");
        put(&mut q, 'b', 1);
        assert_eq!(q.pop(), None);
        q.fill(first, 'a', 1);
        q.promote(|_| ());
        assert_eq!(q.pop(), Some(('a', 1)));
        assert_eq!(q.pop(), Some(('b', 1)));
    }

    #[test]
    fn a_small_call_does_not_overtake_a_large_one() {
        let mut q = queue(10);
        put(&mut q, 'a', 8);
        put(&mut q, 'b', 8);
        put(&mut q, 'c', 1);
        assert_eq!(q.pop(), Some(('a', 8)));
        assert_eq!(q.pop(), None);
        q.release(8);
        q.promote(|_| ());
        assert_eq!(q.pop(), Some(('b', 8)));
        assert_eq!(q.pop(), Some(('c', 1)));
        assert_eq!(q.reserved(), 9);
    }

    #[test]
    fn a_slot_given_back_lets_the_next_ones_through() {
        let mut q = queue(10);
        put(&mut q, 'a', 5);
        let stuck = put(&mut q, 'b', 8);
        put(&mut q, 'c', 5);
        assert_eq!(q.remove(stuck), Removed::Later);
        q.promote(|_| ());
        assert_eq!(q.pop(), Some(('a', 5)));
        assert_eq!(q.pop(), Some(('c', 5)));
        assert_eq!(q.remove(stuck), Removed::Gone);
    }

    #[test]
    fn what_waits_is_bounded_by_calls_and_by_bytes() {
        let mut q = queue(60);
        put(&mut q, 'a', 60);
        put(&mut q, 'b', 60);
        assert_eq!(
            q.take_slot(60),
            Err(QueueRefusal::Full {
                calls: 1,
                bytes: 60
            })
        );
        put(&mut q, 'c', 1);
        put(&mut q, 'd', 1);
        assert_eq!(
            q.take_slot(1),
            Err(QueueRefusal::Full {
                calls: 3,
                bytes: 62
            })
        );
        assert_eq!(q.take_slot(61), Err(QueueRefusal::TooLarge { limit: 60 }));
    }

    #[test]
    fn shrinking_by_compression_gives_bytes_back() {
        let mut q = queue(10);
        let slot = q.take_slot(10).expect("a slot");
        q.fill(slot, 'a', 2);
        q.promote(|_| ());
        assert_eq!((q.reserved(), q.waiting_bytes), (2, 0));
    }

    #[test]
    fn draining_leaves_only_what_is_being_encoded() {
        let mut q = queue(10);
        put(&mut q, 'a', 10);
        put(&mut q, 'b', 3);
        let slot = q.take_slot(1).expect("a slot");
        assert_eq!(q.drain(), ['a', 'b']);
        assert_eq!((q.reserved(), q.waiting_bytes, q.len()), (0, 1, 1));
        assert_eq!(q.remove(slot), Removed::Later);
        assert_eq!(q.waiting_bytes, 0);
    }
}
