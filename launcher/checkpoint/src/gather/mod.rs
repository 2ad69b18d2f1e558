//! Gathers what workers wrote: prediction chunks into one artifact, and a whole run under its manifest.
//!
//! ```text
//! OUT.parquet.partial/ledger.jsonl, chunks/… → OUT.parquet → OUT.parquet.manifest.json   (or OUT/ with .npy and manifest.json)
//! ```
//! **Invariant:** the manifest is written last, or published with its directory in one step; without it an output is incomplete and can be
//! resumed from the chunks. Memory is bounded by one chunk, whatever the number of rows.

mod arrays;
mod arrow;
mod columns;
mod csv;
mod error;
mod layout;
mod ledger;
mod npy;
mod output;
mod parquet;
mod predictions;
mod run;
mod sheet;
mod stream;
mod table;

pub use arrays::Arrays;
pub use columns::cell_names;
pub use error::GatherError;
pub use ledger::{Header, Ledger};
pub use predictions::{Format, Gathered, Request, partial_dir, predictions, writable};
pub use run::{RunInfo, run_manifest};
pub use sheet::{Sheet, SheetRows};
pub use stream::Stream;

#[cfg(test)]
mod tests;
