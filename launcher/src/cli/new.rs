//! `enn new`.

use super::{flags::TableColumns, output};
use crate::{
    Error,
    api::{self, TableOptions},
    error::Usage,
    facts::Facts,
    names::names,
    schema,
};
use enn_common::{config::data::SourceFormat, fs::atomic};
use enn_ui::{message, shell_word};
use std::path::{Path, PathBuf};

/// `--out` of standard output.
const STANDARD_OUTPUT: &str = "-";

/// Write a configuration for a table: guesses the kinds of its columns, and leaves out identifiers and likely leaks
///
/// Every guess is said beside its column. At most 50,000 rows are read. Without --target the columns are listed. With --series (and
/// --time, --horizon) the configuration forecasts.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Table: .csv, .tsv, .parquet, .arrow, .feather, .xlsx, .xls or .ods; several files are one table
    #[arg(value_name = "TABLE", required = true, help_heading = "Job")]
    tables: Vec<PathBuf>,
    #[command(flatten)]
    columns: TableColumns,
    /// Format of the files, if their names do not tell it: csv, parquet, arrow, npy, npz, safetensors or xlsx
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = names(&SourceFormat::NAMES, &[]),
        hide_possible_values = true,
        help_heading = "Job"
    )]
    format: Option<SourceFormat>,
    /// Sheet of a workbook [default: the first]
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    sheet: Option<String>,
    /// File to write, - for standard output [default: the name of the table with .toml, here]
    #[arg(long, short, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, help_heading = "Output")]
    force: bool,
}

impl Args {
    /// Returns the file to write; `None` for standard output.
    fn out(&self) -> Option<PathBuf> {
        match &self.out {
            Some(out) if out == Path::new(STANDARD_OUTPUT) => None,
            Some(out) => Some(out.clone()),
            None => {
                let stem = self.tables.first().and_then(|table| table.file_stem()).unwrap_or_default();
                let mut name = stem.to_owned();
                name.push(".toml");
                Some(PathBuf::from(name))
            }
        }
    }

    /// Returns the command line, for the document.
    fn command(&self) -> String {
        let mut command = self.columns.command("new", &self.tables);
        if let Some(format) = self.format {
            command += &format!(" --format {}", format.name());
        }
        if let Some(sheet) = &self.sheet {
            command += &format!(" --sheet {}", shell_word(Path::new(sheet)));
        }
        command
    }
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let out = args.out().map(|out| facts.cwd.join(out));
    let options = TableOptions {
        files: args.tables.clone(),
        format: args.format,
        sheet: args.sheet.clone(),
        choices: args.columns.choices(),
        command: args.command(),
        base: Some(out.as_ref().and_then(|out| out.parent()).unwrap_or(&facts.cwd).to_owned()),
        schema: schema::address(facts),
    };
    let made = api::config_of_table(&options, facts)?;
    if let Some(path) = out.as_ref().filter(|out| !args.force && out.symlink_metadata().is_ok()) {
        return Err(Error::Usage(Usage::ConfigExists { path: shown(path, facts) }));
    }
    let Some(out) = out else {
        made.proposal.summary().iter().for_each(|line| message::print(line));
        return output::bytes(made.text.as_bytes());
    };
    // What is written is what `enn train` accepts.
    api::parse_config(&made.text, &out, &[], facts)?;
    atomic::write(&out, made.text.as_bytes())?;
    let path = shown(&out, facts);
    let mut lines = made.proposal.summary();
    lines.push(format!("wrote {}", path.display()));
    lines.push(format!("next: enn train {}", shell_word(&path)));
    output::text_line(&output::lines(&lines))
}

/// Returns a path as it is shown: relative to the current directory, if it is below.
fn shown(path: &Path, facts: &Facts) -> PathBuf {
    path.strip_prefix(&facts.cwd).unwrap_or(path).to_owned()
}
