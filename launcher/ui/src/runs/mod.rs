//! The runs in a directory: the state of each, which one a name means, and which may be removed.
//!
//! `summary` reads one run, `select` finds the one that a command can work with, `policy` decides which are removed,
//! `remove` removes them, and `staged` determines which staged data are in use. **Invariant:** a run is under way exactly
//! while its lock is held; nothing of a run under way is removed, nor anything outside the directory of runs, and no link
//! is followed.

#[cfg(test)]
mod name_tests;
mod policy;
mod remove;
mod select;
mod staged;
mod summary;

pub use policy::{RemovalDecision, RemovalFilter, decide};
pub use remove::{RemoveError, locate, remove, sweep_leftovers};
pub use select::{Need, SelectedRun, select};
pub use staged::{STAGED_DIR, StagedData, remove_unused, staged_data, used_by};
#[cfg(test)]
pub(crate) use summary::tests::run as made_run;
pub use summary::{RunKind, RunState, RunSummary, list, size};
