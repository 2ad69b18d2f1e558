//! Times of rows for a chronological split: from the column that the configuration names, or from the only input that is a time. Rows
//! without such a column are refused, because the order of a file need not be that of time.
//!
//! The source is read once more, only these columns.

use super::{
    Job, Progress,
    complete::Draft,
    error::StageError,
    source::block::{Block, ColumnKind, ColumnSpec, NO_TIME},
    split,
    table::{PassOptions, Sink, Table},
};
use enn_common::{
    config::data::{DataConfig, FeatureKind, Layout, RowsLayout, SplitKind},
    staged::Split,
};
use std::{ops::Range, path::Path};

/// Hint where no column gives the order.
const UNKNOWN: &str = "set data.split.column to the column of the times, or data.split.kind = \"in_order\" where the rows are in the order \
                       of time already";
/// Hint where several columns may give the order.
const SEVERAL: &str = "set data.split.column to the column of the times that divides the rows";
/// Hint where parts of an unsorted file would be taken for time ranges.
const UNSORTED: &str = "sort the rows by that column, or set data.split.kind = \"random\"";

fn columns(config: &DataConfig, layout: &RowsLayout) -> Vec<String> {
    match &config.split.column {
        Some(column) => vec![column.clone()],
        None => {
            let times = layout.features.iter().filter(|feature| feature.kind == FeatureKind::Time);
            times.map(|feature| feature.column.clone()).collect()
        }
    }
}

/// Returns the times of all rows, microseconds since 1970, for a chronological split; empty for other splits.
pub(super) fn times(
    job: &Job<'_>,
    layout: &RowsLayout,
    table: &Table,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<i64>, StageError> {
    if job.training.is_some() || job.config.split.kind != SplitKind::Chronological {
        return Ok(Vec::new());
    }
    let columns = columns(job.config, layout);
    if columns.is_empty() {
        let found = "\"chronological\" for rows without a time".to_owned();
        return Err(StageError::NoOrder { found, hint: UNKNOWN });
    }
    table.require(&columns)?;
    let specs: Vec<ColumnSpec> = columns.iter().map(|column| ColumnSpec::new(column, ColumnKind::Time)).collect();
    let options = PassOptions { specs: &specs, hash_rows: false, threads: job.threads, resume_log: None };
    let (mut found, _) = table.pass(options, &Times, vec![Vec::new(); specs.len()], progress)?;
    // Of several columns any is suitable by which the rows are sorted.
    let at = if found.len() == 1 { Some(0) } else { found.iter().position(|times| times.is_sorted()) };
    at.map(|at| found.swap_remove(at)).ok_or_else(|| {
        let found = format!("\"chronological\" for rows with {} columns of times, sorted by none", columns.len());
        StageError::NoOrder { found, hint: SEVERAL }
    })
}

/// Refuses rows that are not sorted by time where parts of the table are taken for time ranges.
///
/// # Errors
/// The rows are not sorted, no column gives their time, or the source cannot be read.
pub fn require_order(config: &DataConfig, scratch: &Path) -> Result<(), StageError> {
    let Layout::Rows(layout) = &config.layout else { return Ok(()) };
    let job = Job::reading(config, scratch);
    let table = Table::open(&job)?;
    let times = times(&job, layout, &table, &mut |_| {})?;
    if times.is_sorted() {
        return Ok(());
    }
    let found = "\"chronological\" for rows that are not sorted by their time".to_owned();
    Err(StageError::NoOrder { found, hint: UNSORTED })
}

struct Times;

impl Sink for Times {
    type Work = Vec<Vec<i64>>;
    type State = Vec<Vec<i64>>;

    fn work(&self, block: Block) -> Result<Self::Work, StageError> {
        Ok(block.columns.iter().map(|column| column.times().to_vec()).collect())
    }

    fn order(&self, all: &mut Self::State, _: u64, part: &mut Self::Work) -> Result<(), StageError> {
        all.iter_mut().zip(part).for_each(|(all, part)| all.append(part));
        Ok(())
    }
}

impl Draft {
    /// Splits the samples of a source by time: the oldest are training, the latest test samples. Rows without a time count as the oldest.
    pub(super) fn divide_by_time(&self, job: &Job<'_>, own: Range<u64>) -> Result<(), StageError> {
        let mut order: Vec<u64> = own.clone().collect();
        order.sort_by_key(|row| (self.times[*row as usize], *row));
        let mut splits = vec![Split::Train as u8; order.len()];
        for (range, split) in split::chronological(&job.config.split, 0..order.len() as u64) {
            for row in &order[range.start as usize..range.end as usize] {
                splits[(row - own.start) as usize] = split as u8;
            }
        }
        self.output.put_split(own.start, &splits)
    }

    pub(super) fn note_timeless(&mut self) {
        let timeless = self.times.iter().filter(|time| **time == NO_TIME).count();
        if timeless > 0 {
            self.report.notes.push(format!("{timeless} rows have no time to divide them by and count as the oldest"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::tests::Bench;
    use enn_common::config::data::{Feature, SplitConfig};

    /// Forty days in another order than that of time.
    const DAYS: u64 = 40;

    fn day(row: u64) -> u64 {
        row * 17 % DAYS
    }

    fn bench(day: fn(u64) -> u64) -> Bench {
        let rows = (0..DAYS).map(|row| format!("{},{},{row},{row}\n", day(row) * 86_400, row % 3 * 86_400));
        let mut bench = Bench::rows("t.csv", format!("t,u,a,y\n{}", rows.collect::<String>()).as_bytes());
        let column = None;
        bench.config.split = SplitConfig { kind: SplitKind::Chronological, val: 0.25, test: 0.25, seed: 1, column };
        bench
    }

    fn by_day(row: u64) -> u8 {
        [0, 0, 1, 2][day(row) as usize / 10]
    }

    #[test]
    fn rows_are_divided_by_their_times_in_whatever_order_they_come() {
        let expected: Vec<u8> = (0..DAYS).map(by_day).collect();
        let mut named = bench(day);
        named.config.split.column = Some("t".into());
        assert_eq!(named.stage().1.split(), expected, "by the column that is named");
        let mut input = bench(day);
        input.layout().features.push(Feature::new("t", FeatureKind::Time));
        assert_eq!(input.stage().1.split(), expected, "by the one input that is a time");
        // Rows that are dropped leave the others where they are in time.
        let text = std::fs::read_to_string(&named.config.files[0]).unwrap().replace(",7,7\n", ",7,\n");
        std::fs::write(&named.config.files[0], text).unwrap();
        let (staged, arrays) = named.stage();
        assert_eq!((arrays.rows(), staged.meta.report.dropped_samples), (39, 1));
        let later = |row: &usize| by_day(*row as u64) == 2 && *row != 7;
        assert_eq!(arrays.split().iter().filter(|split| **split == 2).count(), 10);
        assert!((0..40).filter(later).all(|row| arrays.split()[row - usize::from(row > 7)] == 2));
    }

    #[test]
    fn rows_without_a_time_are_refused_unless_their_order_is_said_to_be_that_of_time() {
        let mut bench = bench(day);
        let error = bench.error();
        assert!(error.contains("data.split.kind: found \"chronological\" for rows without a time"), "{error}");
        assert!(error.contains("hint: set data.split.column to the column of the times"), "{error}");
        let times = ["t", "u"].map(|column| Feature::new(column, FeatureKind::Time));
        bench.layout().features.extend(times);
        assert!(bench.error().contains("2 columns of times, sorted by none"), "{}", bench.error());
        bench.config.split.kind = SplitKind::InOrder;
        let in_order: Vec<u8> = (0..DAYS).map(|row| [0, 0, 1, 2][row as usize / 10]).collect();
        assert_eq!(bench.stage().1.split(), in_order);
    }

    #[test]
    fn of_several_times_the_one_counts_that_the_table_is_sorted_by() {
        let mut bench = bench(|row| row);
        let times = ["u", "t"].map(|column| Feature::new(column, FeatureKind::Time));
        bench.layout().features.extend(times);
        let in_order: Vec<u8> = (0..DAYS).map(|row| [0, 0, 1, 2][row as usize / 10]).collect();
        assert_eq!(bench.stage().1.split(), in_order);
        assert!(require_order(&bench.config, bench.dir.path()).is_ok());
    }

    #[test]
    fn blocks_of_a_table_are_stretches_of_time_only_where_it_is_sorted() {
        let mut bench = bench(day);
        bench.config.split.column = Some("t".into());
        let error = require_order(&bench.config, bench.dir.path()).unwrap_err().to_string();
        assert!(error.contains("rows that are not sorted by their time") && error.contains("sort the rows"), "{error}");
    }
}
