//! What a piece of code allocates: an allocator that counts for the thread that asks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counted. A test binary that measures declares it as its global one.
#[derive(Debug)]
pub struct Counting;

fn add(bytes: usize) {
    // A thread that ends allocates when its counters are gone already: nobody measures it.
    let _ = LIVE.try_with(|live| {
        live.set(live.get().saturating_add_unsigned(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

fn take(bytes: usize) {
    let _ = LIVE.try_with(|live| live.set(live.get().saturating_sub_unsigned(bytes)));
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments.
#[allow(unsafe_code, reason = "an allocator can't be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        take(layout.size());
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while it is moved.
        add(size);
        take(layout.size());
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs something and says how many bytes it held at once at most, beyond what was held before.
/// 0 where [`Counting`] is not the allocator.
pub fn peak_of<R>(run: impl FnOnce() -> R) -> (R, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = run();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}
