//! The errors of the model and the baselines, by cell, by group of rows and by horizon, and by what the run has done with the rows.

use super::Seen;
use crate::baselines::{Forecaster, Scores, Trial};
use enn_common::{
    artifact::evaluation::{MODEL, Part, SeenPart},
    staged::{Staged, StagedMeta},
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
    /// What the run has done with every row; `None`: that is not known.
    pub seen: Option<&'a [Seen]>,
    /// Group of every row; all the same where there are no groups.
    pub group_of: &'a [usize],
    /// Names of the groups.
    pub groups: &'a [String],
    /// How much every output cell counts; `None`: all the same.
    pub weights: Option<&'a [f64]>,
}

impl Judged<'_> {
    /// The rows that errors are about: those the run never saw, all where there are none.
    pub fn rows(&self) -> Vec<usize> {
        let is_new = |row: &usize| self.seen.is_none_or(|seen| seen[*row] == Seen::Never);
        let new: Vec<usize> = (0..self.staged.rows()).filter(is_new).collect();
        if new.is_empty() { (0..self.staged.rows()).collect() } else { new }
    }
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
    /// By what the run has done with the rows; empty where that is not known.
    pub seen: Vec<SeenPart>,
    /// Targets that count for nobody, because the model has no forecast of them.
    pub untold: u64,
}

/// Errors of `judged`, where a cell is called as `names` say.
pub fn evaluate(judged: &Judged<'_>, names: &[String]) -> Parts {
    let staged = judged.staged;
    let rows: Vec<usize> = (0..staged.rows()).collect();
    // A part for every group of every kind of rows.
    let groups = judged.groups.len();
    let kinds = kinds_of(judged.seen);
    let kind_of =
        |row: usize| judged.seen.map_or(0, |seen| kinds.iter().position(|kind| *kind == seen[row]).unwrap_or(0));
    let places: Vec<usize> = rows.iter().map(|row| kind_of(*row) * groups + judged.group_of[*row]).collect();
    let trial = Trial::new(staged, &rows).beside(judged.forecasts).in_parts(&places, kinds.len() * groups);
    let mut scores: Vec<(String, Vec<Scores>)> = vec![(MODEL.to_owned(), trial.model())];
    scores.extend(judged.baselines.iter().map(|one| (one.name().to_owned(), trial.baseline(one))));
    let weight = |cell: usize| judged.weights.map_or(1.0, |weights| weights[cell]);
    let field = Field { meta: staged.meta(), names, groups: judged.groups, weights: judged.weights };
    let of_kind = |(at, kind): (usize, &Seen)| SeenPart {
        rows: judged.seen.map_or(0, |seen| seen.iter().filter(|one| *one == kind).count() as u64),
        part: Part {
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
    let seen = if judged.seen.is_some() { kinds.iter().enumerate().map(of_kind).collect() } else { Vec::new() };
    // All kinds together only where nothing is new.
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
    Parts { seen, untold: trial.untold(), ..field.parts(&scores) }
}

/// What contenders are judged on.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// Of the data.
    pub meta: &'a StagedMeta,
    /// What the output cells are called.
    pub names: &'a [String],
    /// Names of the groups.
    pub groups: &'a [String],
    /// How much every output cell counts; `None`: all the same.
    pub weights: Option<&'a [f64]>,
}

impl Field<'_> {
    /// Errors of contenders by cell, horizon and group, from their scores by group; the first is the model.
    pub fn parts(&self, scores: &[(String, Vec<Scores>)]) -> Parts {
        let weight = |cell: usize| self.weights.map_or(1.0, |weights| weights[cell]);
        let whole = |(name, parts): &(String, Vec<Scores>)| (name.clone(), self.whole(parts));
        let all: Vec<(String, Scores)> = scores.iter().map(whole).collect();
        let part = |name: &str, weight: &dyn Fn(usize) -> f64| Part {
            name: name.to_owned(),
            errors: all.iter().filter_map(|(one, scores)| Some((one.clone(), scores.over(weight)?))).collect(),
        };
        let horizons = self.meta.out_labels.last().map_or(&[][..], Vec::as_slice);
        let horizon = |(at, name): (usize, &String)| {
            part(name, &|cell| if cell % horizons.len() == at { weight(cell) } else { 0.0 })
        };
        let group = |(at, name): (usize, &String)| {
            let errors = scores.iter().filter_map(|(one, parts)| Some((one.clone(), parts[at].over(weight)?)));
            Part { name: name.clone(), errors: errors.collect::<BTreeMap<_, _>>() }
        };
        let cell = |(at, name): (usize, &String)| part(name, &|cell| f64::from(cell == at));
        Parts {
            all: part("all", &weight),
            cells: self.names.iter().enumerate().map(cell).collect(),
            horizons: horizons.iter().enumerate().map(horizon).collect(),
            groups: self.groups.iter().enumerate().map(group).collect(),
            reactivity: all.first().and_then(|(_, scores)| scores.reactivity()),
            ..Parts::default()
        }
    }

    /// Some scores together.
    pub fn whole<'s>(&self, parts: impl IntoIterator<Item = &'s Scores>) -> Scores {
        let mut all = Scores::new(self.meta);
        parts.into_iter().for_each(|part| all.merge(part));
        all
    }
}

/// The kinds of rows that there are.
fn kinds_of(seen: Option<&[Seen]>) -> Vec<Seen> {
    match seen {
        Some(seen) => Seen::ALL.into_iter().filter(|kind| seen.contains(kind)).collect(),
        None => vec![Seen::Never],
    }
}

/// What people are told of targets that count for nobody.
pub fn untold(count: u64) -> String {
    format!("{count} targets count for nobody: the model has no forecast of them")
}
