//! A checkpoint that the journal does not record: its launcher was killed after the rename that committed the checkpoint and
//! before the event was written.

use super::{RunView, training::CheckpointView};
use enn_common::checkpoint::{Checkpoint, listing, name};
use std::{path::Path, time::SystemTime};

impl RunView {
    /// Adds the newest complete checkpoint in the directory `run`, where it is newer than all that the journal records.
    /// Must not be called while a launcher works on the run, whose event may be about to be written.
    pub fn take_unrecorded(&mut self, run: &Path) {
        let recorded = self.checkpoints.iter().map(|checkpoint| checkpoint.step).max();
        let newer =
            name::list(&listing::checkpoints_dir(run)).into_iter().take_while(|(step, _)| Some(*step) > recorded);
        let found = newer.into_iter().find_map(|(step, path)| {
            let open = Checkpoint::open(&path).ok()?;
            let manifest = open.manifest()?;
            let written = path.join(name::MANIFEST).metadata().ok()?.modified().ok()?;
            let time = written.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            let bytes = manifest.bytes();
            Some(CheckpointView { time, step, bytes, seconds: 0.0, error: None })
        });
        if let Some(checkpoint) = found {
            self.now = self.now.max(checkpoint.time);
            self.checkpoints.push(checkpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, view_after};
    use enn_common::checkpoint::{Draft, ShardWriter, TensorDType, commit};
    use std::path::PathBuf;

    /// Commits a checkpoint of a step with one tensor of 1 MiB.
    fn checkpoint(run: &Path, step: u64) -> PathBuf {
        let temporary = run.join("checkpoints").join(name::temporary(step, "a"));
        let mut shard = ShardWriter::create(&temporary, 0).unwrap();
        shard.whole("best.w", TensorDType::U8, &[1 << 20], &vec![1; 1 << 20]).unwrap();
        let committed = run.join("checkpoints").join(name::committed(step));
        let draft = Draft { step, ..Draft::default() };
        commit(&temporary, &committed, &[shard.finish().unwrap()], draft).unwrap().path
    }

    #[test]
    fn a_checkpoint_that_nobody_told_of_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let steps = |view: &RunView| view.checkpoints.iter().map(|checkpoint| checkpoint.step).collect::<Vec<u64>>();
        let mut view = view_after(&events());
        let recorded = steps(&view);
        view.take_unrecorded(dir.path());
        checkpoint(dir.path(), 10);
        view.take_unrecorded(dir.path());
        assert_eq!(steps(&view), recorded, "older ones are as the journal has them");
        checkpoint(dir.path(), 30);
        // What has no manifest is none.
        std::fs::remove_file(checkpoint(dir.path(), 40).join(name::MANIFEST)).unwrap();
        view.take_unrecorded(dir.path());
        view.take_unrecorded(dir.path());
        assert_eq!(steps(&view), [recorded, vec![30]].concat());
        assert_eq!(view.checkpoints.last().unwrap().bytes >> 20, 1);
        let mut new = RunView::default();
        new.take_unrecorded(dir.path());
        assert_eq!(steps(&new), [30]);
    }
}
