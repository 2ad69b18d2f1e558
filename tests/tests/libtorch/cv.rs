//! `enn cv` and `enn evaluate` with the real worker: every row is predicted by a model that never saw it, a fold that is killed takes
//! nothing with it and is trained again, and an evaluation counts what it says.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking and look again until a deadline"
)]

use enn_common::{
    artifact::{
        cv::{CvRecord, FoldState, MODEL},
        evaluation::{Evaluation, EvaluationPart},
    },
    metrics::{Metrics, RunMetrics},
    staged::{Split, Staged, reader::NpyMap},
};
use enn_tests::{data, launch::enn};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

/// Nothing here takes longer, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(240);
const ROWS: usize = 480;

fn command(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(enn());
    command.args(words).arg("--runs-dir").arg(dir.join("runs")).current_dir(dir).env_remove("ENN_RUNS");
    command
}

fn done(output: &Output, code: i32) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{out}\n{error}");
    out.into_owned()
}

/// What `enn cv … --json` says.
fn folded(dir: &Path, words: &[&str]) -> CvRecord {
    let output = command(dir, words).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The directory of the only cross-validation.
fn parent(dir: &Path) -> PathBuf {
    let mut entries = fs::read_dir(dir.join("runs")).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.find(|path| path.join("cv.json").exists()).unwrap()
}

/// The process that `parent` itself started with this word on its command line; what it started has the same, but another parent.
fn child_of(parent: u32, word: &str) -> Option<i32> {
    let mut pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{parent}")) && String::from_utf8_lossy(&line).contains(word)
    })
}

#[test]
fn a_killed_fold_takes_nothing_with_it_and_is_trained_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write(dir.path());
    let config = config.to_str().unwrap();
    let words = ["cv", config, "--folds", "3", "--jobs", "1", "--set", "data.split.val=0.2"];
    let child = command(dir.path(), &words).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + WAIT_MAX;
    let victim = loop {
        let found = child_of(child.id(), "fold-01");
        if let Some(pid) = found {
            break pid;
        }
        assert!(Instant::now() < deadline, "fold-01 was not begun");
        std::thread::sleep(Duration::from_millis(20));
    };
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    let text = done(&child.wait_with_output().unwrap(), 1);
    assert!(text.contains("fold-01 FAILED: its launcher was killed by SIGKILL"), "{text}");
    let place = parent(dir.path());
    let record = CvRecord::read(&place).unwrap();
    let states: Vec<bool> = record.folds.iter().map(|fold| fold.state == FoldState::Done).collect();
    assert_eq!(states, [true, false, true]);
    assert!(record.contenders.iter().any(|one| one.name == MODEL && one.folds == 2));
    let before = fs::metadata(place.join("fold-00/events.jsonl")).unwrap().modified().unwrap();

    let output = command(dir.path(), &["cv", "--resume", place.to_str().unwrap()]).output().unwrap();
    let record = CvRecord::read(&place).unwrap();
    // Whether eight epochs beat ridge is not the question here.
    let better = record.verdict().unwrap().difference < 0.0;
    let text = done(&output, if better { 0 } else { 8 });
    assert!(text.contains("ENN") && text.contains("cell mean") && text.contains("lower in"), "{text}");
    assert!(record.folds.iter().all(|fold| fold.state == FoldState::Done));
    let after = fs::metadata(place.join("fold-00/events.jsonl")).unwrap().modified().unwrap();
    assert_eq!(before, after, "a fold that is done is not trained again");
    every_row_is_tested_once(&record);
    statistics_are_those_of_training_rows(&record);
    let found = together(&place);
    assert_eq!((found.rows, found.judged, found.all.errors[MODEL].n), (480, 480, 480));
    // Folds of one size: what is true of all rows is the mean over folds, also of the one that was done before.
    for one in &record.contenders {
        let mae = found.all.errors[&one.name].mae;
        assert!((mae - one.mae.mean).abs() < 1e-9, "{}: {mae} beside {:?}", one.name, one.mae);
    }
    assert!(text.contains("its forecasts spread") && found.reactivity.is_some_and(|spread| spread > 0.0), "{text}");
    let report = fs::read_to_string(place.join("report.html")).unwrap();
    assert!(report.contains("Errors beside the baselines") && report.contains("kernel") == text.contains("kernel"));
}

/// What all folds say together.
fn together(place: &Path) -> Evaluation {
    serde_json::from_slice(&fs::read(place.join("evaluation.json")).unwrap()).unwrap()
}

fn every_row_is_tested_once(record: &CvRecord) {
    let mut tested = vec![0; ROWS];
    for fold in &record.folds {
        let staged = Staged::open(&fold.staged).unwrap();
        staged.rows_of(Split::Test).for_each(|row| tested[row] += 1);
        assert_eq!(fold.errors[MODEL].n, fold.rows[2]);
        assert_eq!(fold.rows, [256, 64, 160]);
    }
    assert!(tested.iter().all(|count| *count == 1));
}

fn statistics_are_those_of_training_rows(record: &CvRecord) {
    for fold in &record.folds {
        let staged = Staged::open(&fold.staged).unwrap();
        let values: Vec<f64> = staged.rows_of(Split::Train).map(|row| f64::from(staged.y_row(row)[0])).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!((staged.meta().y_stats[0].mean - mean).abs() < 1e-9);
    }
}

#[test]
fn groups_are_tested_whole_and_the_wrong_wishes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write(dir.path());
    // A group of eight rows each, by the first column's sign and size.
    let table = fs::read_to_string(dir.path().join("chaos.csv")).unwrap();
    let grouped: Vec<String> = table
        .lines()
        .enumerate()
        .map(|(at, line)| match at {
            0 => format!("{line},g"),
            _ => format!("{line},g{}", (at - 1) % 5),
        })
        .collect();
    fs::write(dir.path().join("chaos.csv"), grouped.join("\n")).unwrap();
    let config = config.to_str().unwrap();
    let split = ["--set", "data.split.kind=group", "--set", "data.split.column=g", "--set", "train.epochs=1"];
    let more = ["--group", "g", "--importance", "2", "--set", "train.loss=quantile"];
    let words = [&["cv", config, "--folds", "5", "--json"], &split[..], &more].concat();
    let record = folded(dir.path(), &words);
    assert!(record.rule.contains("5 groups of g"), "{}", record.rule);
    let found = together(&parent(dir.path()));
    // A fold is a group.
    for part in &found.groups {
        let fold = record.folds.iter().find(|fold| (fold.errors[MODEL].mae - part.errors[MODEL].mae).abs() < 1e-12);
        let fold = fold.unwrap_or_else(|| panic!("{part:?}"));
        assert_eq!(format!("{:?}", fold.errors), format!("{:?}", part.errors));
    }
    assert_eq!(found.groups.len(), 5);
    let below: Vec<f64> = found.levels.iter().map(|level| level.below).collect();
    assert!(below.len() == 3 && below.is_sorted() && below[0] < 0.5 && below[2] > 0.5, "{below:?}");
    assert!(found.intervals.len() == 1 && (found.intervals[0].covered - (below[2] - below[0])).abs() < 0.02);
    let mut inputs: Vec<&str> = found.importance.iter().map(|one| one.input.as_str()).collect();
    inputs.sort_unstable();
    assert_eq!(inputs, ["a", "b", "c"]);
    let report = fs::read_to_string(parent(dir.path()).join("report.html")).unwrap();
    assert!(["Error by g", "Importance of inputs", "Quantiles"].iter().all(|part| report.contains(part)), "{report}");
    for fold in &record.folds {
        let staged = Staged::open(&fold.staged).unwrap();
        let mut groups: Vec<usize> = staged.rows_of(Split::Test).map(|row| row % 5).collect();
        groups.dedup();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), 1);
    }
    let refused = |more: &[&str]| {
        let words = [&["cv", config][..], &split[..], more].concat();
        let output = command(dir.path(), &words).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&["--folds", "6"]).contains("--folds 6, expected 2 to 5"));
    assert!(refused(&["--folds", "1"]).contains("--folds 1, expected 2 to 5"));
    assert!(refused(&["--set", "data.split.kind=column"]).contains("says which rows are tested"));
    assert!(refused(&["--resume", "x"]).contains("cannot be used with"));
}

#[test]
fn an_evaluation_counts_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write(dir.path());
    done(&command(dir.path(), &["train", config.to_str().unwrap(), "-q"]).output().unwrap(), 0);
    let words = ["evaluate", "latest", "--data", "chaos.csv", "--group", "g", "--importance", "3", "--json"];
    let wrong = command(dir.path(), &words).output().unwrap();
    assert_eq!(wrong.status.code(), Some(3), "there is no column g: {}", String::from_utf8_lossy(&wrong.stderr));

    let table = fs::read_to_string(dir.path().join("chaos.csv")).unwrap();
    let lines = table.lines().enumerate().map(|(at, line)| {
        if at == 0 { format!("{line},g") } else { format!("{line},{}", if at % 3 == 0 { "few" } else { "many" }) }
    });
    fs::write(dir.path().join("chaos.csv"), lines.collect::<Vec<_>>().join("\n")).unwrap();
    let output = command(dir.path(), &words).output().unwrap();
    let found: Evaluation = serde_json::from_str(&done(&output, 0)).unwrap();
    let n = |part: &enn_common::artifact::evaluation::EvaluationPart| part.errors[MODEL].n;
    // These are the rows of the training: what the run never saw are those of its test split.
    let seen: Vec<(&str, u64)> = found.seen.iter().map(|one| (one.part.name.as_str(), one.rows)).collect();
    let json = done(&command(dir.path(), &["metrics", "latest", "--json"]).output().unwrap(), 0);
    let trained: RunMetrics = serde_json::from_str(&json).unwrap();
    let [trains, validates, tests] = ["train", "val", "test"].map(|split| trained.split[split].n);
    assert_eq!(seen, [("trained on", trains), ("validated on", validates), ("never seen", tests)]);
    assert_eq!((found.rows, found.judged, n(&found.all), &found.warning), (480, tests, tests, &None));
    for (part, split) in found.seen.iter().zip(["train", "val", "test"]) {
        let mae = part.part.errors[MODEL].mae;
        let expected = trained.split[split].mae;
        assert!((mae - expected).abs() < 1e-5 * expected, "{split}: {mae} beside {expected}");
    }
    // As text: a loss that is none is NaN.
    assert_eq!(format!("{:?}", found.all.errors), format!("{:?}", found.seen[2].part.errors));
    let counted: u64 = found.groups.iter().map(n).sum();
    assert_eq!((found.groups[0].name.as_str(), found.groups[1].name.as_str(), counted), ("few", "many", tests));
    let whole = found.groups.iter().map(|part| part.errors[MODEL].mae * n(part) as f64).sum::<f64>() / tests as f64;
    assert!((whole - found.all.errors[MODEL].mae).abs() < 1e-9);
    for name in ["cell_mean", "ridge"] {
        assert!(found.all.errors.contains_key(name), "{:?}", found.all.errors.keys());
    }
    let inputs: Vec<&str> = found.importance.iter().map(|one| one.input.as_str()).collect();
    assert_eq!(inputs.len(), 3);
    assert!(["a", "b", "c"].iter().all(|name| inputs.contains(name)), "{inputs:?}");
    // Half of the target is c; a model that learnt anything learnt that.
    assert_eq!(inputs[0], "c");
    assert!(found.importance[0].rise.mean > 0.02, "{:?}", found.importance);
    let again: Evaluation = serde_json::from_str(&done(&command(dir.path(), &words).output().unwrap(), 0)).unwrap();
    assert_eq!(again.importance, found.importance, "shuffles are seeded");
    let text = done(
        &command(dir.path(), &["evaluate", "latest", "--data", "chaos.csv", "--group", "g", "-q"]).output().unwrap(),
        0,
    );
    assert!(text.contains("> ENN") && text.contains("by g") && text.contains("evaluation in "), "{text}");
    assert!(text.contains(&format!("{tests} rows that the run never saw: ENN's MAE is")), "{text}");
    let place = text.lines().find_map(|line| line.strip_prefix("evaluation in ")).unwrap();
    let report = fs::read_to_string(Path::new(place).join("report.html")).unwrap();
    assert!(report.contains("Error by g") && report.contains("<svg"), "{report}");
    let events =
        fs::read_dir(dir.path().join("runs/")).unwrap().flatten().find(|run| run.path().join("tensorboard").exists());
    assert!(events.is_some(), "a run leaves event files");
}

#[test]
fn rows_that_the_run_has_seen_are_no_proof_of_anything() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write(dir.path());
    done(
        &command(dir.path(), &["train", config.to_str().unwrap(), "-q", "--set", "train.epochs=1"]).output().unwrap(),
        0,
    );
    let runs = fs::read_dir(dir.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let run = runs.into_iter().find(|path| path.join("run.json").is_file()).unwrap();
    let staged = Staged::open(&run.join("staged")).unwrap();
    let trained: Vec<usize> = staged.rows_of(Split::Train).map(|row| staged.row_id()[row] as usize).take(60).collect();
    let table = fs::read_to_string(dir.path().join("chaos.csv")).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    // In another order, and in another file.
    let of = |rows: &mut dyn Iterator<Item = &usize>| {
        [vec![lines[0]], rows.map(|row| lines[row + 1]).collect()].concat().join("\n")
    };
    fs::write(dir.path().join("known.csv"), of(&mut trained.iter().rev())).unwrap();
    let found = evaluated(dir.path(), "known.csv");
    assert_eq!((found.rows, found.judged, found.seen.len(), found.seen[0].rows), (60, 60, 1, 60));
    assert!(found.warning.unwrap().contains("(60 trained on, 0 validated on)"));
    let text = done(&command(dir.path(), &["evaluate", "latest", "--data", "known.csv", "-q"]).output().unwrap(), 0);
    assert!(text.contains("warning: the run has seen all of these rows") && !text.contains("never saw"), "{text}");
    // New rows beside them are judged alone, and so are those whose id alone the run knows.
    let fresh: Vec<String> = trained.iter().map(|row| format!("{row},0.5,{},0.25,0.3", *row as f64 / 1000.0)).collect();
    let both = format!("{}\n{}\n", of(&mut trained.iter()), fresh.join("\n").replace("\n\n", "\n"));
    fs::write(dir.path().join("both.csv"), both).unwrap();
    let found = evaluated(dir.path(), "both.csv");
    let rows: Vec<u64> = found.seen.iter().map(|one| one.rows).collect();
    assert_eq!((rows, found.judged, found.all.errors[MODEL].n, found.warning), (vec![60, 60], 60, 60, None));
}

/// The staged column of an input.
fn column(staged: &Staged, name: &str) -> usize {
    staged.meta().features.iter().position(|feature| feature.name == name).unwrap()
}

/// The evaluation of the newest run on `data`.
fn evaluated(dir: &Path, data: &str) -> Evaluation {
    let words = ["evaluate", "latest", "--data", data, "--importance", "2", "--json"];
    serde_json::from_str(&done(&command(dir, &words).output().unwrap(), 0)).unwrap()
}

/// The newest run's events, a line each.
fn events(dir: &Path) -> String {
    let mut runs: Vec<PathBuf> = fs::read_dir(dir.join("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    runs.retain(|run| run.join("events.jsonl").exists());
    runs.sort_by_key(|run| fs::metadata(run.join("run.json")).unwrap().modified().unwrap());
    fs::read_to_string(runs.last().unwrap().join("events.jsonl")).unwrap()
}

#[test]
fn what_a_fold_has_not_in_training_is_unknown_there() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write_kinds(dir.path(), "kinds", ["rain", "wind", "fog"], "z");
    let words = ["cv", config.to_str().unwrap(), "--folds", "3", "--jobs", "1", "--json", "--set", "train.epochs=1"];
    let record = folded(dir.path(), &words);
    let [rare, once] = data::ALONE;
    let mut unknown = [0, 0];
    for fold in &record.folds {
        assert_eq!((&fold.state, fold.errors[MODEL].n), (&FoldState::Done, fold.rows[2]));
        assert!(fold.errors.contains_key("ridge") && fold.errors.contains_key("kernel_ridge"));
        let staged = Staged::open(&fold.staged).unwrap();
        let trains = |row: usize| staged.split()[row] == Split::Train as u8;
        let label = column(&staged, "weather[rare]");
        let has = (0..staged.rows()).filter(|row| staged.x_row(*row)[label] == 1.0).collect::<Vec<_>>();
        assert_eq!(has, if trains(rare) { vec![rare] } else { vec![] });
        let city = column(&staged, "city");
        let cities = &staged.meta().features[city].categories;
        let code = staged.x_row(once)[city] as usize;
        assert_eq!((cities.contains(&"once".to_owned()), cities.get(code).is_some()), (trains(once), trains(once)));
        let index = staged.meta().features[column(&staged, "station")].index.as_ref().unwrap();
        assert_eq!(index.unseen, [6, 7], "no row has the last two, whatever the fold");
        unknown[0] += usize::from(!trains(rare));
        unknown[1] += usize::from(!trains(once));
    }
    assert!(unknown.iter().all(|folds| *folds > 0), "a row is tested once: {unknown:?}");
}

#[test]
fn columns_of_every_kind_are_shuffled_whole_and_learnt_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write_kinds(dir.path(), "kinds", ["rain", "wind", "fog"], "z");
    let train = |config: &Path, more: &[&str]| {
        let words = [&["train", config.to_str().unwrap(), "-q", "--nproc-per-node", "1"], more].concat();
        command(dir.path(), &words).output().unwrap()
    };
    done(&train(&config, &["--set", "model.linear_branch=true"]), 0);
    let found = evaluated(dir.path(), "kinds.csv");
    let mut inputs: Vec<&str> = found.importance.iter().map(|one| one.input.as_str()).collect();
    assert_eq!(inputs[0], "weather");
    inputs.sort_unstable();
    assert_eq!(inputs, ["city", "station", "u", "weather"]);
    // A mean of 0.9 spread by labels alone.
    assert!(found.importance[0].rise.mean > 0.5, "{:?}", found.importance);

    // Another order, another label for fog, another city: what is gone must be left by name.
    let other = data::write_kinds(dir.path(), "other", ["wind", "hail", "rain"], "w");
    let mut runs = fs::read_dir(dir.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let run = runs.find(|run| run.join("run.json").exists()).unwrap();
    let from = ["--from", run.to_str().unwrap(), "--scaler", "keep", "--set", "train.epochs=1"];
    let refused = train(&other, &from);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("does not fit: the input weather[fog] is unexpected"), "{told}");
    assert!(told.contains("(starting again would end the same way)"), "{told}");
    let output = train(&other, &[&from[..], &["--partial"]].concat());
    done(&output, 0);
    let events = events(dir.path());
    for part in [
        "weather[hail] is a new label and begins without effect",
        "the input weather[fog] is unexpected",
        "city initialises new categories like unknown ones: w",
    ] {
        assert!(events.contains(part), "{events}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one training, judged from many sides")]
fn classes_are_judged_by_their_probabilities() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write_classes(dir.path(), "colours", 1);
    data::write_classes(dir.path(), "fresh", 2);
    let config = config.to_str().unwrap();
    done(&command(dir.path(), &["train", config, "-q", "--nproc-per-node", "1"]).output().unwrap(), 0);

    let json = done(&command(dir.path(), &["metrics", "latest", "--json"]).output().unwrap(), 0);
    let metrics: RunMetrics = serde_json::from_str(&json).unwrap();
    let ours = metrics.split["test"];
    let rates = metrics.baselines["class_rates"];
    let logistic = metrics.baselines["logistic"];
    assert!(ours.loss < logistic.loss && logistic.loss < rates.loss, "{metrics:?}");
    assert!(ours.accuracy > rates.accuracy && ours.judged() == ours.loss, "{metrics:?}");
    let text = done(&command(dir.path(), &["metrics", "latest"]).output().unwrap(), 0);
    assert!(text.contains("test log-loss") && text.contains("test accuracy"), "{text}");
    let figures = &metrics.classes["test"];
    let near = |one: f64, other: f64| (one - other).abs() < 1e-3;
    assert!(near(figures.log_loss, ours.loss) && near(figures.accuracy, ours.accuracy.unwrap()), "{figures:?}");
    assert!(figures.auc.unwrap() > 0.7 && figures.calibration_error < 0.3, "{figures:?}");
    assert_eq!((figures.confusion.iter().flatten().sum::<u64>(), figures.names.len()), (figures.rows, 4));
    let status = done(&command(dir.path(), &["status", "latest"]).output().unwrap(), 0);
    let run = fs::read_dir(dir.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let run = run.into_iter().find(|path| path.join("report.html").is_file()).unwrap();
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    for (place, part) in
        [(&text, "predicted →"), (&text, "AUC"), (&status, "predicted →"), (&status, "calibration error")]
    {
        assert!(place.contains(part), "{part} is not in {place}");
    }
    for part in ["Confusion", "recall", "Calibration", "AUC", "log-loss"] {
        assert!(report.contains(part), "{part} is not in the report");
    }
    assert!(!report.contains("Where the error is"), "a class has no distance");

    let found = evaluated(dir.path(), "fresh.csv");
    let figures = found.classes.as_ref().unwrap();
    assert!(figures.rows == 600 && figures.auc.unwrap() > 0.7 && figures.confusion.len() == 4, "{figures:?}");
    let ours = found.all.errors[MODEL];
    let rates = found.all.errors["class_rates"];
    assert!(ours.loss < 0.7 * rates.loss && ours.accuracy > Some(0.75), "{ours:?} beside {rates:?}");
    assert_eq!(found.all.best().unwrap(), ("logistic", found.all.errors["logistic"].loss));
    let classes: Vec<&str> = found.horizons.iter().map(|part| part.name.as_str()).collect();
    assert!(data::COLOURS.iter().all(|colour| classes.contains(colour)), "{classes:?}");
    // By class: of the rows that have it, which together are all.
    let rows = 600.0;
    let share = |part: &EvaluationPart, of: fn(&Metrics) -> f64| {
        let table = fs::read_to_string(dir.path().join("fresh.csv")).unwrap();
        let n = table.lines().filter(|line| line.ends_with(&format!(",{}", part.name))).count() as f64;
        n / rows * of(&part.errors[MODEL])
    };
    let whole: f64 = found.horizons.iter().map(|part| share(part, |one| one.loss)).sum();
    let right: f64 = found.horizons.iter().map(|part| share(part, |one| one.accuracy.unwrap())).sum();
    assert!((whole - ours.loss).abs() < 1e-9 && (right - ours.accuracy.unwrap()).abs() < 1e-9, "{whole} {right}");
    assert!(found.importance.iter().all(|one| one.rise.mean > 0.05), "each input counts: {:?}", found.importance);
    let text = done(&command(dir.path(), &["evaluate", "latest", "--data", "fresh.csv", "-q"]).output().unwrap(), 0);
    assert!(text.contains("by class") && text.contains("ENN's log-loss is"), "{text}");

    // A class that the model does not know has no right answer.
    let table = fs::read_to_string(dir.path().join("fresh.csv")).unwrap();
    fs::write(dir.path().join("strange.csv"), table.replace(",red\n", ",pink\n")).unwrap();
    let output = command(dir.path(), &["evaluate", "latest", "--data", "strange.csv", "-q"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("does not know the class of") && error.contains("\"pink\""),
        "{error}"
    );
    // Nor has a column that says nothing it knows.
    fs::write(dir.path().join("moved.csv"), table.replace(",x,", ",X,").replace(",y,", ",Y,")).unwrap();
    let words = ["predict", "latest", "--data", "moved.csv", "--out", "moved", "-q"];
    let output = command(dir.path(), &words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("column \"city\": the model does not know"), "{error}");
    let words = ["predict", "latest", "--data", "moved.csv", "--out", "moved", "-q", "--allow-unseen"];
    done(&command(dir.path(), &words).output().unwrap(), 0);

    let predict = |out: &str| {
        let words = ["predict", "latest", "--data", "fresh.csv", "--out", out, "-q"];
        done(&command(dir.path(), &words).output().unwrap(), 0);
        dir.path().join(out)
    };
    let told = predict("told");
    let table = fs::read(predict("told.parquet")).unwrap();
    let columns = String::from_utf8_lossy(&table);
    assert!(
        data::COLOURS.iter().chain(&["label"]).all(|name| columns.contains(name)),
        "columns have their classes' names"
    );
    let (told, labels) =
        (NpyMap::open(&told.join("pred.npy")).unwrap(), NpyMap::open(&told.join("label.npy")).unwrap());
    let told = told.numbers::<f32>().unwrap();
    let labels = labels.numbers::<i64>().unwrap();
    assert_eq!((told.len(), labels.len()), (600 * 4, 600));
    for (row, label) in told.chunks_exact(4).zip(labels) {
        assert!(
            (row.iter().sum::<f32>() - 1.0).abs() < 1e-5 && row.iter().all(|p| *p <= row[*label as usize]),
            "{row:?}"
        );
    }

    let output = command(dir.path(), &["cv", config, "--folds", "2", "--jobs", "1"]).output().unwrap();
    let text = done(&output, 0);
    assert!(text.contains("log-loss") && text.contains("ENN beats the best baseline: its log-loss is"), "{text}");
    let record = CvRecord::read(&parent(dir.path())).unwrap();
    let judged = |name: &str| record.contenders.iter().find(|one| one.name == name).unwrap().judged.mean;
    assert!(
        judged(MODEL) < judged("logistic") && judged("logistic") < judged("class_rates"),
        "{:?}",
        record.contenders
    );
    assert_eq!(record.verdict().unwrap().baseline, "logistic");
}

#[test]
fn windows_of_several_sources_are_folded_judged_and_learnt_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = data::write_windows(dir.path(), "waves");
    let config = config.to_str().unwrap();
    let words = ["cv", config, "--folds", "3", "--jobs", "1", "--json", "--set", "train.epochs=1"];
    let record = folded(dir.path(), &words);
    assert!(record.rule.contains("3 blocks in the order of time of each source"), "{}", record.rule);
    for fold in &record.folds {
        assert_eq!((&fold.state, fold.errors[MODEL].n), (&FoldState::Done, fold.rows[2] * 8));
        let staged = Staged::open(&fold.staged).unwrap();
        for source in &staged.meta().sources {
            assert!(source.split_rows.iter().all(|rows| *rows > 0), "every source trains, validates and tests");
        }
    }
    let train = ["train", config, "-q", "--nproc-per-node", "1", "--set", "train.epochs=2"];
    done(&command(dir.path(), &train).output().unwrap(), 0);
    let found = evaluated(dir.path(), "waves-one.csv");
    let mut inputs: Vec<&str> = found.importance.iter().map(|one| one.input.as_str()).collect();
    inputs.sort_unstable();
    assert_eq!(inputs, ["hour", "v"]);
    // One of the sources alone is data like any other.
    let from =
        ["--from", "latest", "--scaler", "refit", "--set", "data.sources=[{name='one', files=['waves-two.csv']}]"];
    done(&command(dir.path(), &[&train[..], &from].concat()).output().unwrap(), 0);
    assert!(events(dir.path()).contains("begins with"));
}
