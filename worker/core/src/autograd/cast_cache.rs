//! What autocast keeps during a step: its policy, and the casts made so far.

use crate::op::value::{Tensor, Val, WeakTensor};
use crate::precision::Autocast;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use tch::Kind;

#[derive(Default)]
pub(super) struct Casting {
    /// The policy; nothing is cast without one.
    pub(super) autocast: RefCell<Option<Rc<Autocast>>>,
    /// Whether the low-precision copies are equal to the weights.
    pub(super) fresh: Cell<bool>,
    /// Nesting depth of `Cx::full_precision`.
    pub(super) depth: Cell<u32>,
}

/// Casts made so far, each with the version of the value it was made from: a value that was written since is cast again.
#[derive(Default)]
pub(super) struct CastCache {
    pub(super) casts: HashMap<(Val, Kind), (i64, WeakTensor)>,
    /// Casts of parameters, held until the backward pass. Without this, the cast of a bias would be dropped at once, as nothing saves it.
    pub(super) held: Vec<Tensor>,
    pub(super) quantised: HashMap<Val, (i64, [WeakTensor; 3])>,
    /// 8-bit parameters, held as long as the context. No gradient flows through them, and weights do not change within a step.
    pub(super) weights: Vec<Quantised>,
    pub(super) shadows: Vec<Option<Tensor>>,
    /// Whether a scope runs in f32, by scope; `None` where that was not looked up yet.
    pub(super) full: Vec<Option<bool>>,
}

/// An 8-bit matrix: q, its transpose, and its scale.
pub(super) type Quantised = [Tensor; 3];
