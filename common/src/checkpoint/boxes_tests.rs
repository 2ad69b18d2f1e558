use super::*;
use proptest::prelude::*;

fn region(offsets: &[u64], sizes: &[u64]) -> Region {
    Region { offsets: offsets.to_vec(), sizes: sizes.to_vec() }
}

/// Cuts a box again and again along random axes.
fn cut(start: Region, cuts: &[(usize, u64)]) -> Vec<Region> {
    let mut boxes = vec![start];
    for &(pick, place) in cuts {
        let victim = boxes.swap_remove(pick % boxes.len());
        let axis = pick % victim.sizes.len().max(1);
        if victim.sizes.is_empty() {
            boxes.push(victim);
            continue;
        }
        let left = place % (victim.sizes[axis] + 1);
        let mut one = victim.clone();
        let mut other = victim.clone();
        one.sizes[axis] = left;
        other.offsets[axis] += left;
        other.sizes[axis] -= left;
        boxes.extend([one, other]);
    }
    boxes
}

proptest! {
    #[test]
    fn cut_boxes_tile_and_damage_is_seen(
        shape in proptest::collection::vec(0u64..7, 0..4),
        cuts in proptest::collection::vec((0usize..100, 0u64..100), 0..12),
        victim in any::<prop::sample::Index>(),
    ) {
        let boxes = cut(Region::whole(&shape), &cuts);
        prop_assert_eq!(check_coverage(&shape, boxes.iter()), Ok(()));
        let victim = victim.index(boxes.len());
        if boxes[victim].volume() > 0 {
            let holed = boxes.iter().enumerate().filter(|(index, _)| *index != victim).map(|(_, b)| b);
            let seen_hole = matches!(check_coverage(&shape, holed), Err(CoverageError::Hole { .. }));
            prop_assert!(seen_hole);
            let twice = boxes.iter().chain([&boxes[victim]]);
            let seen_overlap = matches!(check_coverage(&shape, twice), Err(CoverageError::Overlap { .. }));
            prop_assert!(seen_overlap);
        }
    }

    #[test]
    fn runs_copy_every_element_to_its_place(
        shape in proptest::collection::vec(1u64..6, 0..4),
        cuts in proptest::collection::vec((0usize..100, 0u64..100), 0..8),
        wanted in proptest::collection::vec((0u64..6, 1u64..6), 4),
    ) {
        // Every element knows its own number, so that a wrong place is seen.
        let target = Region {
            offsets: shape.iter().zip(&wanted).map(|(&n, w)| w.0 % n).collect(),
            sizes: shape.iter().zip(&wanted).map(|(&n, w)| w.1.min(n - w.0 % n)).collect(),
        };
        let global = crate::checkpoint::item::strides(&shape);
        let number = |region: &Region, flat: u64| -> u64 {
            let mut rest = flat;
            let own = crate::checkpoint::item::strides(&region.sizes);
            let mut sum = 0;
            for axis in 0..region.sizes.len() {
                sum += (region.offsets[axis] + rest / own[axis]) * global[axis];
                rest %= own[axis];
            }
            sum
        };
        let mut got = vec![u64::MAX; usize::try_from(target.volume()).unwrap()];
        for chunk in cut(Region::whole(&shape), &cuts) {
            let Some(both) = chunk.intersection(&target) else { continue };
            runs::<()>(&chunk, &both, &target, &mut |from, to, length| {
                for step in 0..length {
                    got[usize::try_from(to + step).unwrap()] = number(&chunk, from + step);
                }
                Ok(())
            }).unwrap();
        }
        for (flat, value) in got.iter().enumerate() {
            prop_assert_eq!(*value, number(&target, flat as u64));
        }
    }
}

#[test]
fn a_scalar_is_one_box() {
    assert_eq!(check_coverage(&[], [region(&[], &[])].iter()), Ok(()));
    assert!(matches!(check_coverage(&[], [].iter()), Err(CoverageError::Hole { .. })));
    let twice = [region(&[], &[]), region(&[], &[])];
    assert!(matches!(check_coverage(&[], twice.iter()), Err(CoverageError::Overlap { .. })));
}

#[test]
fn boxes_outside_are_named() {
    let error = check_coverage(&[5, 3], [region(&[4, 0], &[2, 3])].iter()).unwrap_err();
    assert!(error.to_string().contains("[4, 0]"), "{error}");
    let overflow = region(&[u64::MAX, 0], &[2, 3]);
    assert!(matches!(check_coverage(&[5, 3], [overflow].iter()), Err(CoverageError::Outside { .. })));
    assert!(matches!(check_coverage(&[5, 3], [region(&[0], &[5])].iter()), Err(CoverageError::Outside { .. })));
}

#[test]
fn a_division_along_the_first_axis_reads_one_run() {
    let mut count = 0;
    let chunk = region(&[2, 0, 0], &[3, 4, 5]);
    let target = region(&[1, 0, 0], &[3, 4, 5]);
    let both = chunk.intersection(&target).unwrap();
    runs::<()>(&chunk, &both, &target, &mut |from, to, length| {
        count += 1;
        assert_eq!((from, to, length), (0, 20, 40));
        Ok(())
    })
    .unwrap();
    assert_eq!(count, 1);
}
