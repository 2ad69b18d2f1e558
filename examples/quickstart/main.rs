//! The Rust API from a table to predictions: train, look at the errors, save, load, predict.
//!
//! `cargo run --release -p enn-examples --bin quickstart` from the top of the repository, after `make build`.

use enn_launcher::{Error, api, facts::Facts};
use std::{io::Write, path::Path, process::ExitCode};

fn main() -> ExitCode {
    match quickstart() {
        Ok(text) => {
            // A closed standard output is no error.
            let _gone = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let code = error.exit_code() as u8;
            let _gone = writeln!(std::io::stderr(), "error: {error}");
            code.into()
        }
    }
}

fn quickstart() -> Result<String, Error> {
    let facts = Facts::gather();
    let runs = Path::new("target/quickstart");
    let settings = [api::Override::Set("train.epochs=5".into())];
    let config = api::load_config(Path::new("examples/weather/weather.toml"), &settings, &facts)?;

    // Stages, starts the configured workers, trains, and leaves a run directory.
    let options = api::TrainOptions { runs_dir: runs.into(), ..Default::default() };
    let run = api::train(&config, &facts, &options)?;
    let test = run.metrics.as_ref().and_then(|splits| splits.get("test")).copied().unwrap_or_default();

    // One file with weights, scaler and configuration; then a new run directory made of it.
    let file = runs.join("weather.safetensors");
    api::save_model(&run.dir, &file, true)?;
    let model = api::load_model(&file, runs)?;

    let data = ["examples/weather/weather.csv".into()];
    let options = api::PredictOptions { replace: true, ..Default::default() };
    let predictions = api::predict(&model, &data, &runs.join("tomorrow.parquet"), &facts, &options)?;
    let rows = predictions.gathered.map_or(0, |gathered| gathered.rows);
    // The same predictions in memory.
    let arrays = api::predict_arrays(&model, &data, &facts, &api::PredictOptions::default())?;
    let last = arrays.filter(|arrays| !arrays.status.is_empty()).map(|arrays| arrays.row(arrays.status.len() - 1)[0]);
    Ok(format!(
        "test MAE {:.3} °F over {} cells; {} days predicted into {}, the last begins with {:.1} °F\n",
        test.mae,
        test.n,
        rows,
        runs.join("tomorrow.parquet").display(),
        last.unwrap_or(f32::NAN),
    ))
}
