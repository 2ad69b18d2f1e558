//! Categories, labels and classes: final indices of those in training samples, and treatment of the others.

use super::{
    Job,
    complete::{Classes, Draft, Input},
    error::StageError,
    stats::{self, Codes},
};
use enn_common::staged::{Split, words::Form};
use std::collections::HashMap;

/// Maximum classes of a target: each is an output cell.
const CLASSES_MAX: usize = 1000;

const ONE_HOT_MAX: usize = 1000;

impl Draft {
    /// Sets the final categories, in order of first appearance in the training samples or as declared, and returns the maps to them.
    pub(super) fn categories(&mut self, job: &Job<'_>) -> Result<Vec<Codes>, StageError> {
        let columns: Vec<usize> = (0..self.inputs.len()).filter(|c| self.inputs[*c].categories.is_some()).collect();
        if let Some(training) = job.training {
            // Cells have the model's own indices already.
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
        let orders = stats::appearance(&self.output, &columns, job.threads)?;
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
                let (list, map) = merged(written, order.iter().map(|code| *code as usize));
                let unknown = list.len() as u32;
                *written = list;
                all.push(Codes { column, map, unknown, unseen: Vec::new() });
            }
            if *one_hot && written.len() > ONE_HOT_MAX {
                return Err(StageError::config(
                    "data.rows.features",
                    format!("encoding = \"one_hot\" for the {} categories of {name:?}", written.len()),
                    format!("at most {ONE_HOT_MAX}, or encoding = \"embedding\""),
                ));
            }
        }
        Ok(all)
    }

    /// Counts the labels of all cells; labels of inputs that are dropped count as unseen.
    pub(super) fn count_labels(&mut self, keep: &[bool]) -> Result<(), StageError> {
        let labels: Vec<usize> = (0..keep.len()).filter(|column| self.inputs[*column].label.is_some()).collect();
        if labels.is_empty() {
            return Ok(());
        }
        let mut counts = vec![0; keep.len()];
        for rows in self.output.chunks() {
            let x = self.output.read_x(rows)?;
            for column in &labels {
                let cells = x.iter().skip(*column).step_by(self.output.features).filter(|cell| !cell.is_nan());
                counts[*column] += cells.map(|n| *n as u64).sum::<u64>();
            }
        }
        for column in labels {
            let report = self.report.columns.entry(self.inputs[column].source.clone()).or_default();
            report.words += counts[column];
            report.unseen_category += if keep[column] { 0 } else { counts[column] };
        }
        Ok(())
    }

    /// Returns the form of the class names: from all cells of the target, or that of the model.
    pub(super) fn class_form(&self, job: &Job<'_>) -> Option<Form> {
        let own = self.classes.as_ref()?.form;
        job.training.map_or(own, |training| training.class_form)
    }

    /// Makes one output cell per class in the training samples, in order of first appearance. Targets of other classes count as missing.
    pub(super) fn classify(&mut self, job: &Job<'_>) -> Result<(), StageError> {
        let Some(Classes { words: written, .. }) = self.classes.take() else { return Ok(()) };
        let source = self.targets[0].clone();
        let (classes, class_of): (Vec<String>, Vec<Option<u32>>) = match job.training {
            // Cells have the model's own indices already; equal classes of an earlier version stay separate.
            Some(_) => (written.clone(), (0..written.len() as u32).map(Some).collect()),
            None => {
                let (order, samples) = self.classes_in_training()?;
                let (classes, class_of) = merged(&written, order.into_iter());
                if classes.len() as u64 == samples && samples > 2 {
                    return Err(StageError::config(
                        "data.rows.targets",
                        format!("{samples} classes of {source:?} in {samples} training samples, each of them once"),
                        "classes that several samples have; is it an identifier, or a number?",
                    ));
                }
                (classes, class_of)
            }
        };
        if !(2..=CLASSES_MAX).contains(&classes.len()) {
            return Err(StageError::config(
                "data.rows.targets",
                format!("{} classes of {source:?} in the training samples", classes.len()),
                format!("2 to {CLASSES_MAX}"),
            ));
        }
        let class = |code: usize| class_of.get(code).copied().flatten().map(|class| class as usize);
        let unseen = self.count_targets(|code| class(code).is_none())?;
        let words = self.count_targets(|_| true)?;
        let column = self.report.columns.entry(source).or_default();
        column.unseen_category += unseen;
        column.words += words;
        self.output.widen_targets(classes.len(), &class)?;
        self.out_shape = vec![classes.len()];
        self.out_labels = vec![classes];
        Ok(())
    }

    /// Returns the written classes of the training samples in order of first appearance, and the number of samples with a class.
    fn classes_in_training(&self) -> Result<(Vec<usize>, u64), StageError> {
        let mut order = Vec::new();
        let mut samples = 0;
        for rows in self.output.chunks() {
            let split = self.output.read_split(rows.clone())?;
            let y = self.output.read_y(rows)?;
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

    fn count_targets(&self, is_counted: impl Fn(usize) -> bool) -> Result<u64, StageError> {
        let mut count = 0;
        for rows in self.output.chunks() {
            let y = self.output.read_y(rows)?;
            count += y.iter().filter(|code| !code.is_nan() && is_counted(**code as usize)).count() as u64;
        }
        Ok(count)
    }
}

/// Returns the distinct words of `order`, and for each written word its index among them.
fn merged(written: &[String], order: impl Iterator<Item = usize>) -> (Vec<String>, Vec<Option<u32>>) {
    let mut index: HashMap<&str, u32> = HashMap::new();
    let mut list = Vec::new();
    for code in order {
        let word = written[code].as_str();
        index.entry(word).or_insert_with(|| {
            list.push(word.to_owned());
            list.len() as u32 - 1
        });
    }
    let map = written.iter().map(|word| index.get(word.as_str()).copied()).collect();
    (list, map)
}
