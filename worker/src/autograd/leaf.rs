//! What the tape asks of parameters and gradient storage; `params` implements both.

use crate::op::value::{BucketId, ParamId};
use tch::{Device, Tensor};

/// Parameters by id.
pub trait Leaves {
    /// How many there are.
    fn count(&self) -> usize;
    /// The master tensor of a parameter.
    fn leaf(&self, id: ParamId) -> &Tensor;
    /// Where they live.
    fn device(&self) -> Device;
    /// The low-precision copy of a parameter, if copies are kept.
    fn shadow(&self, _: ParamId) -> Option<&Tensor> {
        None
    }
    /// All copies and all masters as flat arrays of equal lengths; empty if no copies are kept.
    fn shadow_flats(&self) -> (&[Tensor], &[Tensor]) {
        (&[], &[])
    }
}

/// Gradient storage in flat buckets, one slot per parameter.
pub trait GradLeaves {
    /// How many parameters there are.
    fn count(&self) -> usize;
    /// The slot of a parameter, shaped like it.
    fn slot(&self, id: ParamId) -> &Tensor;
    /// The bucket a parameter's slot lies in.
    fn bucket_of(&self, id: ParamId) -> BucketId;
    /// How many buckets there are.
    fn buckets(&self) -> usize;
    /// The flat tensor of a bucket.
    fn flat(&self, bucket: BucketId) -> &Tensor;
}
