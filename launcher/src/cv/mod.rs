//! Cross-validation: how rows come to folds, the processes that train them, and how their forecasts are judged.
//!
//! Every fold is a run of its own below one directory, trained by an `enn` of its own: one that is killed takes nothing with it.
//!
//! **Invariant:** a fold's model, baselines and statistics see nothing of the rows it is judged on.

mod crew;
mod judge;
pub mod rule;
mod table;

pub use crew::{Crew, CrewError, Ended, Task};
pub use judge::{JudgeError, Judgement, judge};
pub use table::write_table;
