//! Importance of inputs: how much worse the forecasts are with one input shuffled.

use super::forecast::{self, Kept};
use crate::{Error, facts::Facts};
use enn_common::{
    artifact::{cv::Spread, evaluation::Importance},
    config::RunConfig,
    staged::{Staged, npy::NpyElement, reader::NpyMap},
};
use enn_data::{
    baselines::Trial,
    evaluation::{self, Shuffle, ShufflePlan},
};
use enn_process::run_dir::RunDir;
use std::path::Path;

/// The model and the directory for predicting shuffled rows.
pub(super) struct Shuffling<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) facts: &'a Facts,
    /// The directory of temporary files.
    pub(super) run: &'a RunDir,
    pub(super) checkpoint: &'a Path,
}

impl Shuffling<'_> {
    /// Returns for each input how far the error rises with each of `repeats` shuffles.
    pub(super) fn rises(
        &self,
        staged: &Staged,
        rows: &[usize],
        repeats: usize,
        seed: u64,
        notes: &mut Vec<String>,
    ) -> Result<Vec<(String, Vec<f64>)>, Error> {
        let inputs = evaluation::inputs(staged.meta());
        let repeats = repeats.max(1);
        let turns = ShufflePlan::new(inputs.len(), repeats, rows.len(), staged.features());
        let weights = self.config.train.cell_weights.of_grid(&staged.meta().out_shape)?;
        let weight = |cell: usize| weights.as_ref().map_or(1.0, |weights| weights[cell]);
        let place = self.run.path().join(".shuffled");
        let outputs = staged.outputs();
        let predictions = self.run.path().join("predictions/test");
        let mut all = Vec::new();
        for (turn, some) in inputs.chunks(turns.inputs).enumerate() {
            let first = turn * turns.inputs;
            let shuffled = Shuffle { staged, rows, rows_max: turns.rows, repeats, seed }.write(first, some, &place)?;
            let dir = &shuffled.dir;
            forecast::predict_test_rows(self.config, self.facts, self.run, self.checkpoint, dir, Kept::Points)?;
            let kept = shuffled.rows.len();
            let copies = 1 + some.len() * repeats;
            let forecasts =
                NpyMap::open_as(&predictions.join("pred.npy"), NpyElement::F32, (copies * kept * outputs) as u64)?;
            let forecasts: &[f32] = forecasts.numbers().unwrap_or_default();
            let error = |copy: usize| {
                let predicted = &forecasts[copy * kept * outputs..(copy + 1) * kept * outputs];
                let scores = Trial::new(staged, &shuffled.rows).beside(predicted).model();
                scores[0].over(weight).map_or(f64::NAN, |metrics| metrics.judged())
            };
            let whole = error(0);
            let rise = |copy: usize| error(1 + copy) - whole;
            all.extend(some.iter().enumerate().map(|(at, (name, _))| {
                (name.clone(), (at * repeats..(at + 1) * repeats).map(rise).collect::<Vec<f64>>())
            }));
            for unused in [&place, &predictions] {
                // A failure here only leaves unused files.
                let _left = std::fs::remove_dir_all(unused);
            }
        }
        if turns.rows < rows.len() {
            notes.push(format!("importance: by a random sample of {} of {} rows", turns.rows, rows.len()));
        }
        Ok(all)
    }
}

/// Ranks the inputs, the most important first.
pub(super) fn ranked(rises: impl IntoIterator<Item = (String, Vec<f64>)>) -> Vec<Importance> {
    let of = |(input, rises): (String, Vec<f64>)| Some(Importance { input, rise: Spread::of(&rises)? });
    let mut all: Vec<Importance> = rises.into_iter().filter_map(of).collect();
    all.sort_by(|a, b| b.rise.mean.total_cmp(&a.rise.mean));
    all
}
