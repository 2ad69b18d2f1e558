//! Checkpoints: a PyTorch DCP directory plus our manifest. CHECKPOINT.md holds the format.

pub mod table;
