//! Valid ranges of inputs, by the rules of their columns.

use super::{
    job::Job,
    outlier_limits::Range,
    source::{block::ColumnSpec, clean::MissingTokens},
};
use enn_common::{artifact::bounds::Bounds, config::data::DataConfig, staged::StagedMeta};
use std::path::Path;

#[derive(Debug, PartialEq, Default)]
pub struct InputBounds {
    pub bounds: Vec<Bounds>,
    /// Source columns whose rules cannot be applied to their inputs: the sine and cosine of an angle.
    pub unseen: Vec<String>,
}

pub(super) fn job<'a>(config: &'a DataConfig, training: &'a StagedMeta) -> Job<'a> {
    Job { threads: 1, training: Some(training), ..Job::reading(config, Path::new("")) }
}

/// Returns the bounds of an input: those of column `spec`, shifted by `offset`, intersected with `limit` on the staged number.
pub(super) fn bounds(spec: Option<&ColumnSpec>, offset: f64, tokens: &MissingTokens, limit: Range) -> Bounds {
    let mut bounds = match spec {
        Some(spec) => {
            let missing = tokens.numbers().iter().copied().chain(spec.sentinel);
            let missing = missing.map(|value| (value - offset) as f32);
            let missing: Vec<f32> = missing.filter(|value| value.is_finite()).collect();
            let missing = missing.iter().enumerate().filter(|(at, value)| !missing[..*at].contains(value));
            let missing = missing.map(|(_, value)| *value).collect();
            // Rounding is monotonic: a number within its limit stays within the rounded limit.
            let low = (spec.range.0 - offset) as f32;
            let high = (spec.range.1 - offset) as f32;
            Bounds { low: finite(low), high: finite(high), missing, nearest: None }
        }
        None => Bounds::default(),
    };
    bounds.narrow(finite(at_least(limit.0)), finite(at_most(limit.1)));
    bounds
}

pub(super) fn has_rules(spec: &ColumnSpec, tokens: &MissingTokens) -> bool {
    !tokens.numbers().is_empty() || spec.sentinel.is_some() || spec.range != ColumnSpec::ANY
}

/// Returns a bound if it excludes any finite f32.
fn finite(bound: f32) -> Option<f32> {
    (bound.abs() < f32::MAX).then_some(bound)
}

/// Returns the smallest f32 that is at least `value`.
fn at_least(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) < value { near.next_up() } else { near }
}

/// Returns the largest f32 that is at most `value`.
fn at_most(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near) > value { near.next_down() } else { near }
}
