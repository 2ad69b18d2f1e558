//! A small checkpoint of every kind of tensor, divided over ranks.

use enn_common::{
    checkpoint::{Draft, ShardTable, ShardWriter, TensorBox, TensorDType, Value, commit, name},
    fs::{Disk, Storage},
};
use std::path::{Path, PathBuf};

/// Bytes that differ from place to place and from step to step.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8).collect()
}

/// The whole tensor `w` of shape [7, 5], f32.
pub(crate) fn w(step: u64) -> Vec<u8> {
    pattern(step, 7 * 5 * 4)
}

/// Writes the shards of `world` ranks: `w` divided by rows, `big` by rank 0, one tensor per type by the last rank.
pub(crate) fn write_shards(storage: &dyn Storage, dir: &Path, world: u32, step: u64) -> Vec<ShardTable> {
    let rows: Vec<u64> = (0..=world).map(|rank| 7 * u64::from(rank) / u64::from(world)).collect();
    let all = w(step);
    let write = |rank: u32| {
        let mut shard = ShardWriter::create_on(storage, dir, rank).unwrap();
        let begin = rows[rank as usize];
        let end = rows[rank as usize + 1];
        let part = TensorBox {
            fqn: "model.w",
            dtype: TensorDType::F32,
            global: &[7, 5],
            offsets: &[begin, 0],
            sizes: &[end - begin, 5],
        };
        shard.tensor(&part, &all[begin as usize * 20..end as usize * 20]).unwrap();
        if rank == 0 {
            shard.whole("model.big", TensorDType::F32, &[40_000], &pattern(step + 1, 160_000)).unwrap();
            shard.value("progress.note", &Value::dict([("step", Value::Int(step as i64))])).unwrap();
        }
        if rank + 1 == world {
            for &dtype in TensorDType::ALL {
                let name = format!("types.{}", dtype.torch());
                shard.whole(&name, dtype, &[2, 3], &vec![1; 6 * dtype.bytes() as usize]).unwrap();
            }
            shard.whole("progress.step", TensorDType::I64, &[], &step.to_le_bytes()).unwrap();
            shard.whole("model.empty", TensorDType::F32, &[0, 4], &[]).unwrap();
        }
        shard.finish().unwrap()
    };
    (0..world).map(write).collect()
}

/// What the launcher would say of it.
pub(crate) fn draft(step: u64) -> Draft {
    Draft { run: "weather".into(), attempt: "a".into(), step, metric: Some(step as f64), ..Draft::default() }
}

/// Writes and commits a checkpoint below `root`.
pub(crate) fn checkpoint(root: &Path, world: u32, step: u64) -> PathBuf {
    let temporary = root.join(name::temporary(step, "a"));
    let committed = root.join(name::committed(step));
    let tables = write_shards(&Disk, &temporary, world, step);
    commit(&temporary, &committed, &tables, draft(step)).unwrap().path
}
