//! User-defined modules inside a template: they map tokens to tokens.

use crate::layer::Width;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    params::ParamBuilder,
};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A user-defined module, applied after a template's blocks.
pub trait SubModel: Send {
    /// Maps (B, N, D) to (B, N, D). A sample's tokens must not depend on other samples.
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError>;
}

/// Sizes that a module is built for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubModelSpec {
    pub tokens: i64,
    pub width: Width,
}

type Build = dyn Fn(&mut ParamBuilder, SubModelSpec) -> Box<dyn SubModel> + Send + Sync;

/// The modules a worker has, by the names that `model = "…"` of a task may refer to.
#[derive(Clone, Default)]
pub struct SubModels(BTreeMap<String, Arc<Build>>);

impl SubModels {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module. `build` declares its parameters, under names of its own, and returns the module; a second module
    /// of the same name replaces the first.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        build: impl Fn(&mut ParamBuilder, SubModelSpec) -> Box<dyn SubModel> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name.to_owned(), Arc::new(build));
        self
    }

    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Builds the module of this name, with its parameters under `model`; `None` when the worker has no such module.
    pub(crate) fn build(&self, pb: &mut ParamBuilder, name: &str, spec: SubModelSpec) -> Option<Box<dyn SubModel>> {
        let build = self.0.get(name)?;
        Some(pb.scoped("model", |pb| build(pb, spec)))
    }
}

impl fmt::Debug for SubModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
