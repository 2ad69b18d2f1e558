//! Page-locked (pinned) shared memory, to which a CUDA device copies directly, without a staging buffer of the driver.

mod result;

pub use result::PinnedBuffer;
