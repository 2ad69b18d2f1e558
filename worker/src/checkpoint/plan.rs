//! Which rank writes which part of a replicated state. Pure: every rank computes the same answer.
//!
//! Large tensors are cut along their first axis, one box per rank; then all boxes, largest first and by name where equal, go
//! to the rank that has the fewest bytes so far.

use std::cmp::Reverse;

/// Tensors of at least this size are cut: below it a second item costs more than it balances.
pub const SPLIT_BYTES_MIN: u64 = 1 << 20;

/// A tensor to be divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub fqn: String,
    /// Bytes per element.
    pub element_bytes: u64,
    /// Shape.
    pub shape: Vec<u64>,
}

impl Entry {
    fn bytes(&self, sizes: &[u64]) -> u64 {
        sizes.iter().product::<u64>() * self.element_bytes
    }
}

/// A box of a tensor that one rank writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index into the entries.
    pub entry: usize,
    /// Where the box begins.
    pub offsets: Vec<u64>,
    /// Size of the box.
    pub sizes: Vec<u64>,
}

/// The pieces of each of `world` ranks (at least 1), each list in order of entries.
pub fn divide(entries: &[Entry], world: usize) -> Vec<Vec<Piece>> {
    let world = world.max(1);
    let mut pieces: Vec<Piece> =
        entries.iter().enumerate().flat_map(|(index, entry)| cut(index, entry, world)).collect();
    pieces
        .sort_by_cached_key(|p| (Reverse(entries[p.entry].bytes(&p.sizes)), &entries[p.entry].fqn, p.offsets.clone()));
    let mut shares: Vec<(u64, Vec<Piece>)> = vec![(0, Vec::new()); world];
    for piece in pieces {
        let lightest = (0..world).min_by_key(|&rank| shares[rank].0).unwrap_or(0);
        shares[lightest].0 += entries[piece.entry].bytes(&piece.sizes);
        shares[lightest].1.push(piece);
    }
    for (_, share) in &mut shares {
        share.sort_by(|a, b| (a.entry, &a.offsets).cmp(&(b.entry, &b.offsets)));
    }
    shares.into_iter().map(|(_, share)| share).collect()
}

fn cut(index: usize, entry: &Entry, world: usize) -> Vec<Piece> {
    let whole = Piece { entry: index, offsets: vec![0; entry.shape.len()], sizes: entry.shape.clone() };
    let rows = entry.shape.first().copied().unwrap_or(0);
    let parts = (world as u64).min(rows);
    if parts < 2 || entry.bytes(&entry.shape) < SPLIT_BYTES_MIN {
        return vec![whole];
    }
    (0..parts)
        .map(|part| {
            let (start, end) = (rows * part / parts, rows * (part + 1) / parts);
            let mut piece = whole.clone();
            piece.offsets[0] = start;
            piece.sizes[0] = end - start;
            piece
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(shapes: &[Vec<u64>]) -> Vec<Entry> {
        shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| Entry { fqn: format!("t{i}"), element_bytes: 4, shape: shape.clone() })
            .collect()
    }

    proptest! {
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
        let (least, most) = (shares.iter().map(load).min().unwrap(), shares.iter().map(load).max().unwrap());
        assert!(most - least <= SPLIT_BYTES_MIN, "{least}..{most}");

        let mut reversed = listed.clone();
        reversed.reverse();
        let names = |entries: &[Entry], shares: &[Vec<Piece>]| -> Vec<Vec<(String, Vec<u64>)>> {
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
