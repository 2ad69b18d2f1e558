//! Coverage of new data by a model's categories: a column that is read differently than in training has hardly any known category.
//! Pure.

use super::brief::brief;
use enn_common::staged::meta::CleaningReport;
use std::collections::BTreeMap;

/// Minimum values of a stream's column before it is checked: a few rows may all have a new category.
const ENOUGH: u64 = 1000;
const SHOWN_MAX: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnseenCategories {
    #[error(
        "column {column:?}: the model does not know {unseen} of {words} values{}, expected no more than half of them to be unknown\n\
         hint: see that the column holds what it held in training; --allow-unseen predicts all the same",
        examples(unknown_values)
    )]
    Most { column: String, unseen: u64, words: u64, unknown_values: Vec<String> },
    #[error(
        "target {column:?}: the model does not know the class of {unseen} of {words} rows{}, expected {}\n\
         hint: leave these rows out, or train with rows of these classes",
        examples(unknown_values),
        known(classes)
    )]
    Classes { column: String, unseen: u64, words: u64, unknown_values: Vec<String>, classes: Vec<String> },
}

fn examples(unknown_values: &[String]) -> String {
    if unknown_values.is_empty() { String::new() } else { format!(", such as {}", first(unknown_values)) }
}

fn known(classes: &[String]) -> String {
    let more =
        if classes.len() > SHOWN_MAX { format!(" and {} more", classes.len() - SHOWN_MAX) } else { String::new() };
    format!("those of training: {}{more}", first(classes))
}

fn first(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().take(SHOWN_MAX).map(|word| format!("{:?}", brief(word))).collect();
    quoted.join(", ")
}

/// Counts of what a model knows of its input columns, over one table or over the batches of a stream.
#[derive(Debug, Clone, Default)]
pub struct CategoryCoverage {
    /// Number of values, number of unknown values, and examples of these, by column.
    columns: BTreeMap<String, (u64, u64, Vec<String>)>,
}

impl CategoryCoverage {
    pub fn add(&mut self, report: &CleaningReport, targets: &[String]) {
        for (name, column) in report.columns.iter().filter(|(name, column)| column.words > 0 && !targets.contains(name))
        {
            let (words, unseen, unknown_values) = self.columns.entry(name.clone()).or_default();
            *words += column.words;
            *unseen += column.unseen_category;
            let room = SHOWN_MAX.saturating_sub(unknown_values.len());
            unknown_values.extend(column.strangers.iter().take(room).cloned());
        }
    }

    /// Refuses a column most of whose values are unknown.
    ///
    /// # Errors
    /// [`UnseenCategories::Most`].
    pub fn check(&self) -> Result<(), UnseenCategories> {
        self.check_from(1)
    }

    /// Checks a stream that continues: only columns with enough values.
    ///
    /// # Errors
    /// [`UnseenCategories::Most`].
    pub fn check_so_far(&self) -> Result<(), UnseenCategories> {
        self.check_from(ENOUGH)
    }

    fn check_from(&self, least: u64) -> Result<(), UnseenCategories> {
        let is_mostly_unknown = |(_, (words, unseen, _)): &(&String, &(u64, u64, Vec<String>))| {
            *words >= least && unseen.saturating_mul(2) > *words
        };
        match self.columns.iter().find(is_mostly_unknown) {
            None => Ok(()),
            Some((column, (words, unseen, unknown_values))) => Err(UnseenCategories::Most {
                column: column.clone(),
                unseen: *unseen,
                words: *words,
                unknown_values: unknown_values.clone(),
            }),
        }
    }
}

/// Refuses targets with classes that the model does not know, because no prediction of them can be right.
///
/// # Errors
/// [`UnseenCategories::Classes`].
pub fn check_classes(report: &CleaningReport, target: &str, classes: &[String]) -> Result<(), UnseenCategories> {
    match report.columns.get(target) {
        Some(column) if column.words > 0 && column.unseen_category > 0 => Err(UnseenCategories::Classes {
            column: target.to_owned(),
            unseen: column.unseen_category,
            words: column.words,
            unknown_values: column.strangers.clone(),
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
            let mut all = CategoryCoverage::default();
            reports.iter().for_each(|report| all.add(report, targets));
            (all.check().map_err(|error| error.to_string()), all.check_so_far().is_ok())
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
        assert_eq!(check_classes(&report(9, 0), "c", &classes), Ok(()));
        assert_eq!(check_classes(&report(9, 1), "d", &classes), Ok(()));
        let error = check_classes(&report(9, 1), "c", &classes).unwrap_err().to_string();
        let begins = "target \"c\": the model does not know the class of 1 of 9 rows, such as \"1.0\", expected those of training: \"a\", \"b\"";
        assert!(error.starts_with(begins), "{error}");
    }
}
