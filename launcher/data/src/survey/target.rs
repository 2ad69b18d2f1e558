//! The task that a target sets: a number or classes to predict. Pure.

use super::{
    facts::ColumnFacts,
    guess::{ColumnGuess, GuessedKind, brief, percent},
    sample::SampledColumn,
    survey_error::SurveyError,
};
use crate::stage::source::DeclaredType;

/// Whole numbers from 0 or 1 on that are classes, at most.
const CODED_CLASSES_MAX: usize = 10;
/// Rows of a class at least, on average, for whole numbers to be classes.
const ROWS_PER_CLASS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetTask {
    /// Predicts numbers.
    Regression,
    /// Predicts the probability of each class.
    Classification,
}

impl TargetTask {
    pub const NAMES: [(&'static str, Self); 2] =
        [("regression", Self::Regression), ("classification", Self::Classification)];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Regression => "regression",
            Self::Classification => "classification",
        }
    }
}

/// Returns the task of a target.
pub(super) fn task_of(
    column: &SampledColumn,
    facts: &ColumnFacts,
    guess: &ColumnGuess,
    wanted: Option<TargetTask>,
) -> Result<TargetTask, SurveyError> {
    check(column, facts, guess)?;
    let is_text = guess.kind == Some(GuessedKind::Category);
    let task = match (is_text, wanted) {
        (_, Some(TargetTask::Classification)) => TargetTask::Classification,
        (true, Some(TargetTask::Regression)) => {
            let hint = "leave --task out, or predict a column of numbers".to_owned();
            let found = format!("{} cannot be predicted as numbers", guess.found);
            return Err(SurveyError::Target { name: column.name.clone(), found, hint });
        }
        (false, Some(TargetTask::Regression)) => TargetTask::Regression,
        (true, None) => TargetTask::Classification,
        (false, None) if are_classes(column, facts) => TargetTask::Classification,
        (false, None) => TargetTask::Regression,
    };
    Ok(task)
}

/// Whether numbers are classes: there are two, or they are a few whole numbers that count from 0 or 1 on.
fn are_classes(column: &SampledColumn, facts: &ColumnFacts) -> bool {
    if facts.distinct == 2 && column.declared != DeclaredType::Real {
        return true;
    }
    let from_the_start = facts.is_whole() && (facts.least == 0.0 || facts.least == 1.0);
    let has_no_gap = facts.most - facts.least + 1.0 == facts.distinct as f64;
    let is_filled = facts.known() >= facts.distinct * ROWS_PER_CLASS;
    from_the_start && has_no_gap && is_filled && (2..=CODED_CLASSES_MAX).contains(&facts.distinct)
}

/// Refuses a target that has the same value everywhere.
pub(super) fn refuse_constant(column: &SampledColumn, facts: &ColumnFacts) -> Result<(), SurveyError> {
    if facts.distinct != 1 {
        return Ok(());
    }
    let value = brief(column.words.first().map_or("", String::as_str));
    let found = format!("it is always {value}: there is nothing to learn");
    Err(SurveyError::Target { name: column.name.clone(), found, hint: "name a column whose values differ".into() })
}

fn check(column: &SampledColumn, facts: &ColumnFacts, guess: &ColumnGuess) -> Result<(), SurveyError> {
    let refused = |found: String, hint: &str| {
        Err(SurveyError::Target { name: column.name.clone(), found, hint: hint.to_owned() })
    };
    if column.is_repeated {
        return refused("the header has this name twice".into(), "give every column its own name");
    }
    if facts.known() == 0 {
        return refused("all of its cells are missing".into(), "name a column with values");
    }
    match guess.kind {
        Some(GuessedKind::Time | GuessedKind::Labels(_)) | None => {
            return refused(format!("found {}", guess.found), "predict a number or a category");
        }
        Some(GuessedKind::Category) => {
            let half = facts.known().div_ceil(2);
            if facts.comma_rows >= half || facts.foreign_date_rows >= half {
                let doubt = guess.doubt.clone().unwrap_or_default();
                return refused(format!("found {doubt}"), "convert the column, then try again");
            }
            if facts.known() >= 20 && facts.distinct_share() > 0.5 {
                let found = format!(
                    "found {} different texts in {} rows ({}): classes need several rows each",
                    facts.distinct,
                    facts.known(),
                    percent(facts.distinct_share())
                );
                let hint =
                    "name a column of categories or numbers; is a text among the numbers? add it to data.missing";
                return refused(found, hint);
            }
        }
        Some(GuessedKind::Number) => {}
    }
    Ok(())
}
