//! Errors of the model and the baselines by cell, by group of rows, by horizon, and by the run's earlier use of the rows.

use super::Seen;
use crate::baselines::{Forecaster, Scores, Trial};
use enn_common::{
    artifact::evaluation::{EvaluationPart, MODEL, SeenPart},
    staged::{Staged, StagedMeta},
};
use std::collections::BTreeMap;

#[derive(Debug)]
pub struct EvaluationInput<'a> {
    pub staged: &'a Staged,
    /// The model's forecasts of all rows (N, O).
    pub forecasts: &'a [f32],
    pub baselines: &'a [Forecaster],
    /// The run's earlier use of every row; `None` where it is unknown.
    pub seen: Option<&'a [Seen]>,
    /// Index of every row's group; 0 for all rows where there are no groups.
    pub group_of: &'a [usize],
    pub groups: &'a [String],
    /// Weight of every output cell; `None` weighs all cells equally.
    pub weights: Option<&'a [f64]>,
}

impl EvaluationInput<'_> {
    /// Returns the rows that are scored: the rows that the run never saw, or all rows where it has seen all.
    pub fn rows(&self) -> Vec<usize> {
        let is_new = |row: &usize| self.seen.is_none_or(|seen| seen[*row] == Seen::Never);
        let new: Vec<usize> = (0..self.staged.rows()).filter(is_new).collect();
        if new.is_empty() { (0..self.staged.rows()).collect() } else { new }
    }
}

#[derive(Debug, Default)]
pub struct EvaluationParts {
    pub all: EvaluationPart,
    pub cells: Vec<EvaluationPart>,
    /// Errors by index along the last output axis.
    pub horizons: Vec<EvaluationPart>,
    pub groups: Vec<EvaluationPart>,
    /// Spread of the model's forecasts divided by the spread of the targets.
    pub reactivity: Option<f64>,
    /// Errors by the run's earlier use of the rows; empty where it is unknown.
    pub seen: Vec<SeenPart>,
    /// Number of targets without a forecast of the model; they are excluded for all models.
    pub without_forecast: u64,
}

/// Computes all errors; `names` are the names of the output cells.
pub fn evaluate(input: &EvaluationInput<'_>, names: &[String]) -> EvaluationParts {
    let staged = input.staged;
    let rows: Vec<usize> = (0..staged.rows()).collect();
    let groups = input.groups.len();
    let kinds = kinds_of(input.seen);
    let kind_of =
        |row: usize| input.seen.map_or(0, |seen| kinds.iter().position(|kind| *kind == seen[row]).unwrap_or(0));
    let places: Vec<usize> = rows.iter().map(|row| kind_of(*row) * groups + input.group_of[*row]).collect();
    let trial = Trial::new(staged, &rows).beside(input.forecasts).in_parts(&places, kinds.len() * groups);
    let mut scores: Vec<(String, Vec<Scores>)> = vec![(MODEL.to_owned(), trial.model())];
    scores.extend(input.baselines.iter().map(|one| (one.name().to_owned(), trial.baseline(one))));
    let weight = |cell: usize| input.weights.map_or(1.0, |weights| weights[cell]);
    let field = ScoringContext { meta: staged.meta(), names, groups: input.groups, weights: input.weights };
    let of_kind = |(at, kind): (usize, &Seen)| SeenPart {
        rows: input.seen.map_or(0, |seen| seen.iter().filter(|one| *one == kind).count() as u64),
        part: EvaluationPart {
            name: kind.name().to_owned(),
            errors: scores
                .iter()
                .filter_map(|(one, parts)| {
                    let own = &parts[at * groups..(at + 1) * groups];
                    Some((one.clone(), field.whole(own).over(weight)?))
                })
                .collect(),
        },
    };
    let seen = if input.seen.is_some() { kinds.iter().enumerate().map(of_kind).collect() } else { Vec::new() };
    // Rows that the run has seen count only where it has seen all.
    let counted = match kinds.iter().position(|kind| *kind == Seen::Never) {
        Some(new) => new * groups..(new + 1) * groups,
        None => 0..kinds.len() * groups,
    };
    let scores: Vec<(String, Vec<Scores>)> = scores
        .iter()
        .map(|(name, parts)| {
            let own = &parts[counted.clone()];
            let of_group = |group: usize| field.whole(own.iter().skip(group).step_by(groups));
            (name.clone(), (0..groups).map(of_group).collect())
        })
        .collect();
    EvaluationParts { seen, without_forecast: trial.without_forecast(), ..field.parts(&scores) }
}

#[derive(Debug, Clone, Copy)]
pub struct ScoringContext<'a> {
    pub meta: &'a StagedMeta,
    pub names: &'a [String],
    pub groups: &'a [String],
    /// Weight of every output cell; `None` weighs all cells equally.
    pub weights: Option<&'a [f64]>,
}

impl ScoringContext<'_> {
    /// Computes the errors of contenders by cell, horizon and group from their scores by group; the first contender is the model.
    pub fn parts(&self, scores: &[(String, Vec<Scores>)]) -> EvaluationParts {
        let weight = |cell: usize| self.weights.map_or(1.0, |weights| weights[cell]);
        let whole = |(name, parts): &(String, Vec<Scores>)| (name.clone(), self.whole(parts));
        let all: Vec<(String, Scores)> = scores.iter().map(whole).collect();
        let part = |name: &str, weight: &dyn Fn(usize) -> f64| EvaluationPart {
            name: name.to_owned(),
            errors: all.iter().filter_map(|(one, scores)| Some((one.clone(), scores.over(weight)?))).collect(),
        };
        let horizons = self.meta.out_labels.last().map_or(&[][..], Vec::as_slice);
        let horizon = |(at, name): (usize, &String)| {
            part(name, &|cell| if cell % horizons.len() == at { weight(cell) } else { 0.0 })
        };
        let group = |(at, name): (usize, &String)| {
            let errors = scores.iter().filter_map(|(one, parts)| Some((one.clone(), parts[at].over(weight)?)));
            EvaluationPart { name: name.clone(), errors: errors.collect::<BTreeMap<_, _>>() }
        };
        let cell = |(at, name): (usize, &String)| part(name, &|cell| f64::from(cell == at));
        EvaluationParts {
            all: part("all", &weight),
            cells: self.names.iter().enumerate().map(cell).collect(),
            horizons: horizons.iter().enumerate().map(horizon).collect(),
            groups: self.groups.iter().enumerate().map(group).collect(),
            reactivity: all.first().and_then(|(_, scores)| scores.reactivity()),
            ..EvaluationParts::default()
        }
    }

    pub fn whole<'s>(&self, parts: impl IntoIterator<Item = &'s Scores>) -> Scores {
        let mut all = Scores::new(self.meta);
        parts.into_iter().for_each(|part| all.merge(part));
        all
    }
}

fn kinds_of(seen: Option<&[Seen]>) -> Vec<Seen> {
    match seen {
        Some(seen) => Seen::ALL.into_iter().filter(|kind| seen.contains(kind)).collect(),
        None => vec![Seen::Never],
    }
}

pub fn without_forecast(count: u64) -> String {
    format!("{count} targets without a forecast are excluded for all models")
}
