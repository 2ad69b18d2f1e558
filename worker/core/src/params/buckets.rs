//! Flat gradient storage in the layout of the parameters.

use super::layout::{Layout, Share};
use super::sharded::ShardedStorage;
use super::tree::Params;
use crate::autograd::{BucketId, GradLeaves, ParamId, ShardedBuffer};
use tch::{TchError, Tensor};

/// Gradients of all parameters; each parameter's gradient is a view into its bucket.
#[derive(Debug, Default)]
pub struct GradBuckets {
    flats: Vec<Tensor>,
    views: Vec<Tensor>,
    layout: Layout,
    sharded: ShardedStorage,
    /// For each bucket, whether its storage was supplied through [`GradBuckets::move_to`].
    moved: Vec<bool>,
}

impl GradBuckets {
    /// Creates an empty set, for models without gradients.
    pub fn none() -> Self {
        Self::default()
    }

    pub fn new(params: &Params) -> Result<Self, TchError> {
        let flats = params.zeros_like_flats()?;
        let layout = params.layout().clone();
        let views = params.ids().map(|id| params.view_of(id, &flats[layout.place(id).0.index()]));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        let moved = vec![false; flats.len()];
        Ok(Self { flats, views, layout, sharded: ShardedStorage::default(), moved })
    }

    /// Allocates zeroed storage for this rank's share of the gradients of `params`. The memory of whole buckets is
    /// allocated only during a step, and for at most one bucket at a time before that.
    pub fn sharded(params: &Params, share: Share) -> Result<Self, TchError> {
        let layout = params.layout().clone();
        let mut flats = Vec::new();
        let mut views = Vec::new();
        let mut buffers = Vec::new();
        for bucket in (0..layout.buckets() as u32).map(BucketId) {
            let flat = params.flat(bucket).f_zeros_like()?;
            for id in params.ids().filter(|id| layout.place(*id).0 == bucket) {
                views.push((id, params.view_of(id, &flat)?));
            }
            buffers.push(layout.shard_buffer(share, bucket, &flat)?);
            flats.push(flat);
        }
        views.sort_unstable_by_key(|(id, _)| id.index());
        let views = views.into_iter().map(|(_, view)| view).collect();
        let moved = vec![false; flats.len()];
        Ok(Self { flats, views, layout, sharded: ShardedStorage::new(buffers), moved })
    }

    pub fn is_none(&self) -> bool {
        self.flats.is_empty()
    }

    /// Asks `place` for other storage, bucket by bucket, and moves to it, or back to own storage where `place` returns
    /// `None`. The contents of the buckets are lost; the new storage must hold zeros.
    pub fn move_to<E: From<TchError>>(
        &mut self,
        params: &Params,
        mut place: impl FnMut(&Tensor) -> Result<Option<Tensor>, E>,
    ) -> Result<(), E> {
        for (flat, moved) in self.flats.iter_mut().zip(&mut self.moved) {
            let placed = place(flat)?;
            let was_moved = std::mem::replace(moved, placed.is_some());
            if let Some(other) = placed {
                *flat = other;
            } else if was_moved {
                // Other ranks may write to the old storage after this rank has finished with it.
                *flat = flat.f_zeros_like()?;
            }
        }
        let view = |id| params.view_of(id, &self.flats[self.layout.place(id).0.index()]);
        self.views = params.ids().map(view).collect::<Result<Vec<_>, _>>()?;
        Ok(())
    }

    /// Allocates the memory of sharded buckets.
    pub fn fill(&mut self) -> Result<(), TchError> {
        self.sharded.fill()
    }

    pub fn empty(&mut self) -> Result<(), TchError> {
        self.sharded.empty()
    }

    /// Returns this rank's shards, one array per run; `None` where whole buckets are kept.
    pub fn kept(&self) -> Option<Vec<&Tensor>> {
        (!self.sharded.is_empty()).then(|| self.sharded.kept(0, self.flats.len()))
    }

    /// Sets all gradients to 0. This is done before each optimizer step, not between accumulated micro-batches.
    pub fn zero(&mut self) -> Result<(), TchError> {
        self.flats.iter_mut().try_for_each(|flat| flat.f_zero_().map(|_| ()))
    }

    /// Returns the flat tensor of a bucket, including padding (always 0).
    pub fn bucket(&self, bucket: BucketId) -> &Tensor {
        &self.flats[bucket.index()]
    }

    pub fn buckets(&self) -> impl DoubleEndedIterator<Item = (BucketId, &Tensor)> + ExactSizeIterator {
        self.flats.iter().enumerate().map(|(i, flat)| (BucketId(i as u32), flat))
    }

    pub fn view(&self, id: ParamId) -> &Tensor {
        &self.views[id.index()]
    }
}

impl GradLeaves for GradBuckets {
    fn count(&self) -> usize {
        self.views.len()
    }

    fn slot(&self, id: ParamId) -> &Tensor {
        self.view(id)
    }

    fn bucket_of(&self, id: ParamId) -> BucketId {
        self.layout.place(id).0
    }

    fn buckets(&self) -> usize {
        self.flats.len()
    }

    fn flat(&self, bucket: BucketId) -> &Tensor {
        self.bucket(bucket)
    }

    fn without(&self, ids: &[ParamId]) -> Result<Vec<Tensor>, TchError> {
        let mut places: Vec<_> = ids.iter().map(|id| self.layout.place(*id)).collect();
        places.sort_unstable_by_key(|(_, start, _)| *start);
        let mut rest = Vec::new();
        for (bucket, flat) in self.buckets() {
            let end = (bucket, flat.numel() as i64, 0);
            let mut from = 0;
            for (_, start, len) in places.iter().copied().filter(|place| place.0 == bucket).chain([end]) {
                if start > from {
                    rest.push(flat.f_narrow(0, from, start - from)?);
                }
                from = start + len;
            }
        }
        Ok(rest)
    }

    fn sharded_buffers(&self) -> &[ShardedBuffer] {
        self.sharded.unallocated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Group, Init, ParamBuilder};
    use tch::{Device, TchError};

    #[test]
    fn gradients_leave_storage_that_others_made_when_there_is_none_any_more() {
        let mut pb = ParamBuilder::new();
        let id = pb.param("w", &[3], Init::Zeros, Group::Decay);
        let params = pb.build(1, Device::Cpu).unwrap();
        let mut grads = GradBuckets::new(&params).unwrap();
        let own = grads.view(id).data_ptr();
        grads.move_to(&params, |_| Ok::<_, TchError>(None)).unwrap();
        assert_eq!(grads.view(id).data_ptr(), own, "nobody else writes there");
        let mut other = grads.bucket(BucketId(0)).zeros_like();
        grads.move_to(&params, |_| Ok::<_, TchError>(Some(other.shallow_clone()))).unwrap();
        assert_eq!(grads.view(id).data_ptr(), other.data_ptr());
        let _written = other.fill_(5.0);
        grads.move_to(&params, |_| Ok::<_, TchError>(None)).unwrap();
        assert_eq!(Vec::<f32>::try_from(grads.view(id)).unwrap(), [0.0; 3]);
    }
}
