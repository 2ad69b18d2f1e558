//! Boxes of a tensor: which part of a global shape a chunk holds, whether chunks tile it, and copying between boxes.

/// A box: where it begins and how large it is, per axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// First index per axis.
    pub offsets: Vec<u64>,
    pub sizes: Vec<u64>,
}

/// Why boxes do not tile a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoverageError {
    #[error("the box at {:?} of size {:?} does not lie in the shape {shape:?}", found.offsets, found.sizes)]
    Outside { found: Region, shape: Vec<u64> },
    #[error(
        "the boxes at {:?} of size {:?} and at {:?} of size {:?} overlap", one.offsets, one.sizes, other.offsets, other.sizes
    )]
    Overlap { one: Region, other: Region },
    #[error("the boxes hold {covered} of the {wanted} elements of the shape {shape:?}: a part is missing")]
    Hole { covered: u64, wanted: u64, shape: Vec<u64> },
}

/// Number of elements of a shape; `None` when it does not fit 64 bits.
pub(super) fn volume(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, &length| product.checked_mul(length))
}

impl Region {
    /// The whole of a shape.
    pub fn whole(shape: &[u64]) -> Self {
        Self { offsets: vec![0; shape.len()], sizes: shape.to_vec() }
    }

    pub fn volume(&self) -> u64 {
        volume(&self.sizes).unwrap_or(u64::MAX)
    }

    pub fn lies_in(&self, shape: &[u64]) -> bool {
        let inside = |((&offset, &size), &length): ((&u64, &u64), &u64)| {
            offset.checked_add(size).is_some_and(|end| end <= length)
        };
        self.offsets.len() == shape.len()
            && self.sizes.len() == shape.len()
            && self.offsets.iter().zip(&self.sizes).zip(shape).all(inside)
    }

    /// Whether the boxes share elements. Both lie in the same shape, neither is empty.
    fn meets(&self, other: &Self) -> bool {
        let along = |axis: usize| {
            self.offsets[axis] < other.offsets[axis] + other.sizes[axis]
                && other.offsets[axis] < self.offsets[axis] + self.sizes[axis]
        };
        (0..self.offsets.len()).all(along)
    }

    /// The elements that both boxes have; `None` when there are none. Both lie in the same shape.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let mut both = Self { offsets: Vec::new(), sizes: Vec::new() };
        for axis in 0..self.offsets.len() {
            let begin = self.offsets[axis].max(other.offsets[axis]);
            let end = (self.offsets[axis] + self.sizes[axis]).min(other.offsets[axis] + other.sizes[axis]);
            both.offsets.push(begin);
            both.sizes.push(end.checked_sub(begin).filter(|&length| length > 0)?);
        }
        Some(both)
    }
}

/// Says whether the boxes tile the shape exactly: no hole, no overlap. Empty boxes are allowed and hold nothing.
///
/// Sorted by the axis with the most divisions, so that only neighbours along it are compared: fast for the usual divisions along
/// one axis, whichever it is.
pub fn check_coverage<'a>(shape: &[u64], boxes: impl Iterator<Item = &'a Region>) -> Result<(), CoverageError> {
    let mut filled: Vec<&Region> = Vec::new();
    let mut covered = 0u64;
    for found in boxes {
        if !found.lies_in(shape) {
            return Err(CoverageError::Outside { found: found.clone(), shape: shape.to_vec() });
        }
        let elements = found.volume();
        if elements > 0 {
            filled.push(found);
            covered = covered.saturating_add(elements);
        }
    }
    let mut seen = Vec::with_capacity(filled.len());
    let mut divisions = |axis: &usize| {
        seen.clear();
        seen.extend(filled.iter().map(|region| region.offsets[*axis]));
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    };
    let axis = (0..shape.len()).max_by_key(&mut divisions).unwrap_or(0);
    let first = |region: &Region| region.offsets.get(axis).copied().unwrap_or(0);
    filled.sort_by_key(|region| first(region));
    for (index, one) in filled.iter().enumerate() {
        let end = first(one) + one.sizes.get(axis).copied().unwrap_or(1);
        for other in filled[index + 1..].iter().take_while(|other| first(other) < end) {
            if one.meets(other) {
                return Err(CoverageError::Overlap { one: (*one).clone(), other: (*other).clone() });
            }
        }
    }
    let wanted = volume(shape).unwrap_or(u64::MAX);
    if covered != wanted {
        return Err(CoverageError::Hole { covered, wanted, shape: shape.to_vec() });
    }
    Ok(())
}

/// Longest stretches of elements that are consecutive both in `region` seen inside `inner` and in the box `outer`:
/// calls `run(element in outer's row-major order, element in inner's, elements)` for each.
///
/// `inner` lies in `outer`; both are boxes of one shape.
pub(super) fn runs<E>(
    outer: &Region,
    inner: &Region,
    target: &Region,
    run: &mut dyn FnMut(u64, u64, u64) -> Result<(), E>,
) -> Result<(), E> {
    let axes = inner.sizes.len();
    if inner.volume() == 0 {
        return Ok(());
    }
    let from = super::item::strides(&outer.sizes);
    let to = super::item::strides(&target.sizes);
    // The trailing axes that are whole in both boxes are one stretch, together with the part of the axis before them.
    let mut tail = axes;
    let mut length = 1;
    while tail > 0 {
        tail -= 1;
        length *= inner.sizes[tail];
        if inner.sizes[tail] != outer.sizes[tail] || inner.sizes[tail] != target.sizes[tail] {
            break;
        }
    }
    let mut index = vec![0u64; tail];
    loop {
        let place = |strides: &[u64], base: &Region| -> u64 {
            let along = |axis: usize| {
                let step = index.get(axis).copied().unwrap_or(0);
                (inner.offsets[axis] + step - base.offsets[axis]) * strides[axis]
            };
            (0..axes).map(along).sum()
        };
        run(place(&from, outer), place(&to, target), length)?;
        let Some(axis) = (0..tail).rev().find(|&axis| index[axis] + 1 < inner.sizes[axis]) else { return Ok(()) };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// Copies what the box `from` has of the box `into` from the row-major bytes of the one to those of the other.
pub fn paste(from: &Region, bytes: &[u8], into: &Region, out: &mut [u8], width: u64) {
    let Some(both) = from.intersection(into) else { return };
    let at = |element: u64| usize::try_from(element * width).unwrap_or(usize::MAX);
    // Cannot fail: the closure never returns an error.
    let _ = runs::<()>(from, &both, into, &mut |source, target, count| {
        out[at(target)..at(target) + at(count)].copy_from_slice(&bytes[at(source)..at(source) + at(count)]);
        Ok(())
    });
}

#[cfg(test)]
#[path = "boxes_tests.rs"]
mod tests;
