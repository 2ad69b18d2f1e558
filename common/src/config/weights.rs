//! How much each output cell counts.

use serde::{Deserialize, Serialize};

/// Weights of the output cells: finite, at least 0, not all 0.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CellWeights {
    /// All cells count the same; nothing in a file.
    #[default]
    Equal,
    /// One weight per cell, row-major over the output grid.
    Cells(Vec<f64>),
    /// One list per axis of the grid; a cell has the product. An empty list leaves its axis alone.
    Axes(Vec<Vec<f64>>),
}

/// Weights that are not those of the output grid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("train.cell_weights: found {found}, expected {expected} for the output grid {shape:?}")]
pub struct WeightsError {
    found: String,
    expected: String,
    shape: Vec<usize>,
}

impl CellWeights {
    /// A weight for every cell of a grid, row-major; `None` when all count the same.
    ///
    /// # Errors
    /// When there are more or fewer than cells, or entries of an axis.
    pub fn of_grid(&self, shape: &[usize]) -> Result<Option<Vec<f64>>, WeightsError> {
        let wrong = |found: String, expected: String| Err(WeightsError { found, expected, shape: shape.to_vec() });
        let cells = shape.iter().product::<usize>();
        match self {
            Self::Equal => Ok(None),
            Self::Cells(weights) if weights.len() == cells => Ok(Some(weights.clone())),
            Self::Cells(weights) => wrong(format!("{} weights", weights.len()), format!("{cells}")),
            Self::Axes(axes) => {
                let sizes: Vec<usize> = axes.iter().map(Vec::len).collect();
                let fits = sizes.iter().zip(shape).all(|(found, size)| *found == 0 || found == size);
                if sizes.len() != shape.len() || !fits {
                    return wrong(format!("lists of {sizes:?} weights"), "a list per axis".to_owned());
                }
                let all = axes.iter().zip(shape).fold(vec![1.0], |all, (axis, &size)| {
                    let of_axis = |at: usize| axis.get(at).copied().unwrap_or(1.0);
                    all.iter().flat_map(|weight| (0..size).map(move |at| weight * of_axis(at))).collect()
                });
                Ok(Some(all))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_the_product_of_its_axes() {
        let axes = CellWeights::Axes(vec![vec![1.0, 2.0], vec![], vec![1.0, 0.5]]);
        let weights = axes.of_grid(&[2, 2, 2]).unwrap().unwrap();
        assert_eq!(weights, [1.0, 0.5, 1.0, 0.5, 2.0, 1.0, 2.0, 1.0]);
        assert_eq!(CellWeights::Equal.of_grid(&[2, 2]).unwrap(), None);
        assert_eq!(CellWeights::Cells(vec![1.0, 3.0]).of_grid(&[2, 1]).unwrap().unwrap(), [1.0, 3.0]);
    }

    #[test]
    fn weights_of_another_grid_are_refused() {
        let told = |weights: CellWeights| weights.of_grid(&[2, 3]).unwrap_err().to_string();
        let sentence = told(CellWeights::Cells(vec![1.0; 5]));
        assert_eq!(sentence, "train.cell_weights: found 5 weights, expected 6 for the output grid [2, 3]");
        assert!(told(CellWeights::Axes(vec![vec![1.0; 2]])).contains("lists of [2] weights"));
        assert!(told(CellWeights::Axes(vec![vec![1.0; 3], vec![]])).contains("a list per axis"));
    }
}
