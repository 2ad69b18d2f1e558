//! Checkpoints: a PyTorch DCP directory plus our manifest. Both ends of the format live here.
//!
//! ```text
//! checkpoints/step-00001200/
//!   .metadata        pickle of torch.distributed.checkpoint.metadata.Metadata: tensors, chunks, places
//!   __0_0.distcp …   one shard per rank: items behind each other, each a stored zip as `torch.save` writes them
//!   manifest.json    ours, sealed: files with checksums, run, step, configuration; the checkpoint exists iff it does
//! ```
//! Workers write shards (`ShardWriter`) and send their `ShardTable`; the launcher alone commits (`commit`), without reading
//! the shards again. Anyone reads (`Checkpoint`).
//!
//! **Invariant:** reading never runs code from a file, never panics on its bytes, and never returns a tensor with a hole.

mod array;
mod boxes;
pub mod bulk;
pub mod call;
pub mod commit;
pub mod element;
pub mod form;
mod item;
mod item_error;
pub mod latest;
pub mod layout;
pub mod listing;
pub mod manifest;
pub mod mention;
pub mod metadata;
pub mod name;
mod nest;
mod numpy;
mod pickle;
mod plain;
pub mod plan;
pub mod prune;
pub mod reader;
mod resave;
pub mod retain;
mod sequence;
pub mod shard;
pub mod sound;
pub mod state_file;
mod storages;
pub mod stored;
pub mod table;
mod torch;
mod transform;
mod tree;
pub mod unpickle;
pub mod value;
pub mod write;
pub mod zip;

pub use boxes::{CoverageError, Region, check_coverage, paste};
pub use commit::{CommitError, Committed, commit};
pub use element::Element;
pub use latest::{Latest, latest, set_aside};
pub use layout::ShardLayout;
pub use manifest::{Draft, Manifest};
pub use metadata::PathPart;
pub use prune::{prune, remove_attempt, remove_leftovers};
pub use reader::{Checkpoint, ReadError, TensorData, check_file};
pub use resave::DirectoryWriter;
pub use shard::{ShardError, ShardWriter, TensorBox};
pub use sound::{Extent, Sound, find_sound};
pub use table::{ShardTable, TensorDType};
pub use value::Value;
pub use write::write_shard;
