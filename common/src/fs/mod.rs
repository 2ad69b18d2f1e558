//! Files that are whole or absent: atomic write, owned directories, mapping, free space, and the storage seam for crash tests.
//!
//! **Invariant:** nothing here knows a format. Every error names the path and what was being done to it.

pub mod atomic;
pub mod digest;
pub mod disk;
pub mod displace;
pub mod error;
pub mod memory;
pub mod mmap;
pub mod owned;
pub mod private;
pub mod regular;
pub mod relative;
pub mod seats;
pub mod space;
pub mod storage;

pub use disk::Disk;
pub use error::FileError;
pub use relative::{PathError, RelPath};
pub use storage::{Storage, StorageFile};
