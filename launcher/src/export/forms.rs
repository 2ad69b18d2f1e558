//! The model's graph in each form that the formats asked for take: its weights and products in the precision asked for.

use enn_common::graph::Graph;
use enn_export::{
    ExportError, Lost, Precision, Reduction, Target,
    pass::{self, ReduceError},
    reference,
    verify::{Cases, Found},
};
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// A graph in one form.
#[derive(Debug)]
pub struct Form {
    pub graph: Graph,
    /// What its interpreter answers to some of the cases, where it is not the model's own graph.
    pub found: Option<Found>,
}

/// Graphs by what was made of them; or why there is none.
#[derive(Debug)]
pub struct Forms {
    precision: Precision,
    forms: BTreeMap<Reduction, Result<Form, Lost>>,
}

impl Forms {
    /// What `targets` need.
    ///
    /// # Errors
    /// Never, for a graph that was checked where it was built.
    pub fn of(
        graph: &Graph,
        cases: &Cases,
        (targets, precision): (&BTreeSet<Target>, Precision),
    ) -> Result<Self, ExportError> {
        let mut forms = BTreeMap::new();
        for target in targets {
            let reduction = target.reduction(precision);
            if let Entry::Vacant(place) = forms.entry(reduction) {
                place.insert(form(graph, cases, (reduction, precision.tolerance(*target)))?);
            }
        }
        Ok(Self { precision, forms })
    }

    /// The form that a format takes.
    ///
    /// # Errors
    /// What the precision does not hold.
    pub fn form(&self, target: Target) -> Result<&Form, ExportError> {
        let form = &self.forms[&target.reduction(self.precision)];
        form.as_ref().map_err(|lost| lost.clone().into())
    }
}

fn form(graph: &Graph, cases: &Cases, (reduction, limit): (Reduction, f64)) -> Result<Result<Form, Lost>, ExportError> {
    let graph = match pass::reduced(graph, reduction) {
        Ok(graph) => graph,
        Err(ReduceError::Lost(lost)) => return Ok(Err(lost)),
        Err(ReduceError::Graph(error)) => return Err(error.into()),
    };
    if reduction == Reduction::None {
        return Ok(Ok(Form { graph, found: None }));
    }
    match reference::check(&graph, cases, limit) {
        Ok(found) => Ok(Ok(Form { graph, found: Some(found) })),
        Err(ExportError::Lost(lost)) => Ok(Err(lost)),
        Err(error) => Err(error),
    }
}
