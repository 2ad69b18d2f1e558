//! Every configuration that a page shows is trained with, on a small table that is made to fit it; and every setting that the text names.
//!
//! Needs `enn`, `enn-worker` and `submodel`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use enn_common::config::{
    Facts, RawConfig, RunConfig,
    data::{Feature, FeatureKind, Layout, RowsLayout},
    resolve,
};
use enn_tests::{
    data::mix,
    launch::{end, enn},
    pages::pages,
};
use parquet::arrow::ArrowWriter;
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

const ROWS_OF_A_FILE: usize = 120;
/// What a block that is about something else leaves out.
const DATA: &str = "\n[data]\nfiles = [\"table.csv\"]\n";
const ROWS: &str = "\n[data.rows]\nfeatures = [\"a\", \"b\"]\ntargets = [\"y\"]\n";
/// A table in the order of its times.
const TIMES: &str = "\n[data.rows]\nfeatures = [\"a\", { column = \"when\", kind = \"time\" }]\ntargets = [\"y\"]\n";
/// A model of the least size, and one epoch.
const SMALL: [&str; 7] = [
    "train.epochs=1",
    "train.batch=16",
    "train.threads=1",
    "model.d_model=16",
    "model.heads=2",
    "model.preset=spatial",
    "cluster.device=cpu",
];
/// Settings of which this machine does not have what they need: an object store.
const ELSEWHERE: [&str; 1] = ["train.checkpoint_mirror"];

/// A column of a table: its name and its cells.
struct Column {
    name: String,
    cells: Vec<Cell>,
}

enum Cell {
    Number(f64),
    Text(String),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// The block with what it leaves out.
fn whole(block: &str) -> String {
    let says = |what: &str| block.lines().any(|line| line.trim_start().starts_with(what));
    let layout = if says("[data.rows]") { "" } else { ROWS };
    let data = if says("files") { "" } else { DATA };
    format!("{block}{layout}{data}")
}

/// A configuration in which a setting has a meaning.
fn plain(setting: &str) -> String {
    let layout = if setting.contains("target_kind") { ROWS } else { TIMES };
    let split = if setting.ends_with("\"group\"") { "[data.split]\ncolumn = \"g\"\n" } else { "" };
    let classes = if setting.contains("target_kind") { "target_kind = \"category\"\n" } else { "" };
    format!("{DATA}{layout}{classes}{split}")
}

fn resolved(text: &str, dir: &Path, place: &str) -> RunConfig {
    let facts = Facts { cores: 2, gpus: 0, cuda_worker: false, cwd: dir.to_path_buf() };
    let raw = RawConfig::parse(text, &dir.join("page.toml"));
    raw.and_then(|raw| resolve(&raw, &facts)).unwrap_or_else(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("{place}: {}\n{text}", errors.join("\n"))
    })
}

/// Tables that fit the configuration, each file with rows of its own.
fn make(config: &RunConfig, place: &str) {
    let data = config.data.as_ref().unwrap();
    let Layout::Rows(rows) = &data.layout else { panic!("{place}: write tables of this layout here, too") };
    for (index, path) in data.files.iter().enumerate() {
        let numbers = index * ROWS_OF_A_FILE..(index + 1) * ROWS_OF_A_FILE;
        let mut columns: Vec<Column> = columns(rows, &numbers.clone().collect::<Vec<_>>());
        if let Some(column) = &data.split.column {
            columns.push(Column {
                name: column.clone(),
                cells: numbers.map(|row| Cell::Text(format!("g{}", row % 12))).collect(),
            });
        }
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("csv") => write_csv(path, &columns),
            Some("parquet") => write_parquet(path, &columns),
            other => panic!("{place}: write tables of the format {other:?} here, too"),
        }
    }
}

fn columns(layout: &RowsLayout, rows: &[usize]) -> Vec<Column> {
    let column = |name: &str, cell: &dyn Fn(usize) -> Cell| Column {
        name: name.to_owned(),
        cells: rows.iter().map(|row| cell(*row)).collect(),
    };
    let mut found: Vec<Column> =
        layout.features.iter().map(|feature| column(&feature.column, &|row| cell(feature, row))).collect();
    if layout.features.is_empty() {
        // `features = "*"`: what the table has decides.
        found.push(column("price", &|row| Cell::Number((mix(row as u64) % 1_000) as f64 / 10.0)));
        found.push(column("id", &|row| Cell::Text(format!("row {row}"))));
        found.push(column("comment", &|row| Cell::Text(format!("said {row}"))));
    }
    for target in &layout.targets {
        let number = |row: usize| if layout.classes { (row % 2) as f64 } else { (mix(row as u64) % 100) as f64 };
        found.push(column(target, &|row| Cell::Number(number(row))));
    }
    found.extend(layout.row_id.iter().map(|name| column(name, &|row| Cell::Text(format!("row {row}")))));
    found
}

/// A cell of a feature.
fn cell(feature: &Feature, row: usize) -> Cell {
    let drawn = mix((row * 31 + feature.column.len()) as u64);
    match feature.kind {
        FeatureKind::Number => Cell::Number((drawn % 1_000) as f64 / 10.0),
        FeatureKind::Category => Cell::Text(["Rome", "Oslo", "Lima"][(drawn % 3) as usize].to_owned()),
        FeatureKind::Index(index) => Cell::Number((index.offset + (drawn % index.rows as u64) as i64) as f64),
        FeatureKind::Labels(labels) => {
            let separator = labels.separator;
            Cell::Text(["rain".to_owned(), format!("rain{separator}wind"), String::new()][(drawn % 3) as usize].clone())
        }
        FeatureKind::Time => {
            Cell::Text(format!("2025-{:02}-{:02} {:02}:00", row / 672 % 12 + 1, row / 24 % 28 + 1, row % 24))
        }
    }
}

fn write_csv(path: &Path, columns: &[Column]) {
    let header: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let mut text = header.join(",") + "\n";
    for row in 0..ROWS_OF_A_FILE {
        let cells: Vec<String> = columns.iter().map(|column| column.cells[row].text()).collect();
        text.extend([&cells.join(","), "\n"]);
    }
    fs::write(path, text).unwrap();
}

fn write_parquet(path: &Path, columns: &[Column]) {
    let array = |cells: &[Cell]| -> ArrayRef {
        let numbers: Option<Vec<f64>> =
            cells.iter().map(|cell| if let Cell::Number(number) = cell { Some(*number) } else { None }).collect();
        match numbers {
            Some(numbers) => Arc::new(Float64Array::from(numbers)),
            None => Arc::new(StringArray::from(cells.iter().map(Cell::text).collect::<Vec<_>>())),
        }
    };
    let batch = RecordBatch::try_from_iter(columns.iter().map(|column| (&column.name, array(&column.cells)))).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Trains by `text` with a worker program, and predicts the table again.
fn train(text: &str, set: &[&str], place: &str) {
    let dir = tempfile::tempdir().unwrap();
    let config = resolved(text, dir.path(), place);
    make(&config, place);
    fs::write(dir.path().join("page.toml"), text).unwrap();
    // The module that the page asks for is one of a worker of the user's own.
    let worker = if text.contains("model = \"token_map\"") { "submodel" } else { "enn-worker" };
    let run = |words: &[&str]| {
        let mut command = Command::new(enn());
        command.args(words).current_dir(dir.path()).env("ENN_WORKER", enn().with_file_name(worker));
        command.env("ENN_RUNS", "runs").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = end(command.spawn().unwrap());
        assert_eq!(ended.code, Some(0), "{place}: {}{}\n{text}", ended.stdout, ended.stderr);
    };
    let settings: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    run(&[&["train", "page.toml", "--quiet", "--nproc-per-node", "1"], &settings[..]].concat());
    let first = config.data.unwrap().files[0].clone();
    run(&["predict", "latest", "--data", first.to_str().unwrap(), "--out", "out.parquet"]);
    assert!(fs::metadata(dir.path().join("out.parquet")).unwrap().len() > 0, "{place}");
}

#[test]
fn every_configuration_of_a_page_is_trained_with() {
    let mut trained = 0;
    for page in pages() {
        // Those that are written to a file are trained with by the commands of the page (page_commands.rs).
        let files: Vec<usize> =
            page.blocks().unwrap().iter().filter(|block| block.file().is_some()).map(|block| block.line).collect();
        for (line, block) in page.tables().into_iter().filter(|(line, _)| !files.contains(&(line + 1))) {
            train(&whole(&block), &SMALL, &page.at(line));
            trained += 1;
        }
    }
    assert!(trained >= 5, "only {trained} blocks were found");
}

#[test]
fn every_setting_that_the_text_of_a_page_names_is_trained_with() {
    let mut trained = 0;
    for page in pages() {
        for (line, setting) in page.settings() {
            if ELSEWHERE.iter().any(|key| setting.starts_with(key)) {
                continue;
            }
            train(&plain(&setting), &[&SMALL[..], &[&setting]].concat(), &page.at(line));
            trained += 1;
        }
    }
    assert!(trained > 5, "only {trained} settings were found");
}
