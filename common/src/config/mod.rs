//! Configuration: typed text (`raw`) → `resolve` → `RunConfig`, the only thing a worker is told.

pub mod data;
pub mod effort;
pub mod error;
pub mod facts;
pub mod forest;
pub mod key_list;
pub mod model;
mod names;
mod nearest;
pub mod parent;
pub mod raw;
pub mod resolve;
pub mod run;
mod section;
pub mod shape;
pub mod train;
pub mod weights;

pub use error::{ConfigError, Place};
pub use facts::Facts;
pub use forest::Forest;
pub use parent::Parent;
pub use raw::RawConfig;
pub use resolve::{resolve, resolve_model};
pub use run::RunConfig;
