//! Whether a model knows what new data say: of a column that was read in another way than in training hardly any category is known.
//! Pure.

use super::error::brief;
use enn_common::staged::meta::CleaningReport;
use std::collections::BTreeMap;

/// Values that are counted before a column of a stream is judged: a few rows may all be of a new category.
const ENOUGH: u64 = 1000;
/// Unknown values that are told.
const TOLD_MAX: usize = 5;

/// Data that a model was not trained on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unseen {
    /// Most of a column.
    #[error(
        "column {column:?}: the model does not know {unseen} of {words} values{}, expected no more than half of them to be unknown\n\
         hint: see that the column holds what it held in training; --allow-unseen predicts all the same",
        told(strangers)
    )]
    Most {
        /// Source column.
        column: String,
        /// Values that are unknown.
        unseen: u64,
        /// Values.
        words: u64,
        /// Some of the unknown ones.
        strangers: Vec<String>,
    },
    /// Classes that no prediction can be.
    #[error(
        "target {column:?}: the model does not know the class of {unseen} of {words} rows{}, expected {}\n\
         hint: leave these rows out, or train with rows of these classes",
        told(strangers),
        known(classes)
    )]
    Classes {
        /// Target column.
        column: String,
        /// Rows of an unknown class.
        unseen: u64,
        /// Rows with a class.
        words: u64,
        /// Some of the unknown ones.
        strangers: Vec<String>,
        /// Those of the model.
        classes: Vec<String>,
    },
}

fn told(strangers: &[String]) -> String {
    if strangers.is_empty() { String::new() } else { format!(", such as {}", first(strangers)) }
}

fn known(classes: &[String]) -> String {
    let more = if classes.len() > TOLD_MAX { format!(" and {} more", classes.len() - TOLD_MAX) } else { String::new() };
    format!("those of training: {}{more}", first(classes))
}

/// The first of these words, quoted.
fn first(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().take(TOLD_MAX).map(|word| format!("{:?}", brief(word))).collect();
    quoted.join(", ")
}

/// Counts of what a model knows of its input columns, over one table or over the batches of a stream.
#[derive(Debug, Clone, Default)]
pub struct Acquaintance {
    /// By column: values, unknown ones, some of these.
    columns: BTreeMap<String, (u64, u64, Vec<String>)>,
}

impl Acquaintance {
    /// Takes in what reading has counted; targets are no inputs.
    pub fn add(&mut self, report: &CleaningReport, targets: &[String]) {
        for (name, column) in report.columns.iter().filter(|(name, column)| column.words > 0 && !targets.contains(name))
        {
            let (words, unseen, strangers) = self.columns.entry(name.clone()).or_default();
            *words += column.words;
            *unseen += column.unseen_category;
            let room = TOLD_MAX.saturating_sub(strangers.len());
            strangers.extend(column.strangers.iter().take(room).cloned());
        }
    }

    /// Refuses a column of which most is unknown.
    ///
    /// # Errors
    /// [`Unseen::Most`].
    pub fn judge(&self) -> Result<(), Unseen> {
        self.judge_from(1)
    }

    /// As [`Acquaintance::judge`], of a stream that goes on.
    ///
    /// # Errors
    /// [`Unseen::Most`].
    pub fn judge_so_far(&self) -> Result<(), Unseen> {
        self.judge_from(ENOUGH)
    }

    fn judge_from(&self, least: u64) -> Result<(), Unseen> {
        let is_strange = |(_, (words, unseen, _)): &(&String, &(u64, u64, Vec<String>))| {
            *words >= least && unseen.saturating_mul(2) > *words
        };
        match self.columns.iter().find(is_strange) {
            None => Ok(()),
            Some((column, (words, unseen, strangers))) => Err(Unseen::Most {
                column: column.clone(),
                unseen: *unseen,
                words: *words,
                strangers: strangers.clone(),
            }),
        }
    }
}

/// Refuses targets of classes that the model does not know: there is no right answer to their rows.
///
/// # Errors
/// [`Unseen::Classes`].
pub fn judge_classes(report: &CleaningReport, target: &str, classes: &[String]) -> Result<(), Unseen> {
    match report.columns.get(target) {
        Some(column) if column.words > 0 && column.unseen_category > 0 => Err(Unseen::Classes {
            column: target.to_owned(),
            unseen: column.unseen_category,
            words: column.words,
            strangers: column.strangers.clone(),
            classes: classes.to_vec(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::staged::meta::ColumnReport;

    fn report(words: u64, unseen_category: u64) -> CleaningReport {
        let strangers = vec!["1.0".to_owned()];
        let column = ColumnReport { words, unseen_category, strangers, ..ColumnReport::default() };
        CleaningReport { columns: [("c".to_owned(), column)].into(), ..CleaningReport::default() }
    }

    #[test]
    fn a_column_of_which_most_is_unknown_is_refused() {
        let judge = |reports: &[CleaningReport], targets: &[String]| {
            let mut all = Acquaintance::default();
            reports.iter().for_each(|report| all.add(report, targets));
            (all.judge().map_err(|error| error.to_string()), all.judge_so_far().is_ok())
        };
        assert_eq!(judge(&[report(4, 2)], &[]), (Ok(()), true));
        assert_eq!(judge(&[report(4, 2), report(1, 1), report(9, 0)], &[]), (Ok(()), true), "the stream as a whole");
        let (error, so_far) = judge(&[report(4, 3)], &[]);
        let error = error.unwrap_err();
        assert!(
            error.starts_with("column \"c\": the model does not know 3 of 4 values, such as \"1.0\", expected"),
            "{error}"
        );
        assert!(so_far, "four values are few");
        assert!(!judge(&[report(600, 600), report(600, 10)], &[]).1);
        assert_eq!(judge(&[report(4, 4)], &["c".to_owned()]), (Ok(()), true));
        assert_eq!(judge(&[report(0, 4)], &[]), (Ok(()), true), "what was staged before values were counted");
    }

    #[test]
    fn every_unknown_class_is_told() {
        let classes = ["a".to_owned(), "b".to_owned()];
        assert_eq!(judge_classes(&report(9, 0), "c", &classes), Ok(()));
        assert_eq!(judge_classes(&report(9, 1), "d", &classes), Ok(()));
        let error = judge_classes(&report(9, 1), "c", &classes).unwrap_err().to_string();
        let begins = "target \"c\": the model does not know the class of 1 of 9 rows, such as \"1.0\", expected those of training: \"a\", \"b\"";
        assert!(error.starts_with(begins), "{error}");
    }
}
