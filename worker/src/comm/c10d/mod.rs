//! Libtorch's c10d in three floors: [`sys`] the C face, [`result`] the same with `Result`, and the safe types.

pub(super) mod group;
pub(super) mod result;
pub(super) mod store;
mod sys;
pub(super) mod work;
