//! Rows with the mean of each column subtracted, in the form that a regression needs: with more rows than columns only
//! sums of products.
//!
//! **Invariant:** at most one block of rows is held in f64.

use tch::{Kind, TchError, Tensor as Raw};

/// Maximum number of values in a block: 16 MiB of f64.
const BLOCK_NUMBERS: i64 = 1 << 21;

/// Centred rows x (n, F) and y (n, O).
#[derive(Debug)]
pub(super) enum Centred {
    /// All rows, where they are fewer than the columns.
    Rows { x: Raw, y: Raw, along: Raw, lengths: Raw },
    /// Xᵀ X (F, F) of n rows.
    Sums { gram: Raw, along: Raw, lengths: Raw, count: i64 },
}

impl Centred {
    /// Centres x (n, F) by these means of its columns; y (n, O) f64 is centred already.
    pub(super) fn of(x: &Raw, x_mean: &Raw, y: &Raw) -> Result<Self, TchError> {
        let (rows, columns) = x.size2()?;
        let centred = |start, len| x.f_narrow(0, start, len)?.f_to_kind(Kind::Double)?.f_sub(x_mean);
        if rows < columns {
            let x = centred(0, rows)?;
            let along = x.f_tr()?.f_matmul(y)?;
            let lengths = x.f_square()?.f_sum_dim_intlist(Some([0].as_slice()), false, Kind::Double)?;
            return Ok(Self::Rows { x, y: y.shallow_clone(), along, lengths });
        }
        let zeros = |width: i64| Raw::f_zeros([columns, width], (Kind::Double, x.device()));
        let mut gram = zeros(columns)?;
        let mut along = zeros(y.size()[1])?;
        for (start, len) in blocks(x) {
            let block = centred(start, len)?;
            let turned = block.f_tr()?;
            let _ = gram.f_addmm_(&turned, &block)?;
            let _ = along.f_addmm_(&turned, &y.f_narrow(0, start, len)?)?;
        }
        let lengths = gram.f_diagonal(0, 0, 1)?.f_contiguous()?;
        Ok(Self::Sums { gram, along, lengths, count: rows })
    }

    pub(super) fn count(&self) -> i64 {
        match self {
            Self::Rows { x, .. } => x.size()[0],
            Self::Sums { count, .. } => *count,
        }
    }

    /// Returns Xᵀ Y (F, O), and the squared length of each column (F).
    pub(super) fn along(&self) -> (&Raw, &Raw) {
        match self {
            Self::Rows { along, lengths, .. } | Self::Sums { along, lengths, .. } => (along, lengths),
        }
    }
}

/// Returns (start, count) of the row blocks in which x (n, F) is processed.
pub(in crate::model) fn blocks(x: &Raw) -> impl Iterator<Item = (i64, i64)> + use<> {
    let size = x.size();
    let rows = size[0];
    let columns = size.get(1).copied().unwrap_or(1);
    let block = (BLOCK_NUMBERS / columns.max(1)).max(1);
    (0..rows).step_by(block as usize).map(move |start| (start, block.min(rows - start)))
}

/// Returns the mean of each column (1, F), f64.
pub(in crate::model) fn column_mean(x: &Raw) -> Result<Raw, TchError> {
    let mut sum = Raw::f_zeros([1, x.size2()?.1], (Kind::Double, x.device()))?;
    for (start, len) in blocks(x) {
        let block = x.f_narrow(0, start, len)?.f_to_kind(Kind::Double)?;
        let _ = sum.f_add_(&block.f_sum_dim_intlist(Some([0].as_slice()), true, Kind::Double)?)?;
    }
    sum.f_div_scalar(x.size()[0] as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn sums_over_blocks_are_those_over_all_rows() {
        // There are three blocks, the last of them short.
        let columns = 1 << 10;
        let rows = 2 * (BLOCK_NUMBERS / columns) + 100;
        tch::manual_seed(3);
        let x = Raw::randn([rows, columns], (Kind::Float, Device::Cpu)) + 3.0;
        let y = Raw::randn([rows, 2], (Kind::Double, Device::Cpu));
        assert_eq!(blocks(&x).map(|(_, len)| len).collect::<Vec<_>>(), [2048, 2048, 100]);
        let mean = column_mean(&x).unwrap();
        let whole = x.to_kind(Kind::Double) - &mean;
        assert!(whole.mean_dim([0].as_slice(), false, Kind::Double).abs().max().double_value(&[]) < 1e-12);
        let sums = Centred::of(&x, &mean, &y).unwrap();
        let Centred::Sums { gram, .. } = &sums else { panic!("more rows than columns") };
        assert!((gram - whole.tr().matmul(&whole)).abs().max().double_value(&[]) < 1e-8);
        assert!((sums.along().0 - whole.tr().matmul(&y)).abs().max().double_value(&[]) < 1e-9);
        assert_eq!(sums.count(), rows);
    }
}
