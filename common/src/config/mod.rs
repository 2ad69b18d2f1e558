//! Configuration: typed text (`raw`) → `resolve` → `RunConfig`, the only thing a worker is told.

pub mod data;
pub mod model;
pub mod run;
pub mod train;

pub use run::RunConfig;
