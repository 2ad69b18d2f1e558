//! Gathers rows of the staged arrays into tensors.

use super::error::DataError;
use enn_common::fs::mmap::{Plain, bytes_of};
use enn_core::backend::{
    duplicate,
    host::{buffer, host_bytes_mut},
};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// The staged arrays as slices, row-major. Lengths are checked on construction, so that gathering stays within them.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    x: &'a [f32],
    x_mask: &'a [u8],
    y: &'a [f32],
    y_mask: &'a [u8],
    weight: &'a [f32],
    rows: usize,
    inputs: usize,
    outputs: usize,
}

impl<'a> View<'a> {
    /// Creates a view of inputs (rows, inputs) with their mask. Targets are absent until `with_targets`.
    ///
    /// # Errors
    /// [`DataError::Length`] when a slice does not hold `rows × inputs` values.
    pub fn inputs(rows: usize, inputs: usize, x: &'a [f32], x_mask: &'a [u8]) -> Result<Self, DataError> {
        check("x", x.len(), rows, inputs)?;
        check("x_mask", x_mask.len(), rows, inputs)?;
        Ok(Self { x, x_mask, y: &[], y_mask: &[], weight: &[], rows, inputs, outputs: 0 })
    }

    /// Adds targets (rows, outputs) with their mask.
    ///
    /// # Errors
    /// [`DataError::Length`] when a slice does not hold `rows × outputs` values.
    pub fn with_targets(self, outputs: usize, y: &'a [f32], y_mask: &'a [u8]) -> Result<Self, DataError> {
        check("y", y.len(), self.rows, outputs)?;
        check("y_mask", y_mask.len(), self.rows, outputs)?;
        Ok(Self { y, y_mask, outputs, ..self })
    }

    /// Adds weights of the rows; an empty slice gives all rows the same weight.
    ///
    /// # Errors
    /// [`DataError::Length`] when there are weights, but not one per row.
    pub fn with_weights(self, weight: &'a [f32]) -> Result<Self, DataError> {
        if !weight.is_empty() {
            check("weight", weight.len(), self.rows, 1)?;
        }
        Ok(Self { weight, ..self })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the size of one gathered row in bytes.
    pub(super) fn row_bytes(&self) -> usize {
        (self.inputs + self.outputs) * (size_of::<f32>() + size_of::<bool>())
    }

    /// Gathers `rows` into tensors on the host, in pinned memory when `pin` names a CUDA device. Every value is written
    /// once. The tensors are parts of one buffer, which is copied to a device as a whole. Rows from `real` on are
    /// padding: their target mask is zero.
    pub fn gather(&self, rows: &[u64], real: usize, pin: Device) -> Result<Batch, DataError> {
        let failed = |source| DataError::Tensor { rows: rows.len(), width: self.inputs + self.outputs, source };
        let parts = BatchLayout::of(rows.len(), self.inputs, self.outputs, !self.weight.is_empty());
        let mut bytes = buffer(parts.bytes(), pin.is_cuda()).map_err(failed)?;
        let Some(mut rest) = host_bytes_mut(&mut bytes) else { unreachable!("it was just made on the host") };
        let mut places = parts.0.iter().map(|part| {
            let (own, behind) = std::mem::take(&mut rest).split_at_mut(part.padded());
            rest = behind;
            &mut own[..part.bytes()]
        });
        let mut place = || places.next().unwrap_or_default();
        let copied = |to: &mut [u8], _, from: &[u8]| to.copy_from_slice(from);
        let counted = |to: &mut [u8], at: usize, from: &[u8]| match at < real {
            true => to.copy_from_slice(from),
            false => to.fill(0),
        };
        let weighed = |to: &mut [u8], at: usize, from: &[u8]| {
            let weight = if at < real { self.weight[rows[at] as usize] } else { 0.0 };
            let cells = to.chunks_exact_mut(size_of::<f32>()).zip(from);
            cells.for_each(|(cell, valid)| cell.copy_from_slice(&(f32::from(*valid) * weight).to_ne_bytes()));
        };
        write(place(), self.x, rows, self.inputs, copied);
        write(place(), self.x_mask, rows, self.inputs, copied);
        write(place(), self.y, rows, self.outputs, copied);
        match self.weight.is_empty() {
            true => write(place(), self.y_mask, rows, self.outputs, counted),
            false => write(place(), self.y_mask, rows, self.outputs, weighed),
        }
        drop(places);
        let [x, x_mask, y, y_mask] = parts.views(&bytes).map_err(failed)?;
        Ok(Batch { x, x_mask, y, y_mask, whole: Some((bytes, parts)), rows: rows.into(), real })
    }
}

/// Positions of x, x_mask, y and y_mask in one buffer.
#[derive(Debug, Clone, Copy)]
pub struct BatchLayout([BatchArray; 4]);

#[derive(Debug, Clone, Copy)]
struct BatchArray {
    rows: usize,
    width: usize,
    kind: Kind,
}

impl BatchArray {
    /// Alignment of each array in bytes, for vector loads.
    const ALIGNMENT: usize = 64;

    fn bytes(&self) -> usize {
        self.rows * self.width * self.kind.elt_size_in_bytes()
    }

    fn padded(&self) -> usize {
        self.bytes().next_multiple_of(Self::ALIGNMENT)
    }
}

impl BatchLayout {
    fn of(rows: usize, inputs: usize, outputs: usize, weighed: bool) -> Self {
        let part = |width, kind| BatchArray { rows, width, kind };
        let weights = if weighed { Kind::Float } else { Kind::Bool };
        Self([part(inputs, Kind::Float), part(inputs, Kind::Bool), part(outputs, Kind::Float), part(outputs, weights)])
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(BatchArray::padded).sum()
    }

    fn views(&self, bytes: &Tensor) -> Result<[Tensor; 4], tch::TchError> {
        let mut start = 0;
        let mut next = |part: &BatchArray| {
            let own = bytes.f_narrow(0, start, part.bytes() as i64)?;
            start += part.padded() as i64;
            own.f_view_dtype(part.kind)?.f_view([part.rows as i64, part.width as i64])
        };
        let [x, x_mask, y, y_mask] = &self.0;
        Ok([next(x)?, next(x_mask)?, next(y)?, next(y_mask)?])
    }
}

/// One gathered batch, or a part of one.
#[derive(Debug)]
pub struct Batch {
    /// (B, F) f32, the user's units, NaN where missing.
    pub x: Tensor,
    /// (B, F) bool, true where valid.
    pub x_mask: Tensor,
    /// (B, O) f32, the user's units, NaN where missing. (B, 0) when the data has no targets.
    pub y: Tensor,
    /// (B, O) bool, true where valid; false in padding rows. Where rows have weights f32: the weight of each valid cell, else 0.
    pub y_mask: Tensor,
    /// Row of the staged order in each slot.
    pub rows: Arc<[u64]>,
    /// Number of rows that count; the rest is padding.
    pub real: usize,
    /// Buffer that contains the four tensors, and its layout; `None` where they are separate.
    pub whole: Option<(Tensor, BatchLayout)>,
}

impl Batch {
    /// Copies the batch to `device`; the copy overlaps with computation when the host memory is pinned.
    pub fn to_device(&self, device: Device) -> Result<Self, tch::TchError> {
        if self.x.device() == device {
            return Ok(self.shallow_clone());
        }
        let move_one = |t: &Tensor| t.f_to_device_(device, t.kind(), true, false);
        let (whole, [x, x_mask, y, y_mask]) = match &self.whole {
            Some((bytes, parts)) => {
                let bytes = move_one(bytes)?;
                let views = parts.views(&bytes)?;
                (Some((bytes, *parts)), views)
            }
            None => (None, self.each(move_one)?),
        };
        Ok(Self { x, x_mask, y, y_mask, whole, rows: Arc::clone(&self.rows), real: self.real })
    }

    /// Returns the slots in which a valid cell is not finite. Waits for the device.
    pub fn not_finite(&self) -> Result<Vec<usize>, tch::TchError> {
        let bad = |values: &Tensor, valid: &Tensor| {
            values.f_isfinite()?.f_logical_not()?.f_logical_and(valid)?.f_any_dim(1, false)
        };
        let either = bad(&self.x, &self.x_mask)?.f_logical_or(&bad(&self.y, &self.y_mask)?)?;
        let slots = Vec::<i64>::try_from(either.f_nonzero()?.f_view(-1)?.f_to_device(Device::Cpu)?)?;
        Ok(slots.into_iter().map(|slot| slot as usize).collect())
    }

    /// Excludes these slots in place: all their cells become invalid and zero.
    pub fn leave_out(&self, slots: &[usize]) -> Result<(), tch::TchError> {
        if slots.is_empty() {
            return Ok(());
        }
        let slots: Vec<i64> = slots.iter().map(|&slot| slot as i64).collect();
        let slots = Tensor::f_from_slice(&slots)?.f_to_device(self.x.device())?;
        for tensor in self.tensors() {
            let _ = tensor.shallow_clone().f_index_fill_(0, &slots, 0)?;
        }
        Ok(())
    }

    fn tensors(&self) -> [&Tensor; 4] {
        [&self.x, &self.x_mask, &self.y, &self.y_mask]
    }

    fn each(&self, convert: impl Fn(&Tensor) -> Result<Tensor, tch::TchError>) -> Result<[Tensor; 4], tch::TchError> {
        Ok([convert(&self.x)?, convert(&self.x_mask)?, convert(&self.y)?, convert(&self.y_mask)?])
    }

    pub fn shallow_clone(&self) -> Self {
        let [x, x_mask, y, y_mask] = self.tensors().map(Tensor::shallow_clone);
        let whole = self.whole.as_ref().map(|(bytes, parts)| (bytes.shallow_clone(), *parts));
        Self { x, x_mask, y, y_mask, whole, rows: Arc::clone(&self.rows), real: self.real }
    }

    pub fn duplicate(&self) -> Result<Self, tch::TchError> {
        let [x, x_mask, y, y_mask] = self.each(duplicate)?;
        Ok(Self { x, x_mask, y, y_mask, whole: None, rows: Arc::clone(&self.rows), real: self.real })
    }

    pub fn narrow(&self, start: i64, len: i64) -> Result<Self, tch::TchError> {
        let [x, x_mask, y, y_mask] = self.each(|tensor| tensor.f_narrow(0, start, len))?;
        let rows = self.rows.get(start as usize..(start + len) as usize).unwrap_or_default().into();
        let real = self.real.saturating_sub(start as usize).min(len as usize);
        Ok(Self { x, x_mask, y, y_mask, whole: None, rows, real })
    }
}

fn check(array: &'static str, found: usize, rows: usize, width: usize) -> Result<(), DataError> {
    let expected = rows.saturating_mul(width);
    if found == expected { Ok(()) } else { Err(DataError::Length { array, found, expected, rows, width }) }
}

/// Writes rows of an array (N, width) consecutively. `write` is given the bytes to write, the index among the rows, and
/// the bytes of the array's row.
fn write<T: Plain>(to: &mut [u8], array: &[T], rows: &[u64], width: usize, write: impl Fn(&mut [u8], usize, &[u8])) {
    let row_bytes = to.len() / rows.len().max(1);
    for (at, (to, row)) in to.chunks_exact_mut(row_bytes.max(1)).zip(rows).enumerate() {
        write(to, at, bytes_of(&array[*row as usize * width..(*row as usize + 1) * width]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_rows_and_blanks_padding() {
        let x: Vec<f32> = (0..8).map(|v| v as f32).collect();
        let y = [10f32, 11., 12., 13.];
        let view =
            View::inputs(4, 2, &x, &[1, 1, 1, 0, 1, 1, 1, 1]).unwrap().with_targets(1, &y, &[1, 1, 1, 1]).unwrap();
        let batch = view.gather(&[3, 1, 3], 2, Device::Cpu).unwrap();
        assert_eq!(Vec::<f32>::try_from(batch.x.flatten(0, 1)).unwrap(), [6., 7., 2., 3., 6., 7.]);
        assert_eq!(Vec::<bool>::try_from(batch.x_mask.flatten(0, 1)).unwrap(), [true, true, true, false, true, true]);
        assert_eq!(Vec::<bool>::try_from(batch.y_mask.flatten(0, 1)).unwrap(), [true, true, false]);
        let whole = batch.shallow_clone().whole.unwrap();
        let again = whole.1.views(&whole.0).unwrap();
        for (own, again) in [&batch.x, &batch.x_mask, &batch.y, &batch.y_mask].into_iter().zip(&again) {
            assert_eq!((own, own.kind(), own.data_ptr()), (again, again.kind(), again.data_ptr()));
        }
        let part = batch.narrow(1, 2).unwrap();
        assert_eq!(part.real, 1);
        assert_eq!((part.y.size(), &part.rows[..]), (vec![2, 1], &[1, 3][..]));
    }

    #[test]
    fn a_slot_that_is_left_out_has_no_valid_cell() {
        let x = [1.0, f32::NAN, 3.0, f32::INFINITY];
        let y = [1.0, f32::NAN, 3.0, 4.0];
        // Row 1 is missing and masked.
        let view = View::inputs(4, 1, &x, &[1, 0, 1, 1]).unwrap().with_targets(1, &y, &[1, 0, 1, 1]).unwrap();
        let batch = view.gather(&[0, 1, 2, 3], 4, Device::Cpu).unwrap();
        assert_eq!(batch.not_finite().unwrap(), [3]);
        let copy = batch.duplicate().unwrap();
        copy.leave_out(&[0, 3]).unwrap();
        assert!(copy.not_finite().unwrap().is_empty());
        assert_eq!(Vec::<f32>::try_from(copy.x.narrow(0, 2, 2).flatten(0, 1)).unwrap(), [3.0, 0.0]);
        for mask in [&copy.x_mask, &copy.y_mask] {
            assert_eq!(Vec::<bool>::try_from(mask.flatten(0, 1)).unwrap(), [false, false, true, false]);
        }
        assert_eq!(batch.not_finite().unwrap(), [3], "a copy has tensors of its own");
    }

    #[test]
    fn weights_are_in_the_mask() {
        let x = [0.0; 3];
        let y = [1.0; 6];
        let weight = [0.5, 2.0, 0.0];
        let view = View::inputs(3, 1, &x, &[1; 3]).unwrap().with_targets(2, &y, &[1, 0, 1, 1, 1, 1]).unwrap();
        let batch = view.with_weights(&weight).unwrap().gather(&[1, 0, 2, 1], 3, Device::Cpu).unwrap();
        let mask = Vec::<f32>::try_from(batch.y_mask.flatten(0, 1)).unwrap();
        assert_eq!(mask, [2.0, 2.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(view.with_weights(&weight[..2]).is_err());
        assert!(batch.not_finite().unwrap().is_empty());
    }

    #[test]
    fn wrong_lengths_are_refused_with_both_numbers() {
        let error = View::inputs(4, 2, &[0.0; 7], &[1; 8]).unwrap_err().to_string();
        assert!(error.contains("x has 7 values, expected 8"), "{error}");
    }
}
