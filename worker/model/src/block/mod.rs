//! Blocks combine layers: they map tokens to tokens, or are the two ends of the model. Like layers they fail where a tensor has another
//! shape than their documentation says.
//!
//! **Invariant:** as for layers, blocks know no ranks, files, clocks or logs; a sample's output does not depend on the
//! other samples.

pub mod collector;
pub mod fuser;
pub mod grid;
pub mod heads;
pub mod join;
pub mod perceiver;
pub mod residual;
pub mod retnet;
pub mod stream;
pub mod submodel;
pub mod template;

pub use collector::Collector;
pub use fuser::Fuser;
pub use grid::Grid;
pub use heads::{BaseHead, RefineHead};
pub use join::Join;
pub use perceiver::Perceiver;
pub use residual::Regularise;
pub use retnet::RetNetBlock;
pub use stream::{NoState, StreamState};
pub use submodel::{SubModel, SubModelSpec, SubModels};
pub use template::Template;
