//! The model's parameters: a named tree of f32 master tensors in flat storage, and gradient buckets of the same layout.
//!
//! Buckets follow the reverse order of declaration, since gradients arrive about so: the first about 1 MiB, the rest
//! about 100 MiB. Parameters and gradients are views into the flat tensors, so that a broadcast, an update or a norm is
//! one operation per bucket, and a checkpoint is loaded in place.
//!
//! **Invariant:** no parameter is ever re-allocated after `build`; loading copies into the existing storage.

mod buckets;
mod group;
mod init;
mod layout;
mod sharded;
mod tree;

pub use crate::autograd::{BucketId, ParamId};
pub use buckets::GradBuckets;
pub use group::Group;
pub use init::Init;
pub use layout::{Layout, Run, Segment, Share};
pub use tree::{LoadError, ParamBuilder, Params};
