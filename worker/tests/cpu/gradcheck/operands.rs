//! Tensors from the samples of the table.

use crate::draws::{normal, uniform};
use enn_worker::op::sample::{Fill, Layout, Operand};
use tch::{Kind, Tensor};

/// Seed and step of every random key.
pub(crate) const SEED: u64 = 0x1234_5678_9abc_def0;
pub(crate) const STEP: u64 = 77;

/// A tensor filled and laid out as asked for.
pub(crate) fn tensor(operand: &Operand, kind: Kind) -> Tensor {
    let shape = operand.shape.as_slice();
    let wide: Vec<i64> = match (operand.layout, shape.last()) {
        (Layout::Strided, Some(last)) => shape[..shape.len() - 1].iter().copied().chain([2 * last]).collect(),
        (Layout::Transposed, Some(_)) => {
            let mut swapped = shape.to_vec();
            let last = swapped.len() - 1;
            swapped.swap(0, last);
            swapped
        }
        _ => shape.to_vec(),
    };
    let dense = match operand.fill {
        Fill::Normal => normal(&wide).to_kind(kind),
        Fill::Between(lo, hi) => (uniform(&wide) * (hi - lo) + lo).to_kind(kind),
        Fill::Ids(classes) => (uniform(&wide) * classes).to_kind(Kind::Int64),
        Fill::Key => Tensor::from_slice(&[SEED.cast_signed(), STEP.cast_signed(), 0, 0]),
        Fill::Bool => uniform(&wide).ge(0.4),
    };
    match operand.layout {
        Layout::Contiguous => dense,
        _ if shape.is_empty() => dense,
        Layout::Transposed => dense.transpose(0, -1),
        Layout::Strided => dense.slice(-1, 0, None, 2),
    }
}

/// Whether a gradient can flow into it.
pub(crate) fn differentiable(operand: &Operand) -> bool {
    matches!(operand.fill, Fill::Normal | Fill::Between(..))
}

/// Largest |a − b| over 1 + |b|.
pub(crate) fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    if a.numel() == 0 {
        return 0.0;
    }
    let a = a.to_kind(Kind::Double);
    let b = b.to_kind(Kind::Double);
    ((&a - &b).abs() / (b.abs() + 1.0)).max().double_value(&[])
}
