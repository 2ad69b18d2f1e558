//! One worker's life: it boots, takes its task from the launcher, trains, predicts or writes initial weights, and ends.
//!
//! **Invariant:** decisions come from reduced numbers (`decide`) and never from the clock, so that every rank takes the same
//! ones and a resumed run takes them again.

pub mod agree;
pub mod boot;
pub mod decide;
mod error;
pub mod link;
pub mod measure;
mod mmap;
pub mod progress;
pub mod report;
mod unix;

pub use error::SessionError;
pub use report::{Recorder, Reporter};
