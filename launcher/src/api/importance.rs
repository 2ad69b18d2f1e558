//! How much worse forecasts are with one input shuffled.

use super::forecast::{self, Told};
use crate::{
    Error,
    baselines::Trial,
    evaluation::{self, Turns},
    facts::Facts,
    run_dir::RunDir,
};
use enn_common::{
    artifact::{cv::Spread, evaluation::Importance},
    config::RunConfig,
    staged::{Staged, npy::Element, reader::NpyMap},
};
use std::path::Path;

/// What predicts the shuffled rows.
pub(super) struct Shuffling<'a> {
    /// Of the model.
    pub(super) config: &'a RunConfig,
    pub(super) facts: &'a Facts,
    /// Takes what comes and goes.
    pub(super) run: &'a RunDir,
    pub(super) checkpoint: &'a Path,
}

impl Shuffling<'_> {
    /// By input how far the error that forecasters are compared by rises with each of `repeats` shuffles.
    pub(super) fn rises(
        &self,
        (staged, rows): (&Staged, &[usize]),
        (repeats, seed): (usize, u64),
        notes: &mut Vec<String>,
    ) -> Result<Vec<(String, Vec<f64>)>, Error> {
        let inputs = evaluation::inputs(staged.meta());
        let repeats = repeats.max(1);
        let turns = Turns::new(inputs.len(), repeats, (rows.len(), staged.features()));
        let weights = self.config.train.cell_weights.of_grid(&staged.meta().out_shape)?;
        let weight = |cell: usize| weights.as_ref().map_or(1.0, |weights| weights[cell]);
        let place = self.run.path().join(".shuffled");
        let outputs = staged.outputs();
        let told = self.run.path().join("predictions/test");
        let mut all = Vec::new();
        for (turn, some) in inputs.chunks(turns.inputs).enumerate() {
            let first = turn * turns.inputs;
            let shuffled = evaluation::shuffled((staged, rows), (first, some), (repeats, seed), turns.rows, &place)?;
            let by = (self.checkpoint, shuffled.dir.as_path());
            forecast::predict_test_rows(self.config, self.facts, self.run, by, Told::Points)?;
            let kept = shuffled.rows.len();
            let copies = 1 + some.len() * repeats;
            let forecasts = NpyMap::open_as(&told.join("pred.npy"), Element::F32, (copies * kept * outputs) as u64)?;
            let forecasts: &[f32] = forecasts.numbers().unwrap_or_default();
            let error = |copy: usize| {
                let told = &forecasts[copy * kept * outputs..(copy + 1) * kept * outputs];
                let scores = Trial::new(staged, &shuffled.rows).beside(told).model();
                scores[0].over(weight).map_or(f64::NAN, |metrics| metrics.judged())
            };
            let whole = error(0);
            let rise = |copy: usize| error(1 + copy) - whole;
            all.extend(some.iter().enumerate().map(|(at, (name, _))| {
                (name.clone(), (at * repeats..(at + 1) * repeats).map(rise).collect::<Vec<f64>>())
            }));
            for gone in [&place, &told] {
                // What is left behind takes room and harms nothing.
                let _left = std::fs::remove_dir_all(gone);
            }
        }
        if turns.rows < rows.len() {
            notes.push(format!("importance: by a random sample of {} of {} rows", turns.rows, rows.len()));
        }
        Ok(all)
    }
}

/// Most important first.
pub(super) fn ranked(rises: impl IntoIterator<Item = (String, Vec<f64>)>) -> Vec<Importance> {
    let of = |(input, rises): (String, Vec<f64>)| Some(Importance { input, rise: Spread::of(&rises)? });
    let mut all: Vec<Importance> = rises.into_iter().filter_map(of).collect();
    all.sort_by(|a, b| b.rise.mean.total_cmp(&a.rise.mean));
    all
}
