//! The runs in a directory: how each of them stands, which one a name means, and what of them may be removed.
//!
//! `summary` looks at one run, `select` finds the one that a command can work with, `policy` decides which are removed and `remove`
//! does it, `staged` knows which staged data are in use. **Invariant:** whether a run is under way is what its lock says; nothing of a
//! run that is under way is removed, nothing outside the directory of runs, and no link is followed.

mod policy;
mod remove;
mod select;
mod staged;
mod summary;

pub use policy::{Limits, Verdict, judge};
pub use remove::{RemoveError, locate, remove, sweep_leftovers};
pub use select::{Need, Selected, select};
pub use staged::{STAGED_DIR, StagedData, remove_unused, staged_data, used_by};
pub use summary::{Kind, RunState, RunSummary, list, size};
