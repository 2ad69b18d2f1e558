//! What the tape asks of parameters and gradient storage; `params` implements both.

use super::lend::Lent;
use crate::op::value::{BucketId, ParamId, Role};
use tch::{Device, TchError, Tensor};

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
    /// Flat arrays of parameters whose memory comes and goes, neighbours in the order in which layers read them backwards; none
    /// if all of it stays.
    fn lent(&self) -> &[Lent] {
        &[]
    }
    /// What this rank keeps of the low-precision copies, where their memory comes and goes.
    fn kept_copies(&self) -> Vec<&Tensor> {
        Vec::new()
    }
    /// Which of them holds a value of this role.
    fn array_of(&self, _role: Role) -> Option<usize> {
        None
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
    /// The buckets without the slots of some parameters, as flat arrays.
    ///
    /// # Errors
    /// What libtorch says.
    fn without(&self, ids: &[ParamId]) -> Result<Vec<Tensor>, TchError>;
    /// The buckets as arrays whose memory comes and goes; none if it stays.
    fn lent(&self) -> &[Lent] {
        &[]
    }
}
