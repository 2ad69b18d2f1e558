//! What a run has and its journal does not know: a checkpoint whose launcher was killed behind the rename that made it one and before the
//! line that tells of it.

use super::{RunView, training::CheckpointView};
use enn_common::checkpoint::{Checkpoint, listing, name};
use std::{path::Path, time::SystemTime};

impl RunView {
    /// Takes in the newest complete checkpoint in the directory `run`, where it is newer than all that the journal tells of. Only of a run
    /// in which nobody works: else the line is about to come.
    pub fn take_untold(&mut self, run: &Path) {
        let told = self.checkpoints.iter().map(|checkpoint| checkpoint.step).max();
        let newer = name::list(&listing::checkpoints_dir(run)).into_iter().take_while(|(step, _)| Some(*step) > told);
        let found = newer.into_iter().find_map(|(step, path)| {
            let open = Checkpoint::open(&path).ok()?;
            let manifest = open.manifest()?;
            let written = path.join(name::MANIFEST).metadata().ok()?.modified().ok()?;
            let time = written.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            let bytes = manifest.bytes();
            let metric = manifest.metric;
            Some(CheckpointView { time, step, bytes, seconds: 0.0, metric, error: None })
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
    use crate::{
        remote::tests::run,
        ui::model::tests::{events, view_after},
    };

    #[test]
    fn a_checkpoint_that_nobody_told_of_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let steps = |view: &RunView| view.checkpoints.iter().map(|checkpoint| checkpoint.step).collect::<Vec<u64>>();
        let mut view = view_after(&events());
        let told = steps(&view);
        view.take_untold(dir.path());
        run(dir.path(), 10, 1);
        view.take_untold(dir.path());
        assert_eq!(steps(&view), told, "older ones are as the journal has them");
        run(dir.path(), 30, 1);
        // What has no manifest is none.
        std::fs::remove_file(run(dir.path(), 40, 1).join(name::MANIFEST)).unwrap();
        view.take_untold(dir.path());
        view.take_untold(dir.path());
        assert_eq!(steps(&view), [told, vec![30]].concat());
        assert_eq!(view.checkpoints.last().unwrap().bytes / (9 << 20), 1);
        let mut new = RunView::default();
        new.take_untold(dir.path());
        assert_eq!(steps(&new), [30]);
    }
}
