//! Matrices whose rows begin at multiples of 16 bytes. The device's tensor memory accelerator (TMA) reads only such rows, if the sizes of a
//! product are multiples of 8 as well (`op/linear_cuda.rs`).

use tch::{Device, Kind, TchError, Tensor};

/// Alignment of rows, in bytes.
const ROW_BYTES: i64 = 16;
/// Elements of a large result. Products that read smaller ones gain nothing from aligned rows.
const LARGE: i64 = 1 << 22;

/// Returns the distance between aligned rows of `width` elements, in elements.
fn distance(width: i64, kind: Kind) -> i64 {
    let numbers = (ROW_BYTES / kind.elt_size_in_bytes() as i64).max(1);
    (width + numbers - 1) / numbers * numbers
}

/// Whether dense rows of `width` elements are aligned.
pub fn is_aligned(width: i64, kind: Kind) -> bool {
    distance(width, kind) == width
}

/// Returns an uninitialised tensor of `shape` with aligned rows along the last axis: a view of wider rows where dense ones are not
/// aligned.
pub fn empty(shape: &[i64], kind: Kind, device: Device) -> Result<Tensor, TchError> {
    let width = shape.last().copied().unwrap_or(1);
    if is_aligned(width, kind) || shape.contains(&0) {
        return Tensor::f_empty(shape, (kind, device));
    }
    let rows = shape.iter().product::<i64>() / width;
    let wide = Tensor::f_empty([rows, distance(width, kind)], (kind, device))?;
    wide.f_narrow(1, 0, width)?.f_view(shape)
}

/// Returns an uninitialised tensor, with aligned rows as [`empty`] if it is large, else dense.
pub fn large(shape: &[i64], kind: Kind, device: Device) -> Result<Tensor, TchError> {
    if shape.iter().product::<i64>() < LARGE {
        return Tensor::f_empty(shape, (kind, device));
    }
    empty(shape, kind, device)
}

/// Views `x` (…, K) as a matrix (rows, K) with dense rows at a constant distance; `None` where no such view exists.
fn viewed(x: &Tensor) -> Option<Tensor> {
    let rows = x.f_view(matrix_shape(x)).ok()?;
    let stride = rows.stride();
    let width = rows.size()[1];
    ((stride[1] == 1 || width <= 1) && stride[0] >= width).then_some(rows)
}

fn matrix_shape(x: &Tensor) -> [i64; 2] {
    let size = x.size();
    [size.iter().rev().skip(1).product(), size.last().copied().unwrap_or(1)]
}

/// Returns `x` (…, K) as a matrix (rows, K) with dense rows at a constant distance: a view where one exists, else a copy.
pub fn rows(x: &Tensor) -> Result<Tensor, TchError> {
    viewed(x).map_or_else(|| x.f_contiguous()?.f_view(matrix_shape(x)), Ok)
}

/// Returns `x` (…, K) as a matrix (rows, K) with aligned rows: a view where one exists, else a copy.
pub fn matrix(x: &Tensor) -> Result<Tensor, TchError> {
    let aligned = |rows: &Tensor| {
        let begins = (rows.data_ptr() as usize).is_multiple_of(ROW_BYTES as usize);
        begins && is_aligned(rows.stride()[0], rows.kind())
    };
    if let Some(rows) = viewed(x).filter(aligned) {
        return Ok(rows);
    }
    let mut made = empty(&x.size(), x.kind(), x.device())?;
    made.f_copy_(x)?;
    made.f_view(matrix_shape(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_at_multiples_of_16_bytes_and_hold_what_they_held() {
        for (kind, width, expected) in
            [(Kind::BFloat16, 2730, 2736), (Kind::BFloat16, 24, 24), (Kind::Float, 5, 8), (Kind::Double, 3, 4)]
        {
            let x = Tensor::arange(6 * width, (kind, Device::Cpu)).view([2, 3, width]);
            let aligned_rows = matrix(&x).unwrap();
            assert_eq!((aligned_rows.size(), aligned_rows.stride()), (vec![6, width], vec![expected, 1]), "{kind:?}");
            assert_eq!(aligned_rows, x.view([6, width]));
            assert_eq!(matrix(&aligned_rows).unwrap().data_ptr(), aligned_rows.data_ptr(), "not copied again");
            let made = empty(&[2, 3, width], kind, Device::Cpu).unwrap();
            assert_eq!(made.stride(), [3 * expected, expected, 1]);
        }
        let ones = Tensor::ones([4, 24], (Kind::Half, Device::Cpu));
        assert_eq!(matrix(&ones.narrow(1, 0, 3).tr()).unwrap().stride(), [8, 1]);
        let begins = ones.narrow(1, 8, 5);
        let later = ones.narrow(1, 3, 5);
        assert_eq!(matrix(&begins).unwrap().data_ptr(), begins.data_ptr(), "a view of aligned_rows rows");
        assert_eq!(matrix(&later).unwrap().stride(), [8, 1], "rows that begin elsewhere are copied");
        assert_eq!(empty(&[0, 3], Kind::Half, Device::Cpu).unwrap().size(), [0, 3]);
    }
}
