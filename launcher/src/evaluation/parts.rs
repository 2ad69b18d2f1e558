//! The errors of the model and the baselines, by cell, by group of rows and by horizon.

use super::Scores;
use crate::baselines::Forecaster;
use enn_common::{
    artifact::evaluation::{MODEL, Part},
    staged::Staged,
};
use std::collections::BTreeMap;

/// Forecasts, and what they are judged by.
#[derive(Debug)]
pub struct Judged<'a> {
    /// The rows with their targets.
    pub staged: &'a Staged,
    /// The model's forecasts of all rows (N, O).
    pub forecasts: &'a [f32],
    /// Baselines fitted to the model's training rows.
    pub baselines: &'a [Forecaster],
    /// Group of every row; all the same where there are no groups.
    pub group_of: &'a [usize],
    /// Names of the groups.
    pub groups: &'a [String],
}

/// Errors by part.
#[derive(Debug, Default)]
pub struct Parts {
    /// Over everything.
    pub all: Part,
    /// By output cell.
    pub cells: Vec<Part>,
    /// By place on the last axis.
    pub horizons: Vec<Part>,
    /// By group.
    pub groups: Vec<Part>,
    /// The model's spread over the targets'.
    pub reactivity: Option<f64>,
}

/// Errors of `judged`, where a cell is called as `names` say.
pub fn evaluate(judged: &Judged<'_>, names: &[String]) -> Parts {
    let (staged, outputs) = (judged.staged, judged.staged.outputs());
    let mut scores: Vec<(String, Vec<Scores>)> = vec![(MODEL.to_owned(), model(judged))];
    let rows: Vec<usize> = (0..staged.rows()).collect();
    for one in judged.baselines {
        let of_groups = Scores::of_baseline(one, staged, (&rows, judged.group_of), judged.groups.len());
        scores.push((one.name().to_owned(), of_groups));
    }
    let whole = |parts: &[Scores]| {
        let mut all = Scores::new(outputs);
        parts.iter().for_each(|part| all.merge(part));
        all
    };
    let all: Vec<(String, Scores)> = scores.iter().map(|(name, parts)| (name.clone(), whole(parts))).collect();
    let part = |name: &str, counts: &dyn Fn(usize) -> bool| Part {
        name: name.to_owned(),
        errors: all.iter().filter_map(|(one, scores)| Some((one.clone(), scores.over(counts)?))).collect(),
    };
    let horizons = staged.meta().out_labels.last().map_or(&[][..], Vec::as_slice);
    let horizon = |(at, name): (usize, &String)| part(name, &|cell| cell % horizons.len() == at);
    let group = |(at, name): (usize, &String)| {
        let errors = scores.iter().filter_map(|(one, parts)| Some((one.clone(), parts[at].over(|_| true)?)));
        Part { name: name.clone(), errors: errors.collect::<BTreeMap<_, _>>() }
    };
    Parts {
        all: part("all", &|_| true),
        cells: names.iter().enumerate().map(|(at, name)| part(name, &|cell| cell == at)).collect(),
        horizons: horizons.iter().enumerate().map(horizon).collect(),
        groups: judged.groups.iter().enumerate().map(group).collect(),
        reactivity: all.first().and_then(|(_, scores)| scores.reactivity()),
    }
}

/// The model's scores by group.
fn model(judged: &Judged<'_>) -> Vec<Scores> {
    let (staged, outputs) = (judged.staged, judged.staged.outputs());
    let mut scores = vec![Scores::new(outputs); judged.groups.len()];
    for (row, (forecast, group)) in judged.forecasts.chunks_exact(outputs).zip(judged.group_of).enumerate() {
        let forecast = forecast.iter().map(|value| f64::from(*value));
        scores[*group].add(forecast, staged.y_row(row), staged.y_mask_row(row));
    }
    scores
}
