//! Removal of samples once all rows are read: repetitions, samples without targets, and windows that would leak.

use super::{
    Job,
    bits::Bits,
    complete::Draft,
    duplicates::{self, Hashes},
    error::StageError,
    purge,
};
use enn_common::{config::data::DuplicatePolicy, staged::LEFT_OUT};

impl Draft {
    pub(crate) fn drop_rows(&mut self, dropped: &Bits) -> Result<(), StageError> {
        self.output.drop_rows(dropped)?;
        let mut first = 0;
        for rows in &mut self.sources {
            let own = first..first + *rows;
            first = own.end;
            *rows -= own.filter(|row| dropped.get(*row)).count() as u64;
        }
        let mut row = 0..;
        self.names.retain(|_| row.next().is_some_and(|row| !dropped.get(row)));
        let mut row = 0..;
        self.times.retain(|_| row.next().is_some_and(|row| !dropped.get(row)));
        let mut row = 0..;
        self.starts.retain(|_| row.next().is_some_and(|row| !dropped.get(row)));
        Ok(())
    }

    /// Counts rows that repeat a key (or all cells) and removes them by the policy; then removes training samples without a target.
    pub(crate) fn drop_repeated(
        &mut self,
        job: &Job<'_>,
        hashes: Hashes,
        what: &'static str,
    ) -> Result<(), StageError> {
        let policy = job.config.duplicates;
        let repeats = hashes.repeats(policy)?;
        self.report.duplicates = repeats.count;
        if let Some((second, first)) = repeats.first.filter(|_| policy == DuplicatePolicy::Error) {
            let path = job.config.files.first().cloned().unwrap_or_default();
            return Err(StageError::Duplicate { path, what, first: first + 1, second: second + 1 });
        }
        if job.training.is_none() {
            self.report.warnings.extend(duplicates::warning(repeats.dropped.count(), self.output.rows, what));
            if repeats.dropped.count() > 0 {
                self.drop_rows(&repeats.dropped)?;
            }
            self.drop_untargeted()?;
        }
        Ok(())
    }

    pub(crate) fn drop_untargeted(&mut self) -> Result<(), StageError> {
        let mut dropped = Bits::new(self.output.rows);
        for rows in self.output.chunks() {
            let y = self.output.read_y(rows.clone())?;
            let blank = y.chunks_exact(self.output.outputs).zip(rows).filter(|(y, _)| y.iter().all(|y| y.is_nan()));
            blank.for_each(|(_, row)| {
                dropped.set(row);
            });
        }
        self.report.dropped_samples += dropped.count();
        self.drop_rows(&dropped)
    }

    /// Removes windows whose history contains validation or test targets.
    pub(crate) fn purge(&mut self, job: &Job<'_>) -> Result<(), StageError> {
        let Some(reach) = purge::reach(job.config).filter(|_| job.training.is_none()) else { return Ok(()) };
        let mut split = self.output.read_split(0..self.output.rows)?;
        let before = purge::training(&split);
        let mut count = 0;
        for own in self.extents() {
            let own = own.start as usize..own.end as usize;
            count += purge::leave_out(&self.starts[own.clone()], reach, &mut split[own]);
        }
        if count == 0 {
            return Ok(());
        }
        purge::check(job.config, before, purge::training(&split))?;
        let mut dropped = Bits::new(self.output.rows);
        (0..).zip(&split).filter(|(_, code)| **code == LEFT_OUT).for_each(|(row, _)| {
            dropped.set(row);
        });
        self.report.dropped_samples += count;
        let what = "windows were left out because their history holds targets of validation or test";
        self.report.warnings.push(format!("{count} {what}; data.split.kind = \"chronological\" loses none"));
        self.drop_rows(&dropped)
    }
}
