//! libtorch's c10d in three layers: [`sys`] declares the C interface, [`result`] wraps it with `Result`, and the rest are safe types.

pub(super) mod group;
pub(super) mod result;
pub(super) mod store;
mod sys;
pub(super) mod work;
