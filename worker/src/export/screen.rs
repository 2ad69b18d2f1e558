//! Applies the rules of prediction for valid numbers as operations of the graph: an exported model must not compute
//! with a number that `enn predict` treats as missing.
//!
//! **Invariant:** a number is valid here iff [`Bounds::held`] keeps it.

use enn_common::artifact::bounds::Bounds;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use std::collections::BTreeMap;
use tch::{TchError, Tensor as Raw};

/// Rules of all inputs (F).
#[derive(Debug, Default)]
pub struct Screen {
    /// Smallest valid number of each column, (1, F); `None` without a limit.
    low: Option<Raw>,
    /// Largest valid number of each column, (1, F); `None` without a limit.
    high: Option<Raw>,
    /// Numbers that stand for a missing value.
    missing: Vec<Token>,
    /// Smallest and largest number of each column; other numbers are clamped to them.
    nearest: Option<[Raw; 2]>,
}

/// A number that means "missing".
#[derive(Debug)]
struct Token {
    value: f64,
    /// The next larger number.
    above: f64,
    /// Mask (1, F) of the columns in which the number means "missing".
    columns: Raw,
}

impl Screen {
    /// Collects the rules of the columns.
    ///
    /// # Errors
    /// Errors of libtorch.
    pub fn of(bounds: &[Bounds]) -> Result<Self, TchError> {
        let row = |values: Vec<f32>| Raw::f_from_slice(&values)?.f_unsqueeze(0);
        let column = |of: fn(&Bounds) -> Option<f32>, open: f32| {
            let any = bounds.iter().any(|one| of(one).is_some());
            any.then(|| row(bounds.iter().map(|one| of(one).unwrap_or(open)).collect())).transpose()
        };
        let mut tokens: BTreeMap<u32, f32> = BTreeMap::new();
        // One of the two zeros suffices: they compare equal.
        bounds.iter().flat_map(|one| &one.missing).for_each(|value| {
            tokens.insert((value + 0.0).to_bits(), value + 0.0);
        });
        let token = |value: &f32| {
            let columns: Vec<bool> = bounds.iter().map(|one| one.missing.contains(value)).collect();
            // Some runtimes flush subnormal numbers to 0.
            let above = if *value == 0.0 { f32::MIN_POSITIVE } else { value.next_up() };
            let columns = Raw::f_from_slice(&columns)?.f_unsqueeze(0)?;
            Ok::<_, TchError>(Token { value: f64::from(*value), above: f64::from(above), columns })
        };
        let low = column(|one| one.nearest.map(|[low, _]| low), f32::MIN)?;
        let high = column(|one| one.nearest.map(|[_, high]| high), f32::MAX)?;
        Ok(Self {
            low: column(|one| one.low, f32::MIN)?,
            high: column(|one| one.high, f32::MAX)?,
            missing: tokens.values().map(token).collect::<Result<Vec<_>, TchError>>()?,
            nearest: low.zip(high).map(|(low, high)| [low, high]),
        })
    }

    /// Returns `x` (B, F) with clamped numbers, and the mask of valid numbers.
    pub(super) fn admitted(&self, cx: &Cx<'_>, x: &Tensor) -> Result<(Tensor, Tensor), OpError> {
        let finite = functional::is_finite(cx, x)?;
        let mut valid = finite.clone();
        let constant = |raw: &Raw| cx.constant(raw.shallow_clone());
        let reaches = |low: &Raw| functional::at_least(cx, &functional::sub(cx, x, &constant(low))?, 0.0);
        let keeps = |high: &Raw| functional::at_least(cx, &functional::sub(cx, &constant(high), x)?, 0.0);
        if let Some(low) = &self.low {
            valid = functional::and(cx, &valid, &reaches(low)?)?;
        }
        if let Some(high) = &self.high {
            valid = functional::and(cx, &valid, &keeps(high)?)?;
        }
        for token in &self.missing {
            let from = functional::at_least(cx, x, token.value)?;
            let is_it = functional::and(cx, &from, &functional::below(cx, x, token.above)?)?;
            let is_token = functional::and(cx, &is_it, &constant(&token.columns))?;
            valid = functional::and(cx, &valid, &functional::not(cx, &is_token)?)?;
        }
        let Some([low, high]) = &self.nearest else { return Ok((x.clone(), valid)) };
        let lowest = constant(low);
        let highest = constant(high);
        let near = functional::where_(cx, &reaches(low)?, x, &lowest)?;
        let near = functional::where_(cx, &keeps(high)?, &near, &highest)?;
        // NaN and infinities are not clamped.
        Ok((functional::where_(cx, &finite, &near, x)?, valid))
    }
}
