//! A directory with a table and a configuration, and what the commands say of them.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{
    artifact::evaluation::{Evaluation, MODEL},
    metrics::RunMetrics,
    staged::{StagedMeta, reader::NpyMap},
};
use enn_tests::{data::mix, launch::enn};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// What the model's error may be of the best baseline's.
pub(crate) const SHARE: f64 = 1.25;

const ROWS: u64 = 240;

const MODEL_AND_CLUSTER: &str = r#"
[model]
d_model = 16
heads = 2
preset = "spatial"
spatial_depth = 1
spatial_latents = 2
fuser_latents = 4
fuser_rounds = 1
collector_depth = 1
mlp_ratio = 2.0
patch = [1]
[cluster]
device = "cpu"
nproc_per_node = 1
"#;

/// A table as text.
#[derive(Clone)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// id, a, b, c and the targets y = a·b + c/2 and z = a − c with a little noise.
pub(crate) fn data() -> Table {
    let row = |row: u64| {
        let value = |column: u64| (mix(row * 8 + column) % 20_000) as f64 / 10_000.0 - 1.0;
        let [a, b, c] = [0, 1, 2].map(value);
        let noise = |column: u64| 0.05 * value(column);
        let numbers = [a, b, c, a * b + 0.5 * c + noise(3), a - c + noise(4)];
        std::iter::once(row.to_string()).chain(numbers.map(|value| format!("{value:.6}"))).collect()
    };
    Table { header: ["id", "a", "b", "c", "y", "z"].map(str::to_owned).to_vec(), rows: (0..ROWS).map(row).collect() }
}

impl Table {
    fn column(&self, name: &str) -> usize {
        self.header.iter().position(|column| column == name).unwrap()
    }

    /// Changes or adds a column: from the row and the number it held.
    pub(crate) fn with(mut self, name: &str, value: impl Fn(usize, f64) -> String) -> Self {
        if !self.header.iter().any(|column| column == name) {
            self.header.push(name.to_owned());
            self.rows.iter_mut().for_each(|row| row.push(String::new()));
        }
        let column = self.column(name);
        for (at, row) in self.rows.iter_mut().enumerate() {
            row[column] = value(at, row[column].parse().unwrap_or(f64::NAN));
        }
        self
    }

    /// Without some columns.
    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        for name in names {
            let column = self.column(name);
            self.header.remove(column);
            self.rows.iter_mut().for_each(|row| {
                row.remove(column);
            });
        }
        self
    }

    /// Some of the rows, in this order.
    pub(crate) fn rows(mut self, rows: impl IntoIterator<Item = usize>) -> Self {
        self.rows = rows.into_iter().map(|row| self.rows[row].clone()).collect();
        self
    }

    /// The rows, then those of another table.
    pub(crate) fn then(mut self, mut other: Self) -> Self {
        self.rows.append(&mut other.rows);
        self
    }

    /// Comma-separated text.
    pub(crate) fn text(&self) -> String {
        let line = |cells: &Vec<String>| cells.join(",") + "\n";
        std::iter::once(&self.header).chain(&self.rows).map(line).collect()
    }
}

/// What prediction leaves: (rows, cells), and why a row has none.
pub(crate) struct Predicted {
    /// Row-major.
    pub(crate) values: Vec<f32>,
    /// Numbers of `RowStatus`.
    pub(crate) status: Vec<u8>,
}

impl Predicted {
    /// Forecasts of a cell of two.
    pub(crate) fn of_cell(&self, cell: usize) -> Vec<f32> {
        self.values.iter().skip(cell).step_by(2).copied().collect()
    }
}

/// Everything of one test, gone at its end.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// With a table to train on; keys of the sections are added to the small configuration of all these tests.
    pub(crate) fn new(table: &Table, sections: &[(&str, &str)]) -> Self {
        Self::of_text(table.text().as_bytes(), sections)
    }

    /// With any bytes to train on.
    pub(crate) fn of_text(text: &[u8], sections: &[(&str, &str)]) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        place.write("data.csv", text);
        let more = |section: &str| {
            let keys = sections.iter().filter(|(name, _)| *name == section).map(|(_, keys)| *keys);
            keys.collect::<Vec<_>>().join("\n")
        };
        let given = |key: &str| sections.iter().any(|(_, keys)| keys.lines().any(|line| line.starts_with(key)));
        let or = |key: &str, default: &str| if given(key) { String::new() } else { format!("{key} = {default}\n") };
        let text = format!(
            "name = \"strange\"\nseed = 3\n[data]\nfiles = [\"data.csv\"]\n{}\n[data.rows]\n{}{}{}{}\n[data.split]\n{}{}{}{}\n\
             {MODEL_AND_CLUSTER}\n[train]\n{}{}threads = 1\n{}\n",
            more("data"),
            or("features", r#"["a", "b", "c"]"#),
            or("targets", r#"["y", "z"]"#),
            or("row_id", "\"id\""),
            more("data.rows"),
            or("kind", "\"random\""),
            or("val", "0.2"),
            or("test", "0.2"),
            more("data.split"),
            or("epochs", "12"),
            or("batch", "32"),
            more("train"),
        );
        place.write("strange.toml", text.as_bytes());
        place
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path().join(name), bytes).unwrap();
    }

    /// A command in it.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(enn());
        command.args(words).arg("--runs-dir").arg(self.path().join("runs")).current_dir(self.path());
        command.env_remove("ENN_RUNS");
        command
    }

    fn done(&self, words: &[&str]) -> Output {
        let output = self.command(words).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}\n{out}\n{error}");
        assert!(!error.contains("panicked"), "{error}");
        output
    }

    /// Trains, with changes, and gives what was said.
    pub(crate) fn train(&self, sets: &[&str]) -> String {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        self.train_with(&sets)
    }

    /// Trains, with flags, and gives what was said.
    pub(crate) fn train_with(&self, flags: &[&str]) -> String {
        let output = self.done(&[&["train", "strange.toml", "--lines"], flags].concat());
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }

    /// The one sentence that training is refused with, and its exit code.
    pub(crate) fn refusal(&self) -> (i32, String) {
        let output = self.command(&["train", "strange.toml", "-q"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.matches("error: ").count() == 1 && !said.contains("panicked"), "{said}");
        let said = said[said.find("error: ").unwrap()..].to_owned();
        // Hints and the rest of a sentence are on lines of their own, which begin with blanks.
        assert!(said.trim_end().lines().skip(1).all(|line| line.starts_with(' ')), "{said}");
        (output.status.code().unwrap(), said)
    }

    /// The newest run.
    pub(crate) fn run(&self) -> PathBuf {
        let runs = fs::read_dir(self.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
        runs.filter(|path| path.join("run.json").is_file()).max().unwrap()
    }

    /// What staging found.
    pub(crate) fn meta(&self) -> StagedMeta {
        serde_json::from_slice(&fs::read(self.run().join("staged/meta.json")).unwrap()).unwrap()
    }

    /// The run's errors.
    pub(crate) fn metrics(&self) -> RunMetrics {
        serde_json::from_slice(&self.done(&["metrics", "latest", "--json"]).stdout).unwrap()
    }

    /// That the error on the test rows is at most `SHARE` of the best baseline's.
    pub(crate) fn is_sensible(&self) -> f64 {
        let metrics = self.metrics();
        let ours = metrics.split["test"].mae;
        let best = metrics.baselines.values().map(|baseline| baseline.mae).fold(f64::INFINITY, f64::min);
        assert!(ours <= SHARE * best, "{ours} beside {:?}", metrics.baselines);
        ours
    }

    /// Predictions of a table that is written for it.
    pub(crate) fn predict(&self, table: &Table, flags: &[&str]) -> Predicted {
        self.write("asked.csv", table.text().as_bytes());
        let words = ["predict", "latest", "--data", "asked.csv", "--out", "answer", "--replace", "-q"];
        self.done(&[&words[..], flags].concat());
        let numbers = NpyMap::open(&self.path().join("answer/pred.npy")).unwrap();
        let status = NpyMap::open(&self.path().join("answer/status.npy")).unwrap();
        Predicted { values: numbers.numbers::<f32>().unwrap().to_vec(), status: status.data().to_vec() }
    }

    /// An evaluation on the training data, and the model's error in it.
    pub(crate) fn evaluate(&self, data: &str) -> (Evaluation, f64) {
        let output = self.done(&["evaluate", "latest", "--data", data, "--json"]);
        let found: Evaluation = serde_json::from_slice(&output.stdout).unwrap();
        let mae = found.all.errors[MODEL].mae;
        (found, mae)
    }
}
