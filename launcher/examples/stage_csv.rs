//! Stages a numeric CSV as rows (last column the target) and prints seconds and peak memory: the program behind stage_csv.py.

#![expect(clippy::print_stdout, reason = "a program for the bench")]

use enn_common::config::data::{
    DataConfig, DuplicatePolicy, Feature, FeatureKind, Layout, RowsLayout, SplitConfig, SplitKind, TargetMask,
};
use enn_data::stage::{self, StageOptions};
use std::{error::Error, fs, path::PathBuf, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, file, out, threads] = arguments.as_slice() else {
        return Err("usage: stage_csv FILE OUT THREADS".into());
    };
    let file = PathBuf::from(file);
    let header = std::io::BufRead::lines(std::io::BufReader::new(fs::File::open(&file)?)).next().ok_or("empty")??;
    let mut columns: Vec<String> = header.split(',').map(|name| name.trim_matches('"').to_string()).collect();
    let target = columns.pop().ok_or("no column")?;
    let features = columns.into_iter().map(|column| Feature::new(column, FeatureKind::Number)).collect();
    let layout = RowsLayout { features, targets: vec![target], classes: false, out_shape: vec![1], row_id: None };
    let config = DataConfig {
        files: vec![file],
        sources: vec![],
        format: None,
        sheet: None,
        missing: vec!["NA".into()],
        duplicates: DuplicatePolicy::First,
        layout: Layout::Rows(layout),
        split: SplitConfig { kind: SplitKind::Random, val: 0.1, test: 0.1, seed: 1, column: None },
        units: String::new(),
        input_units: Default::default(),
        ranges: vec![],
        weight: None,
        mask: TargetMask::Finite,
    };
    let options = StageOptions { out: out.into(), threads: threads.parse()?, for_prediction: None };
    let start = Instant::now();
    let staged = stage::stage(&config, &options, &mut |_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse()?;
    println!(
        "{{\"seconds\": {seconds}, \"peak_kb\": {peak_kb}, \"rows\": {}, \"reused\": {}}}",
        staged.meta.rows, staged.reused
    );
    Ok(())
}
