//! Writes this rank's share of a replicated state.

use super::{
    CheckpointError, Named, Placed, dtype,
    plan::{self, Entry, Piece},
};
use enn_common::checkpoint::{
    name,
    shard::{ShardWriter, TensorBox},
    table::{DType, ShardTable},
};
use std::path::Path;
use tch::{Device, Tensor};

/// Writes the boxes that `plan` gives to `rank` of `world`, and those that only this rank has, into `dir`, fsynced, and says what
/// was written. `items` must be the same on every rank; `dir` is made when it is missing.
///
/// # Errors
/// A kind that checkpoints do not hold, a copy that libtorch refuses, or what the disk says: nothing but `dir` is left behind.
pub fn write_share(
    dir: &Path,
    (rank, world): (u32, u32),
    items: &[Named],
    own: &[Placed],
) -> Result<ShardTable, CheckpointError> {
    let written = write(dir, (rank, world), items, own);
    if written.is_err() {
        // Where a disk is full, half a share would keep the next one from fitting.
        let _absent = std::fs::remove_file(dir.join(name::shard(rank)));
    }
    written
}

fn write(
    dir: &Path,
    (rank, world): (u32, u32),
    items: &[Named],
    own: &[Placed],
) -> Result<ShardTable, CheckpointError> {
    let mut entries = Vec::with_capacity(items.len());
    for item in items {
        let dtype = dtype_of(&item.fqn, &item.tensor)?;
        let shape = words(&item.tensor.size());
        entries.push(Entry { fqn: item.fqn.clone(), element_bytes: dtype.bytes(), shape });
    }
    let shares = plan::divide(&entries, world as usize);
    let mut writer = ShardWriter::create(dir, rank)?;
    for piece in shares.get(rank as usize).map_or(&[][..], Vec::as_slice) {
        let (item, entry) = (&items[piece.entry], &entries[piece.entry]);
        let bytes =
            bytes_of(&item.tensor, piece).map_err(|source| CheckpointError::Copy { fqn: item.fqn.clone(), source })?;
        let place = TensorBox {
            fqn: &item.fqn,
            dtype: dtype_of(&item.fqn, &item.tensor)?,
            global: &entry.shape,
            offsets: &piece.offsets,
            sizes: &piece.sizes,
        };
        writer.tensor(&place, &bytes)?;
    }
    for item in own {
        let sizes = words(&item.tensor.size());
        let copied = bytes(&item.tensor);
        let copied = copied.map_err(|source| CheckpointError::Copy { fqn: item.fqn.clone(), source })?;
        let place = TensorBox {
            fqn: &item.fqn,
            dtype: dtype_of(&item.fqn, &item.tensor)?,
            global: &words(&item.global),
            offsets: &words(&item.offsets),
            sizes: &sizes,
        };
        writer.tensor(&place, &copied)?;
    }
    Ok(writer.finish()?)
}

fn words(sizes: &[i64]) -> Vec<u64> {
    sizes.iter().map(|&n| n.cast_unsigned()).collect()
}

fn dtype_of(fqn: &str, tensor: &Tensor) -> Result<DType, CheckpointError> {
    let kind = tensor.kind();
    dtype::of_kind(kind).ok_or_else(|| CheckpointError::Kind { fqn: fqn.to_owned(), kind: format!("{kind:?}") })
}

/// The box's elements in C order, as they lie in memory.
fn bytes_of(tensor: &Tensor, piece: &Piece) -> Result<Vec<u8>, tch::TchError> {
    let mut part = tensor.shallow_clone();
    // Boxes are cut along the first axis only.
    if let (Some(&start), Some(&len)) = (piece.offsets.first(), piece.sizes.first()) {
        part = part.f_narrow(0, start.cast_signed(), len.cast_signed())?;
    }
    bytes(&part)
}

/// A tensor's elements in C order.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>, tch::TchError> {
    let part = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
    let numel = part.numel();
    let mut bytes = vec![0; numel * part.kind().elt_size_in_bytes()];
    if numel > 0 {
        part.f_copy_data_u8(&mut bytes, numel)?;
    }
    Ok(bytes)
}
