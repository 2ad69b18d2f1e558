//! Which rank writes which part of a replicated state. Pure: every rank computes the same answer.
//!
//! Large tensors are cut along their first axis, one box per rank; then all boxes, largest first and by name where equal, go
//! to the rank that has the fewest bytes so far.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Tensors of at least this size are cut: below it a second item costs more than it balances.
pub const SPLIT_BYTES_MIN: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    pub fqn: String,
    /// Bytes per element.
    pub element_bytes: u64,
    pub shape: Vec<u64>,
}

impl PlannedTensor {
    fn bytes(&self, sizes: &[u64]) -> u64 {
        sizes.iter().product::<u64>() * self.element_bytes
    }
}

/// A box of a tensor that one rank writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub entry: usize,
    pub offsets: Vec<u64>,
    pub sizes: Vec<u64>,
}

/// Rows of a tensor that one rank writes.
#[derive(Debug, Clone, Copy)]
struct RowRange {
    entry: usize,
    bytes: u64,
    begin: u64,
    end: u64,
}

/// The pieces of `rank` among `world` (at least 1), in order of entries.
pub fn share(entries: &[PlannedTensor], rank: usize, world: usize) -> Vec<Piece> {
    let mut mine = Vec::new();
    give(entries, world.max(1), |rows, to| mine.extend((to == rank).then_some(rows)));
    mine.sort_unstable_by_key(|rows| (rows.entry, rows.begin));
    mine.into_iter().map(|rows| piece(entries, rows)).collect()
}

/// Tells for every piece, largest first, which rank gets it.
fn give(entries: &[PlannedTensor], world: usize, mut to: impl FnMut(RowRange, usize)) {
    // Of one size there are two at most in a tensor, each in a row or two, so that only a few stretches are sorted.
    let mut stretches: Vec<(u64, usize, Vec<RowRange>)> = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        for rows in cut(index, entry, world) {
            match stretches.iter_mut().rev().take(2).find(|(bytes, of, _)| (*bytes, *of) == (rows.bytes, index)) {
                Some((.., same)) => same.push(rows),
                None => stretches.push((rows.bytes, index, vec![rows])),
            }
        }
    }
    stretches.sort_by(|a, b| (b.0, &entries[a.1].fqn).cmp(&(a.0, &entries[b.1].fqn)));
    let mut lightest: BinaryHeap<Reverse<(u64, usize)>> = (0..world).map(|rank| Reverse((0, rank))).collect();
    for rows in stretches.into_iter().flat_map(|(.., rows)| rows) {
        if let Some(mut first) = lightest.peek_mut() {
            let Reverse((bytes, rank)) = *first;
            to(rows, rank);
            *first = Reverse((bytes + rows.bytes, rank));
        }
    }
}

fn piece(entries: &[PlannedTensor], rows: RowRange) -> Piece {
    let shape = &entries[rows.entry].shape;
    let mut piece = Piece { entry: rows.entry, offsets: vec![0; shape.len()], sizes: shape.clone() };
    if let (Some(offset), Some(size)) = (piece.offsets.first_mut(), piece.sizes.first_mut()) {
        *offset = rows.begin;
        *size = rows.end - rows.begin;
    }
    piece
}

/// A tensor in as many parts as there are ranks, or as it is.
fn cut(index: usize, entry: &PlannedTensor, world: usize) -> impl Iterator<Item = RowRange> {
    let rows = entry.shape.first().copied().unwrap_or(0);
    let bytes = entry.bytes(&entry.shape);
    let parts = (world as u64).min(rows);
    let parts = if parts < 2 || bytes < SPLIT_BYTES_MIN { 1 } else { parts };
    let of_row = bytes.checked_div(rows).unwrap_or(bytes);
    (0..parts).map(move |part| {
        let begin = rows * part / parts;
        let end = rows * (part + 1) / parts;
        RowRange { entry: index, bytes: if parts == 1 { bytes } else { (end - begin) * of_row }, begin, end }
    })
}

/// The pieces of one rank, which stay the same as long as the state has the same shapes.
#[derive(Debug, Default)]
pub struct Plan {
    entries: Vec<PlannedTensor>,
    place: (usize, usize),
    pieces: Vec<Piece>,
}

impl Plan {
    /// [`share`], made anew only when something else is asked for than before.
    pub fn share(&mut self, entries: Vec<PlannedTensor>, rank: usize, world: usize) -> (&[PlannedTensor], &[Piece]) {
        if (&self.entries, self.place) != (&entries, (rank, world)) {
            self.pieces = share(&entries, rank, world);
            self.entries = entries;
            self.place = (rank, world);
        }
        (&self.entries, &self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(shapes: &[Vec<u64>]) -> Vec<PlannedTensor> {
        shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| PlannedTensor { fqn: format!("t{i}"), element_bytes: 4, shape: shape.clone() })
            .collect()
    }

    fn divide(entries: &[PlannedTensor], world: usize) -> Vec<Vec<Piece>> {
        (0..world).map(|rank| share(entries, rank, world)).collect()
    }

    /// The same by looking at everything each time: who gets each piece.
    fn slowly(entries: &[PlannedTensor], world: usize) -> Vec<Vec<Piece>> {
        let mut all: Vec<RowRange> =
            entries.iter().enumerate().flat_map(|(index, entry)| cut(index, entry, world)).collect();
        all.sort_by_key(|rows| (Reverse(rows.bytes), &entries[rows.entry].fqn, rows.begin));
        let mut shares = vec![(0, Vec::new()); world];
        for rows in all {
            let lightest = (0..world).min_by_key(|&rank| shares[rank].0).unwrap();
            shares[lightest].0 += rows.bytes;
            shares[lightest].1.push(piece(entries, rows));
        }
        let sorted = |(_, mut share): (u64, Vec<Piece>)| {
            share.sort_by(|a, b| (a.entry, &a.offsets).cmp(&(b.entry, &b.offsets)));
            share
        };
        shares.into_iter().map(sorted).collect()
    }

    #[test]
    fn a_plan_is_made_again_when_a_shape_or_the_place_is_another() {
        let mut plan = Plan::default();
        let small = entries(&[vec![3]]);
        let large = entries(&[vec![900, 900], vec![3]]);
        for (asked, rank, world) in [(&small, 0, 1), (&large, 0, 1), (&large, 0, 1), (&large, 1, 3), (&small, 1, 3)] {
            let (of, pieces) = plan.share(asked.clone(), rank, world);
            assert_eq!((of, pieces), (asked.as_slice(), share(asked, rank, world).as_slice()));
        }
    }

    proptest! {
        #[test]
        fn the_quick_way_gives_what_the_slow_one_gives(
            shapes in prop::collection::vec(prop::collection::vec(0u64..1200, 0..3), 0..14), world in 1usize..9,
        ) {
            let entries = entries(&shapes);
            prop_assert_eq!(divide(&entries, world), slowly(&entries, world));
        }

        #[test]
        fn every_row_of_every_tensor_is_written_once(
            shapes in prop::collection::vec(prop::collection::vec(0u64..900, 0..3), 1..12), world in 1usize..6,
        ) {
            let entries = entries(&shapes);
            let shares = divide(&entries, world);
            prop_assert_eq!(shares.len(), world);
            for (index, shape) in shapes.iter().enumerate() {
                let mut boxes: Vec<&Piece> = shares.iter().flatten().filter(|p| p.entry == index).collect();
                boxes.sort_by_key(|p| p.offsets.first().copied());
                let mut next = 0;
                for piece in &boxes {
                    prop_assert_eq!(piece.sizes.get(1..), shape.get(1..));
                    if !shape.is_empty() {
                        prop_assert_eq!(piece.offsets[0], next);
                        next += piece.sizes[0];
                    }
                }
                prop_assert!(!boxes.is_empty());
                prop_assert_eq!(next, shape.first().copied().unwrap_or(0));
            }
        }
    }

    #[test]
    fn bytes_are_balanced_and_the_order_of_input_does_not_matter() {
        let shapes = [vec![1000, 600], vec![64], vec![300, 300], vec![2000, 10], vec![], vec![512, 512]];
        let listed = entries(&shapes);
        let shares = divide(&listed, 3);
        let load = |share: &Vec<Piece>| share.iter().map(|p| listed[p.entry].bytes(&p.sizes)).sum::<u64>();
        let least = shares.iter().map(load).min().unwrap();
        let most = shares.iter().map(load).max().unwrap();
        assert!(most - least <= SPLIT_BYTES_MIN, "{least}..{most}");

        let mut reversed = listed.clone();
        reversed.reverse();
        let names = |entries: &[PlannedTensor], shares: &[Vec<Piece>]| -> Vec<Vec<(String, Vec<u64>)>> {
            shares
                .iter()
                .map(|share| {
                    let mut names: Vec<_> =
                        share.iter().map(|p| (entries[p.entry].fqn.clone(), p.offsets.clone())).collect();
                    names.sort();
                    names
                })
                .collect()
        };
        assert_eq!(names(&listed, &shares), names(&reversed, &divide(&reversed, 3)));
    }
}
