//! Plans and commits a large checkpoint without its data: what a rank does before each save, dividing the state among all; then, with
//! shards that are holes in memory (/dev/shm), what the launcher does behind the last of them: merging what the ranks say, checking, writing `.metadata` and the manifest, giving the directory its name.
//!
//! ```text
//! ckpt_plan 70b RANKS            a 70-billion-parameter transformer with AdamW's moments, every tensor divided along its first axis
//! ckpt_plan chunks TENSORS RANKS    that many tensors, divided over that many ranks
//! ```
//! Prints JSON: chunks, seconds of the plan of one rank (of a state that all ranks have) and of the commit, bytes of `.metadata`, and the process's peak of memory.

use enn_common::checkpoint::{
    Draft, ShardTable, TensorDType, commit, name,
    plan::{self, PlannedTensor},
    table::{ItemKind, ShardItem},
};
use serde_json::json;
use std::{
    error::Error,
    fs::{self, File},
    io::{self, Write},
    time::Instant,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (tensors, ranks) = match args.as_slice() {
        ["70b", ranks] => (of_70b(), ranks.parse()?),
        ["chunks", tensors, ranks] => {
            let ranks: u64 = ranks.parse()?;
            let named = (0..tensors.parse::<u64>()?)
                .map(|number| (format!("model.layer.{number}.weight"), vec![ranks * 8, 16]));
            (named.collect(), ranks)
        }
        _ => return Err("usage: ckpt_plan 70b RANKS | ckpt_plan chunks TENSORS RANKS".into()),
    };
    let entry =
        |(fqn, shape): &(String, Vec<u64>)| PlannedTensor { fqn: fqn.clone(), element_bytes: 4, shape: shape.clone() };
    let entries: Vec<PlannedTensor> = tensors.iter().map(entry).collect();
    let began = Instant::now();
    let pieces = plan::share(&entries, 0, usize::try_from(ranks)?).len();
    let divide_s = began.elapsed().as_secs_f64();
    let tables = tables(&tensors, ranks);
    let chunks: usize = tables.iter().map(|table| table.items.len()).sum();
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let temporary = dir.path().join("shards");
    let committed = dir.path().join(name::committed(1));
    fs::create_dir(&temporary)?;
    for table in &tables {
        File::create(temporary.join(&table.file))?.set_len(table.bytes)?;
    }
    let began = Instant::now();
    commit(&temporary, &committed, &tables, Draft { step: 1, ..Draft::default() })?;
    let plan_s = began.elapsed().as_secs_f64();
    let parameters: u64 = tensors.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
    let told = json!({
        "chunks": chunks, "parameters": parameters, "plan_s": plan_s, "pieces": pieces, "divide_s": divide_s, "peak_kb": peak_kb()?,
        "metadata_bytes": fs::metadata(committed.join(name::METADATA))?.len(),
    });
    writeln!(io::stdout(), "{told}")?;
    Ok(())
}

/// Names and shapes: 80 layers of width 8192 with 8 key-value heads, and the two moments of every parameter.
fn of_70b() -> Vec<(String, Vec<u64>)> {
    let layer: [(&str, &[u64]); 9] = [
        ("self_attn.q_proj", &[8192, 8192]),
        ("self_attn.k_proj", &[1024, 8192]),
        ("self_attn.v_proj", &[1024, 8192]),
        ("self_attn.o_proj", &[8192, 8192]),
        ("mlp.gate_proj", &[28_672, 8192]),
        ("mlp.up_proj", &[28_672, 8192]),
        ("mlp.down_proj", &[8192, 28_672]),
        ("input_layernorm", &[8192]),
        ("post_attention_layernorm", &[8192]),
    ];
    let ends: [(&str, &[u64]); 3] =
        [("embed_tokens", &[128_256, 8192]), ("norm", &[8192]), ("lm_head", &[128_256, 8192])];
    let layers =
        (0..80).flat_map(|number| layer.map(|(name, shape)| (format!("layers.{number}.{name}.weight"), shape)));
    let model: Vec<_> = layers.chain(ends.map(|(name, shape)| (format!("{name}.weight"), shape))).collect();
    let prefixed = |before: &str, after: &str| {
        let name = |(name, shape): &(String, &[u64])| (format!("{before}{name}{after}"), shape.to_vec());
        model.iter().map(name).collect::<Vec<_>>()
    };
    [prefixed("model.", ""), prefixed("optim.state.", ".exp_avg"), prefixed("optim.state.", ".exp_avg_sq")].concat()
}

fn tables(tensors: &[(String, Vec<u64>)], ranks: u64) -> Vec<ShardTable> {
    let table = |rank: u64| {
        let mut table = ShardTable { file: format!("__{rank}_0.distcp"), ..ShardTable::default() };
        for (fqn, shape) in tensors {
            let rows = shape[0].div_ceil(ranks);
            let begin = (rank * rows).min(shape[0]);
            let mut offsets = vec![0; shape.len()];
            let mut sizes = shape.clone();
            offsets[0] = begin;
            sizes[0] = rows.min(shape[0] - begin);
            let length = 688 + sizes.iter().product::<u64>() * TensorDType::F32.bytes();
            let kind = ItemKind::Tensor { dtype: TensorDType::F32, global: shape.clone(), offsets, sizes, crc32: 1 };
            table.items.push(ShardItem { fqn: fqn.clone(), offset: table.bytes, length, kind });
            table.bytes += length;
        }
        table
    };
    (0..ranks).map(table).collect()
}

/// Most memory that this process had.
fn peak_kb() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
