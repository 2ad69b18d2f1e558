//! Rows of the data that are left out of training, because a step with them was not finite.
//!
//! **Invariant:** all ranks of a round hold the same list at the same step; a row that is on it stays on it.

use crate::{checkpoint::Named, data::Batch};
use std::collections::BTreeMap;
use tch::{TchError, Tensor};

/// Name in a checkpoint; absent when there is none.
pub const STATE: &str = "progress.poisoned_rows";

/// Rows of the staged order, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExcludedRows {
    rows: Vec<u64>,
}

impl ExcludedRows {
    pub fn count(&self) -> u64 {
        self.rows.len() as u64
    }

    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// Adds rows; those may be on it already.
    pub fn add(&mut self, rows: impl IntoIterator<Item = u64>) {
        self.rows.extend(rows);
        self.rows.sort_unstable();
        self.rows.dedup();
    }

    /// Lets the rows of a batch that are on the list weigh nothing, in place.
    pub fn leave_out_of(&self, batch: &Batch) -> Result<(), TchError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let listed = |row: &u64| self.rows.binary_search(row).is_ok();
        let slots = batch.rows.iter().enumerate().filter(|(_, row)| listed(row)).map(|(slot, _)| slot);
        batch.leave_out(&slots.collect::<Vec<_>>())
    }

    pub fn named(&self) -> Option<Named> {
        let rows: Vec<i64> = self.rows.iter().copied().map(u64::cast_signed).collect();
        (!rows.is_empty()).then(|| Named::of(STATE, &Tensor::from_slice(&rows)))
    }

    /// The list that `saved` holds; none when it names none.
    pub fn restore(saved: &BTreeMap<String, Tensor>) -> Result<Self, TchError> {
        let mut all = Self::default();
        if let Some(rows) = saved.get(STATE) {
            all.add(Vec::<i64>::try_from(rows)?.into_iter().map(i64::cast_unsigned));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_and_an_empty_one_leaves_no_trace() {
        let mut list = ExcludedRows::default();
        assert!(list.named().is_none());
        list.add([7, 3, 7]);
        list.add([5, 3]);
        let saved = list.named().into_iter().map(|item| (item.fqn, item.tensor)).collect();
        let back = ExcludedRows::restore(&saved).unwrap();
        assert_eq!((back.rows(), back.count()), (&[3, 5, 7][..], 3));
        assert_eq!(ExcludedRows::restore(&BTreeMap::new()).unwrap(), ExcludedRows::default());
    }
}
