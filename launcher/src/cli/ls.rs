//! `enn ls`.

use super::{flags, output};
use crate::{Error, facts::Facts};
use enn_process::run_dir;
use enn_ui::runs::{self, RunState, RunSummary, StagedData};
use enn_ui::{format, run_status::RunStatus};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

const HEADINGS: [&str; 6] = ["RUN", "STATE", "AGE", "SIZE", "MODEL", "ERROR"];
const GAP: usize = 2;
/// Minimum number of characters of an error that are shown, however narrow the terminal is.
const ERROR_CHARS_MIN: usize = 20;
const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;

/// List runs, newest first: state, age, size, model, error
///
/// A run is under way when its lock is held. Its age is the time since it was last written to; its model is its newest checkpoint, by the
/// step. Staged data, which runs share, count apart.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory of runs [default: ENN_RUNS, else ./runs]
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    runs_dir: Option<PathBuf>,
    /// List the runs of `enn run` too, which have a directory of their own
    #[arg(long, short, conflicts_with = "runs_dir", help_heading = "Job")]
    all: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let mut dirs = flags::directories(args.runs_dir.as_deref(), facts);
    if !args.all {
        dirs.truncate(1);
    }
    dirs.iter().try_for_each(|dir| run_dir::local(dir))?;
    let found: Vec<Row> = runs::list(&dirs).into_iter().map(Row::of).collect();
    let staged: Vec<StagedData> = dirs.iter().flat_map(|dir| runs::staged_data(dir)).collect();
    let now = SystemTime::now();
    if args.json {
        let rows: Vec<Value> = found.iter().map(|row| row.json(now)).collect();
        let data = |data: &StagedData| json!({"path": data.path, "bytes": data.bytes, "used_by": data.users});
        return output::json(&json!({"runs": rows, "staged": staged.iter().map(data).collect::<Vec<_>>()}));
    }
    if found.is_empty() && staged.is_empty() {
        let places: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        return output::text_line(&format!("there are no runs in {}", places.join(" and ")));
    }
    let mut lines = table(&found, now, output::columns().map(usize::from));
    lines.push(totals(&found, &staged));
    // Names and errors are escaped already: what is left are colours.
    output::bytes(format!("{}\n", lines.join("\n")).as_bytes())
}

/// A run with its size in bytes.
struct Row {
    run: RunSummary,
    bytes: u64,
}

impl Row {
    fn of(run: RunSummary) -> Self {
        Self { bytes: runs::size(&run.path), run }
    }

    fn cells(&self, now: SystemTime) -> [String; 6] {
        [
            enn_common::shown::line(&self.run.name).into_owned(),
            enn_common::shown::line(&self.run.state.to_string()).into_owned(),
            age(now.duration_since(self.run.written).unwrap_or_default()),
            format::bytes(self.bytes),
            self.run.step.map_or_else(|| "-".to_owned(), |step| format!("step {step}")),
            enn_common::shown::line(self.run.error.as_deref().unwrap_or_default()).into_owned(),
        ]
    }

    fn json(&self, now: SystemTime) -> Value {
        let RunSummary { name, path, kind, state, error, started, written, step, parent } = &self.run;
        let code = match state {
            RunState::Recorded(RunStatus::Failed(code)) => Some(*code),
            RunState::Recorded(RunStatus::Finished) => Some(0),
            _ => None,
        };
        let since = |from: SystemTime, to: SystemTime| to.duration_since(from).map_or(0.0, |time| time.as_secs_f64());
        json!({
            "name": name, "path": path, "kind": kind.word(), "state": state.word(), "under_way": state.is_under_way(), "code": code,
            "error": error, "started": started, "written": since(SystemTime::UNIX_EPOCH, *written), "age_s": since(*written, now),
            "bytes": self.bytes, "model_step": step, "parent": parent,
        })
    }
}

/// `columns`: width of the terminal; `None`: no terminal, so that lines are not cut or coloured.
fn table(rows: &[Row], now: SystemTime, columns: Option<usize>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let cells: Vec<[String; 6]> = rows.iter().map(|row| row.cells(now)).collect();
    let width = |column: usize| {
        let widest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        widest.max(HEADINGS[column].len()) + GAP
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let before: usize = widths.iter().sum();
    let room = columns.map(|all| all.saturating_sub(before).max(ERROR_CHARS_MIN));
    let line = |row: &[String; 6], colour: Option<&str>| {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            match colour.filter(|_| column == 1) {
                Some(colour) => line.push_str(&format!("{colour}{cell}\u{1b}[0m{padding}")),
                None => line.push_str(&format!("{cell}{padding}")),
            }
        }
        line.push_str(&cut(&row[5], room));
        line.trim_end().to_owned()
    };
    let headings = line(&HEADINGS.map(str::to_owned), None);
    let colour = |row: &Row| columns.and_then(|_| colour(&row.run.state));
    std::iter::once(headings).chain(cells.iter().zip(rows).map(|(cells, row)| line(cells, colour(row)))).collect()
}

/// Returns the colour of a state on a terminal.
fn colour(state: &RunState) -> Option<&'static str> {
    match state {
        RunState::Recorded(RunStatus::Failed(_) | RunStatus::Gone) => Some("\u{1b}[31m"),
        RunState::Recorded(RunStatus::Finished) => Some("\u{1b}[32m"),
        RunState::Recorded(RunStatus::Stopped(_)) => Some("\u{1b}[33m"),
        state if state.is_under_way() => Some("\u{1b}[36m"),
        _ => None,
    }
}

fn cut(text: &str, room: Option<usize>) -> String {
    match room {
        Some(room) if text.chars().count() > room => {
            text.chars().take(room.saturating_sub(1)).chain(std::iter::once('…')).collect()
        }
        _ => text.to_owned(),
    }
}

fn totals(rows: &[Row], staged: &[StagedData]) -> String {
    let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
    let mut line = format!("{}, {}", format::plural(rows.len() as u64, "run"), format::bytes(bytes));
    if !staged.is_empty() {
        let all: u64 = staged.iter().map(|data| data.bytes).sum();
        line.push_str(&format!("; staged data {}", format::bytes(all)));
    }
    let unused: u64 = staged.iter().filter(|data| data.users.is_empty()).map(|data| data.bytes).sum();
    if unused > 0 {
        line.push_str(&format!(", of which no run uses {}: `enn gc` removes them", format::bytes(unused)));
    }
    line
}

/// Formats a time in one unit, such as "3 s", "12 min", "5 h" or "40 d".
pub(super) fn age(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < MINUTE_S => format!("{seconds} s"),
        seconds if seconds < HOUR_S => format!("{} min", seconds / MINUTE_S),
        seconds if seconds < 2 * DAY_S => format!("{} h", seconds / HOUR_S),
        seconds => format!("{} d", seconds / DAY_S),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_ui::runs::RunKind;

    fn row(name: &str, state: RunState, error: Option<&str>) -> Row {
        let run = RunSummary {
            name: name.into(),
            path: PathBuf::from("/runs").join(name),
            kind: RunKind::Train,
            state,
            error: error.map(str::to_owned),
            started: None,
            written: SystemTime::UNIX_EPOCH,
            step: error.is_none().then_some(160),
            parent: None,
        };
        Row { run, bytes: 1_200_000 }
    }

    fn rows() -> [Row; 3] {
        [
            row("b-2", RunState::Recorded(RunStatus::Running), None),
            row("b-1", RunState::Recorded(RunStatus::Failed(3)), Some("a.csv: found no column \u{1b}[2J x")),
            row("a", RunState::Recorded(RunStatus::Finished), None),
        ]
    }

    #[test]
    fn a_table_without_a_terminal_is_plain_and_whole() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(5 * HOUR_S);
        let lines = table(&rows(), now, None);
        let expected = [
            "RUN  STATE       AGE  SIZE    MODEL     ERROR",
            "b-2  running     5 h  1.2 MB  step 160",
            "b-1  failed (3)  5 h  1.2 MB  -         a.csv: found no column \\u{1b}[2J x",
            "a    finished    5 h  1.2 MB  step 160",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_terminal_has_colours_and_lines_of_its_width() {
        let lines = table(&rows(), SystemTime::UNIX_EPOCH, Some(62));
        assert!(lines[1].contains("\u{1b}[36mrunning\u{1b}[0m"), "{lines:?}");
        assert!(lines[2].contains("\u{1b}[31mfailed (3)\u{1b}[0m") && lines[2].ends_with('…'), "{lines:?}");
        assert_eq!(lines[2].chars().count(), 62 + "\u{1b}[31m\u{1b}[0m".chars().count());
    }

    #[test]
    fn ages_and_totals_read_well() {
        let ages = [0, 59, 61, 7_300, 47 * HOUR_S, 40 * DAY_S].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0 s", "59 s", "1 min", "2 h", "47 h", "40 d"]);
        let data = |users: &[&str]| StagedData {
            path: "/x".into(),
            bytes: 2_000_000,
            users: users.iter().map(|user| (*user).to_owned()).collect(),
        };
        assert_eq!(totals(&rows(), &[data(&["a"])]), "3 runs, 3.6 MB; staged data 2.0 MB");
        assert!(totals(&rows(), &[data(&["a"]), data(&[])]).contains("4.0 MB, of which no run uses 2.0 MB: `enn gc`"));
    }
}
