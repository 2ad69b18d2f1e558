//! Saves and finds checkpoints in one process, for programs with their own training loop. (Workers of `enn train` write
//! shards, and the launcher commits them.)

use super::{CheckpointError, Named, write_share};
use enn_common::checkpoint::{Draft, commit, name, prune, remove_leftovers, retain::Rule};
use std::path::{Path, PathBuf};

pub use enn_common::checkpoint::{Checkpoint, latest};

/// Writes `items` as checkpoint `checkpoints/step-N`, atomically and durably; keeps the newest, the best by metric and
/// `keep` others. Only one rank calls the function; `draft.step` is N. Returns the directory.
///
/// # Errors
/// Errors of the disk, or a tensor of a dtype that checkpoints do not hold; earlier checkpoints are kept.
pub fn save_whole(checkpoints: &Path, items: &[Named], draft: Draft, keep: usize) -> Result<PathBuf, CheckpointError> {
    // No other process writes here, so partial files are those of a process that died.
    remove_leftovers(checkpoints)?;
    let temporary = checkpoints.join(name::temporary(draft.step, "whole"));
    let committed = checkpoints.join(name::committed(draft.step));
    let table = write_share(&temporary, 0, 1, items)?;
    commit(&temporary, &committed, &[table], draft)?;
    prune(checkpoints, Rule::last(keep))?;
    Ok(committed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::load;
    use tch::{Kind, Tensor};

    #[test]
    fn the_newest_whole_checkpoint_comes_back_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let items = |value: f64| vec![Named::of("model.w", &Tensor::full([3, 2], value, tch::kind::FLOAT_CPU))];
        std::fs::create_dir(dir.path().join(name::temporary(9, "dead"))).unwrap();
        for step in 1..=4 {
            let draft = Draft { step, ..Draft::default() };
            save_whole(dir.path(), &items(step as f64), draft, 1).unwrap();
        }
        let steps: Vec<u64> = name::list(dir.path()).into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [4, 3]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing half written is left");
        let newest = latest(dir.path()).found.unwrap();
        let wanted = [("model.w".to_owned(), vec![3, 2], Kind::Float)];
        assert_eq!(load(newest.dir(), &wanted).unwrap()["model.w"].double_value(&[1, 1]), 4.0);
    }
}
