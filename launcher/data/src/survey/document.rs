//! The configuration that a proposal is, as TOML with a remark for each column; and the same in a few lines for a terminal. Pure.

use super::{
    guess::{ColumnGuess, GuessedKind, brief},
    proposal::{ColumnRole, Proposal, ProposedWindows, RoledColumn},
    steps::step_text,
    target::TargetTask,
};
use enn_common::config::data::SourceFormat;
use std::fmt::Write as _;

/// Inputs up to which each has a line of its own; more are `features = "*"`.
const LISTED_MAX: usize = 200;
/// Column at which remarks begin, where the text before is shorter.
const REMARK_AT: usize = 44;
/// Columns that a summary lists by name.
const SUMMARY_MAX: usize = 12;

/// Names in a document.
#[derive(Debug, Clone, Copy)]
pub struct DocumentPaths<'a> {
    pub name: &'a str,
    /// Files of the table, as they are to be written.
    pub files: &'a [String],
    /// Format of the files, if their names do not tell it.
    pub format: Option<SourceFormat>,
    /// Sheet of a workbook, if one is chosen.
    pub sheet: Option<&'a str>,
    /// The address of the JSON schema; `None`: editors are told nothing.
    pub schema: Option<&'a str>,
    /// The command that writes the document.
    pub command: &'a str,
}

/// Returns the text of the configuration.
#[must_use]
pub fn document(proposal: &Proposal, paths: &DocumentPaths<'_>) -> String {
    let mut text = String::new();
    if let Some(schema) = paths.schema {
        line(&mut text, &format!("#:schema {schema}"));
    }
    line(&mut text, &format!("# Made by `{}`: {}.", one_line(paths.command), size(proposal)));
    line(
        &mut text,
        "# Guesses are beside their columns. Lines behind a # are keys that are often set; all others: `enn schema`.",
    );
    line(&mut text, &format!("name = {}", quoted(paths.name)));
    line(&mut text, "# seed = 0\n");
    line(&mut text, "[data]");
    let files: Vec<String> = paths.files.iter().map(|file| quoted(file)).collect();
    line(&mut text, &format!("files = [{}]", files.join(", ")));
    if let Some(format) = paths.format {
        line(&mut text, &format!("format = {}", quoted(format.name())));
    }
    if let Some(sheet) = paths.sheet {
        line(&mut text, &format!("sheet = {}", quoted(sheet)));
    }
    missing(&mut text, proposal);
    if let Some(weight) = &proposal.weight {
        line(&mut text, &format!("weight = {}", quoted(weight)));
    }
    remarked(&mut text, "# units = \"EUR\"", "of the target, for reports");
    line(&mut text, "");
    match &proposal.windows {
        Some(windows) => windows_text(&mut text, proposal, windows),
        None => rows_text(&mut text, proposal),
    }
    settings(&mut text, proposal);
    text
}

fn missing(text: &mut String, proposal: &Proposal) {
    if proposal.has_missing_words {
        let remark = "texts such as NA are values: the file has missing cells besides";
        return remarked(text, "missing_only = []", remark);
    }
    if proposal.missing.is_empty() {
        return remarked(text, "# missing = [\"-999\"]", "texts that mean an empty cell, besides NA, NaN, null, None");
    }
    let words: Vec<String> = proposal.missing.iter().map(|word| quoted(word)).collect();
    remarked(text, &format!("missing = [{}]", words.join(", ")), "texts among numbers: cells with them count as empty");
}

fn rows_text(text: &mut String, proposal: &Proposal) {
    line(text, "[data.rows]");
    let targets: Vec<String> = proposal.targets.iter().map(|name| quoted(name)).collect();
    let found: Vec<String> = proposal
        .columns
        .iter()
        .filter(|column| column.role == ColumnRole::Target)
        .map(|column| column.guess.found.clone())
        .collect();
    remarked(
        text,
        &format!("targets = [{}]", targets.join(", ")),
        &format!("{}: {}", found.join("; "), proposal.task.name()),
    );
    match proposal.task {
        TargetTask::Classification => line(text, "target_kind = \"category\""),
        TargetTask::Regression if proposal.targets.len() == 1 => {
            remarked(text, "# target_kind = \"category\"", "if its values are classes")
        }
        TargetTask::Regression => {}
    }
    if proposal.inputs().len() > LISTED_MAX && !proposal.is_listed {
        all_columns(text, proposal);
    } else {
        listed_columns(text, proposal);
    }
    if let Some(id) = row_id(proposal) {
        remarked(
            text,
            &format!("# row_id = {}", quoted(&id.name)),
            "repeats it beside each prediction; new data need it, too",
        );
    }
    line(text, "\n[data.split]");
    match &proposal.split {
        Some(split) if split.is_used => {
            let what = if split.rule == "group" {
                "keeps rows of a group together"
            } else {
                "validates and tests on the latest rows"
            };
            remarked(text, &format!("kind = {}", quoted(split.rule)), &format!("{what}: {}", split.why));
            line(text, &format!("column = {}", quoted(&split.column)));
        }
        Some(split) => {
            remarked(text, &format!("# kind = {}", quoted(split.rule)), split.why);
            line(text, &format!("# column = {}", quoted(&split.column)));
        }
        None => remarked(text, "# kind = \"random\"", "or \"group\" with a column whose rows stay together"),
    }
}

fn listed_columns(text: &mut String, proposal: &Proposal) {
    line(text, "features = [");
    for column in proposal.inputs() {
        let chosen = proposal.features.iter().find(|chosen| chosen.column == column.guess.name);
        let written = chosen.and_then(|chosen| chosen.written.clone());
        remarked(text, &format!("  {},", written.unwrap_or_else(|| feature(&column.guess))), &remark(column));
    }
    line(text, "]");
    let left_out = proposal.left_out();
    if !left_out.is_empty() {
        line(text, "# Left out; a line that is moved into `features` is used:");
    }
    for (guess, why) in left_out {
        remarked(text, &format!("#   {},", feature(guess)), &one_line(why));
    }
}

fn all_columns(text: &mut String, proposal: &Proposal) {
    remarked(text, "features = \"*\"", &format!("all columns but the target and `except`: {}", kinds(proposal)));
    let odd: Vec<&RoledColumn> = proposal.inputs().into_iter().filter(|column| column.remark.is_some()).collect();
    for column in odd {
        line(
            text,
            &format!("# {}: {}", quoted(&column.guess.name), one_line(column.remark.as_deref().unwrap_or_default())),
        );
    }
    let unused = proposal.columns.iter().filter(|column| column.role == ColumnRole::Unused);
    let unused: Vec<&RoledColumn> = unused.collect();
    if proposal.left_out().is_empty() && unused.is_empty() {
        return line(text, "# except = []");
    }
    line(text, "except = [");
    for column in unused {
        remarked(text, &format!("  {},", quoted(&column.guess.name)), "--exclude names it");
    }
    for (guess, why) in proposal.left_out() {
        remarked(text, &format!("  {},", quoted(&guess.name)), &one_line(why));
    }
    line(text, "]");
}

fn windows_text(text: &mut String, proposal: &Proposal, windows: &ProposedWindows) {
    line(text, "[data.windows]");
    let found = |name: &str| {
        let column = proposal.columns.iter().find(|column| column.guess.name == name);
        column.map_or("", |column| column.guess.found.as_str()).to_owned()
    };
    let target = proposal.targets.first().map_or("", String::as_str);
    remarked(text, &format!("entity = {}", quoted(&windows.series)), &found(&windows.series));
    remarked(text, &format!("time = {}", quoted(&windows.time)), &found(&windows.time));
    remarked(text, &format!("target = {}", quoted(target)), &found(target));
    let step = if windows.is_number { "the usual distance of two times".to_owned() } else { step_text(windows.step_s) };
    remarked(text, &format!("step_s = {}", windows.step_s), &step);
    remarked(text, &format!("steps = {}", windows.steps), "steps that are forecast");
    remarked(text, "# history = 1", "windows of so many steps that are inputs");
    line(text, "inputs = [");
    if windows.has_target {
        remarked(text, &format!("  {},", quoted(target)), "the target's own past");
    }
    for column in proposal.inputs().into_iter().filter(|column| !windows.circular.contains(&column.guess.name)) {
        remarked(text, &format!("  {},", quoted(&column.guess.name)), &remark(column));
    }
    line(text, "]");
    if !windows.circular.is_empty() {
        let names: Vec<String> = windows.circular.iter().map(|name| quoted(name)).collect();
        remarked(text, &format!("circular = [{}]", names.join(", ")), "degrees: 359 is next to 0");
    }
    if windows.is_number {
        remarked(text, "calendar = []", "the times are numbers, not dates");
    } else {
        remarked(
            text,
            "# calendar = [\"day_of_year\", \"weekday\"]",
            "and \"hour\", \"trend\": inputs of the window to predict",
        );
        remarked(text, "# time_offset_s = 0", "e.g. -18000, so that a day begins at midnight in New York");
    }
    for (guess, why) in proposal.left_out() {
        remarked(text, &format!("#   {}", quoted(&guess.name)), &format!("left out: {}", one_line(why)));
    }
    line(text, "\n[data.split]");
    remarked(text, "# kind = \"chronological\"", "validates and tests on the latest windows");
}

fn settings(text: &mut String, proposal: &Proposal) {
    remarked(text, "# val = 0.15", "share of the samples that choose the best weights");
    remarked(text, "# test = 0.15", "share of the samples that are judged at the end");
    line(text, "\n[train]");
    remarked(text, "# epochs = 0", "0: by the number of rows");
    match proposal.task {
        TargetTask::Classification => remarked(text, "# loss = \"cross_entropy\"", "probabilities of the classes"),
        TargetTask::Regression => {
            remarked(text, "# loss = \"huber\"", "or \"mse\"; \"quantile\" and \"student_t\" predict intervals, too")
        }
    }
    remarked(text, "# lr = 1e-3", "peak learning rate; without it by the number of rows");
    remarked(text, "# patience = 0", "stops after so many validations without improvement; 0: never");
    line(text, "\n[model]");
    remarked(text, "# d_model = 64", "width of the model; without any size by the number of rows");
    line(text, "\n[cluster]");
    remarked(text, "# nproc_per_node = \"auto\"", "workers on this machine");
    remarked(text, "# device = \"auto\"", "or \"cpu\", \"cuda\"");
}

/// Returns the column of identifiers of the rows, if there is one.
fn row_id(proposal: &Proposal) -> Option<&ColumnGuess> {
    proposal.left_out().into_iter().map(|(guess, _)| guess).find(|guess| guess.names_rows && !guess.name.is_empty())
}

fn remark(column: &RoledColumn) -> String {
    let kind = column.guess.kind.map_or("", GuessedKind::name);
    let mut remark = if matches!(kind, "number" | "time") {
        column.guess.found.clone()
    } else {
        format!("{kind}: {}", column.guess.found)
    };
    if let Some(odd) = &column.remark {
        let _written = write!(remark, "; {odd}");
    }
    one_line(&remark)
}

/// Returns an input as the configuration names it.
fn feature(guess: &ColumnGuess) -> String {
    let name = quoted(&guess.name);
    match guess.kind {
        None | Some(GuessedKind::Number) => name,
        Some(GuessedKind::Labels(separator)) => {
            format!("{{ column = {name}, kind = \"labels\", separator = {} }}", quoted(&separator.to_string()))
        }
        Some(kind) => format!("{{ column = {name}, kind = \"{}\" }}", kind.name()),
    }
}

/// Returns how many inputs there are of each kind.
fn kinds(proposal: &Proposal) -> String {
    let count = |name: &str| {
        proposal.inputs().iter().filter(|column| column.guess.kind.is_some_and(|kind| kind.name() == name)).count()
    };
    let of = [
        ("number", "numbers", "number"),
        ("category", "categories", "category"),
        ("time", "times", "time"),
        ("labels", "columns of labels", "column of labels"),
    ];
    let counted = of.into_iter().map(|(name, many, one)| (count(name), if count(name) == 1 { one } else { many }));
    let parts: Vec<String> =
        counted.filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    if parts.is_empty() { "no column".into() } else { parts.join(", ") }
}

fn size(proposal: &Proposal) -> String {
    let columns = proposal.columns.len();
    match proposal.is_whole {
        true => format!("{} row{}, {columns} columns", proposal.rows, if proposal.rows == 1 { "" } else { "s" }),
        false => format!(
            "about {} rows, {columns} columns, guessed from {} of the rows",
            rounded(proposal.rows_estimate),
            proposal.rows
        ),
    }
}

/// Returns an estimate with two digits.
fn rounded(count: u64) -> u64 {
    let unit = 10u64.pow(count.max(1).ilog10().saturating_sub(1));
    (count + unit / 2) / unit * unit
}

impl Proposal {
    /// Returns what was found and decided, in lines for a person.
    #[must_use]
    pub fn summary(&self) -> Vec<String> {
        let mut lines = vec![size(self)];
        let found = |name: &String| {
            self.columns
                .iter()
                .find(|column| column.guess.name == *name)
                .map_or("", |column| column.guess.found.as_str())
        };
        let task = if self.windows.is_some() { "forecast" } else { self.task.name() };
        for target in &self.targets {
            lines.push(format!("target: {} ({}): {task}", one_line(target), found(target)));
        }
        lines.push(format!("inputs: {}", kinds(self)));
        if let Some(windows) = &self.windows {
            let step = if windows.is_number {
                format!("of {}", windows.step_s)
            } else {
                format!("of {}", step_text(windows.step_s))
            };
            lines.push(format!("windows: {} steps {step}, for each {}", windows.steps, one_line(&windows.series)));
        }
        if let Some(split) = self.split.as_ref().filter(|split| split.is_used) {
            let by = if split.rule == "group" { "by group" } else { "by time" };
            lines.push(format!("split: {by}, {} ({})", one_line(&split.column), split.why));
        }
        if !self.missing.is_empty() {
            let words: Vec<String> = self.missing.iter().map(|word| format!("{word:?}")).collect();
            lines.push(format!("missing: {} among numbers count as empty", words.join(", ")));
        }
        let left_out = self.left_out();
        for (guess, why) in left_out.iter().take(SUMMARY_MAX) {
            lines.push(format!("left out: {}: {}", named(&guess.name), one_line(why)));
        }
        if left_out.len() > SUMMARY_MAX {
            lines.push(format!("left out: {} more", left_out.len() - SUMMARY_MAX));
        }
        for column in self.inputs().into_iter().filter(|column| column.remark.is_some()).take(SUMMARY_MAX) {
            lines.push(format!(
                "look at: {}: {}",
                named(&column.guess.name),
                one_line(column.remark.as_deref().unwrap_or_default())
            ));
        }
        lines
    }
}

fn named(name: &str) -> String {
    if name.is_empty() { "the column without a name".into() } else { one_line(&brief(name)) }
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Appends a line with a remark behind it.
fn remarked(text: &mut String, code: &str, remark: &str) {
    let letters = code.chars().count();
    let gap = REMARK_AT.saturating_sub(letters).max(2);
    line(text, &format!("{code}{:gap$}# {}", "", one_line(remark)));
}

/// Returns a text on one line, without characters that a comment of TOML cannot have.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Returns a text as a string of TOML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
