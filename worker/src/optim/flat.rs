//! All weights in a few long arrays, in the layout of the gradient buckets, so that an update is a few passes over memory.

use super::{OptimError, error::failed};
use crate::params::{BucketId, GradBuckets, Group, Params};
use std::collections::BTreeMap;
use tch::{Kind, TchError, Tensor as Raw};

/// Where a parameter lives.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    name: String,
    slab: usize,
    offset: i64,
    shape: Vec<i64>,
    decay: bool,
}

/// The parameters' storage, one slab per gradient bucket.
#[derive(Debug)]
pub struct FlatParams {
    slabs: Vec<Raw>,
    places: Vec<Place>,
}

impl FlatParams {
    /// Moves the storage of `params` into slabs laid out as `grads`. Every existing handle to a parameter follows.
    ///
    /// # Errors
    /// When there is no memory for the slabs.
    pub fn adopt(params: &mut Params, grads: &GradBuckets) -> Result<Self, OptimError> {
        let places: Vec<Place> = params
            .iter()
            .map(|p| {
                let (BucketId(slab), offset) = grads.place(p.id);
                Place {
                    name: p.name.to_owned(),
                    slab: slab as usize,
                    offset: offset as i64,
                    shape: p.tensor.size(),
                    decay: p.group == Group::Decay,
                }
            })
            .collect();
        let go = || {
            let slabs =
                (0..grads.len()).map(|i| grads.bucket(BucketId(i as u32)).f_zeros_like()).collect::<Result<Vec<_>, _>>()?;
            for (place, p) in places.iter().zip(params.iter()) {
                let mut view = place.view(&slabs)?;
                view.f_copy_(p.tensor)?;
                p.tensor.shallow_clone().f_set_data(&view)?;
            }
            Ok(slabs)
        };
        let slabs = tch::no_grad(go).map_err(failed("lay the weights out"))?;
        Ok(Self { slabs, places })
    }

    /// The weights, one flat f32 array per bucket.
    pub fn slabs(&self) -> &[Raw] {
        &self.slabs
    }

    /// The weights, to be written in place.
    pub fn slabs_mut(&mut self) -> &mut [Raw] {
        &mut self.slabs
    }

    /// Views into arrays of this layout, by parameter name and in the parameter's shape.
    pub fn views(&self, slabs: &[Raw]) -> Vec<(String, Raw)> {
        // The arrays have this layout by construction, so a view cannot fail.
        self.places.iter().filter_map(|p| p.view(slabs).ok().map(|view| (p.name.clone(), view))).collect()
    }

    /// Names of the parameters, in order of declaration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|p| p.name.as_str())
    }

    /// 1 where the element decays, 0 elsewhere, in this layout.
    pub(super) fn decay_masks(&self) -> Result<Vec<Raw>, TchError> {
        let masks = self.slabs.iter().map(Raw::f_zeros_like).collect::<Result<Vec<_>, _>>()?;
        for place in self.places.iter().filter(|p| p.decay) {
            let _ = place.view(&masks)?.f_fill_(1.0)?;
        }
        Ok(masks)
    }
}

impl Place {
    fn view(&self, slabs: &[Raw]) -> Result<Raw, TchError> {
        slabs[self.slab].f_narrow(0, self.offset, self.shape.iter().product())?.f_view(self.shape.as_slice())
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
            tch::no_grad(|| view.f_copy_(&value.to_kind(Kind::Float))).map_err(failed("restore"))?;
        }
    }
    Ok(())
}
