//! All weights as a few long arrays: the layout that weights, gradients, moments and averages share.

use super::{OptimError, error::failed};
use crate::params::{BucketId, ParamId, Params, Segment};
use std::collections::BTreeMap;
use tch::{Kind, Tensor as Raw};

/// Handles to the parameters' storage, one slab per gradient bucket. Writing a slab writes the parameters.
#[derive(Debug)]
pub struct FlatParams {
    slabs: Vec<Raw>,
    places: Vec<Place>,
    segments: Vec<Segment>,
}

/// Where a parameter lies.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    name: String,
    slab: usize,
    start: i64,
    shape: Vec<i64>,
}

impl FlatParams {
    /// The storage of `params`; nothing is copied.
    pub fn of(params: &Params) -> Self {
        let layout = params.layout();
        let place = |(id, name, tensor): (ParamId, &str, &Raw)| {
            let (bucket, start, _) = layout.place(id);
            Place { name: name.to_owned(), slab: bucket.index(), start, shape: tensor.size() }
        };
        Self {
            slabs: (0..layout.buckets()).map(|i| params.flat(BucketId(i as u32)).shallow_clone()).collect(),
            places: params.iter().map(place).collect(),
            segments: layout.segments().to_vec(),
        }
    }

    /// The weights, one flat array per bucket, padding (always 0) included.
    pub fn slabs(&self) -> &[Raw] {
        &self.slabs
    }

    /// The weights, to be written in place.
    pub fn slabs_mut(&mut self) -> &mut [Raw] {
        &mut self.slabs
    }

    /// Names of the parameters, in order of declaration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|p| p.name.as_str())
    }

    /// Views into arrays of this layout (gradients, moments, averages, the weights themselves), by parameter name and in the
    /// parameter's shape. Arrays shorter than the layout's give no views beyond their end.
    pub fn views(&self, slabs: &[Raw]) -> Vec<(String, Raw)> {
        self.places.iter().filter_map(|p| p.view(slabs).map(|view| (p.name.clone(), view))).collect()
    }

    /// Runs of parameters of one group.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl Place {
    fn view(&self, slabs: &[Raw]) -> Option<Raw> {
        let flat = slabs.get(self.slab)?.f_narrow(0, self.start, self.shape.iter().product()).ok()?;
        flat.f_view(self.shape.as_slice()).ok()
    }
}

/// Copies saved tensors into views; checks all before the first copy.
pub(super) fn copy_in(views: Vec<(String, Raw)>, saved: &BTreeMap<String, Raw>) -> Result<(), OptimError> {
    for (name, view) in &views {
        let found = saved.get(name).map(Raw::size);
        if found.as_ref() != Some(&view.size()) {
            return Err(OptimError::State { name: name.clone(), found, expected: view.size() });
        }
    }
    for (name, mut view) in views {
        if let Some(value) = saved.get(&name) {
            let copy = || view.f_copy_(&value.f_to_kind(Kind::Float)?);
            tch::no_grad(copy).map_err(failed("restore the optimizer's state"))?;
        }
    }
    Ok(())
}
