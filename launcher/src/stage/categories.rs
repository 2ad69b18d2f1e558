//! Categories, labels and classes: which of them training has, and what becomes of the others.

use super::{
    Job,
    complete::{Draft, Input},
    error::StageError,
    figures::{self, Codes},
};
use enn_common::staged::Split;

/// Classes of a target, at most: each is an output cell.
const CLASSES_MAX: usize = 1000;

/// Categories that a model reads as a column for each, at most.
const ONE_HOT_MAX: usize = 1000;

impl Draft {
    /// Final categories, in order of first appearance in the training samples or as declared, and how to get there.
    pub(super) fn categories(&mut self, job: &Job<'_>) -> Result<Vec<Codes>, StageError> {
        let columns: Vec<usize> = (0..self.inputs.len()).filter(|c| self.inputs[*c].categories.is_some()).collect();
        if let Some(training) = job.training {
            // The model's own categories were used from the beginning.
            let code = |column: &usize| {
                let input = &self.inputs[*column];
                let count = input.categories.as_ref().map_or(0, Vec::len);
                let own = training.features.iter().find(|feature| feature.name == input.name);
                let unseen = own.and_then(|own| own.index.as_ref()).map_or_else(Vec::new, |index| index.unseen.clone());
                Codes { column: *column, map: Vec::new(), unknown: count as u32, unseen }
            };
            return Ok(columns.iter().map(code).collect());
        }
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let orders = figures::appearance(&self.output, &columns, job.threads)?;
        let mut all = Vec::new();
        for (column, order) in columns.into_iter().zip(orders) {
            let Input { name, categories, offset, one_hot, .. } = &mut self.inputs[column];
            let Some(written) = categories else { continue };
            if offset.is_some() {
                let mut is_seen = vec![false; written.len() + 1];
                order.iter().for_each(|code| is_seen[*code as usize] = true);
                let unknown = written.len() as u32;
                let unseen = (0..unknown).filter(|code| !is_seen[*code as usize]).collect();
                all.push(Codes { column, map: Vec::new(), unknown, unseen });
            } else {
                let mut map = vec![None; written.len()];
                order.iter().zip(0..).for_each(|(code, index)| map[*code as usize] = Some(index));
                *written = order.iter().map(|code| written[*code as usize].clone()).collect();
                all.push(Codes { column, map, unknown: order.len() as u32, unseen: Vec::new() });
            }
            if *one_hot && written.len() > ONE_HOT_MAX {
                return Err(StageError::Config {
                    key: "data.rows.features",
                    found: format!("encoding = \"one_hot\" for the {} categories of {name:?}", written.len()),
                    expected: format!("at most {ONE_HOT_MAX}, or encoding = \"embedding\""),
                });
            }
        }
        Ok(all)
    }

    /// Counts the labels of inputs that do not stay: no training sample has them.
    pub(super) fn count_strange_labels(&mut self, keep: &[bool]) -> Result<(), StageError> {
        let strange: Vec<usize> =
            (0..keep.len()).filter(|column| !keep[*column] && self.inputs[*column].label.is_some()).collect();
        if strange.is_empty() {
            return Ok(());
        }
        for rows in self.output.chunks() {
            let x = self.output.read_x(rows)?;
            for column in &strange {
                let cells = x.iter().skip(*column).step_by(self.output.features).filter(|cell| !cell.is_nan());
                let source = self.inputs[*column].source.clone();
                self.report.columns.entry(source).or_default().unseen_category += cells.map(|n| *n as u64).sum::<u64>();
            }
        }
        Ok(())
    }

    /// Makes an output cell of each class that a training sample has, in order of first appearance there. Targets of other classes
    /// count as missing.
    pub(super) fn classify(&mut self, job: &Job<'_>) -> Result<(), StageError> {
        let Some(written) = self.classes.take() else { return Ok(()) };
        let source = self.targets[0].clone();
        let order: Vec<usize> = match job.training {
            // The model's own classes were used from the beginning.
            Some(_) => (0..written.len()).collect(),
            None => {
                let (order, samples) = self.classes_in_training()?;
                if order.len() as u64 == samples && samples > 2 {
                    return Err(StageError::Config {
                        key: "data.rows.targets",
                        found: format!(
                            "{samples} classes of {source:?} in {samples} training samples, each of them once"
                        ),
                        expected: "classes that several samples have; is it an identifier, or a number?".into(),
                    });
                }
                order
            }
        };
        if !(2..=CLASSES_MAX).contains(&order.len()) {
            return Err(StageError::Config {
                key: "data.rows.targets",
                found: format!("{} classes of {source:?} in the training samples", order.len()),
                expected: format!("2 to {CLASSES_MAX}"),
            });
        }
        let mut class_of = vec![None; written.len()];
        order.iter().enumerate().for_each(|(class, code)| class_of[*code] = Some(class));
        let unseen = self.count_targets(|code| class_of.get(code).copied().flatten().is_none())?;
        self.report.columns.entry(source).or_default().unseen_category += unseen;
        self.output.widen_targets(order.len(), &|code| class_of.get(code).copied().flatten())?;
        self.out_labels = vec![order.iter().map(|code| written[*code].clone()).collect()];
        self.out_shape = vec![order.len()];
        Ok(())
    }

    /// Written classes of the training samples, in order of first appearance; and how many samples have one.
    fn classes_in_training(&self) -> Result<(Vec<usize>, u64), StageError> {
        let (mut order, mut samples) = (Vec::new(), 0);
        for rows in self.output.chunks() {
            let (split, y) = (self.output.read_split(rows.clone())?, self.output.read_y(rows)?);
            for (code, _) in y.iter().zip(split).filter(|(code, split)| *split == Split::Train as u8 && !code.is_nan())
            {
                samples += 1;
                if !order.contains(&(*code as usize)) && order.len() <= CLASSES_MAX {
                    order.push(*code as usize);
                }
            }
        }
        Ok((order, samples))
    }

    /// Targets with a class of this kind.
    fn count_targets(&self, is_counted: impl Fn(usize) -> bool) -> Result<u64, StageError> {
        let mut count = 0;
        for rows in self.output.chunks() {
            let y = self.output.read_y(rows)?;
            count += y.iter().filter(|code| !code.is_nan() && is_counted(**code as usize)).count() as u64;
        }
        Ok(count)
    }
}
