//! The configuration of a table that somebody has: proposed from a sample of its rows, and `features = "*"` as the columns that it means.

use crate::{Error, error::Usage, facts::Facts};
use enn_common::{
    config::{
        ConfigError, Place, RawConfig, RunConfig,
        data::{DataConfig, Layout, RowsLayout, SourceFormat, SplitKind},
        error::ConfigErrorKind,
        raw::{RawEntry, RawNode, RawValue},
        resolve::{ALL_COLUMNS, MISSING_DEFAULT},
    },
    fs::regular,
};
use enn_data::{
    stage::StageError,
    survey::{self, ColumnChoices, ColumnGuess, DocumentPaths, GuessedKind, Proposal, TableFiles, TableSample},
};
use std::path::{Path, PathBuf};

const FEATURES: &str = "data.rows.features";
const EXCEPT: &str = "data.rows.except";

/// A table for which a configuration is written.
#[derive(Debug, Clone)]
pub struct TableOptions {
    /// Files that are one table, in this order.
    pub files: Vec<PathBuf>,
    /// Format of all files; `None` decides by extension.
    pub format: Option<SourceFormat>,
    /// Sheet of a workbook; `None` takes the first.
    pub sheet: Option<String>,
    pub choices: ColumnChoices,
    /// The command line that asks for it, for the document.
    pub command: String,
    /// The directory to which the paths in the document are relative; `None`: they are absolute.
    pub base: Option<PathBuf>,
    /// The address of the JSON schema for editors.
    pub schema: Option<String>,
}

/// The configuration of a table.
#[derive(Debug, Clone)]
pub struct TableConfig {
    /// TOML with a remark for each column.
    pub text: String,
    pub proposal: Proposal,
}

/// Returns the configuration of a table for the columns that are named.
///
/// # Errors
/// [`Usage::NoTarget`] lists the columns if no target is named; a table that cannot be read; a column that is not there.
pub fn config_of_table(options: &TableOptions, facts: &Facts) -> Result<TableConfig, Error> {
    let files: Vec<PathBuf> = options.files.iter().map(|file| facts.cwd.join(file)).collect();
    for file in &files {
        regular::open(file)?;
    }
    let missing = missing_words();
    let table = TableFiles {
        files: &files,
        format: options.format,
        sheet: options.sheet.as_deref(),
        missing: &missing,
        missing_in_typed: &[],
    };
    let sample = survey::sample(&table)?;
    if options.choices.targets.is_empty() {
        let path = options.files.first().cloned().unwrap_or_default();
        return Err(Error::Usage(Usage::NoTarget { path, columns: listed(&sample) }));
    }
    let proposal = survey::propose(&sample, &options.choices)?;
    let written = files.iter().map(|file| written(file, options.base.as_deref())).collect::<Result<Vec<_>, _>>()?;
    let name = name_of(options.files.first().map_or(Path::new(""), PathBuf::as_path));
    let paths = DocumentPaths {
        name: &name,
        files: &written,
        format: options.format,
        sheet: options.sheet.as_deref(),
        schema: options.schema.as_deref(),
        command: &options.command,
    };
    Ok(TableConfig { text: survey::document(&proposal, &paths), proposal })
}

fn missing_words() -> Vec<String> {
    MISSING_DEFAULT.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the columns of a table with their kinds, a line each.
fn listed(sample: &TableSample) -> String {
    const LISTED_MAX: usize = 100;
    let guesses = sample.guesses();
    let width = guesses.iter().take(LISTED_MAX).map(|guess| guess.name.chars().count()).max().unwrap_or(0).min(40);
    let line = |guess: &ColumnGuess| {
        let kind = guess.kind.map_or("not read", GuessedKind::name);
        let doubt = guess.doubt.as_ref().map_or_else(String::new, |doubt| format!(" ({doubt})"));
        format!("  {:width$}  {kind:8}  {}{doubt}", guess.name, guess.found)
    };
    let mut lines: Vec<String> = guesses.iter().take(LISTED_MAX).map(line).collect();
    if guesses.len() > LISTED_MAX {
        lines.push(format!("  and {} more", guesses.len() - LISTED_MAX));
    }
    lines.join("\n")
}

/// Returns how a file is written in a document of a directory.
fn written(file: &Path, base: Option<&Path>) -> Result<String, Error> {
    let path = base.and_then(|base| file.strip_prefix(base).ok()).unwrap_or(file);
    path.to_str().map(str::to_owned).ok_or_else(|| Error::Usage(Usage::NotUnicode { path: file.to_owned() }))
}

/// Returns the name of a run that is trained on a file.
fn name_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |letter: char| if letter.is_alphanumeric() || "._-".contains(letter) { letter } else { '-' };
    let name: String = stem.chars().map(plain).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "run".to_owned() } else { name.to_owned() }
}

/// Whether a configuration takes all columns of its table.
pub(super) fn takes_all(raw: &RawConfig) -> bool {
    matches!(raw.get(FEATURES).map(|node| &node.value), Some(RawValue::Text(text)) if text == ALL_COLUMNS)
}

/// Replaces `features = "*"` by the columns of the table, with guessed kinds. `config` is what `raw` resolves to without them. Returns a
/// sentence about what the columns are.
pub(super) fn expand(raw: &mut RawConfig, config: &RunConfig) -> Result<Option<String>, Error> {
    let Some(data) = &config.data else { return Ok(None) };
    let Layout::Rows(rows) = &data.layout else { return Ok(None) };
    let table = TableFiles {
        files: &data.files,
        format: data.format,
        sheet: data.sheet.as_deref(),
        missing: &data.missing,
        missing_in_typed: &data.missing,
    };
    let sample = survey::sample(&table)?;
    let except = except_of(raw, &sample)?;
    let roles = roles(data, rows);
    let is_input = |guess: &ColumnGuess| !roles.contains(&guess.name) && !except.contains(&guess.name);
    let inputs: Vec<ColumnGuess> = sample.guesses().into_iter().filter(is_input).collect();
    let place = raw.get(FEATURES).map_or_else(|| Place::Flag(FEATURES.into()), |node| node.place.clone());
    let refused = |kind| Err(Error::Config(vec![ConfigError { place: place.clone(), key: FEATURES.to_owned(), kind }]));
    if let Some(guess) = inputs.iter().find(|guess| guess.kind.is_none()) {
        let found = format!("column {:?} of a type that is not read", guess.name);
        return refused(ConfigErrorKind::Type {
            found,
            expected: "numbers, texts, times or lists; name it in `except`".to_owned(),
        });
    }
    if let Some(twice) =
        inputs.iter().enumerate().find(|(at, guess)| inputs[..*at].iter().any(|one| one.name == guess.name))
    {
        return Err(StageError::RepeatedColumn { path: data.files[0].clone(), column: twice.1.name.clone() }.into());
    }
    if inputs.is_empty() {
        return refused(ConfigErrorKind::Empty("column besides the targets and `except`"));
    }
    let node = |value| RawNode { place: place.clone(), value };
    let columns = inputs.iter().map(|guess| node(feature(guess, &place))).collect();
    raw.take(EXCEPT);
    raw.put(FEATURES, node(RawValue::Array(columns)));
    Ok(Some(sentence(&inputs, &sample)))
}

/// Returns the columns of `except`, all of which the table has.
fn except_of(raw: &RawConfig, sample: &TableSample) -> Result<Vec<String>, Error> {
    let Some(node) = raw.get(EXCEPT) else { return Ok(Vec::new()) };
    let items = match &node.value {
        RawValue::Array(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut names = Vec::new();
    let mut errors = Vec::new();
    for item in items {
        let RawValue::Text(name) = &item.value else { continue };
        if !sample.columns.iter().any(|column| column.name == *name) {
            let nearest = sample.near(name).into_iter().next();
            let kind = ConfigErrorKind::UnknownColumn { found: name.clone(), nearest };
            errors.push(ConfigError { place: item.place.clone(), key: EXCEPT.to_owned(), kind });
        }
        names.push(name.clone());
    }
    if errors.is_empty() { Ok(names) } else { Err(Error::Config(errors)) }
}

/// Returns the columns with a role other than that of an input.
fn roles(data: &DataConfig, rows: &RowsLayout) -> Vec<String> {
    let mut roles: Vec<String> = rows.targets.iter().chain(&rows.row_id).chain(&data.weight).cloned().collect();
    if matches!(data.split.kind, SplitKind::Group | SplitKind::Column) {
        roles.extend(data.split.column.clone());
    }
    roles
}

fn feature(guess: &ColumnGuess, place: &Place) -> RawValue {
    let text = |text: String| RawValue::Text(text);
    let entry = |key: &str, value: String| RawEntry {
        key: key.to_owned(),
        place: place.clone(),
        node: RawNode { place: place.clone(), value: text(value) },
    };
    match guess.kind {
        None | Some(GuessedKind::Number) => text(guess.name.clone()),
        Some(kind) => {
            let mut entries = vec![entry("column", guess.name.clone()), entry("kind", kind.name().to_owned())];
            if let GuessedKind::Labels(separator) = kind {
                entries.push(entry("separator", separator.to_string()));
            }
            RawValue::Table(entries)
        }
    }
}

/// Returns which columns `features = "*"` means, by their kinds.
fn sentence(inputs: &[ColumnGuess], sample: &TableSample) -> String {
    const NAMES_MAX: usize = 8;
    let mut parts = Vec::new();
    for name in ["number", "category", "time", "labels"] {
        let of: Vec<&str> = inputs
            .iter()
            .filter(|guess| guess.kind.is_some_and(|kind| kind.name() == name))
            .map(|guess| guess.name.as_str())
            .collect();
        if !of.is_empty() {
            let more = if of.len() > NAMES_MAX { format!(" and {} more", of.len() - NAMES_MAX) } else { String::new() };
            let shown = of[..of.len().min(NAMES_MAX)].join(", ");
            parts.push(format!("{} of kind {name} ({shown}{more})", of.len()));
        }
    }
    let seen = if sample.is_whole { String::new() } else { format!(", guessed from {} rows", sample.rows) };
    format!("features = \"*\": {}{seen}", parts.join(", "))
}
