//! Names that the file of nearly every operation needs.

pub(super) use super::attr::{Axes, F64Bits};
pub(super) use super::infer::{
    Inferred, Metas, axis, boolean, broadcast, float, mismatch, nothing, one, same_kind, same_shape, wide, wrong,
};
pub(super) use super::lower::{Lower, LowerError, Lowered, itself, only};
pub(super) use super::on_device::{on_device, present};
pub(super) use super::row::{
    Class, Export, Fit, Kernel, Launch, Launched, OpRow, Operation, Tolerance, Traffic, count,
};
pub(super) use super::sample::{Sample, SampleRng, between, bools, ids, key, normal, sample};
pub(super) use super::value::{Meta, Shape, Tensor};
pub(super) use super::vjp::{Grads, Vjp, grad};
pub(super) use crate::error::{OpError, OpErrorKind};
pub(super) use smallvec::{SmallVec, smallvec};
pub(super) use tch::{Device, Kind, Tensor as Raw};
