//! What a program of the user's adds to the worker.

use enn_core::kernel::Extra;
use enn_model::block::SubModels;

#[derive(Debug, Clone, Default)]
pub struct Own {
    /// Kernels, tried before those of the table.
    pub kernels: Vec<Extra>,
    /// Modules that tasks of the model may ask for by name.
    pub models: SubModels,
}
