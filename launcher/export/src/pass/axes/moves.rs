//! Decomposition of a permutation of many blocks into steps: each step cuts the row of blocks into segments and reorders these.

/// Limit on the blocks for which every step is tried; beyond it only steps of [`SEGMENTS_FEW`] segments are.
const BLOCKS_TRIED_MAX: usize = 9;
/// Segments that suffice to bring two blocks together: the part before, two that change places, the part after.
const SEGMENTS_FEW: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Number of blocks in each segment, in order.
    pub(super) lengths: Vec<usize>,
    /// Segment i of the result is segment `order[i]`.
    pub(super) order: Vec<usize>,
}

/// Returns steps of at most `segments_max` segments (at least 4) that bring block `goal[i]` to position i.
///
/// Each step leaves as few blocks as possible that are not beside their final neighbours: at least one fewer.
pub(super) fn steps(goal: &[usize], segments_max: usize) -> Vec<Step> {
    let mut row = vec![0; goal.len()];
    for (place, block) in goal.iter().enumerate() {
        row[*block] = place;
    }
    let mut made = Vec::new();
    while runs(&row) > 1 {
        let step = best(&row, segments_max);
        row = moved(&row, &step);
        made.push(step);
    }
    made
}

pub(super) fn moved<T: Clone>(row: &[T], step: &Step) -> Vec<T> {
    let mut starts = vec![0];
    for length in &step.lengths {
        starts.push(starts[starts.len() - 1] + length);
    }
    step.order.iter().flat_map(|segment| row[starts[*segment]..starts[segment + 1]].to_vec()).collect()
}

/// Counts the runs of neighbours that stay neighbours.
fn runs(row: &[usize]) -> usize {
    1 + row.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count()
}

fn best(row: &[usize], segments_max: usize) -> Step {
    // A cut within a run would separate final neighbours.
    let cuts: Vec<usize> = (1..row.len()).filter(|at| row[at - 1] + 1 != row[*at]).collect();
    let few = if cuts.len() < BLOCKS_TRIED_MAX { segments_max } else { segments_max.min(SEGMENTS_FEW) };
    let mut best: Option<(usize, Step)> = None;
    for segments in 2..=few.min(cuts.len() + 1) {
        for chosen in choices(&cuts, segments - 1) {
            let ends = chosen.iter().copied().chain([row.len()]);
            let starts = std::iter::once(0).chain(chosen.iter().copied());
            let lengths: Vec<usize> = starts.zip(ends).map(|(start, end)| end - start).collect();
            for order in orders(segments) {
                let step = Step { lengths: lengths.clone(), order };
                let left = runs(&moved(row, &step));
                if best.as_ref().is_none_or(|(least, _)| left < *least) {
                    best = Some((left, step));
                }
            }
        }
    }
    best.expect("a row that is not in order has a cut").1
}

/// Returns all ways to choose `count` of `from`, each ascending.
fn choices(from: &[usize], count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let first =
        |at: usize| choices(&from[at + 1..], count - 1).into_iter().map(move |rest| [vec![from[at]], rest].concat());
    (0..from.len()).flat_map(first).collect()
}

/// Returns all permutations of `count` items.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let placed = |rest: &Vec<usize>, at: usize| {
        let mut order = rest.clone();
        order.insert(at, count - 1);
        order
    };
    orders(count - 1).iter().flat_map(|rest| (0..count).map(|at| placed(rest, at)).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patches_of_a_grid_of_three_axes_take_two_steps() {
        // Rows, three axes of patches, three within a patch → each pair beside each other.
        let goal = [0, 1, 4, 2, 5, 3, 6];
        let made = steps(&goal, 5);
        assert_eq!(made.len(), 2, "{made:?}");
        let row = made.iter().fold((0..7).collect::<Vec<_>>(), |row, step| moved(&row, step));
        assert_eq!(row, goal);
    }

    proptest! {
        #[test]
        fn any_order_is_reached_in_steps_of_few_segments(
            goal in (1_usize..12).prop_flat_map(|count| Just((0..count).collect::<Vec<_>>()).prop_shuffle()),
            segments in 4_usize..7,
        ) {
            let mut row: Vec<usize> = (0..goal.len()).collect();
            for step in steps(&goal, segments) {
                prop_assert!(step.lengths.len() <= segments);
                row = moved(&row, &step);
            }
            prop_assert_eq!(row, goal);
        }
    }
}
