//! Runs with checkpoints, for the tests of this package and of those that list runs.

use enn_common::checkpoint::{Draft, ShardWriter, TensorDType, commit, name};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A run with one checkpoint of a step, larger than a part of an upload.
pub(crate) fn run(root: &Path, step: u64, fill: u8) -> PathBuf {
    run_of(root, step, fill, fill)
}

/// The same with a large tensor full of one number and a small one full of another.
pub(crate) fn run_of(root: &Path, step: u64, large: u8, small: u8) -> PathBuf {
    let checkpoints = root.join("checkpoints");
    let temporary = checkpoints.join(name::temporary(step, "a"));
    let mut shard = ShardWriter::create(&temporary, 0).unwrap();
    shard.whole("best.w", TensorDType::U8, &[9 << 20], &vec![large; 9 << 20]).unwrap();
    let mut other = ShardWriter::create(&temporary, 1).unwrap();
    other.whole("best.v", TensorDType::U8, &[3], &[small; 3]).unwrap();
    let tables = [shard.finish().unwrap(), other.finish().unwrap()];
    fs::write(root.join("run.json"), "{}").unwrap();
    commit(&temporary, &checkpoints.join(name::committed(step)), &tables, Draft { step, ..Draft::default() })
        .unwrap()
        .path
}
