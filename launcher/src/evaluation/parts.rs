//! The errors of the model and the baselines, by cell, by group of rows and by horizon.

use crate::baselines::{Forecaster, Scores, Trial};
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
    /// How much every output cell counts; `None`: all the same.
    pub weights: Option<&'a [f64]>,
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
    /// Targets that count for nobody, because the model has no forecast of them.
    pub untold: u64,
}

/// Errors of `judged`, where a cell is called as `names` say.
pub fn evaluate(judged: &Judged<'_>, names: &[String]) -> Parts {
    let staged = judged.staged;
    let rows: Vec<usize> = (0..staged.rows()).collect();
    let trial = Trial::new(staged, &rows).beside(judged.forecasts).in_parts(judged.group_of, judged.groups.len());
    let mut scores: Vec<(String, Vec<Scores>)> = vec![(MODEL.to_owned(), trial.model())];
    scores.extend(judged.baselines.iter().map(|one| (one.name().to_owned(), trial.baseline(one))));
    let weight = |cell: usize| judged.weights.map_or(1.0, |weights| weights[cell]);
    let whole = |parts: &[Scores]| {
        let mut all = Scores::new(staged.meta());
        parts.iter().for_each(|part| all.merge(part));
        all
    };
    let all: Vec<(String, Scores)> = scores.iter().map(|(name, parts)| (name.clone(), whole(parts))).collect();
    let part = |name: &str, weight: &dyn Fn(usize) -> f64| Part {
        name: name.to_owned(),
        errors: all.iter().filter_map(|(one, scores)| Some((one.clone(), scores.over(weight)?))).collect(),
    };
    let horizons = staged.meta().out_labels.last().map_or(&[][..], Vec::as_slice);
    let horizon =
        |(at, name): (usize, &String)| part(name, &|cell| if cell % horizons.len() == at { weight(cell) } else { 0.0 });
    let group = |(at, name): (usize, &String)| {
        let errors = scores.iter().filter_map(|(one, parts)| Some((one.clone(), parts[at].over(weight)?)));
        Part { name: name.clone(), errors: errors.collect::<BTreeMap<_, _>>() }
    };
    Parts {
        all: part("all", &weight),
        cells: names.iter().enumerate().map(|(at, name)| part(name, &|cell| f64::from(cell == at))).collect(),
        horizons: horizons.iter().enumerate().map(horizon).collect(),
        groups: judged.groups.iter().enumerate().map(group).collect(),
        reactivity: all.first().and_then(|(_, scores)| scores.reactivity()),
        untold: trial.untold(),
    }
}

/// What people are told of targets that count for nobody.
pub fn untold(count: u64) -> String {
    format!("{count} targets count for nobody: the model has no forecast of them")
}
