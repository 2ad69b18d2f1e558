//! A look at a table that somebody has: what its columns hold, and the configuration that goes with them.
//!
//! ```text
//! files ─sample→ words of each column ─facts, guess→ kinds and doubts ─proposal→ roles of columns ─document→ TOML
//! ```
//! **Invariants:** a bounded number of rows is read, whatever the size of the files; the result depends on the files and the choices alone,
//! never on time or threads. A guess is said with its reason, and what is left out is named.

mod document;
mod facts;
mod guess;
mod names;
mod proposal;
mod sample;
mod signal;
mod steps;
mod survey_error;
mod target;
#[cfg(test)]
mod tests;

pub use document::{DocumentPaths, document};
pub use guess::{ColumnGuess, GuessedKind};
pub use proposal::{ColumnChoices, ColumnRole, FeatureChoice, Proposal, RoledColumn, propose};
pub use sample::{TableFiles, TableSample, sample};
pub use survey_error::SurveyError;
pub use target::TargetTask;
