//! The interfaces of parameters and gradient storage to the tape. `params` implements both.

use super::sharded_buffer::ShardedBuffer;
use crate::op::value::{BucketId, ParamId, Role};
use tch::{Device, TchError, Tensor};

/// Parameter storage, addressed by parameter id.
pub trait Leaves {
    fn count(&self) -> usize;
    /// The master tensor of a parameter.
    fn leaf(&self, id: ParamId) -> &Tensor;
    fn device(&self) -> Device;
    /// The low-precision copy of a parameter, if copies are kept.
    fn shadow(&self, _: ParamId) -> Option<&Tensor> {
        None
    }
    /// Returns all low-precision copies and all masters as flat arrays of equal lengths; empty if no copies are kept.
    fn shadow_flats(&self) -> (&[Tensor], &[Tensor]) {
        (&[], &[])
    }
    /// Returns the sharded parameter arrays, in the order in which the backward pass reads them; empty if parameters are not
    /// sharded.
    fn sharded_buffers(&self) -> &[ShardedBuffer] {
        &[]
    }
    /// Returns this rank's shards of the low-precision copies; empty if they are not sharded.
    fn low_precision_shards(&self) -> Vec<&Tensor> {
        Vec::new()
    }
    /// Position in [`Leaves::sharded_buffers`] of the array that holds a value of this role.
    fn buffer_of(&self, _role: Role) -> Option<usize> {
        None
    }
}

/// Gradient storage in flat buckets, one slot per parameter.
pub trait GradLeaves {
    fn count(&self) -> usize;
    /// The gradient slot of a parameter, in the parameter's shape.
    fn slot(&self, id: ParamId) -> &Tensor;
    fn bucket_of(&self, id: ParamId) -> BucketId;
    fn buckets(&self) -> usize;
    fn flat(&self, bucket: BucketId) -> &Tensor;
    /// Returns the buckets without the slots of some parameters, as flat arrays.
    fn without(&self, ids: &[ParamId]) -> Result<Vec<Tensor>, TchError>;
    /// Returns the buckets as sharded arrays; empty if gradients are not sharded.
    fn sharded_buffers(&self) -> &[ShardedBuffer] {
        &[]
    }
}
