//! Inverse of a symmetric positive definite matrix by recursive halving, so that nearly all work is in matrix products.
//!
//! [A B; Bᵀ D]⁻¹ with S = D − Bᵀ A⁻¹ B is [A⁻¹ + W S⁻¹ Wᵀ, −W S⁻¹; ·, S⁻¹] where W = A⁻¹ B.

use nalgebra::{Cholesky, DMatrix};

/// Size up to which a block is inverted by Cholesky factorisation.
const BASE: usize = 48;

/// Returns the inverse of `matrix` + λ I; `None` when it is not positive definite to working precision.
pub(in crate::baselines) fn shifted_inverse(mut matrix: DMatrix<f64>, lambda: f64) -> Option<DMatrix<f64>> {
    (0..matrix.nrows()).for_each(|i| matrix[(i, i)] += lambda);
    inverse(&matrix)
}

/// Returns the inverse; `None` when the matrix is not positive definite to working precision.
fn inverse(matrix: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    let n = matrix.nrows();
    if n <= BASE {
        return Some(Cholesky::new(matrix.clone())?.inverse());
    }
    let half = n / 2;
    let rest = n - n / 2;
    let first = inverse(&matrix.view((0, 0), (half, half)).into_owned())?;
    let across = matrix.view((0, half), (half, rest)).into_owned();
    let weighted = &first * &across;
    let schur = matrix.view((half, half), (rest, rest)) - across.transpose() * &weighted;
    let second = inverse(&schur)?;
    let corner = &weighted * &second;
    let mut whole = DMatrix::zeros(n, n);
    whole.view_mut((0, 0), (half, half)).copy_from(&(first + &corner * weighted.transpose()));
    whole.view_mut((0, half), (half, rest)).copy_from(&-&corner);
    whole.view_mut((half, 0), (rest, half)).copy_from(&-corner.transpose());
    whole.view_mut((half, half), (rest, rest)).copy_from(&second);
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_the_matrix_is_one() {
        for n in [1, 48, 49, 150] {
            // A positive definite matrix with a condition of about 1e6.
            let root = DMatrix::from_fn(n, n, |i, j| ((i * 31 + j * 17) % 23) as f64 - 11.0);
            let matrix = &root * root.transpose() + DMatrix::identity(n, n);
            let product = inverse(&matrix).unwrap() * &matrix;
            assert!((product - DMatrix::identity(n, n)).amax() < 1e-6);
            assert!(inverse(&-matrix).is_none());
        }
    }
}
