//! A comparison as text: the runs, then a row for each figure and each key that differs, with a column for each run.

use super::{Comparison, FIGURES, RankedRun};
use crate::{format, run_status::RunStatus, runs::RunState};
use enn_common::shown;

/// Maximum number of characters of a value of the configuration on a terminal.
const VALUE_CHARS_MAX: usize = 28;
/// Least width of a terminal that is drawn for.
const WIDTH_MIN: usize = 40;
const GAP: usize = 2;
/// Cell of a run without the figure or the key.
const ABSENT: &str = "–";
const RESET: &str = "\u{1b}[0m";
const BOLD: &str = "\u{1b}[1m";
const DIM: &str = "\u{1b}[2m";
const GREEN: &str = "\u{1b}[32m";
const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";
const CYAN: &str = "\u{1b}[36m";

/// How a comparison is drawn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Columns of the terminal; `None`: no terminal, so that nothing is cut or divided.
    pub width: Option<usize>,
    pub has_colours: bool,
}

impl Style {
    fn paint(self, colour: &str, text: &str) -> String {
        if self.has_colours && !colour.is_empty() { format!("{colour}{text}{RESET}") } else { text.to_owned() }
    }
}

/// A row of the table: its name and the cell of each run.
struct TableRow {
    name: String,
    cells: Vec<String>,
    is_heading: bool,
}

/// Formats the comparison. Names and values are escaped; the only control characters are those of colours.
pub fn text(comparison: &Comparison, style: Style) -> String {
    let width = style.width.map(|width| width.max(WIDTH_MIN));
    let mut lines = runs(comparison, style, width);
    let rows = rows(comparison, width.is_some());
    if !rows.is_empty() {
        blocks(comparison, &rows, style, width, &mut lines);
    }
    lines.push(String::new());
    if comparison.differences.is_empty() && comparison.entries.len() > 1 {
        lines.extend(wrapped("their configurations are the same", width, 0));
    }
    for entry in &comparison.entries {
        if let Some(reason) = &entry.incomparable {
            lines.extend(wrapped(&shown::line(&format!("{} is not ranked: {reason}", entry.number)), width, 2));
        }
    }
    lines.extend(wrapped(&shown::line(&comparison.verdict()), width, 2));
    lines.join("\n")
}

/// The list of runs: number, mark of the best, name, state and failure.
fn runs(comparison: &Comparison, style: Style, width: Option<usize>) -> Vec<String> {
    let digits = comparison.entries.len().to_string().len();
    let names: Vec<String> =
        comparison.entries.iter().map(|entry| shown::line(&entry.run.summary.name).into_owned()).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let line = |(entry, name): (&RankedRun, &String)| {
        let summary = &entry.run.summary;
        let mark = if comparison.is_best(entry) { style.paint(GREEN, "*") } else { " ".to_owned() };
        let padding = " ".repeat(longest - name.chars().count());
        let state = shown::line(&summary.state.to_string()).into_owned();
        let before = digits + 1 + 1 + 1 + longest + GAP + state.chars().count() + GAP;
        let error = summary.error.as_deref().map(|error| format!(": {}", shown::line(error))).unwrap_or_default();
        let error = match width {
            Some(width) => format::shortened(&error, width.saturating_sub(before).max(VALUE_CHARS_MAX)),
            None => error,
        };
        let state = style.paint(state_colour(&summary.state), &state);
        format!("{:>digits$} {mark} {name}{padding}{:GAP$}{state}{error}", entry.number, "").trim_end().to_owned()
    };
    comparison.entries.iter().zip(&names).map(line).collect()
}

fn state_colour(state: &RunState) -> &'static str {
    match state {
        RunState::Recorded(RunStatus::Failed(_) | RunStatus::Gone) => RED,
        RunState::Recorded(RunStatus::Finished) => GREEN,
        RunState::Recorded(RunStatus::Stopped(_)) => YELLOW,
        state if state.is_under_way() => CYAN,
        _ => "",
    }
}

/// Figures that at least one run has, then the keys that differ.
fn rows(comparison: &Comparison, is_cut: bool) -> Vec<TableRow> {
    let known = FIGURES.iter().filter(|figure| figure.is_known(comparison));
    let or_absent = |text: String| if text.is_empty() { ABSENT.to_owned() } else { shown::line(&text).into_owned() };
    let mut rows: Vec<TableRow> = known
        .map(|figure| TableRow {
            name: figure.title(comparison),
            cells: comparison.entries.iter().map(|entry| or_absent((figure.text)(entry))).collect(),
            is_heading: false,
        })
        .collect();
    if !comparison.differences.is_empty() {
        let name = "configuration".to_owned();
        rows.push(TableRow { name, cells: vec![String::new(); comparison.entries.len()], is_heading: true });
    }
    for one in &comparison.differences {
        let cell = |value: &Option<String>| {
            let value = shown::line(value.as_deref().unwrap_or(ABSENT)).into_owned();
            if is_cut { format::shortened(&value, VALUE_CHARS_MAX) } else { value }
        };
        rows.push(TableRow {
            name: shown::line(&one.key).into_owned(),
            cells: one.values.iter().map(cell).collect(),
            is_heading: false,
        });
    }
    rows
}

/// Draws the rows with as many runs beside each other as fit, then with the next ones.
fn blocks(comparison: &Comparison, rows: &[TableRow], style: Style, width: Option<usize>, lines: &mut Vec<String>) {
    let longest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    // A long key must leave room for the values.
    let name_width = width.map_or(longest, |width| longest.min(width / 2));
    let heading = |entry: &RankedRun| {
        if comparison.is_best(entry) { format!("{} *", entry.number) } else { entry.number.to_string() }
    };
    let column_width = |at: usize| {
        let cells = rows.iter().map(|row| row.cells[at].chars().count());
        cells.max().unwrap_or(0).max(heading(&comparison.entries[at]).len()) + GAP
    };
    let widths: Vec<usize> = (0..comparison.entries.len()).map(column_width).collect();
    let mut first = 0;
    while first < widths.len() {
        let mut room = width.map_or(usize::MAX, |width| width - name_width);
        let fits = widths[first..].iter().take_while(|width| {
            let is_fitting = **width <= room;
            room = room.saturating_sub(**width);
            is_fitting
        });
        // At least one run is drawn, however wide it is.
        let shown = first..first + fits.count().max(1);
        lines.push(String::new());
        let mut head = " ".repeat(name_width);
        for at in shown.clone() {
            let text = pad(&heading(&comparison.entries[at]), widths[at] - GAP);
            head.push_str(&style.paint(BOLD, &format!("{:GAP$}{text}", "")));
        }
        lines.push(head.trim_end().to_owned());
        for row in rows {
            lines.push(row_line(comparison, row, shown.clone(), name_width, &widths, style));
        }
        first = shown.end;
    }
}

fn row_line(
    comparison: &Comparison,
    row: &TableRow,
    shown: std::ops::Range<usize>,
    name_width: usize,
    widths: &[usize],
    style: Style,
) -> String {
    let name = pad(&format::shortened(&row.name, name_width), name_width);
    if row.is_heading {
        return style.paint(BOLD, name.trim_end());
    }
    let mut line = style.paint(DIM, &name);
    for at in shown {
        let cell = format!("{:GAP$}{}", "", pad(&row.cells[at], widths[at] - GAP));
        let entry = &comparison.entries[at];
        let colour = match () {
            () if comparison.is_best(entry) => GREEN,
            () if entry.incomparable.is_some() => DIM,
            () => "",
        };
        line.push_str(&style.paint(colour, &cell));
    }
    line.trim_end().to_owned()
}

fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.chars().count())))
}

/// Breaks a sentence into lines of at most `width` columns; the lines after the first are indented.
fn wrapped(text: &str, width: Option<usize>, indent: usize) -> Vec<String> {
    let Some(width) = width else { return vec![text.to_owned()] };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used == 0 {
            lines[last].push_str(word);
        } else if used + 1 + word.chars().count() > width {
            lines.push(" ".repeat(indent) + word);
        } else {
            lines[last].push(' ');
            lines[last].push_str(word);
        }
    }
    lines
}
