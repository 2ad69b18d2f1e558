//! Between who runs an exported artifact and the worker that holds it, over the worker's standard input and output: a line of JSON
//! each way, by [`put`](super::serve::put) and [`get`](super::serve::get).
//!
//! ```text
//! enn ─► Begin            worker ─► Ready | Unavailable | Failed
//!     ─► Question                ─► Answered | Failed        once for every batch
//!     ─► end of input            ─► ends
//! ```
//! Tensors lie in safetensors files, under the number of their port from 0 on.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// Engine that runs an artifact inside libtorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// A PT2 archive, node by node.
    Pt2,
    /// A package of AOTInductor, compiled.
    Aoti,
}

/// The first line to the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineSetup {
    /// `message::PROTOCOL`.
    pub protocol: u32,
    pub engine: Engine,
    pub artifact: PathBuf,
    /// "cpu" or "cuda".
    pub device: String,
    pub threads: u32,
    /// Most memory that the worker may have, bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Directory of what is exchanged, which the worker removes when its input ends, however whoever asked has ended.
    pub scratch: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineQuestion {
    pub inputs: PathBuf,
    pub outputs: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineReply {
    /// The artifact is loaded.
    Ready {
        version: String,
        /// Properties that the artifact states, e.g. of which instruction set its code is.
        about: BTreeMap<String, String>,
    },
    /// The worker's libtorch runs no artifacts of this engine; the worker ends.
    Unavailable { why: String },
    /// The outputs are written.
    Answered,
    /// The worker cannot go on and ends.
    Failed { error: String },
}
