//! The data and the configuration of a run of a second or two: a few hundred rows, a small model, a save after every epoch.

#![expect(clippy::unwrap_used, reason = "it is part of tests, which fail by panicking")]

pub use enn_common::mix::spread as mix;

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const ROWS: u64 = 480;
/// Epochs of a run, and its optimizer steps in each.
pub const EPOCHS: u64 = 8;

const CONFIGURATION: &str = r#"
name = "chaos"
seed = 5
[data]
files = ["chaos.csv"]
[data.rows]
features = ["a", "b", "c"]
targets = ["y"]
row_id = "id"
[data.split]
kind = "random"
val = 0.4
test = 0.1
[model]
d_model = 16
heads = 2
preset = "spatial"
spatial_depth = 1
temporal_depth = 1
spatial_latents = 2
temporal_latents = 2
fuser_latents = 4
fuser_rounds = 1
collector_depth = 1
mlp_ratio = 2.0
patch = [1]
[train]
batch = 24
checkpoint_every = 1
threads = 1
ledger = true
[cluster]
device = "cpu"
max_restarts = 9
"#;

/// Writes both into `dir`; the configuration's file is named.
pub fn write(dir: &Path) -> PathBuf {
    let mut text = "id,a,b,c,y\n".to_owned();
    for row in 0..ROWS {
        let value = |column: u64| (mix(row * 4 + column) % 2_000) as f64 / 1_000.0 - 1.0;
        let (a, b, c) = (value(0), value(1), value(2));
        writeln!(text, "{row},{a},{b},{c},{:.4}", a * b + 0.5 * c + 0.1 * value(3)).unwrap();
    }
    fs::write(dir.join("chaos.csv"), text).unwrap();
    let path = dir.join("chaos.toml");
    fs::write(&path, CONFIGURATION.replace("[train]", &format!("[train]\nepochs = {EPOCHS}"))).unwrap();
    path
}

/// A run in `dir` that `enn` trained on them for two epochs with one worker, and with `more` on its command line.
pub fn trained(mut enn: Command, dir: &Path, more: &[&str]) -> PathBuf {
    let config = write(dir);
    enn.arg("train").arg(config).args(["--quiet", "--nproc-per-node", "1", "--set", "train.epochs=2"]);
    let done = enn.args(more).arg("--runs-dir").arg(dir.join("runs")).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let entries = fs::read_dir(dir.join("runs")).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.join("run.json").is_file()).unwrap()
}
