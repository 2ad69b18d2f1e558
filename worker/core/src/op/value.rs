//! Values of a recorded program: identifiers, what is known of each value, and the tensor handle that layers hold.

use smallvec::SmallVec;
use std::rc::{Rc, Weak};
use tch::{Device, Kind};

pub type Shape = SmallVec<[i64; 5]>;

/// A value of the program in single-assignment form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Val(pub(crate) u32);

impl Val {
    /// Position in the program.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A parameter of the model; position in the order of declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub(crate) u32);

impl ParamId {
    /// Position in the order of declaration.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A flat gradient bucket; position in the order in which buckets become ready when layers run in declared order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketId(pub u32);

impl BucketId {
    /// Position of the bucket.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Purpose of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Input of each step.
    Input,
    /// Master weights of a parameter.
    Param(ParamId),
    /// The low-precision copy of a parameter, which autocast uses in its place. Its gradient is the parameter's.
    Shadow(ParamId),
    /// Storage of a parameter's gradient.
    Grad(ParamId),
    /// Moments and counters of the optimizer.
    OptState,
    /// Numbers that key the random generator: (seed, step, first row, rows).
    RandomKey,
    /// Known before the step.
    Const,
    /// Made by a record of this program.
    Temp,
}

impl Role {
    /// The parameter this value stands for: its master, or its low-precision copy.
    pub fn param(self) -> Option<ParamId> {
        match self {
            Self::Param(id) | Self::Shadow(id) => Some(id),
            _ => None,
        }
    }
}

/// Shape, element type and device of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    pub shape: Shape,
    pub kind: Kind,
    pub device: Device,
}

impl Meta {
    /// Reads the meta of a libtorch tensor.
    pub fn of(raw: &tch::Tensor) -> Self {
        Self { shape: raw.size().into(), kind: raw.kind(), device: raw.device() }
    }

    /// Returns the meta of the same kind and device with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Self {
        Self { shape: shape.into(), kind: self.kind, device: self.device }
    }

    /// Returns the meta with another size of an axis.
    pub fn with_size(&self, axis: usize, size: i64) -> Self {
        let mut made = self.clone();
        made.shape[axis] = size;
        made
    }

    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

/// A value with its libtorch tensor. Cloning shares; a handle belongs to the context that made it.
#[derive(Debug, Clone)]
pub struct Tensor(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: tch::Tensor,
    val: Val,
    meta: Meta,
    requires_grad: bool,
    leaf: bool,
}

impl Tensor {
    pub(crate) fn new(raw: tch::Tensor, val: Val, meta: Meta, requires_grad: bool) -> Self {
        Self(Rc::new(Inner { raw, val, meta, requires_grad, leaf: false }))
    }

    /// A value that no record makes.
    pub(crate) fn leaf(raw: tch::Tensor, val: Val, meta: Meta, requires_grad: bool) -> Self {
        Self(Rc::new(Inner { raw, val, meta, requires_grad, leaf: true }))
    }

    /// Whether no record makes it.
    pub(crate) fn is_leaf(&self) -> bool {
        self.0.leaf
    }

    /// A handle that does not keep the tensor alive.
    pub(crate) fn downgrade(&self) -> WeakTensor {
        WeakTensor(Rc::downgrade(&self.0))
    }

    /// The libtorch tensor. It takes no part in libtorch's autograd.
    pub fn raw(&self) -> &tch::Tensor {
        &self.0.raw
    }

    /// Returns the value in the program.
    pub fn val(&self) -> Val {
        self.0.val
    }

    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// Returns the sizes of the axes.
    pub fn shape(&self) -> &[i64] {
        &self.0.meta.shape
    }

    /// Size of `axis`; negative counts from the end. 1 for an axis that does not exist.
    pub fn dim(&self, axis: i64) -> i64 {
        let shape = self.shape();
        let at = if axis < 0 { axis + shape.len() as i64 } else { axis };
        usize::try_from(at).ok().and_then(|at| shape.get(at)).copied().unwrap_or(1)
    }

    pub fn kind(&self) -> Kind {
        self.0.meta.kind
    }

    /// Returns the device of the tensor.
    pub fn device(&self) -> Device {
        self.0.meta.device
    }

    /// Whether a gradient flows through it.
    pub fn requires_grad(&self) -> bool {
        self.0.requires_grad
    }
}

/// A handle that does not keep its tensor alive.
#[derive(Debug, Clone)]
pub(crate) struct WeakTensor(Weak<Inner>);

impl WeakTensor {
    /// The tensor, if someone else still holds it.
    pub(crate) fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(Tensor)
    }
}
