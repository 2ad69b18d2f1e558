//! The recorded program of one step, and reverse mode over it.
//!
//! An eager call records and executes. Reverse rules do not run kernels themselves: they call [`call()`] with phase
//! `Backward`, so that a whole step is one list.
//!
//! **Invariant:** [`call()`] is the only way to compute; everything runs with libtorch's own gradient recording off.

mod call;
mod cast;
mod cast_cache;
mod cx;
mod deferred_wgrad;
mod executor;
mod fsdp;
mod graph;
mod leaf;
mod memory;
mod no_grad;
mod observe;
mod plan;
mod program;
mod ranks;
mod recompute;
mod run;
mod scope;
mod sharded_buffer;
mod tape;
mod tape_node;
mod trial;

pub use crate::op::value::{BucketId, Meta, ParamId, Role, Shape, Tensor, Val};
pub use call::call;
pub use cx::Cx;
pub use executor::{Executor, Mode, Request, StepOutput};
pub use leaf::{GradLeaves, Leaves};
pub use observe::Observe;
pub use plan::{ExecutedRecord, Observer, Plan, Unplannable};
pub use program::{Phase, Program, Rec, ValMeta};
pub use scope::{ScopeGuard, ScopeId};
pub use sharded_buffer::ShardedBuffer;
pub use tape::OnReady;
