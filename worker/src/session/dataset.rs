//! The staged data of a session: arrays, the rows of each split, and what the model must know of them.

use super::SessionError;
use crate::data::prefetch::Arrays;
use crate::data::{Batch, DataError, Mix, RowIndex, View};
use enn_common::{
    config::{RunConfig, data::DataConfig},
    staged::{Split, Staged},
};
use std::{path::Path, sync::Arc};
use tch::Device;

/// Rows given to the model's closed-form start at most.
const START_ROWS_MAX: u64 = 65_536;
/// Values given to it at most: 64 MiB of f32, of which it holds another copy.
const START_VALUES_MAX: u64 = 1 << 24;
/// Rows that it is given also where they are [`FEW_TIMES`] as many values: few rows say too little of many columns.
const START_ROWS_FEW: u64 = 128;
/// How many times as many values few rows may be.
const FEW_TIMES: u64 = 4;

pub struct Dataset {
    pub staged: Arc<Mapped>,
    /// Rows of train, val and test.
    pub splits: [Arc<RowIndex>; 3],
}

/// Mapped arrays, as the prefetch thread reads them.
pub struct Mapped(pub Staged);

impl Mapped {
    /// The inputs alone: large targets would be gathered for nothing.
    pub fn inputs(&self) -> Result<View<'_>, DataError> {
        let staged = &self.0;
        View::inputs(staged.rows(), staged.features(), staged.x(), staged.x_mask())
    }
}

impl Arrays for Mapped {
    fn view(&self) -> Result<View<'_>, DataError> {
        let staged = &self.0;
        let view = self.inputs()?;
        if staged.meta().has_targets {
            view.with_targets(staged.outputs(), staged.y(), staged.y_mask())?.with_weights(staged.weight())
        } else {
            Ok(view)
        }
    }
}

impl Dataset {
    /// Opens and validates a staged directory.
    pub fn open(path: &Path) -> Result<Self, SessionError> {
        let staged = Staged::open(path)?;
        let splits = Split::ALL.map(|split| Arc::new(RowIndex::of_split(staged.split(), split as u8)));
        Ok(Self { staged: Arc::new(Mapped(staged)), splits })
    }

    /// `open`, for training: targets and training rows must be there.
    ///
    /// # Errors
    /// [`SessionError::Nothing`] naming what is missing.
    pub fn for_training(path: &Path) -> Result<Self, SessionError> {
        let data = Self::open(path)?;
        let nothing = |what, hint| Err(SessionError::Nothing { path: path.to_owned(), what, hint });
        if !data.staged.0.meta().has_targets {
            return nothing("targets", "name the target columns in [data]");
        }
        if data.rows(Split::Train).is_empty() {
            return nothing("training rows", "lower data.split.val and data.split.test, or bring more rows");
        }
        let weight = data.staged.0.weight();
        let train = data.rows(Split::Train);
        if !weight.is_empty() && (0..train.len()).all(|ordinal| weight[train.at(ordinal) as usize] == 0.0) {
            return nothing("training rows that count", "check the column named by data.weight");
        }
        Ok(data)
    }

    /// Rows and draws of each source, where the configuration gives the sources weights.
    ///
    /// # Errors
    /// [`SessionError::Nothing`] when the data were staged without these sources.
    pub fn mix(&self, config: &RunConfig) -> Result<Option<Arc<Mix>>, SessionError> {
        let Some(weights) = config.data.as_ref().and_then(DataConfig::source_weights) else { return Ok(None) };
        let sources = &self.staged.0.meta().sources;
        if weights.len() != sources.len() {
            let path = self.staged.0.dir().to_owned();
            let hint = "stage the data that [[data.sources]] describes";
            return Err(SessionError::Nothing { path, what: "the sources that have weights", hint });
        }
        let rows: Vec<u64> = sources.iter().map(|source| source.split_rows[Split::Train as usize]).collect();
        Ok(Some(Arc::new(Mix::new(&rows, &weights))))
    }

    /// Identities of all rows, in the staged order.
    pub fn ids(&self) -> &[i64] {
        self.staged.0.row_id()
    }

    pub fn rows(&self, split: Split) -> &Arc<RowIndex> {
        &self.splits[split as usize]
    }

    /// Gathers some of the rows of a split, of which `kept` are taken, evenly spread.
    pub fn gather(
        &self,
        split: Split,
        kept: u64,
        places: std::ops::Range<u64>,
        device: Device,
    ) -> Result<Batch, SessionError> {
        let index = self.rows(split);
        let row = |place| index.at(spread(place, index.len(), kept));
        self.gather_rows(&places.map(row).collect::<Vec<_>>(), device)
    }

    /// Gathers rows of the staged order.
    pub fn gather_rows(&self, rows: &[u64], device: Device) -> Result<Batch, SessionError> {
        Ok(self.staged.view()?.gather(rows, rows.len(), device)?.to_device(device)?)
    }

    /// Training rows for the model's closed-form start, evenly spread.
    pub fn start_rows(&self, device: Device) -> Result<Batch, SessionError> {
        let index = self.rows(Split::Train);
        let width = (self.staged.0.features() + self.staged.0.outputs()).max(1) as u64;
        let most = START_ROWS_MAX.min(rows_within(START_VALUES_MAX, width, START_ROWS_FEW));
        let rows: Vec<u64> = self.spread(Split::Train, most).map(|ordinal| index.at(ordinal)).collect();
        self.gather_rows(&rows, device)
    }

    /// Ordinals of at most so many rows of a split, evenly spread.
    pub fn spread(&self, split: Split, most: u64) -> impl Iterator<Item = u64> {
        let len = self.rows(split).len();
        let kept = len.min(most);
        (0..kept).map(move |i| spread(i, len, kept))
    }

    /// Whether all validation rows lie behind all training rows: in time, as a chronological split has it. Others are like the rows that
    /// will be predicted.
    pub fn validates_later(&self) -> bool {
        let train = self.rows(Split::Train);
        let val = self.rows(Split::Val);
        !train.is_empty() && !val.is_empty() && train.at(train.len() - 1) < val.at(0)
    }

    /// Training rows and behind them validation rows, at most so many in all, evenly spread; and how many of them validate.
    pub fn in_time(&self, most: u64, device: Device) -> Result<(Batch, i64), SessionError> {
        let train = self.rows(Split::Train);
        let val = self.rows(Split::Val);
        let part = |split: Split| spread(self.rows(split).len(), train.len() + val.len(), most).max(1);
        let trained = self.spread(Split::Train, part(Split::Train)).map(|ordinal| train.at(ordinal));
        let held: Vec<u64> = self.spread(Split::Val, part(Split::Val)).map(|ordinal| val.at(ordinal)).collect();
        let count = held.len() as i64;
        let rows: Vec<u64> = trained.chain(held).collect();
        Ok((self.gather_rows(&rows, device)?, count))
    }
}

/// How many rows of `width` values have room in `values` of them; up to `few` rows in [`FEW_TIMES`] as many; one at least.
pub(super) fn rows_within(values: u64, width: u64, few: u64) -> u64 {
    (values / width).max(few.min(FEW_TIMES * values / width)).max(1)
}

/// The `i`-th of `kept` ordinals spread evenly over `0..len`.
pub(super) fn spread(i: u64, len: u64, kept: u64) -> u64 {
    (u128::from(i) * u128::from(len) / u128::from(kept)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_may_be_more_values() {
        let rows = |width| rows_within(START_VALUES_MAX, width, START_ROWS_FEW);
        assert_eq!([10, 1 << 16, 1 << 17, 1_000_000, 1 << 40].map(rows), [1_677_721, 256, 128, 67, 1]);
    }

    #[test]
    fn spreading_keeps_order_and_bounds() {
        assert_eq!((0..4).map(|i| spread(i, 10, 4)).collect::<Vec<_>>(), [0, 2, 5, 7]);
        assert_eq!((0..3).map(|i| spread(i, 3, 3)).collect::<Vec<_>>(), [0, 1, 2]);
        let huge = 1 << 62;
        assert!(spread(999, huge, 1000) < huge);
    }
}
