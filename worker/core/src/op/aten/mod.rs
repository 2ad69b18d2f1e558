//! Operators of libtorch's dispatcher.

mod call;
pub mod dispatched;
mod instead;

pub use call::{AtenArg, AtenCall};
pub use dispatched::AtenReverse;
pub use instead::{INSTEAD, SAME};
