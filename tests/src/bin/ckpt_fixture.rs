//! Makes and reads checkpoints for the conformance checks, so that PyTorch judges the library that is shipped.
//!
//! ```text
//! ckpt_fixture write ROOT WORLD STEP   a committed checkpoint ROOT/step-N and its tensors as raw bytes in ROOT/expected
//! ckpt_fixture read DIR OUT            every tensor and value of any DCP directory as raw bytes and JSON in OUT
//! ckpt_fixture verify DIR              exit 0 when every byte is as it was written
//! ckpt_fixture save SOURCE TARGET      a run or checkpoint as .safetensors, .pt or a directory
//! ckpt_fixture load SOURCE DIR         a saved model as a checkpoint in DIR
//! ```

use enn_checkpoint::convert::{load_model, save_model};
use enn_common::{
    checkpoint::{Checkpoint, Draft, ShardWriter, TensorBox, TensorDType, Value, commit, name},
    fs::atomic,
};
use enn_tests::fixture;
use serde_json::{Map, json};
use std::{
    error::Error,
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    fixture::main(run)
}

fn run(args: &[&str]) -> Outcome {
    match args {
        ["write", root, world, step] => write(Path::new(root), world.parse()?, step.parse()?),
        ["read", dir, out] => read(Path::new(dir), Path::new(out)),
        ["verify", dir] => Ok(Checkpoint::open(Path::new(dir))?.verify(&mut |_| {})?),
        ["save", source, target] => Ok(_ = save_model(Path::new(source), Path::new(target), false)?),
        ["load", source, dir] => Ok(_ = load_model(Path::new(source), Path::new(dir), 0.0)?),
        _ => Err("usage: ckpt_fixture write ROOT WORLD STEP | read DIR OUT | verify DIR | save SOURCE TARGET | load SOURCE DIR".into()),
    }
}

/// One tensor and the axis along which the ranks divide it; `None`: one rank writes it.
struct Example {
    fqn: String,
    dtype: TensorDType,
    shape: Vec<u64>,
    axis: Option<usize>,
}

fn examples() -> Vec<Example> {
    let example = |fqn: &str, dtype, shape: &[u64], axis| Example { fqn: fqn.into(), dtype, shape: shape.into(), axis };
    let mut all: Vec<_> = TensorDType::ALL
        .iter()
        .map(|&dtype| example(&format!("model.types.{}", dtype.torch()), dtype, &[6, 4], None))
        .collect();
    all.extend([
        example("model.rows", TensorDType::F32, &[7, 5], Some(0)),
        example("model.columns", TensorDType::Bf16, &[4, 9], Some(1)),
        example("model.cube", TensorDType::I64, &[3, 8, 2], Some(1)),
        example("model.few", TensorDType::F32, &[2, 3], Some(0)),
        example("model.big", TensorDType::F32, &[300, 256], Some(0)),
        example("model.empty", TensorDType::F32, &[0, 4], None),
        example("progress.step", TensorDType::I64, &[], None),
        example("model.ünïcode", TensorDType::F32, &[2], None),
        example(&format!("model.{}", "long".repeat(80)), TensorDType::F32, &[2], None),
        example("best.rows", TensorDType::F32, &[7, 5], Some(0)),
        example("best.scalar", TensorDType::F64, &[], None),
        example("optim.state.rows.exp_avg", TensorDType::F32, &[7, 5], Some(0)),
        example("optim.state.rows.step", TensorDType::F32, &[], None),
    ]);
    all
}

/// Bytes that differ from tensor to tensor; booleans are 0 or 1.
fn pattern(index: usize, example: &Example) -> Vec<u8> {
    let bytes = example.shape.iter().product::<u64>() * example.dtype.bytes();
    let mix = |place: u64| (place.wrapping_mul(2_654_435_761).wrapping_add(index as u64 * 97) >> 7) as u8;
    let mask = if example.dtype == TensorDType::Bool { 1 } else { 0xff };
    (0..bytes).map(|place| mix(place) & mask).collect()
}

fn write(root: &Path, world: u32, step: u64) -> Outcome {
    let temporary = root.join(name::temporary(step, "fixture"));
    let mut tables = Vec::new();
    for rank in 0..world {
        let mut shard = ShardWriter::create(&temporary, rank)?;
        for (index, example) in examples().iter().enumerate() {
            write_part(&mut shard, (rank, world), index, example)?;
        }
        if rank == 0 {
            shard.value("progress.note", &note())?;
        }
        tables.push(shard.finish()?);
    }
    let draft = Draft { run: "fixture".into(), attempt: "fixture".into(), step, ..Draft::default() };
    commit(&temporary, &root.join(name::committed(step)), &tables, draft)?;
    fs::create_dir_all(root.join("expected"))?;
    let mut index = Map::new();
    for (number, example) in examples().iter().enumerate() {
        let file = format!("{number}.bin");
        atomic::write(&root.join("expected").join(&file), &pattern(number, example))?;
        index.insert(example.fqn.clone(), entry(example.dtype.torch(), &example.shape, &file));
    }
    atomic::write(&root.join("expected/index.json"), &serde_json::to_vec(&index)?)?;
    Ok(())
}

/// A value with everything a value can hold.
fn note() -> Value {
    Value::dict([
        ("int", Value::Int(1 << 40)),
        ("small", Value::Int(-3)),
        ("float", Value::Float(0.1)),
        ("text", Value::from("Zürich")),
        ("none", Value::None),
        ("yes", Value::Bool(true)),
        ("bytes", Value::Bytes(vec![0, 255, 10])),
        ("list", Value::List(vec![Value::Int(1), Value::List(Vec::new()), Value::dict::<&str>([])])),
        ("tuple", Value::Tuple(vec![Value::Float(0.9), Value::Tuple(Vec::new())])),
    ])
}

/// Writes what a rank holds of a tensor: its slice along the axis, or all of it when its turn comes.
fn write_part(shard: &mut ShardWriter, (rank, world): (u32, u32), index: usize, example: &Example) -> Outcome {
    let all = pattern(index, example);
    let fqn = example.fqn.as_str();
    let dtype = example.dtype;
    let global = example.shape.as_slice();
    let Some(axis) = example.axis else {
        if index as u32 % world == rank {
            shard.whole(fqn, dtype, global, &all)?;
        }
        return Ok(());
    };
    let cut = |rank: u32| global[axis] * u64::from(rank) / u64::from(world);
    let begin = cut(rank);
    let end = cut(rank + 1);
    let mut offsets = vec![0; global.len()];
    let mut sizes = global.to_vec();
    offsets[axis] = begin;
    sizes[axis] = end - begin;
    let inner = global[axis + 1..].iter().product::<u64>() * dtype.bytes();
    let blocks = all.chunks((global[axis] * inner) as usize);
    let bytes: Vec<u8> =
        blocks.flat_map(|block| &block[(begin * inner) as usize..(end * inner) as usize]).copied().collect();
    shard.tensor(&TensorBox { fqn, dtype, global, offsets: &offsets, sizes: &sizes }, &bytes)?;
    Ok(())
}

fn entry(dtype: &str, shape: &[u64], file: &str) -> serde_json::Value {
    json!({"dtype": dtype, "shape": shape, "file": file})
}

fn read(dir: &Path, out: &Path) -> Outcome {
    let found = Checkpoint::open_dcp(dir)?;
    fs::create_dir_all(out)?;
    let mut index = Map::new();
    let mut values = Map::new();
    for (number, fqn) in found.tensor_names().enumerate() {
        let file = format!("{number}.bin");
        match found.tensor(fqn) {
            Ok(tensor) => {
                atomic::write(&out.join(&file), &tensor.bytes)?;
                index.insert(fqn.to_owned(), entry(tensor.dtype.torch(), &tensor.shape, &file));
            }
            Err(error) => _ = index.insert(fqn.to_owned(), json!({"error": error.to_string()})),
        }
    }
    for fqn in found.metadata().values.keys() {
        let value = found.value(fqn).map_or_else(|error| format!("error: {error}"), |value| format!("{value:?}"));
        values.insert(fqn.clone(), value.into());
    }
    atomic::write(&out.join("index.json"), &serde_json::to_vec(&json!({"tensors": index, "values": values}))?)?;
    writeln!(io::stdout(), "{} tensors, {} values", index.len(), values.len())?;
    Ok(())
}
