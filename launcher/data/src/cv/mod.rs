//! Cross-validation: assignment of rows to folds, the processes that train folds, and the scores of their forecasts.
//!
//! Every fold is a run of its own below one directory, trained by its own `enn` process, so that folds fail independently.
//!
//! **Invariant:** a fold's model, baselines and statistics see nothing of the rows it is scored on.

mod fold_runner;
mod fold_scores;
pub mod rule;
mod table;

pub use fold_runner::{FoldOutcome, FoldRunner, FoldRunnerError, FoldTask};
pub use fold_scores::{FoldScoreError, FoldScores, score_fold};
pub use table::write_table;
