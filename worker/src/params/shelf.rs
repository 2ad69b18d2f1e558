//! Arrays of which a rank keeps no more than a share, and whether their memory is there at the moment.

use crate::autograd::Lent;
use tch::{TchError, Tensor};

/// None where everything is kept.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    lent: Vec<Lent>,
    /// Their memory is there, and not only while a step uses it.
    filled: bool,
}

impl Shelf {
    /// These, whose memory was taken away.
    pub(super) fn new(lent: Vec<Lent>) -> Self {
        Self { lent, filled: false }
    }

    /// Gives them their memory: what this rank keeps is in its place, and zeros.
    pub(super) fn fill(&mut self) -> Result<(), TchError> {
        self.filled = true;
        self.lent.iter().try_for_each(Lent::fill)
    }

    /// Takes their memory away.
    pub(super) fn empty(&mut self) -> Result<(), TchError> {
        self.filled = false;
        self.lent.iter().try_for_each(|lent| lent.renew(false))
    }

    /// Those whose memory comes and goes with a step.
    pub(super) fn away(&self) -> &[Lent] {
        if self.filled { &[] } else { &self.lent }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }

    /// What this rank keeps of each from array `first` on, at most `count` of them.
    pub(super) fn kept(&self, first: usize, count: usize) -> Vec<&Tensor> {
        self.lent.iter().skip(first).take(count).flat_map(Lent::kept).collect()
    }
}
