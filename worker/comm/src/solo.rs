//! A world of one: every collective is the identity.

use super::{AbortHandle, CommError, ProcessGroup, Reduce, Work, abort::NoopHandle, check_root};
use std::time::Duration;
use tch::Tensor;

/// The group of a single worker. Needs no store, no network and no second process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl ProcessGroup for Solo {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn backend(&self) -> &'static str {
        "solo"
    }

    fn all_reduce(&self, _tensor: &Tensor, _reduce: Reduce) -> Result<Work, CommError> {
        Ok(Work::Done)
    }

    fn broadcast(&self, _tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        check_root(root, 1).map(|()| Work::Done)
    }

    fn barrier(&self, _timeout: Duration) -> Result<(), CommError> {
        Ok(())
    }

    fn abort_handle(&self) -> Box<dyn AbortHandle> {
        Box::new(NoopHandle)
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    fn shutdown(self: Box<Self>, _timeout: Duration) -> Result<(), CommError> {
        Ok(())
    }

    fn abort(self: Box<Self>, _timeout: Duration) -> Result<(), CommError> {
        Ok(())
    }
}
