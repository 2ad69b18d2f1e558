//! Exported artifacts run by libtorch itself: PT2 archives node by node, packages of AOTInductor as the code they hold.
//!
//! **Invariant:** an archive is what was checked before it comes here: libtorch follows what it says without looking.

mod result;
mod sys;

pub use result::Artifact;
