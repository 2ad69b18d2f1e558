//! A budget of bytes that all requests share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The remaining bytes of the budget.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
}

/// A part of the budget, which is returned on drop.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes) })
    }

    /// Returns an empty share.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { of: Arc::clone(self), bytes: 0 }
    }
}

impl Share {
    /// Returns all but `bytes` to the budget.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.of.left.fetch_add(less, Relaxed);
        self.bytes -= less;
    }

    /// Grows to `bytes`; returns whether the budget sufficed.
    #[must_use]
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let took = self.of.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(more)).is_ok();
        if took {
            self.bytes += more;
        }
        took
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.left.fetch_add(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let budget = Budget::new(10);
        let mut one = budget.share();
        let mut two = budget.share();
        assert!(one.grow(6) && one.grow(4) && !two.grow(5) && two.grow(4));
        one.shrink(2);
        assert!(two.grow(8) && !two.grow(9));
        drop(one);
        assert!(two.grow(10));
        drop(two);
        assert_eq!(budget.left.load(Relaxed), 10);
    }
}
