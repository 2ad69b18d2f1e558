//! Export of models for other runtimes. A [`Graph`](enn_common::graph::Graph) goes in; a file of one of the formats comes out, and is run
//! in its own runtime to verify its answers.
//!
//! ```text
//! Graph ─ fold, reduce, legalise ─► onnx | pt2 | savedmodel | litert | coreml       writers: pure, equal bytes for equal graphs
//!                           ort (from onnx, by libonnxruntime)
//!                           aoti, executorch (from pt2), tensorrt (from onnx)      makers: their own tools, child processes
//! ```
//! **Invariant:** no libtorch, no environment read, no clock; nothing is written before every operation of the graph is known
//! to be expressible, and a file is whole or absent.

pub mod coreml;
mod error;
mod foreign;
pub mod litert;
pub mod maker;
pub mod model;
pub mod onnx;
pub mod ort;
pub mod pass;
pub mod precision;
mod proto;
pub mod pt2;
pub mod reference;
pub mod runner;
pub mod sample;
pub mod savedmodel;
mod spelling;
pub mod target;
pub mod verify;

pub use error::{ExportError, Lost};
pub use model::{Batch, Model};
pub use precision::{Precision, Reduction};
pub use runner::{Ports, Runner, Tensor};
pub use target::Target;
