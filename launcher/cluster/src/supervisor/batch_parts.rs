//! World sizes that share a step of a script equally: those that divide the number of parts into which the script can cut it.

use std::{num::NonZeroU32, ops::RangeInclusive};

/// Sizes that a sentence names in full; of more it names the first and the last ones.
const SIZES_MAX: usize = 12;

/// Number of equal parts of a step. Any world shares a step of which nothing was said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BatchParts(pub(super) Option<NonZeroU32>);

impl BatchParts {
    pub(super) fn are_shared_by(self, world: u32) -> bool {
        self.0.is_none_or(|parts| parts.get().is_multiple_of(world))
    }

    pub(super) fn largest(self, mut sizes: RangeInclusive<u32>) -> Option<u32> {
        sizes.rfind(|world| self.are_shared_by(*world))
    }

    pub(super) fn smallest(self, mut sizes: RangeInclusive<u32>) -> Option<u32> {
        sizes.find(|world| self.are_shared_by(*world))
    }

    /// Returns the sentence that none of these sizes will do.
    pub(super) fn mismatch(self, found: &RangeInclusive<u32>) -> String {
        let parts = self.0.map_or(1, NonZeroU32::get);
        let small: Vec<u32> = (1..=parts.isqrt()).filter(|world| self.are_shared_by(*world)).collect();
        let large = small.iter().rev().map(|world| parts / world).filter(|world| !small.contains(world));
        let all: Vec<String> = small.iter().copied().chain(large).map(|world| world.to_string()).collect();
        let sizes = if all.len() <= SIZES_MAX {
            all.join(", ")
        } else {
            format!("{}, …, {}", all[..SIZES_MAX / 2].join(", "), all[all.len() - SIZES_MAX / 2..].join(", "))
        };
        let least = found.start();
        let most = found.end();
        let ranks = if least == most { most.to_string() } else { format!("{least} to {most}") };
        format!(
            "{parts} parts cannot be shared equally by {ranks} ranks, but by {sizes} (--workers MIN:MAX, --nnodes MIN:MAX)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_divide_the_parts_and_a_mismatch_names_them() {
        let parts = BatchParts(NonZeroU32::new(8));
        assert_eq!((parts.largest(1..=3), parts.largest(3..=3), parts.largest(2..=9)), (Some(2), None, Some(8)));
        assert_eq!((parts.smallest(3..=9), parts.smallest(0..=9)), (Some(4), Some(1)));
        assert_eq!(BatchParts::default().largest(1..=3), Some(3));
        let words =
            "8 parts cannot be shared equally by 3 ranks, but by 1, 2, 4, 8 (--workers MIN:MAX, --nnodes MIN:MAX)";
        assert_eq!(parts.mismatch(&(3..=3)), words);
        let many = BatchParts(NonZeroU32::new(360)).mismatch(&(7..=7));
        assert!(many.contains("but by 1, 2, 3, 4, 5, 6, …, 60, 72, 90, 120, 180, 360 ("), "{many}");
        assert!(parts.mismatch(&(5..=7)).contains("by 5 to 7 ranks"));
    }
}
