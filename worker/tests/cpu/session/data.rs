//! A small staged data set with structure to learn, missing cells and a split; and a configuration to train it.

use enn_common::{
    checkpoint::{Draft, commit, name},
    config::{
        RunConfig,
        data::{ArraysLayout, DataConfig, DataSource, DuplicatePolicy, Layout, SplitConfig, SplitKind, TargetMask},
        model::ModelConfig,
        train::{ClusterConfig, Loss, PointCalibration, TrainConfig},
    },
    fs::mmap::bytes_of,
    staged::{
        ArrayName, StagedMeta, StagedWriter,
        meta::{CleaningReport, FeatureMeta, SourceMeta, Stats},
    },
    wire::message::FromWorker,
};
use enn_worker::session::{RoundTask, TrainTask};
use std::path::{Path, PathBuf};
use tch::Device;

pub(crate) const FEATURES: usize = 5;
pub(crate) const SHAPE: [usize; 2] = [2, 3];
pub(crate) const CELLS: usize = 6;
pub(crate) const ROWS: usize = 90;

/// Numbers in [-1, 1) that look random and are the same everywhere.
fn noise(index: usize) -> f32 {
    let mut z = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z >> 40) as f32 / (1u64 << 23) as f32) - 1.0
}

fn stats(values: impl Iterator<Item = f32>) -> Stats {
    let valid: Vec<f64> = values.filter(|v| v.is_finite()).map(f64::from).collect();
    let n = valid.len() as f64;
    let mean = valid.iter().sum::<f64>() / n;
    let std = (valid.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
    let (min, max) = valid.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    Stats { n: valid.len() as u64, mean, std, min, max }
}

/// Puts `value` into a training row behind the statistics' back.
pub(crate) fn spoil(staged: &Path, value: f32) {
    spoil_row(staged, 20, value);
}

/// Puts `value` into the first cell of a row.
pub(crate) fn spoil_row(staged: &Path, row: usize, value: f32) {
    edit(staged, "x.npy", FEATURES * 4, row, |cells| cells[..4].copy_from_slice(&value.to_le_bytes()));
}

/// Brings all inputs so much nearer to 10, and fills what is missing.
pub(crate) fn squeeze_inputs(staged: &Path, by: f32) {
    for row in 0..ROWS {
        edit(staged, "x_mask.npy", FEATURES, row, |cells| cells.fill(1));
        edit(staged, "x.npy", FEATURES * 4, row, |cells| {
            for cell in cells[..FEATURES * 4].chunks_exact_mut(4) {
                let value = f32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]]);
                let near = if value.is_nan() { 10.0 } else { 10.0 + (value - 10.0) * by };
                cell.copy_from_slice(&near.to_le_bytes());
            }
        });
    }
}

/// Gives the rows weights.
pub(crate) fn weigh(staged: &Path, weight: &[f32]) {
    let path = staged.join(ArrayName::Weight.file());
    let array = enn_common::staged::ArrayWriter::create(&path, ArrayName::Weight.element(), &[]).unwrap();
    array.write_rows(0, bytes_of(weight)).unwrap();
    array.finish(ROWS as u64).unwrap();
    let path = staged.join("meta.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"has_weights\": false", "\"has_weights\": true")).unwrap();
}

/// Gives all target cells this value.
pub(crate) fn level_targets(staged: &Path, value: f32) {
    for row in 0..ROWS {
        edit(staged, "y_mask.npy", CELLS, row, |cells| cells.fill(1));
        edit(staged, "y.npy", CELLS * 4, row, |cells| {
            cells.chunks_exact_mut(4).for_each(|cell| cell.copy_from_slice(&value.to_le_bytes()));
        });
    }
}

/// Lets a row have no target.
pub(crate) fn hide_targets(staged: &Path, row: usize) {
    edit(staged, "y_mask.npy", CELLS, row, |cells| cells.fill(0));
}

/// Lets a row weigh nothing.
pub(crate) fn blank_row(staged: &Path, row: usize) {
    for (name, width) in
        [("x.npy", FEATURES * 4), ("x_mask.npy", FEATURES), ("y.npy", CELLS * 4), ("y_mask.npy", CELLS)]
    {
        edit(staged, name, width, row, |cells| cells.fill(0));
    }
}

/// Changes the bytes of a row.
fn edit(staged: &Path, name: &str, width: usize, row: usize, change: impl Fn(&mut [u8])) {
    let path = staged.join(name);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - (ROWS - row) * width;
    change(&mut bytes[at..at + width]);
    std::fs::write(&path, bytes).unwrap();
    // They would tell.
    let _gone_already = std::fs::remove_file(staged.join(enn_common::staged::sums::SUMS));
}

/// Stages 90 rows (every fifth validation, every tenth test) of 5 inputs and (2, 3) targets that depend on them.
pub(crate) fn stage(out: &Path) -> PathBuf {
    let mut x: Vec<f32> = (0..ROWS * FEATURES).map(|i| 3.0 * noise(i) + 10.0).collect();
    let mut y = vec![0.0; ROWS * CELLS];
    for row in 0..ROWS {
        let input = |f: usize| x[row * FEATURES + f] - 10.0;
        for cell in 0..CELLS {
            let c = cell as f32;
            y[row * CELLS + cell] = 50.0 + 5.0 * c + 2.0 * input(0) - (c - 2.0) * input(1)
                + (input(2) * 0.7).sin() * 2.0
                + 0.2 * noise(100_000 + row * CELLS + cell);
        }
    }
    for row in (0..ROWS).step_by(7) {
        x[row * FEATURES + 3] = f32::NAN;
        y[row * CELLS + row % CELLS] = f32::NAN;
    }
    let mask = |values: &[f32]| values.iter().map(|v| u8::from(v.is_finite())).collect::<Vec<_>>();
    let split: Vec<u8> = (0..ROWS).map(|row| if row % 10 == 9 { 2 } else { u8::from(row % 5 == 3) }).collect();
    let ids: Vec<i64> = (0..ROWS as i64).map(|row| 1000 - row).collect();
    let writer = StagedWriter::create(out).unwrap();
    let grid: Vec<u64> = SHAPE.iter().map(|&n| n as u64).collect();
    for (name, inner, bytes) in [
        (ArrayName::X, vec![FEATURES as u64], bytes_of(&x).to_vec()),
        (ArrayName::XMask, vec![FEATURES as u64], mask(&x)),
        (ArrayName::Y, grid.clone(), bytes_of(&y).to_vec()),
        (ArrayName::YMask, grid, mask(&y)),
        (ArrayName::RowId, vec![], bytes_of(&ids).to_vec()),
        (ArrayName::Split, vec![], split.clone()),
    ] {
        let array = writer.array(name, &inner).unwrap();
        array.write_rows(0, &bytes).unwrap();
        array.finish(ROWS as u64).unwrap();
    }
    let train = |row: &usize| split[*row] == 0;
    let column = |values: &[f32], width: usize, c: usize| {
        let picked: Vec<f32> = (0..ROWS).filter(train).map(|row| values[row * width + c]).collect();
        stats(picked.into_iter())
    };
    let count = |which: u8| split.iter().filter(|&&s| s == which).count() as u64;
    let meta = StagedMeta {
        version: 1,
        digest: "5".repeat(64),
        rows: ROWS as u64,
        features: (0..FEATURES)
            .map(|f| FeatureMeta { name: format!("f{f}"), has_missing: f == 3, ..FeatureMeta::default() })
            .collect(),
        out_shape: SHAPE.to_vec(),
        out_labels: SHAPE.iter().map(|n| (0..*n).map(|i| i.to_string()).collect()).collect(),
        units: "u".to_owned(),
        persistence: None,
        has_targets: true,
        has_classes: false,
        class_form: None,
        has_weights: false,
        split_rows: [count(0), count(1), count(2)],
        sources: vec![],
        row_names: vec![],
        x_stats: (0..FEATURES).map(|f| column(&x, FEATURES, f)).collect(),
        y_stats: (0..CELLS).map(|c| column(&y, CELLS, c)).collect(),
        report: CleaningReport::default(),
    };
    writer.finish(&meta).unwrap()
}

/// Says in the metadata that the first half of the training rows, and of the others, comes from another source than the rest.
pub(crate) fn divide(staged: &Path) {
    let arrays = enn_common::staged::Staged::open(staged).unwrap();
    let half = ROWS as u64 / 2;
    let named = [("north".to_owned(), half), ("south".to_owned(), ROWS as u64 - half)];
    let meta = StagedMeta { sources: SourceMeta::count(named, arrays.split()), ..arrays.meta().clone() };
    std::fs::write(staged.join("meta.json"), serde_json::to_vec_pretty(&meta).unwrap()).unwrap();
}

/// A training on the two sources of [`divide`].
pub(crate) fn weighted(config: RunConfig, weights: [f64; 2]) -> RunConfig {
    let source = |(name, weight): (&str, f64)| DataSource { name: name.into(), files: 1, weight: Some(weight) };
    let data = DataConfig {
        files: vec!["north.npz".into(), "south.npz".into()],
        sources: ["north", "south"].into_iter().zip(weights).map(source).collect(),
        format: None,
        sheet: None,
        missing: vec![],
        duplicates: DuplicatePolicy::Keep,
        layout: Layout::Arrays(ArraysLayout { x: "x".into(), y: "y".into(), row_id: None }),
        split: SplitConfig { kind: SplitKind::Random, val: 0.2, test: 0.1, seed: 0, column: None },
        units: String::new(),
        input_units: Default::default(),
        ranges: vec![],
        weight: None,
        mask: TargetMask::Finite,
    };
    RunConfig { data: Some(data), ..config }
}

pub(crate) fn config(epochs: u64) -> RunConfig {
    RunConfig {
        version: 1,
        name: "test".to_owned(),
        seed: 3,
        data: None,
        model: ModelConfig {
            d_model: 16,
            heads: 2,
            spatial_depth: 1,
            temporal_depth: 1,
            spatial_latents: 3,
            temporal_latents: 3,
            mlp_ratio: 2.0,
            dropout: 0.1,
            drop_path: 0.05,
            fuser_rounds: 1,
            fuser_self_layers: 1,
            fuser_latents: 4,
            collector_depth: 1,
            patch: vec![1, 2],
            linear_branch: false,
            ..ModelConfig::default()
        },
        train: TrainConfig {
            epochs,
            // 63 training rows: the last batch of an epoch has 3.
            batch: 12,
            lr: 3e-3,
            loss: Loss::Mse,
            ema: 0.9,
            calibration: PointCalibration::Off,
            checkpoint_every: 0,
            ..TrainConfig::default()
        },
        cluster: ClusterConfig::default(),
        kernels: std::collections::BTreeMap::new(),
        parent: None,
    }
}

pub(crate) fn task(dir: &Path, staged: &Path, resume: Option<PathBuf>) -> TrainTask {
    TrainTask {
        staged: staged.to_owned(),
        checkpoints: dir.join("checkpoints"),
        device: Device::Cpu,
        kernels: enn_worker::session::KernelTask::default(),
        models: enn_worker::block::SubModels::new(),
        round: RoundTask { resume, attempt: "a".to_owned(), ..RoundTask::default() },
    }
}

/// Does the launcher's part: commits the newest step that all ranks wrote.
pub(crate) fn commit_last(messages: &[FromWorker], config: &RunConfig, staged: &Path) -> PathBuf {
    let shards: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            FromWorker::ShardWritten { step, dir, table, .. } => Some((*step, dir.clone(), table.clone())),
            _ => None,
        })
        .collect();
    let (step, dir, _) = shards.iter().max_by_key(|(step, ..)| *step).unwrap().clone();
    let tables: Vec<_> = shards.iter().filter(|(s, ..)| *s == step).map(|(_, _, table)| table.clone()).collect();
    let path = dir.parent().unwrap().join(name::committed(step));
    let meta: serde_json::Value = serde_json::from_slice(&std::fs::read(staged.join("meta.json")).unwrap()).unwrap();
    let draft = Draft { step, config: serde_json::to_value(config).unwrap(), meta, ..Draft::default() };
    commit(&dir, &path, &tables, draft).unwrap().path
}
