//! Sums, means and the largest element along axes; undoing a broadcast.

pub mod max_dim;
pub mod sum;
pub mod sum_to;

use super::prelude::*;

/// The shape without the axes, or with size 1 in their place.
fn reduced(shape: &[i64], axes: &[i64], keepdim: bool) -> Result<Shape, OpErrorKind> {
    let gone: Axes = axes.iter().map(|at| axis(*at, shape.len()).map(|at| at as i64)).collect::<Result<_, _>>()?;
    let sizes = shape.iter().enumerate();
    Ok(sizes
        .filter_map(|(i, &size)| match gone.contains(&(i as i64)) {
            true => keepdim.then_some(1),
            false => Some(size),
        })
        .collect())
}
