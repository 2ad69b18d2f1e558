//! The whole page, from a made-up run on a made-up climate. `target/report-demo/` keeps it, to be looked at.

use super::fixture::Table;
use super::*;
use crate::{
    journal,
    model::tests::{epoch, events},
};
use enn_common::{
    event::{Event, EventKind},
    fs::mmap::bytes_of,
    staged::{ArrayWriter, meta::FeatureMeta, npy::NpyElement},
};
use enn_data::baselines::Effort;

const AIRPORTS: [&str; 3] = ["EWR", "JFK", "<LGA> & co"];
const DAYS: usize = 180;

/// A number in [−1, 1) from two indices.
fn noise(a: usize, b: usize) -> f64 {
    let z = ((a as u64 * 73_856_093) ^ (b as u64 * 19_349_663)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn weather(day: usize, airport: usize, hour: usize) -> f64 {
    let season = 55.0 - 24.0 * ((day as f64 + 20.0) / 182.0 * std::f64::consts::PI).cos();
    let front = 9.0 * (day as f64 * 0.9).sin() * (day as f64 * 0.37).cos() + 3.0 * noise(day, 7);
    let hours = 7.5 * ((hour as f64 - 9.0) / 12.0 * std::f64::consts::PI).sin();
    season + front + hours + airport as f64 * 0.8 + 1.2 * noise(day * 24 + hour, airport)
}

fn table() -> Table {
    let mut x = Vec::new();
    let mut y = Vec::new();
    for day in 0..DAYS {
        for airport in 0..3 {
            for hour in 0..24 {
                x.push(weather(day, airport, hour) as f32);
                let target = weather(day + 1, airport, hour) as f32;
                y.push(if noise(day, airport * 24 + hour + 999) > 0.97 { f32::NAN } else { target });
            }
        }
    }
    let name = |i: usize| FeatureMeta { name: format!("temp[{i}]"), ..FeatureMeta::default() };
    Table {
        rows: DAYS,
        features: (0..72).map(name).collect(),
        out_shape: vec![3, 24],
        out_labels: vec![AIRPORTS.map(String::from).to_vec(), (0..24).map(|hour| format!("{hour:02}h")).collect()],
        x,
        y,
        split: (0..DAYS).map(|day| [0, 0, 0, 0, 1, 2][day / 5 % 6]).collect(),
        persistence: Some((0..72).collect()),
    }
}

/// Writes a run of 40 epochs: journal, configuration, staged data, forecasts.
fn run(dir: &Path) -> PathBuf {
    let staged = table().write(&dir.join("staged"));
    let open = Staged::open(&staged).unwrap();
    let rows: Vec<usize> = open.rows_of(enn_common::staged::Split::Test).collect();
    let mut forecasts: Vec<f32> = Vec::new();
    for row in &rows {
        let miss = 3.0 * noise(*row, 31);
        forecasts.extend((0..72).map(|cell| {
            let truth = weather(row + 1, cell / 24, cell % 24);
            (truth + miss + (cell % 24) as f64 * 0.09 * noise(*row, 55) + 1.6 * noise(*row, cell + 500)) as f32
        }));
    }
    let out = dir.join(predictions::DIR);
    std::fs::create_dir_all(&out).unwrap();
    let numbers: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    for (file, element, inner, bytes) in [
        ("pred.npy", NpyElement::F32, &[3, 24][..], bytes_of(&forecasts)),
        ("rows.npy", NpyElement::I64, &[][..], bytes_of(&numbers)),
    ] {
        let array = ArrayWriter::create(&out.join(file), element, inner).unwrap();
        array.write_rows(0, bytes).unwrap();
        array.finish(rows.len() as u64).unwrap();
    }
    let config = enn_common::config::model::ModelConfig::default();
    let config = serde_json::json!({
        "version": 1, "name": "weather", "seed": 7, "model": config,
        "train": enn_common::config::train::TrainConfig::default(),
        "cluster": enn_common::config::train::ClusterConfig::default(),
        "data": {"files": ["/data/weather.csv"], "missing": ["NA"], "note": "<script>alert(1)</script>",
                 "ranges": [{"column": "wind_speed", "low": 0, "high": 150}]},
    });
    std::fs::write(dir.join("run.json"), config.to_string()).unwrap();
    let computed = baselines::compute(&staged, Effort::Full).unwrap();
    journal_of(dir, &staged, &computed);
    dir.to_path_buf()
}

/// The story of the fold's tests, with 40 epochs and the staged data's own baselines.
fn journal_of(dir: &Path, staged: &Path, computed: &Baselines) {
    let mut writer = journal::JournalWriter::open(dir).unwrap();
    let mut shift = 0.0;
    for mut event in events() {
        event.time += shift;
        match &mut event.what {
            EventKind::Staged { dir, .. } => *dir = staged.to_path_buf(),
            EventKind::BaselinesComputed { split, notes } => {
                split.clone_from(&computed.split);
                notes.clone_from(&computed.notes);
            }
            EventKind::Trained { epoch, step, split, .. } => {
                *epoch = 40;
                *step = 320;
                for (name, mae) in [("train", 1.41), ("val", 1.82), ("test", 1.79)] {
                    let metrics = split.get_mut(name).unwrap();
                    metrics.mae = mae;
                    metrics.rmse = mae * 1.27;
                    metrics.r2 = 0.971;
                }
            }
            EventKind::EpochEnded(report) => {
                (report.val.mae, report.train_loss) = (14.0 / report.epoch as f64, 0.5 / report.epoch as f64)
            }
            _ => {}
        }
        let last = matches!(&event.what, EventKind::EpochEnded(report) if report.epoch == 3);
        writer.write(&event).unwrap();
        if last {
            for number in 4..=40u64 {
                let decay = (-(number as f64) / 9.0).exp();
                let wave = 1.0 + 0.04 * noise(number as usize, 1);
                for step in (number - 1) * 8 + 1..=number * 8 {
                    shift += 0.01;
                    let loss = (0.03 + 0.3 * decay) * (1.0 + 0.4 * noise(step as usize, 3));
                    let what = EventKind::Stepped {
                        epoch: number,
                        step,
                        loss,
                        lr: 1e-3,
                        grad_norm: 0.7,
                        samples_per_s: 781.0,
                    };
                    writer.write(&Event { time: event.time + shift, what }).unwrap();
                }
                let report =
                    epoch(number, 0.03 + 0.3 * decay, (1.8 + 5.0 * decay) * wave, number % 9 == 1 || number == 38);
                writer
                    .write(&Event { time: event.time + shift, what: EventKind::EpochEnded(Box::new(report)) })
                    .unwrap();
            }
        }
    }
}

/// Every tag is closed by its own name, in order.
fn check_balanced(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let body = html.strip_prefix("<!DOCTYPE html>\n").unwrap();
    for part in body.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("a tag without an end: {part:.60}"));
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap());
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/report-demo");
    let _ = std::fs::remove_dir_all(&demo);
    std::fs::create_dir_all(&demo).unwrap();
    let path = build(&run(&demo)).unwrap();
    let html = std::fs::read_to_string(&path).unwrap();
    check_balanced(&html);
    for foreign in ["http://", "https://", "<script", "@import", "url(http", "src="] {
        assert!(!html.contains(foreign), "the page holds {foreign}");
    }
    assert!(html.contains("&lt;LGA&gt; &amp; co") && html.contains("&lt;script&gt;alert"));
    for section in ["errors", "learning", "forecasts", "cells", "timeline", "data", "configuration", "surroundings"] {
        assert!(html.contains(&format!("<section id=\"{section}\">")), "no section {section}");
    }
    // One shade per cell of the grid, a death, and the best baseline in the headline.
    assert_eq!(html.matches("(cell mean ").count(), 72);
    assert!(
        html.contains("was killed by SIGKILL") && html.contains("below the best baseline on the test rows, ridge.")
    );
    assert!(!html.contains("NaN") && !html.contains("inf\""), "a number that is none was drawn");
    assert!(html.len() < 900_000, "{} bytes", html.len());
}

#[test]
fn every_prefix_of_a_run_has_a_report() {
    let all = events();
    for count in 0..=all.len() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = journal::JournalWriter::open(dir.path()).unwrap();
        all[..count].iter().for_each(|event| writer.write(event).unwrap());
        let html = std::fs::read_to_string(build(dir.path()).unwrap()).unwrap();
        check_balanced(&html);
        assert!(!html.contains("NaN"), "after {count} events");
    }
}

#[test]
fn damaged_forecasts_are_left_out_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path());
    std::fs::write(dir.path().join(predictions::DIR).join("rows.npy"), b"nonsense").unwrap();
    let html = std::fs::read_to_string(build(dir.path()).unwrap()).unwrap();
    assert!(html.contains("Without plots of the test split") && html.contains("rows.npy"));
    assert!(!html.contains("id=\"forecasts\""));
}
