//! An allocator that notes the largest request of the thread that asks it to, and the most bytes that were its at one time; and the
//! largest request of all threads.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The largest request of any thread since this was asked last.
pub(crate) fn largest_anywhere() -> usize {
    LARGEST.swap(0, Relaxed)
}

thread_local! {
    /// `None`: nobody asks.
    static NOTED: Cell<Option<Noted>> = const { Cell::new(None) };
}

/// What a thread asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Noted {
    /// The largest request.
    pub(crate) largest: usize,
    /// Most bytes held at one time.
    pub(crate) most: usize,
    held: usize,
}

struct Noting;

#[global_allocator]
static NOTING: Noting = Noting;

/// So many bytes are taken, and so many given back.
fn note(taken: usize, given: usize) {
    if taken > LARGEST.load(Relaxed) {
        LARGEST.fetch_max(taken, Relaxed);
    }
    // A thread that ends has no cell any more, and nobody asks it.
    let _ = NOTED.try_with(|noted| {
        if let Some(mut known) = noted.get() {
            // What was there before may be given back too.
            known.held = (known.held + taken).saturating_sub(given);
            (known.largest, known.most) = (known.largest.max(taken), known.most.max(known.held));
            noted.set(Some(known));
        }
    });
}

// SAFETY: every call goes to the system's allocator with the arguments it came with; noting allocates nothing.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        note(0, layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size(), 0);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size, layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// What this thread asked for while `work` ran.
pub(crate) fn noted_while(work: impl FnOnce()) -> Noted {
    NOTED.set(Some(Noted::default()));
    work();
    NOTED.take().unwrap_or_default()
}
