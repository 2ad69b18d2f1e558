//! Modules of the user's own inside a template: tokens in, tokens out.

use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    layer::Width,
    params::ParamBuilder,
};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A module of the user's own, behind a template's blocks.
pub trait SubModel: Send {
    /// (B, N, D) → (B, N, D). A sample's tokens must not depend on other samples.
    ///
    /// # Errors
    /// Those of the operations it is made of.
    fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError>;
}

/// What a module is built for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubModelSpec {
    pub tokens: i64,
    /// Token sizes.
    pub width: Width,
}

type Build = dyn Fn(&mut ParamBuilder, SubModelSpec) -> Box<dyn SubModel> + Send + Sync;

/// The modules a worker has, by the names that `model = "…"` of a task may give.
#[derive(Clone, Default)]
pub struct SubModels(BTreeMap<String, Arc<Build>>);

impl SubModels {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more. `build` declares its parameters, under names of its own, and gives the module; a second one of a name takes
    /// the place of the first.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        build: impl Fn(&mut ParamBuilder, SubModelSpec) -> Box<dyn SubModel> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name.to_owned(), Arc::new(build));
        self
    }

    /// The names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The module of a name, its parameters under `model`; `None` when there is none.
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
