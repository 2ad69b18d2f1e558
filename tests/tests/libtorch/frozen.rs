//! Models of released versions at work in this one: their checkpoints and saved models predict what they predicted then, and a run goes on.
//! What needs no worker is in `tests/plain/frozen.rs`, which says what the archives hold.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use arrow_array::{Array, RecordBatch, cast::AsArray, types::Float32Type};
use enn_tests::frozen::{RUNS, archive, enn};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::{fs::File, path::Path};

/// Largest difference between what a release predicted and what is predicted now, as a share of the value or of 1.
const DIFFERENCE_MAX: f32 = 1e-4;

fn predictions(path: &Path) -> RecordBatch {
    let mut batches = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    let batch = batches.next().unwrap().unwrap();
    assert!(batches.next().is_none(), "{} has more than one batch", path.display());
    batch
}

/// Holds one prediction against another: the same columns, and numbers that differ by rounding only.
fn assert_alike(now: &Path, then: &Path) {
    let now = predictions(now);
    let then = predictions(then);
    let mut numbers = 0;
    for (field, was) in then.schema().fields().iter().zip(then.columns()) {
        let is = now.column_by_name(field.name()).unwrap();
        assert_eq!(is.len(), was.len(), "{}", field.name());
        match (is.as_primitive_opt::<Float32Type>(), was.as_primitive_opt::<Float32Type>()) {
            (Some(is), Some(was)) => {
                for (row, (is, was)) in is.iter().zip(was.iter()).enumerate() {
                    let is = is.unwrap_or(f32::NAN);
                    let was = was.unwrap_or(f32::NAN);
                    let alike = (is - was).abs() <= DIFFERENCE_MAX * was.abs().max(1.0) || is.is_nan() && was.is_nan();
                    assert!(alike, "{} of row {row} is {is} and was {was}", field.name());
                }
                numbers += was.len();
            }
            _ => assert_eq!(is, was, "{}", field.name()),
        }
    }
    assert!(numbers > 0, "the prediction has no numbers");
}

/// The table that a run's configuration names.
fn table(run: &str) -> String {
    format!("{}.csv", if run == "classes" { "rows" } else { run })
}

#[test]
fn checkpoints_of_0_1_predict_what_they_predicted() {
    let dir = archive();
    for run in RUNS {
        let place = format!("runs/{run}");
        enn(dir.path(), &["ckpt", "verify", &place]);
        enn(
            dir.path(),
            &["predict", &place, "--data", &table(run), "--out", "now.parquet", "--nproc-per-node", "1", "--replace"],
        );
        assert_alike(&dir.path().join("now.parquet"), &dir.path().join(format!("{run}.parquet")));
    }
}

#[test]
fn saved_models_of_0_1_are_loaded_and_predict_what_their_run_predicted() {
    let dir = archive();
    for model in ["rows.safetensors", "rows.pt"] {
        let run = enn(dir.path(), &["model", "load", model, "--runs-dir", "loaded"]);
        let out = format!("{model}.parquet");
        enn(dir.path(), &["predict", run.trim(), "--data", "rows.csv", "--out", &out, "--nproc-per-node", "1"]);
        assert_alike(&dir.path().join(out), &dir.path().join("rows.parquet"));
    }
}

#[test]
fn a_run_of_0_1_goes_on() {
    let dir = archive();
    enn(
        dir.path(),
        &["train", "rows.toml", "--resume", "runs/rows", "--set", "train.epochs=4", "--nproc-per-node", "1"],
    );
    let newest = enn(dir.path(), &["ckpt", "verify", "runs/rows/checkpoints/step-00000016"]);
    assert!(newest.contains("is as it was written"), "{newest}");
}
