//! Rows of one split: a range when they are contiguous, else a list with the narrowest index that fits.

/// Row numbers of the staged order that belong to a split, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowIndex {
    /// Contiguous rows `start..start + len`.
    Range { start: u64, len: u64 },
    /// A list of 32-bit row numbers: half the memory, and enough for 4 · 10⁹ rows.
    Narrow(Vec<u32>),
    /// A list of 64-bit row numbers.
    Wide(Vec<u64>),
}

impl RowIndex {
    /// Finds the rows whose entry in `split` equals `which` (0 train, 1 validation, 2 test).
    pub fn of_split(split: &[u8], which: u8) -> Self {
        let len = split.iter().filter(|&&s| s == which).count() as u64;
        let start = split.iter().position(|&s| s == which).unwrap_or(0) as u64;
        let contiguous = split[start as usize..(start + len) as usize].iter().all(|&s| s == which);
        if contiguous {
            return Self::Range { start, len };
        }
        let rows = split.iter().enumerate().filter(|&(_, &s)| s == which).map(|(row, _)| row);
        if u32::try_from(split.len()).is_ok() {
            Self::Narrow(rows.map(|row| row as u32).collect())
        } else {
            Self::Wide(rows.map(|row| row as u64).collect())
        }
    }

    pub fn len(&self) -> u64 {
        match self {
            Self::Range { len, .. } => *len,
            Self::Narrow(rows) => rows.len() as u64,
            Self::Wide(rows) => rows.len() as u64,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the row number of the `ordinal`-th row; `ordinal` must be below `len`.
    pub fn at(&self, ordinal: u64) -> u64 {
        match self {
            Self::Range { start, len } => {
                debug_assert!(ordinal < *len, "ordinal {ordinal} of {len} rows");
                start + ordinal
            }
            Self::Narrow(rows) => u64::from(rows[ordinal as usize]),
            Self::Wide(rows) => rows[ordinal as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_rows_are_a_range() {
        assert_eq!(RowIndex::of_split(&[0, 0, 0, 1, 1, 2], 1), RowIndex::Range { start: 3, len: 2 });
        assert_eq!(RowIndex::of_split(&[0, 0], 2), RowIndex::Range { start: 0, len: 0 });
        assert!(RowIndex::of_split(&[], 0).is_empty());
    }

    #[test]
    fn scattered_rows_are_listed_in_order() {
        let index = RowIndex::of_split(&[0, 1, 0, 2, 0, 1], 0);
        assert_eq!(index, RowIndex::Narrow(vec![0, 2, 4]));
        assert_eq!((0..index.len()).map(|i| index.at(i)).collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(RowIndex::of_split(&[0, 1, 0, 2, 0, 1], 1), RowIndex::Narrow(vec![1, 5]));
    }
}
