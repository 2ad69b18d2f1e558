//! libtorch's own gradient recording is off on a thread while a context lives there.

use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    /// Number of contexts alive on this thread, and the guard that the first one made.
    static CONTEXTS: RefCell<(u32, Option<tch::NoGradGuard>)> = const { RefCell::new((0, None)) };
}

/// Keeps libtorch's gradient recording off on this thread while any context lives, in whatever order they end.
pub(super) struct NoGrad {
    _thread_bound: PhantomData<*const ()>,
}

impl NoGrad {
    pub(super) fn enter() -> Self {
        CONTEXTS.with_borrow_mut(|(alive, guard)| {
            *alive += 1;
            guard.get_or_insert_with(tch::no_grad_guard);
        });
        Self { _thread_bound: PhantomData }
    }
}

impl Drop for NoGrad {
    fn drop(&mut self) {
        CONTEXTS.with_borrow_mut(|(alive, guard)| {
            *alive -= 1;
            if *alive == 0 {
                *guard = None;
            }
        });
    }
}
