//! The named tree of parameters: declaration, initialisation from a seed, and loading in place.

use super::group::Group;
use super::init::Init;
use super::layout::{Layout, Share};
use super::sharded::ShardedStorage;
use crate::autograd::{BucketId, Leaves, ParamId, Role, ShardedBuffer};
use enn_common::config::train::BUCKET_MIB;
use std::collections::HashMap;
use tch::{Device, Kind, TchError, Tensor};

#[derive(Debug)]
struct Declared {
    path: String,
    shape: Vec<i64>,
    init: Init,
    group: Group,
}

#[derive(Debug)]
pub struct ParamBuilder {
    scope: Vec<String>,
    declared: Vec<Declared>,
    bucket_bytes: i64,
}

impl Default for ParamBuilder {
    fn default() -> Self {
        Self { scope: Vec::new(), declared: Vec::new(), bucket_bytes: (BUCKET_MIB * f64::from(1 << 20)) as i64 }
    }
}

impl ParamBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the size of buckets of parameters and gradients.
    pub fn limit_buckets(&mut self, mib: f64) {
        self.bucket_bytes = (mib * f64::from(1 << 20)) as i64;
    }

    /// Runs `f` with `name` as a prefix of all paths that it declares.
    pub fn scoped<R>(&mut self, name: &str, f: impl FnOnce(&mut Self) -> R) -> R {
        self.scope.push(name.to_owned());
        let result = f(self);
        self.scope.pop();
        result
    }

    /// Declares a parameter.
    ///
    /// # Panics
    /// When the path is taken or `Init::Value` has another number of elements: both are mistakes in a layer.
    pub fn param(&mut self, name: &str, shape: &[i64], init: Init, group: Group) -> ParamId {
        let path = self.scope.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        assert!(self.declared.iter().all(|d| d.path != path), "parameter {path} is declared once");
        if let Init::Value(values) = &init {
            assert_eq!(values.len() as i64, shape.iter().product::<i64>(), "values of {path} fill its shape");
        }
        self.declared.push(Declared { path, shape: shape.to_vec(), init, group });
        ParamId(self.declared.len() as u32 - 1)
    }

    /// Returns the number of elements of all declared parameters, and the path and size of the largest one.
    pub fn sizes(&self) -> (u64, Option<(&str, u64)>) {
        let size = |d: &Declared| d.shape.iter().fold(1u64, |all, side| all.saturating_mul(side.unsigned_abs()));
        let all = self.declared.iter().map(|d| (d.path.as_str(), size(d)));
        (all.clone().fold(0, |sum, (_, size)| sum.saturating_add(size)), all.max_by_key(|(_, size)| *size))
    }

    /// Allocates the f32 masters on `device`. The values depend on the seed and the paths only.
    pub fn build(self, seed: u64, device: Device) -> Result<Params, TchError> {
        self.build_kind(seed, device, Kind::Float)
    }

    /// Runs [`ParamBuilder::build`] with another dtype; `Double` is for gradient checks.
    pub fn build_kind(self, seed: u64, device: Device, kind: Kind) -> Result<Params, TchError> {
        let numel = |d: &Declared| d.shape.iter().product::<i64>();
        let layout =
            Layout::new(&self.declared.iter().map(|d| (numel(d), d.group)).collect::<Vec<_>>(), self.bucket_bytes);
        let flats = layout.lens.iter().map(|len| Tensor::f_zeros(*len, (kind, device)));
        let flats = flats.collect::<Result<Vec<_>, _>>()?;
        let mut views = Vec::with_capacity(self.declared.len());
        for (d, slot) in self.declared.iter().zip(&layout.slots) {
            let mut view = flats[slot.bucket as usize].f_narrow(0, slot.start, slot.len)?.f_view(d.shape.as_slice())?;
            let values = d.init.values(slot.len as usize, seed, &d.path);
            view.f_copy_(&Tensor::f_from_slice(&values)?.f_view(d.shape.as_slice())?)?;
            views.push(view);
        }
        let index = self.declared.iter().enumerate().map(|(i, d)| (d.path.clone(), ParamId(i as u32))).collect();
        let (names, groups) = self.declared.into_iter().map(|d| (d.path, d.group)).unzip();
        let sharded = ShardedStorage::default();
        Ok(Params { names, groups, views, flats, shadows: None, layout, index, device, sharded })
    }
}

/// Parameters of a model: master tensors by path.
#[derive(Debug)]
pub struct Params {
    names: Vec<String>,
    groups: Vec<Group>,
    views: Vec<Tensor>,
    flats: Vec<Tensor>,
    shadows: Option<Shadows>,
    layout: Layout,
    index: HashMap<String, ParamId>,
    device: Device,
    /// Masters by bucket, then their low-precision copies.
    sharded: ShardedStorage,
}

/// Low-precision copies of all parameters, in the layout of the masters.
#[derive(Debug)]
struct Shadows {
    views: Vec<Tensor>,
    flats: Vec<Tensor>,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("missing: [{}]; unexpected: [{}]; other shape: [{}]\nhint: these are the weights of another model", missing.join(", "), unexpected.join(", "), reshaped.join(", "))]
    Differs {
        missing: Vec<String>,
        unexpected: Vec<String>,
        /// Tensors whose shape is not the parameter's, with both shapes.
        reshaped: Vec<String>,
    },
    #[error("copy of {path} failed: {source}")]
    Copy { path: String, source: TchError },
}

impl Params {
    pub fn len(&self) -> usize {
        self.views.len()
    }

    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.views.len() as u32).map(ParamId)
    }

    /// Returns id, dotted path and master of each parameter, in the order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (ParamId, &str, &Tensor)> {
        self.ids().zip(&self.names).zip(&self.views).map(|((id, name), view)| (id, name.as_str(), view))
    }

    /// Returns dotted path and master of each parameter, for checkpoints.
    pub fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.iter().map(|(_, name, view)| (name, view))
    }

    pub fn get(&self, id: ParamId) -> &Tensor {
        &self.views[id.index()]
    }

    pub fn name(&self, id: ParamId) -> &str {
        &self.names[id.index()]
    }

    pub fn by_name(&self, path: &str) -> Option<ParamId> {
        self.index.get(path).copied()
    }

    pub fn group(&self, id: ParamId) -> Group {
        self.groups[id.index()]
    }

    /// Returns the number of elements of all parameters, without padding.
    pub fn numel(&self) -> i64 {
        self.layout.slots.iter().map(|s| s.len).sum()
    }

    /// Returns the positions in the flat buckets.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the flat tensor of a bucket; writing it writes the parameters.
    pub fn flat(&self, bucket: BucketId) -> &Tensor {
        &self.flats[bucket.index()]
    }

    /// Returns a view, in the shape of the parameter, into a flat tensor with the length of its bucket, such as moments
    /// or averages.
    pub fn view_of(&self, id: ParamId, flat: &Tensor) -> Result<Tensor, TchError> {
        let slot = self.layout.slots[id.index()];
        flat.f_narrow(0, slot.start, slot.len)?.f_view(self.views[id.index()].size().as_slice())
    }

    /// Keeps a copy of every parameter in a low-precision dtype, which autocast uses instead of the master. The copy
    /// begins with the current values; the optimizer writes it with the parameter.
    pub fn keep_shadows(&mut self, kind: Kind) -> Result<(), TchError> {
        let flats = self.flats.iter().map(|flat| Tensor::f_zeros(flat.size(), (kind, self.device)));
        let flats = flats.collect::<Result<Vec<_>, _>>()?;
        let views = self.ids().map(|id| self.view_of(id, &flats[self.layout.place(id).0.index()]));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        self.shadows = Some(Shadows { views, flats });
        self.refresh_shadows()
    }

    /// Updates the low-precision copies, if there are any, from the masters. Must be called after weights were written
    /// by anything but the optimizer.
    pub fn refresh_shadows(&self) -> Result<(), TchError> {
        let Some(shadows) = &self.shadows else { return Ok(()) };
        let kept = self.kept(true).into_iter().zip(self.kept(false));
        // Outside a step, whole arrays that are sharded have no memory.
        let there = if self.sharded_buffers().is_empty() { self.flats.len() } else { 0 };
        for (copy, master) in kept.chain(shadows.flats.iter().zip(&self.flats).take(there)) {
            tch::no_grad(|| copy.shallow_clone().f_copy_(master))?;
        }
        Ok(())
    }

    /// Returns the flat low-precision copies of a bucket, for an optimizer that writes them with the masters.
    pub fn shadow_flat(&self, bucket: BucketId) -> Option<&Tensor> {
        self.shadows.as_ref().map(|shadows| &shadows.flats[bucket.index()])
    }

    /// Shards masters and copies: this rank keeps only its share, and whole arrays are allocated during a step, or
    /// between [`Params::fill`] and [`Params::empty`].
    pub fn shard(&mut self, share: Share) -> Result<(), TchError> {
        let mut buffers = self.layout.shard_buffers(share, &self.flats)?;
        if let Some(shadows) = &self.shadows {
            buffers.extend(self.layout.shard_buffers(share, &shadows.flats)?);
        }
        self.sharded = ShardedStorage::new(buffers);
        Ok(())
    }

    /// Allocates whole sharded arrays: this rank's share is in its place, and the rest must be gathered.
    pub fn fill(&mut self) -> Result<(), TchError> {
        self.sharded.fill()
    }

    pub fn empty(&mut self) -> Result<(), TchError> {
        self.sharded.empty()
    }

    /// Ends the sharding: whole arrays are kept, after they were filled and gathered.
    pub fn unshard(&mut self) {
        self.sharded = ShardedStorage::default();
    }

    /// Whether whole masters are allocated only during a step.
    pub fn is_sharded(&self) -> bool {
        !self.sharded.is_empty()
    }

    /// Returns this rank's shards of masters, or of their copies, one array per run; empty where whole arrays are kept.
    pub fn kept(&self, copies: bool) -> Vec<&Tensor> {
        let buckets = self.flats.len();
        self.sharded.kept(if copies { buckets } else { 0 }, buckets)
    }

    /// Returns new zero tensors of the buckets' lengths, for moments and the like.
    pub fn zeros_like_flats(&self) -> Result<Vec<Tensor>, TchError> {
        self.flats.iter().map(Tensor::f_zeros_like).collect()
    }

    /// Copies `tensors` into the existing storage. All names and shapes are checked before the first copy.
    ///
    /// # Errors
    /// [`LoadError::Differs`] lists every mismatch.
    pub fn load<'a>(&mut self, tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<(), LoadError> {
        let mut found: Vec<Option<&Tensor>> = vec![None; self.len()];
        let mut unexpected = Vec::new();
        let mut reshaped = Vec::new();
        for (path, tensor) in tensors {
            let Some(id) = self.by_name(path) else {
                unexpected.push(path.to_owned());
                continue;
            };
            let here = self.get(id).size();
            let there = tensor.size();
            if here != there {
                reshaped.push(format!("{path} {there:?} instead of {here:?}"));
            }
            found[id.index()] = Some(tensor);
        }
        let gaps = self.names.iter().zip(&found).filter(|(_, f)| f.is_none());
        let missing: Vec<String> = gaps.map(|(name, _)| name.clone()).collect();
        if !(missing.is_empty() && unexpected.is_empty() && reshaped.is_empty()) {
            return Err(LoadError::Differs { missing, unexpected, reshaped });
        }
        for ((view, name), tensor) in self.views.iter_mut().zip(&self.names).zip(found.into_iter().flatten()) {
            view.f_copy_(tensor).map_err(|source| LoadError::Copy { path: name.clone(), source })?;
        }
        Ok(())
    }
}

impl Leaves for Params {
    fn count(&self) -> usize {
        self.len()
    }

    fn leaf(&self, id: ParamId) -> &Tensor {
        self.get(id)
    }

    fn device(&self) -> Device {
        self.device
    }

    fn shadow(&self, id: ParamId) -> Option<&Tensor> {
        self.shadows.as_ref().map(|shadows| &shadows.views[id.index()])
    }

    fn shadow_flats(&self) -> (&[Tensor], &[Tensor]) {
        self.shadows.as_ref().map_or((&[], &[]), |shadows| (&shadows.flats, &self.flats))
    }

    fn sharded_buffers(&self) -> &[ShardedBuffer] {
        self.sharded.unallocated()
    }

    fn low_precision_shards(&self) -> Vec<&Tensor> {
        self.kept(true)
    }

    fn buffer_of(&self, role: Role) -> Option<usize> {
        let first = match role {
            _ if self.sharded_buffers().is_empty() => return None,
            Role::Param(_) => 0,
            Role::Shadow(_) => self.flats.len(),
            _ => return None,
        };
        role.param().map(|id| first + self.layout.place(id).0.index())
    }
}
