//! The control page: 4096 bytes shared by launcher and worker, read and written with atomics, no system call.
//!
//! ```text
//! offset  field            writer     meaning
//!      0  magic      u64   launcher   `MAGIC`
//!      8  stop       u32   launcher   0 go on, 1 finish the step and checkpoint
//!     12  phase      u32   worker     `Phase`
//!     16  step       u64   worker     optimizer steps done
//!     24  heartbeat  u64   worker     CLOCK_MONOTONIC nanoseconds of the last step or phase change
//!     32  collective u64   worker     sequence number of the collective being waited for
//!     40  rest             reserved (kernel intent record)
//! ```
//! The launcher makes it as a memfd and the worker inherits the descriptor named by `ENN_CONTROL_FD`.

/// Bytes of the page.
pub const PAGE_BYTES: usize = 4096;

/// First eight bytes, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ENNctl01");

/// What a worker is doing; shown when a round fails ("what the others were doing").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Process started, libtorch loading.
    Boot = 0,
    /// Meeting the others in the store.
    Rendezvous = 1,
    /// Reading a checkpoint.
    Load = 2,
    /// Forward and backward.
    Compute = 3,
    /// Waiting in a collective.
    Collective = 4,
    /// Validating.
    Validate = 5,
    /// Writing a checkpoint.
    Save = 6,
    /// Predicting.
    Predict = 7,
    /// Ending.
    Done = 8,
}
