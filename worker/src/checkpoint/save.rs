//! Writes this rank's share of a state that the ranks have in common or divided.

use super::{CheckpointError, Named, Placed, dtype, host_bytes};
use enn_common::{
    checkpoint::{
        layout::{BoxOf, Layout},
        name,
        plan::{Entry, Plan},
        table::{DType, ShardTable},
        write::{How, write_shard},
    },
    fs::Disk,
};
use std::path::Path;
use tch::{Device, Tensor};

/// What one rank saves: where it lies in the shard, and the tensors it is taken from.
#[derive(Debug)]
pub struct Share {
    /// Items of the shard and their places.
    pub layout: Layout,
    /// A view of each item's elements, in the layout's order; on any device, any strides.
    pub(super) parts: Vec<Tensor>,
}

impl Share {
    /// The boxes that `plan` gives to `rank` of `world` of `items`, which must be the same on every rank, and those that `own` says
    /// only this rank has. Nothing is copied.
    ///
    /// # Errors
    /// A kind that checkpoints do not hold.
    pub fn of(items: (&[Named], &[Placed]), rank: u32, world: u32) -> Result<Self, CheckpointError> {
        Self::planned(items, (rank, world), &mut Plan::default())
    }

    /// The same, with the plan of the save before.
    ///
    /// # Errors
    /// As [`Share::of`].
    pub fn planned(
        (items, own): (&[Named], &[Placed]),
        (rank, world): (u32, u32),
        plan: &mut Plan,
    ) -> Result<Self, CheckpointError> {
        let mut entries = Vec::with_capacity(items.len());
        let mut dtypes = Vec::with_capacity(items.len());
        for item in items {
            let (dtype, shape) = (dtype_of(&item.fqn, &item.tensor)?, words(&item.tensor.size()));
            entries.push(Entry { fqn: item.fqn.clone(), element_bytes: dtype.bytes(), shape });
            dtypes.push(dtype);
        }
        let (entries, pieces) = plan.share(entries, rank as usize, world as usize);
        let (mut boxes, mut parts) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(pieces.len()));
        for piece in pieces {
            let (fqn, global) = (entries[piece.entry].fqn.clone(), entries[piece.entry].shape.clone());
            let mut part = items[piece.entry].tensor.detach();
            // Boxes are cut along the first axis only.
            if piece.sizes != global
                && let (Some(&start), Some(&len)) = (piece.offsets.first(), piece.sizes.first())
            {
                let cut = part.f_narrow(0, start.cast_signed(), len.cast_signed());
                part = cut.map_err(|source| CheckpointError::Copy { fqn: fqn.clone(), source })?;
            }
            let dtype = dtypes[piece.entry];
            boxes.push(BoxOf { fqn, dtype, global, offsets: piece.offsets.clone(), sizes: piece.sizes.clone() });
            parts.push(part);
        }
        for Placed { fqn, global, offsets, tensor } in own {
            let (dtype, sizes) = (dtype_of(fqn, tensor)?, words(&tensor.size()));
            boxes.push(BoxOf { fqn: fqn.clone(), dtype, global: words(global), offsets: words(offsets), sizes });
            parts.push(tensor.detach());
        }
        Ok(Self { layout: Layout::of(boxes)?, parts })
    }

    /// The elements on the host, one after the other in memory: the tensors themselves where they are so already.
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

/// Writes the share into `dir`, fsynced, and says what was written. `dir` is made when it is missing.
///
/// # Errors
/// A copy that libtorch refuses, or what the disk says: nothing but `dir` is left behind.
pub fn write(dir: &Path, rank: u32, share: &Share, how: How) -> Result<ShardTable, CheckpointError> {
    let tensors = share.on_host()?;
    let payloads: Vec<&[u8]> = tensors.iter().map(|tensor| host_bytes(tensor).unwrap_or_default()).collect();
    let written = write_shard(&Disk, (dir, rank), (&share.layout, &payloads), how);
    if written.is_err() {
        // Where a disk is full, half a share would keep the next one from fitting.
        let _absent = std::fs::remove_file(dir.join(name::shard(rank)));
    }
    Ok(written?)
}

/// Writes the boxes that `plan` gives to `rank` of `world` into `dir`, fsynced, and says what was written. `items` must be the
/// same on every rank; `dir` is made when it is missing.
///
/// # Errors
/// A kind that checkpoints do not hold, a copy that libtorch refuses, or what the disk says: nothing but `dir` is left behind.
pub fn write_share(dir: &Path, rank: u32, world: u32, items: &[Named]) -> Result<ShardTable, CheckpointError> {
    write(dir, rank, &Share::of((items, &[]), rank, world)?, How::shared_by(world as usize))
}

fn words(sizes: &[i64]) -> Vec<u64> {
    sizes.iter().map(|&n| n.cast_unsigned()).collect()
}

fn dtype_of(fqn: &str, tensor: &Tensor) -> Result<DType, CheckpointError> {
    let kind = tensor.kind();
    dtype::of_kind(kind).ok_or_else(|| CheckpointError::Kind { fqn: fqn.to_owned(), kind: format!("{kind:?}") })
}
