//! The model's graph in each form that the requested formats take: its weights and products in the requested precision.

use enn_common::graph::Graph;
use enn_export::{
    ExportError, Lost, Precision, Reduction, Target, pass, reference,
    verify::{Cases, Deviation},
};
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

#[derive(Debug)]
pub struct Form {
    pub graph: Graph,
    /// Errors of its interpreter on some of the cases, where it is not the model's own graph.
    pub found: Option<Deviation>,
}

/// Graphs by their reduction, or the reason why there is none.
#[derive(Debug)]
pub struct Forms {
    precision: Precision,
    forms: BTreeMap<Reduction, Result<Form, Lost>>,
}

impl Forms {
    /// Builds the forms that `targets` need.
    ///
    /// # Errors
    /// Never, for a graph that was checked where it was built.
    pub fn of(
        graph: &Graph,
        cases: &Cases,
        targets: &BTreeSet<Target>,
        precision: Precision,
    ) -> Result<Self, ExportError> {
        let mut forms = BTreeMap::new();
        for target in targets {
            let reduction = target.reduction(precision);
            if let Entry::Vacant(place) = forms.entry(reduction) {
                place.insert(form(graph, cases, reduction, precision.tolerance(*target))?);
            }
        }
        Ok(Self { precision, forms })
    }

    /// Returns the form that a format takes.
    ///
    /// # Errors
    /// The precision cannot hold the model's numbers.
    pub fn form(&self, target: Target) -> Result<&Form, ExportError> {
        let form = &self.forms[&target.reduction(self.precision)];
        form.as_ref().map_err(|lost| lost.clone().into())
    }
}

fn form(graph: &Graph, cases: &Cases, reduction: Reduction, limit: f64) -> Result<Result<Form, Lost>, ExportError> {
    let made = pass::reduced(graph, reduction).and_then(|graph| {
        let found = match reduction {
            Reduction::None => None,
            Reduction::Computed(_) | Reduction::Stored(_) => Some(reference::check(&graph, cases, limit)?),
        };
        Ok(Form { graph, found })
    });
    match made {
        Err(ExportError::Lost(lost)) => Ok(Err(lost)),
        made => made.map(Ok),
    }
}
