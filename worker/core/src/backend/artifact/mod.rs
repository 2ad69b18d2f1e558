//! Exported artifacts run by libtorch itself: PT2 archives node by node, packages of AOTInductor as the code they hold.
//!
//! **Invariant:** an archive must be checked before it comes here, since libtorch executes it without validation.

mod result;

pub use result::{Artifact, about, runs_archives};
