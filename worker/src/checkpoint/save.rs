//! Writes this rank's shard of a state that is replicated or sharded.

use super::{CheckpointError, Named, Placed, dtype, host_bytes};
use enn_common::{
    checkpoint::{
        layout::{BoxOf, ShardLayout},
        name,
        plan::{Plan, PlannedTensor},
        table::{ShardTable, TensorDType},
        write::{How, write_shard},
    },
    fs::Disk,
};
use std::path::Path;
use tch::{Device, TchError, Tensor};

/// Maximum size of a box in a file, unless it is a single row. A checksum covers a whole box, so a reader of a part
/// reads all of it.
const BOX_BYTES_MAX: u64 = 32 << 20;

/// Content of one rank's shard: its layout, and the tensors that are saved.
#[derive(Debug)]
pub struct ShardContent {
    /// Items of the shard and their positions.
    pub layout: ShardLayout,
    /// View of each item's elements, in the order of the layout; on any device, with any strides.
    pub(super) parts: Vec<Tensor>,
}

impl ShardContent {
    /// Selects the boxes of `items` that the plan assigns to `rank` of `world`, and the boxes in `own`, which only this
    /// rank has. `items` must be the same on every rank. Nothing is copied.
    ///
    /// # Errors
    /// [`CheckpointError::Kind`] for a dtype that checkpoints do not hold.
    pub fn of(items: &[Named], own: &[Placed], rank: u32, world: u32) -> Result<Self, CheckpointError> {
        Self::planned(items, own, rank, world, &mut Plan::default())
    }

    /// Selects the boxes like [`ShardContent::of`], and reuses the plan of the previous save.
    pub fn planned(
        items: &[Named],
        own: &[Placed],
        rank: u32,
        world: u32,
        plan: &mut Plan,
    ) -> Result<Self, CheckpointError> {
        let mut entries = Vec::with_capacity(items.len());
        let mut dtypes = Vec::with_capacity(items.len());
        for item in items {
            let dtype = dtype_of(&item.fqn, &item.tensor)?;
            let shape = words(&item.tensor.size());
            entries.push(PlannedTensor { fqn: item.fqn.clone(), element_bytes: dtype.bytes(), shape });
            dtypes.push(dtype);
        }
        let (entries, pieces) = plan.share(entries, rank as usize, world as usize);
        let mut boxes = Vec::with_capacity(pieces.len());
        let mut parts = Vec::with_capacity(pieces.len());
        let mut add = |whole: BoxOf, part: &Tensor| {
            let fqn = whole.fqn.clone();
            let cut = cut(whole, part, BOX_BYTES_MAX);
            for (one, part) in cut.map_err(|source| CheckpointError::Copy { fqn, source })? {
                boxes.push(one);
                parts.push(part);
            }
            Ok::<_, CheckpointError>(())
        };
        for piece in pieces {
            let fqn = entries[piece.entry].fqn.clone();
            let global = entries[piece.entry].shape.clone();
            let mut part = items[piece.entry].tensor.detach();
            // Boxes are cut along the first axis only.
            if piece.sizes != global
                && let (Some(&start), Some(&len)) = (piece.offsets.first(), piece.sizes.first())
            {
                let cut = part.f_narrow(0, start.cast_signed(), len.cast_signed());
                part = cut.map_err(|source| CheckpointError::Copy { fqn: fqn.clone(), source })?;
            }
            let dtype = dtypes[piece.entry];
            let offsets = piece.offsets.clone();
            let sizes = piece.sizes.clone();
            add(BoxOf { fqn, dtype, global, offsets, sizes }, &part)?;
        }
        for Placed { fqn, global, offsets, tensor } in own {
            let dtype = dtype_of(fqn, tensor)?;
            let sizes = words(&tensor.size());
            let whole = BoxOf { fqn: fqn.clone(), dtype, global: words(global), offsets: words(offsets), sizes };
            add(whole, &tensor.detach())?;
        }
        Ok(Self { layout: ShardLayout::of(boxes)?, parts })
    }

    /// Returns contiguous tensors on the host, without a copy where they are so already.
    fn on_host(&self) -> Result<Vec<Tensor>, CheckpointError> {
        let host = |(part, of): (&Tensor, &BoxOf)| {
            if host_bytes(part).is_some() {
                return Ok(part.shallow_clone());
            }
            let there = part.f_to_device(Device::Cpu).and_then(|part| part.f_contiguous());
            there.map_err(|source| CheckpointError::Copy { fqn: of.fqn.clone(), source })
        };
        self.parts.iter().zip(&self.layout.boxes).map(host).collect()
    }
}

/// Writes the shard to `dir`, with fsync, and returns its table. `dir` is created when it is missing.
///
/// # Errors
/// A copy that libtorch refuses, or an error of the disk; nothing but `dir` is left behind.
pub fn write(dir: &Path, rank: u32, share: &ShardContent, how: How) -> Result<ShardTable, CheckpointError> {
    let tensors = share.on_host()?;
    let payloads: Vec<&[u8]> = tensors.iter().map(|tensor| host_bytes(tensor).unwrap_or_default()).collect();
    let written = write_shard(&Disk, dir, rank, &share.layout, &payloads, how);
    if written.is_err() {
        // On a full disk, a partial shard would keep the next one from fitting.
        let _absent = std::fs::remove_file(dir.join(name::shard(rank)));
    }
    Ok(written?)
}

/// Writes the boxes that the plan assigns to `rank` of `world` to `dir`, with fsync, and returns the table of the
/// shard. `items` must be the same on every rank; `dir` is created when it is missing.
///
/// # Errors
/// A dtype that checkpoints do not hold, a copy that libtorch refuses, or an error of the disk; nothing but `dir` is
/// left behind.
pub fn write_share(dir: &Path, rank: u32, world: u32, items: &[Named]) -> Result<ShardTable, CheckpointError> {
    write(dir, rank, &ShardContent::of(items, &[], rank, world)?, How::shared_by(world as usize))
}

/// Cuts a box and its elements along the first axis into boxes of at most `bytes_max`.
fn cut(whole: BoxOf, part: &Tensor, bytes_max: u64) -> Result<Vec<(BoxOf, Tensor)>, TchError> {
    let bytes = whole.sizes.iter().product::<u64>() * whole.dtype.bytes();
    let rows = whole.sizes.first().copied().unwrap_or(1);
    if bytes <= bytes_max || rows < 2 {
        return Ok(vec![(whole, part.shallow_clone())]);
    }
    let each = (bytes_max / (bytes / rows)).max(1);
    let cut = (0..rows).step_by(usize::try_from(each).unwrap_or(usize::MAX)).map(|begin| {
        let mut one = whole.clone();
        one.offsets[0] += begin;
        one.sizes[0] = each.min(rows - begin);
        let part = part.f_narrow(0, begin.cast_signed(), one.sizes[0].cast_signed())?;
        Ok((one, part))
    });
    cut.collect()
}

fn words(sizes: &[i64]) -> Vec<u64> {
    sizes.iter().map(|&n| n.cast_unsigned()).collect()
}

fn dtype_of(fqn: &str, tensor: &Tensor) -> Result<TensorDType, CheckpointError> {
    let kind = tensor.kind();
    dtype::of_kind(kind).ok_or_else(|| CheckpointError::Kind { fqn: fqn.to_owned(), kind: format!("{kind:?}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    #[test]
    fn large_boxes_are_cut_into_some_that_lie_behind_each_other() {
        let part = Tensor::arange(7 * 5, (Kind::Float, Device::Cpu)).view([7, 5]);
        let whole = |sizes: &[u64]| BoxOf {
            fqn: "w".into(),
            dtype: TensorDType::F32,
            global: vec![20; sizes.len()],
            offsets: vec![3; sizes.len()],
            sizes: sizes.to_vec(),
        };
        let rows = |bytes_max| {
            let cut = cut(whole(&[7, 5]), &part, bytes_max).unwrap();
            let joined = Tensor::cat(&cut.iter().map(|(_, part)| part).collect::<Vec<_>>(), 0);
            assert!(joined.equal(&part) && cut.iter().all(|(one, part)| words(&part.size()) == one.sizes));
            cut.into_iter().map(|(one, _)| (one.offsets[0], one.sizes[0])).collect::<Vec<_>>()
        };
        assert_eq!(rows(7 * 5 * 4), [(3, 7)]);
        assert_eq!(rows(7 * 5 * 4 - 1), [(3, 6), (9, 1)]);
        assert_eq!(rows(59), [(3, 2), (5, 2), (7, 2), (9, 1)]);
        assert_eq!(rows(1).len(), 7);
        let scalar = cut(whole(&[]), &Tensor::from(1f32), 1).unwrap();
        assert_eq!(scalar.len(), 1);
    }
}
