//! An allocator that notes the largest request of the thread that asks it to.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    /// The largest request so far; `None`: nobody asks.
    static LARGEST: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Noting;

#[global_allocator]
static NOTING: Noting = Noting;

fn note(bytes: usize) {
    // A thread that ends has no cell any more, and nobody asks it.
    let _ = LARGEST.try_with(|largest| {
        if let Some(known) = largest.get() {
            largest.set(Some(known.max(bytes)));
        }
    });
}

// SAFETY: every call goes to the system's allocator with the arguments it came with; noting allocates nothing.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// The largest request of this thread while `work` runs.
pub(crate) fn largest_while(work: impl FnOnce()) -> usize {
    LARGEST.set(Some(0));
    work();
    LARGEST.take().unwrap_or(0)
}
