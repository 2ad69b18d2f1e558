//! All weights as a few long arrays, in the layout that weights, gradients, moments and averages share.

use super::{OptimError, error::failed};
use enn_core::backend::duplicate;
use enn_core::params::{BucketId, Layout, ParamId, Params, Run, Segment, Share};
use std::collections::BTreeMap;
use tch::{Kind, TchError, Tensor as Raw};

/// Handles to the parameters' storage, one slab per gradient bucket. Writing a slab writes the parameters.
///
/// Arrays beside the weights (moments, averages) are kept whole, one per bucket, or sharded over the ranks: then there
/// is one array per [`Run`] of the [`Share`].
#[derive(Debug)]
pub struct FlatParams {
    slabs: Vec<Raw>,
    places: Vec<ParamRange>,
    layout: Layout,
    share: Share,
    /// Index of this rank among the ranks with the same share, and their number.
    copy: (u32, u32),
    runs: Vec<Run>,
    /// Weights that this rank keeps, where they are sharded.
    masters: Option<Vec<Raw>>,
}

/// A box of a parameter that this rank keeps.
#[derive(Debug)]
pub struct Shard {
    pub name: String,
    pub global: Vec<i64>,
    /// Offset of the box in the parameter.
    pub offsets: Vec<i64>,
    /// Values of the box, in its shape.
    pub tensor: Raw,
}

/// Selection among the boxes that this rank keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boxes {
    /// All boxes, including those that other ranks keep too.
    Kept,
    /// Boxes that this rank saves: the boxes of all ranks together cover every parameter once.
    Assigned,
}

/// Position and shape of a parameter in its slab.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ParamRange {
    name: String,
    slab: usize,
    start: i64,
    shape: Vec<i64>,
}

impl FlatParams {
    pub fn none() -> Self {
        let layout = Layout::default();
        let share = Share::WHOLE;
        let copy = (0, 1);
        Self { slabs: Vec::new(), places: Vec::new(), runs: Vec::new(), layout, share, copy, masters: None }
    }

    /// Refers to the storage of `params`; nothing is copied.
    pub fn of(params: &Params) -> Self {
        let layout = params.layout();
        let place = |(id, name, tensor): (ParamId, &str, &Raw)| {
            let (bucket, start, _) = layout.place(id);
            ParamRange { name: name.to_owned(), slab: bucket.index(), start, shape: tensor.size() }
        };
        Self {
            slabs: (0..layout.buckets()).map(|i| params.flat(BucketId(i as u32)).shallow_clone()).collect(),
            places: params.iter().map(place).collect(),
            runs: layout.runs(Share::WHOLE),
            share: Share::WHOLE,
            copy: (0, 1),
            masters: None,
            layout: layout.clone(),
        }
    }

    /// Returns this rank's share of the arrays beside the weights.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Sets a share of which this rank keeps the only copy. Owners of arrays in the old layout must convert them with
    /// [`cut`](Self::cut) or [`join`](Self::join).
    pub fn hold(&mut self, share: Share) {
        self.share = share;
        self.copy = (0, 1);
        self.runs = self.layout.runs(share);
        self.masters = None;
    }

    /// Declares that `copies` ranks have this share, of which this one is number `copy`: each of them saves a part of
    /// it.
    pub fn assign_copy(&mut self, copy: u32, copies: u32) {
        self.copy = (copy, copies);
    }

    /// Declares that the slabs are allocated only at times, and that this rank keeps `masters`, one array per run, in
    /// addition.
    pub fn keep_masters(&mut self, masters: Vec<Raw>) {
        self.masters = Some(masters);
    }

    /// Returns the weights that this rank writes, one array per run: views of the slabs, or the masters.
    pub fn own(&self) -> Result<Vec<Raw>, TchError> {
        match &self.masters {
            Some(masters) => Ok(masters.iter().map(Raw::shallow_clone).collect()),
            None => self.kept(&self.slabs),
        }
    }

    /// Exchanges the weights that this rank writes with `others`, one array per run. The exchange is exact.
    pub fn exchange(&self, others: &mut [Raw]) -> Result<(), TchError> {
        tch::no_grad(|| {
            self.own()?.into_iter().zip(others).try_for_each(|(mut own, other)| {
                let before = duplicate(&own)?;
                own.f_copy_(other)?;
                other.f_copy_(&before)
            })
        })
    }

    /// Whether the slabs are always allocated.
    pub fn is_resident(&self) -> bool {
        self.masters.is_none()
    }

    /// Returns the positions of the kept arrays in the whole ones, in their order.
    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns views of the parts of whole arrays that this rank keeps.
    pub fn kept(&self, whole: &[Raw]) -> Result<Vec<Raw>, TchError> {
        self.runs.iter().map(|run| whole[run.bucket.index()].f_narrow(0, run.start, run.len)).collect()
    }

    /// Copies the parts of whole arrays that this rank keeps.
    pub fn cut(&self, whole: &[Raw]) -> Result<Vec<Raw>, TchError> {
        self.kept(whole)?.iter().map(duplicate).collect()
    }

    /// Assembles whole arrays from the parts that each rank keeps; `gather` fills in all parts of a flat array on every
    /// rank.
    pub fn join<E: From<TchError>>(
        &self,
        kept: &[Raw],
        gather: &mut dyn FnMut(&Raw) -> Result<(), E>,
    ) -> Result<Vec<Raw>, E> {
        let whole = self.slabs.iter().map(Raw::f_zeros_like).collect::<Result<Vec<_>, _>>()?;
        for (mut place, part) in self.kept(&whole)?.into_iter().zip(kept) {
            tch::no_grad(|| place.f_copy_(part))?;
        }
        self.divided(&whole)?.iter().try_for_each(gather)?;
        Ok(whole)
    }

    /// Returns the sections of whole arrays that are divided between the ranks; empty when this rank keeps everything.
    pub fn divided(&self, whole: &[Raw]) -> Result<Vec<Raw>, TchError> {
        let divided = whole.iter().map(|flat| self.share.split(flat).map(|(divided, _)| divided));
        Ok(divided.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Returns the weights that all ranks keep, as flat arrays.
    pub fn common(&self) -> Result<Vec<Raw>, TchError> {
        let own = self.own()?.into_iter().zip(&self.runs);
        Ok(own.filter(|(_, run)| run.common).map(|(part, _)| part).collect())
    }

    pub fn shards(&self, kept: &[Raw], which: Boxes) -> Vec<Shard> {
        let all = which == Boxes::Kept;
        let mine = self.runs.iter().zip(kept).filter(|(run, _)| all || !run.common || self.share.rank == 0);
        let mine = mine.filter_map(
            |(run, part)| {
                if all { Some((*run, part.shallow_clone())) } else { self.assigned(run, part) }
            },
        );
        mine.flat_map(|(run, part)| self.places.iter().flat_map(move |place| place.shards(&run, &part))).collect()
    }

    /// Returns the part of a run that this rank saves, where other ranks have the same run.
    fn assigned(&self, run: &Run, part: &Raw) -> Option<(Run, Raw)> {
        let copy = i64::from(self.copy.0);
        let copies = i64::from(self.copy.1);
        let [from, to] = [copy, copy + 1].map(|end| run.len * end / copies);
        let part = part.f_narrow(0, from, to - from).ok()?;
        Some((Run { start: run.start + from, len: to - from, ..*run }, part))
    }

    /// Returns the weights, one flat array per bucket, including padding (always 0).
    pub fn slabs(&self) -> &[Raw] {
        &self.slabs
    }

    /// Returns names and shapes of the parameters, in order of declaration.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[i64])> {
        self.places.iter().map(|p| (p.name.as_str(), p.shape.as_slice()))
    }

    /// Returns the names of the parameters, in order of declaration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|p| p.name.as_str())
    }

    /// Returns views into arrays of this layout (gradients, moments, averages, the weights themselves), by parameter
    /// name and in the parameter's shape. Arrays shorter than the layout's give no views beyond their end.
    pub fn views(&self, slabs: &[Raw]) -> Vec<(String, Raw)> {
        self.places.iter().filter_map(|p| p.view(slabs).map(|view| (p.name.clone(), view))).collect()
    }

    pub(super) fn segments(&self) -> &[Segment] {
        self.layout.segments()
    }
}

impl ParamRange {
    fn view(&self, slabs: &[Raw]) -> Option<Raw> {
        let flat = slabs.get(self.slab)?.f_narrow(0, self.start, self.shape.iter().product()).ok()?;
        flat.f_view(self.shape.as_slice()).ok()
    }

    /// Returns the boxes of the parameter that are in `run`, whose elements are `part`.
    fn shards(&self, run: &Run, part: &Raw) -> Vec<Shard> {
        let len: i64 = self.shape.iter().product();
        let from = self.start.max(run.start);
        let to = (self.start + len).min(run.start + run.len);
        if self.slab != run.bucket.index() || from >= to {
            return Vec::new();
        }
        let boxes = boxes(&self.shape, from - self.start, to - self.start);
        let shard = |ArrayBox { offsets, sizes, first }: ArrayBox| {
            let flat = part.f_narrow(0, self.start + first - run.start, sizes.iter().product()).ok()?;
            let tensor = flat.f_view(sizes.as_slice()).ok()?;
            Some(Shard { name: self.name.clone(), global: self.shape.clone(), offsets, tensor })
        };
        boxes.into_iter().filter_map(shard).collect()
    }
}

/// A box of an array, and the index of its first element in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ArrayBox {
    offsets: Vec<i64>,
    sizes: Vec<i64>,
    first: i64,
}

/// Divides elements `from..to` in C order of an array into boxes of consecutive elements: fewer than two per axis.
fn boxes(shape: &[i64], from: i64, to: i64) -> Vec<ArrayBox> {
    let Some((&rows, inner)) = shape.split_first() else {
        return vec![ArrayBox { offsets: Vec::new(), sizes: Vec::new(), first: 0 }];
    };
    let row: i64 = inner.iter().product();
    let first = (from + row - 1) / row;
    let last = to / row;
    // Part of a row becomes boxes of the inner axes.
    let within = |at: i64, from: i64, to: i64| {
        boxes(inner, from, to).into_iter().map(move |mut block| {
            block.offsets.insert(0, at);
            block.sizes.insert(0, 1);
            block.first += at * row;
            block
        })
    };
    if first > last {
        return within(last, from - last * row, to - last * row).collect();
    }
    let mut all = Vec::new();
    if from < first * row {
        all.extend(within(first - 1, from - (first - 1) * row, row));
    }
    if first < last {
        let offsets = std::iter::once(first).chain(inner.iter().map(|_| 0)).collect();
        let sizes = std::iter::once(last - first).chain(inner.iter().copied()).collect();
        all.push(ArrayBox { offsets, sizes, first: first * row });
    }
    if last < rows && last * row < to {
        all.extend(within(last, 0, to - last * row));
    }
    all
}

/// Copies saved tensors into views, after all were checked. Nothing is copied for sharded `weights`, whose values were
/// read in place.
pub(super) fn copy_in(
    weights: &FlatParams,
    views: impl FnOnce() -> Vec<(String, Raw)>,
    saved: &BTreeMap<String, Raw>,
) -> Result<(), OptimError> {
    if weights.share() != Share::WHOLE {
        return Ok(());
    }
    let views = views();
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

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::params::{Group, Init, ParamBuilder};
    use proptest::prelude::*;
    use tch::Device;

    proptest! {
        #[test]
        fn boxes_are_the_elements_once_and_in_order(
            shape in prop::collection::vec(1i64..5, 0..5), cut in (0.0..1.0f64, 0.0..1.0f64),
        ) {
            let len: i64 = shape.iter().product();
            let places = [cut.0, cut.1].map(|at| (at * (len + 1) as f64) as i64);
            let (from, to) = (places[0].min(places[1]), places[0].max(places[1]));
            prop_assume!(from < to);
            let whole = Raw::arange(len, (Kind::Int64, Device::Cpu)).view(shape.as_slice());
            let mut found = Vec::new();
            let boxes = boxes(&shape, from, to);
            prop_assert!(boxes.len() < 2 * shape.len().max(1));
            for block in boxes {
                prop_assert_eq!(found.len() as i64 + from, block.first);
                let mut part = whole.shallow_clone();
                for (axis, (&at, &size)) in block.offsets.iter().zip(&block.sizes).enumerate() {
                    part = part.narrow(axis as i64, at, size);
                }
                prop_assert_eq!(part.size(), block.sizes);
                found.extend(Vec::<i64>::try_from(part.flatten(0, -1)).unwrap());
            }
            prop_assert_eq!(found, (from..to).collect::<Vec<_>>());
        }
    }

    fn weights(seed: u64) -> FlatParams {
        let mut pb = ParamBuilder::new();
        for (name, shape) in [("a", &[7, 5, 3][..]), ("b", &[11]), ("c", &[]), ("d", &[64, 33])] {
            pb.param(name, shape, Init::Normal { std: 1.0 }, if name == "b" { Group::NoDecay } else { Group::Decay });
        }
        FlatParams::of(&pb.build(seed, Device::Cpu).unwrap())
    }

    #[test]
    fn the_shards_of_all_ranks_are_the_parameters() {
        for world in [1, 2, 3, 5, 200] {
            let mut found: BTreeMap<String, Raw> = BTreeMap::new();
            let mut elements = 0;
            for rank in 0..world {
                let mut weights = weights(1);
                weights.hold(Share { rank, world });
                let kept = weights.cut(weights.slabs()).unwrap();
                for shard in weights.shards(&kept, Boxes::Assigned) {
                    let whole = found
                        .entry(shard.name)
                        .or_insert_with(|| Raw::zeros(shard.global.as_slice(), (Kind::Float, Device::Cpu)));
                    let mut place = whole.shallow_clone();
                    for (axis, (&at, &size)) in shard.offsets.iter().zip(&shard.tensor.size()).enumerate() {
                        place = place.narrow(axis as i64, at, size);
                    }
                    elements += shard.tensor.numel();
                    place.copy_(&shard.tensor);
                }
            }
            let weights = weights(1);
            let all = weights.views(weights.slabs());
            assert_eq!(elements, all.iter().map(|(_, view)| view.numel()).sum::<usize>(), "{world} ranks");
            assert!(all.iter().all(|(name, view)| found[name].equal(view)), "{world} ranks");
        }
    }

    fn total(tensor: &Raw) -> f64 {
        tensor.sum(Kind::Double).double_value(&[])
    }

    #[test]
    fn the_shards_of_all_copies_are_the_parameters() {
        for (world, copies) in [(1, 2), (2, 2), (3, 4), (2, 1000)] {
            let elements = |rank, copy| {
                let mut weights = weights(1);
                weights.hold(Share { rank, world });
                weights.assign_copy(copy, copies);
                let kept = weights.cut(weights.slabs()).unwrap();
                let shards = weights.shards(&kept, Boxes::Assigned).into_iter();
                shards.map(|shard| (shard.tensor.numel(), total(&shard.tensor))).collect::<Vec<_>>()
            };
            let all = (0..world).flat_map(|rank| (0..copies).map(move |copy| (rank, copy)));
            let found: Vec<(usize, f64)> = all.flat_map(|(rank, copy)| elements(rank, copy)).collect();
            let weights = weights(1);
            let views = weights.views(weights.slabs());
            let count: usize = views.iter().map(|(_, view)| view.numel()).sum();
            let sum: f64 = views.iter().map(|(_, view)| total(view)).sum();
            assert_eq!(found.iter().map(|(count, _)| count).sum::<usize>(), count, "{world} shares, {copies} copies");
            assert!(
                (found.iter().map(|(_, sum)| sum).sum::<f64>() - sum).abs() < 1e-9,
                "{world} shares, {copies} copies"
            );
        }
    }

    #[test]
    fn what_was_cut_is_joined_again() {
        let ranks: Vec<(FlatParams, Vec<Raw>)> = (0..3)
            .map(|rank| {
                let mut weights = weights(2);
                weights.hold(Share { rank, world: 3 });
                let kept = weights.cut(weights.slabs()).unwrap();
                (weights, kept)
            })
            .collect();
        // Parts of the other ranks, as the collective would send them.
        let sent: Vec<Vec<Raw>> = ranks
            .iter()
            .map(|(weights, kept)| {
                let mut alone = |_: &Raw| Ok::<_, TchError>(());
                weights.divided(&weights.join(kept, &mut alone).unwrap()).unwrap()
            })
            .collect();
        for (weights, kept) in &ranks {
            let mut at = 0;
            let mut gather = |whole: &Raw| {
                let sum = sent.iter().fold(whole.zeros_like(), |sum, rank| sum + &rank[at]);
                at += 1;
                tch::no_grad(|| whole.shallow_clone().f_copy_(&sum))
            };
            let whole = weights.join(kept, &mut gather).unwrap();
            assert!(whole.iter().zip(weights.slabs()).all(|(a, b)| a.equal(b)));
        }
    }
}
