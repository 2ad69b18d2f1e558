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
        let a = value(0);
        let b = value(1);
        let c = value(2);
        writeln!(text, "{row},{a},{b},{c},{:.4}", a * b + 0.5 * c + 0.1 * value(3)).unwrap();
    }
    fs::write(dir.join("chaos.csv"), text).unwrap();
    configure(dir, "chaos", str::to_owned)
}

/// Columns of every kind, of which labels count most. One row alone has the label "rare", and another one the city "once".
const KINDS: &str = r#"features = [
  "u",
  { column = "station", kind = "index", offset = 1, rows = 8 },
  { column = "city", kind = "category", encoding = "one_hot" },
  { column = "weather", kind = "labels", separator = ";", empty = "missing" },
]"#;
/// Rows of that table, and those that are alone with what they have.
pub const KINDS_ROWS: u64 = 300;
/// The row with the label "rare", and that with the city "once".
pub const ALONE: [usize; 2] = [7, 11];

/// Writes such a table `name.csv` into `dir`, and its configuration; `labels` and `city` are another name of each label, and of the city z.
pub fn write_kinds(dir: &Path, name: &str, labels: [&str; 3], city: &str) -> PathBuf {
    let mut text = "id,u,station,city,weather,y\n".to_owned();
    for row in 0..KINDS_ROWS {
        let random = |column: u64, below: u64| mix(row * 8 + column) % below;
        let has = [random(0, 2) == 0, random(1, 3) == 0, random(2, 5) == 0];
        let station = 1 + random(3, 6);
        let place = random(4, 3);
        let u = random(5, 2_000) as f64 / 1_000.0 - 1.0;
        let mut weather: Vec<&str> = labels.iter().zip(has).filter(|(_, has)| *has).map(|(label, _)| *label).collect();
        weather.extend((row == ALONE[0] as u64).then_some("rare"));
        let place = if row == ALONE[1] as u64 { "once" } else { ["x", "y", city][place as usize] };
        let effects = [2.0, -1.5, 1.0].iter().zip(has).map(|(effect, has)| if has { *effect } else { 0.0 });
        let y = effects.sum::<f64>() + 0.4 * station as f64 + 0.5 * u + random(6, 100) as f64 / 1_000.0;
        let u = if row % 13 == 0 { String::new() } else { u.to_string() };
        writeln!(text, "{row},{u},{station},{place},{},{y:.4}", weather.join(";")).unwrap();
    }
    fs::write(dir.join(format!("{name}.csv")), text).unwrap();
    configure(dir, name, |text| text.replace(r#"features = ["a", "b", "c"]"#, KINDS))
}

/// Classes of the table of [`write_classes`].
pub const COLOURS: [&str; 4] = ["red", "green", "blue", "grey"];

/// Writes `name.csv` with a class for each row, by a number, a city and labels, into `dir`, and its configuration; rows of other tables are
/// made by another `salt`. Grey is rare. No linear rule tells red from green: it is the sign of u, turned around in one city.
pub fn write_classes(dir: &Path, name: &str, salt: u64) -> PathBuf {
    let mut text = "id,u,city,weather,colour\n".to_owned();
    for row in 0..2 * KINDS_ROWS {
        let random = |column: u64, below: u64| mix((salt << 32) + row * 8 + column) % below;
        let u = random(0, 2_000) as f64 / 1_000.0 - 1.0;
        let city = random(1, 3) as usize;
        let wind = random(2, 3) == 0;
        let colour = match (random(3, 20), wind) {
            (0, _) => 3,
            (1, _) => random(4, 3) as usize,
            (_, true) => 2,
            (_, false) => usize::from((u > 0.0) != (city == 0)),
        };
        let weather = if wind { "rain;wind" } else { "rain" };
        writeln!(text, "{},{u},{},{weather},{}", (salt << 32) + row, ["x", "y", "z"][city], COLOURS[colour]).unwrap();
    }
    fs::write(dir.join(format!("{name}.csv")), text).unwrap();
    const FEATURES: &str = r#"features = [
  "u",
  { column = "city", kind = "category" },
  { column = "weather", kind = "labels", separator = ";", empty = "missing" },
]"#;
    let path = configure(dir, name, |text| {
        let text = text.replace(r#"features = ["a", "b", "c"]"#, FEATURES);
        text.replace(r#"targets = ["y"]"#, "targets = [\"colour\"]\ntarget_kind = \"category\"")
            .replace("val = 0.4", "val = 0.2")
    });
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&format!("epochs = {EPOCHS}"), "epochs = 40")).unwrap();
    path
}

/// Writes two tables of windows, of two entities by the hour, into `dir`, and the configuration of them as two sources; the second
/// is longer.
pub fn write_windows(dir: &Path, name: &str) -> PathBuf {
    for (source, steps) in [("one", 300), ("two", 500)] {
        let mut text = "who,when,v\n".to_owned();
        for (step, who) in (0..steps).flat_map(|step| [(step, "a"), (step, "b")]) {
            let wave = (f64::from(step) * if who == "a" { 0.6 } else { 0.4 }).sin();
            let noise = (mix(step as u64 * 2 + u64::from(who == "a")) % 100) as f64 / 500.0;
            writeln!(text, "{who},{},{:.4}", step * 3600, wave + noise).unwrap();
        }
        fs::write(dir.join(format!("{name}-{source}.csv")), text).unwrap();
    }
    let sources = ["one", "two"].map(|source| {
        format!("[[data.sources]]\nname = \"{source}\"\nfiles = [\"{name}-{source}.csv\"]\nweight = 1\n")
    });
    let windows = "[data.windows]\nentity = \"who\"\ntime = \"when\"\nstep_s = 3600\nsteps = 4\nhistory = 2\n\
                   inputs = [\"v\"]\ntarget = \"v\"\ncalendar = [\"hour\"]\n";
    configure(dir, name, |text| {
        let rows = &text[text.find("[data.rows]").unwrap()..text.find("[data.split]").unwrap()];
        let text = text.replace(rows, &format!("{}{windows}", sources.concat()));
        let text = text.replace(&format!("files = [\"{name}.csv\"]\n"), "").replace("patch = [1]", "patch = [1, 2]");
        text.replace("kind = \"random\"\nval = 0.4", "kind = \"chronological\"\nval = 0.2")
    })
}

/// Writes the configuration of the data `name`, made of this file's by `change`.
fn configure(dir: &Path, name: &str, change: impl Fn(&str) -> String) -> PathBuf {
    let path = dir.join(format!("{name}.toml"));
    let text = change(&CONFIGURATION.replace("chaos", name));
    fs::write(&path, text.replace("[train]", &format!("[train]\nepochs = {EPOCHS}"))).unwrap();
    path
}

/// A run in `dir` that `enn` trained on them for two epochs with one worker, and with `more` on its command line.
pub fn trained(enn: Command, dir: &Path, more: &[&str]) -> PathBuf {
    trained_on(enn, &write(dir), more)
}

/// The same of a configuration, in its directory.
pub fn trained_on(mut enn: Command, config: &Path, more: &[&str]) -> PathBuf {
    let dir = config.parent().unwrap();
    enn.arg("train").arg(config).args(["--quiet", "--nproc-per-node", "1", "--set", "train.epochs=2"]);
    let done = enn.args(more).arg("--runs-dir").arg(dir.join("runs")).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let entries = fs::read_dir(dir.join("runs")).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.join("run.json").is_file()).unwrap()
}
