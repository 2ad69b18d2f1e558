//! Answers of the completion scripts of bash, zsh and fish: names of runs, configurations, formats and topics besides flags.
//!
//! The scripts call `enn` with `ENN_COMPLETE` set and the words of the line. **Invariant:** nothing is started or read but the directories
//! of runs, since a shell waits.

use super::{command::Cli, completions::VARIABLE, flags};
use crate::{facts::Facts, help};
use clap::{Arg, Command, CommandFactory};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter},
    env::{Bash, Fish, Shells, Zsh},
};
use enn_common::artifact::cv;
use enn_export::Target;
use enn_process::run_dir;
use enn_ui::runs::RunKind;
use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

/// Maximum number of runs that are offered.
const RUNS_MAX: usize = 2_000;
const SHELLS: Shells<'static> = Shells(&[&Bash, &Zsh, &Fish]);

/// Runs that a command can work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunFilter {
    Any,
    /// Trainings and cross-validations too.
    Removable,
    Training,
    CrossValidation,
    Model,
    UnderWay,
}

/// Answers a completion script; returns false where none asks.
///
/// # Errors
/// The script asks for a shell that is not known, or standard output is closed.
pub(super) fn answer(words: &[OsString]) -> Result<bool, clap::Error> {
    let line: Vec<OsString> = words.iter().skip_while(|word| *word != "--").skip(1).cloned().collect();
    let make = move || definition(&line, &Facts::gather());
    CompleteEnv::with_factory(make).var(VARIABLE).shells(SHELLS).try_complete(words.to_vec(), None)
}

/// Returns the command line with what its values may be. `line`: the words that are typed so far, which may name a directory of runs.
fn definition(line: &[OsString], facts: &Facts) -> Command {
    let given = flag_value(line, "--runs-dir").map(PathBuf::from);
    let dirs = flags::directories(given.as_deref(), facts);
    let trainings = vec![facts.cwd.join(given.as_deref().unwrap_or(&facts.runs_dir))];
    Cli::command().mut_subcommands(move |sub| {
        let name = sub.get_name().to_owned();
        with_values(sub, &name, &dirs, &trainings)
    })
}

/// Returns the value of a flag among the words.
fn flag_value<'a>(line: &'a [OsString], flag: &str) -> Option<&'a OsStr> {
    let at = line
        .iter()
        .rposition(|word| word == flag || word.to_str().is_some_and(|word| word.starts_with(&format!("{flag}="))))?;
    match line[at].to_str().and_then(|word| word.split_once('=')) {
        Some((_, value)) => Some(OsStr::new(value)),
        None => line.get(at + 1).map(OsString::as_os_str),
    }
}

/// Adds values to the arguments of a command and of the commands below it. `top` is the name of the command of `enn`.
fn with_values(command: Command, top: &str, dirs: &[PathBuf], trainings: &[PathBuf]) -> Command {
    let of_argument = |argument: Arg| with_value(argument, top, dirs, trainings);
    command.mut_args(of_argument).mut_subcommands(|sub| with_values(sub, top, dirs, trainings))
}

fn with_value(argument: Arg, top: &str, dirs: &[PathBuf], trainings: &[PathBuf]) -> Arg {
    let names: Vec<String> = argument
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .flat_map(|name| name.split('|').map(str::to_owned))
        .collect();
    let has = |name: &str| names.iter().any(|known| known == name);
    let id = argument.get_id().as_str().to_owned();
    let is_of_tool = ["ckpt", "data"].contains(&top) && ["SOURCE", "WHAT", "FIRST", "SECOND"].into_iter().any(has);
    let is_run = has("RUN") || (top == "cv" && id == "resume") || is_of_tool;
    if is_run {
        let filter = filter(top, &id);
        let searched = if [RunFilter::Training, RunFilter::Model, RunFilter::CrossValidation].contains(&filter) {
            trainings
        } else {
            dirs
        };
        let words: &'static [&'static str] =
            if top == "train" && id == "resume" { &["latest", "auto"] } else { &["latest"] };
        let has_files = names.len() > 1 || is_of_tool;
        return argument.add(ArgValueCompleter::new(RunCompleter {
            dirs: searched.to_vec(),
            filter,
            words,
            has_files,
        }));
    }
    match () {
        () if has("CONFIG") => argument.add(ArgValueCompleter::new(configurations())),
        () if has("FORMATS") => {
            argument.add(ArgValueCompleter::new(WordCompleter { words: formats, delimiter: Some(',') }))
        }
        () if has("TOPIC") => argument.add(ArgValueCompleter::new(WordCompleter { words: topics, delimiter: None })),
        () => argument,
    }
}

fn filter(top: &str, id: &str) -> RunFilter {
    match (top, id) {
        ("cv", _) => RunFilter::CrossValidation,
        ("train", "from") | ("predict" | "serve" | "evaluate" | "export" | "ckpt" | "model", _) => RunFilter::Model,
        ("resize" | "pause" | "continue" | "drain" | "stop" | "chaos", _) => RunFilter::UnderWay,
        ("train" | "metrics" | "profile" | "compare" | "mlflow" | "data" | "kernels", _) => RunFilter::Training,
        ("rm", _) => RunFilter::Removable,
        _ => RunFilter::Any,
    }
}

impl RunFilter {
    fn fits(self, path: &Path) -> bool {
        match self {
            Self::Any => run_dir::is_run(path),
            Self::Removable => RunKind::of(path).is_some(),
            Self::Training => path.join(run_dir::RUN_JSON).is_file(),
            Self::CrossValidation => path.join(cv::FILE).is_file(),
            Self::Model => fs::read_dir(run_dir::checkpoints(path)).is_ok_and(|mut entries| entries.next().is_some()),
            Self::UnderWay => run_dir::is_run(path) && run_dir::is_living(path),
        }
    }
}

/// Offers names of runs, the newest first.
struct RunCompleter {
    dirs: Vec<PathBuf>,
    filter: RunFilter,
    words: &'static [&'static str],
    /// Whether files and directories are values, too.
    has_files: bool,
}

impl ValueCompleter for RunCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let begun = current.to_string_lossy();
        // The name is compared before the file system is asked again.
        let fits = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&*begun) && self.filter.fits(path)
        };
        let runs = run_dir::list_where(&self.dirs, fits).into_iter().take(RUNS_MAX).map(|(name, _)| name);
        let words = self.words.iter().map(|word| (*word).to_owned()).filter(|word| word.starts_with(&*begun));
        let is_path = begun.contains('/') || begun.starts_with('.');
        let mut all: Vec<CompletionCandidate> = runs.chain(words).map(CompletionCandidate::new).collect();
        if self.has_files || is_path {
            let paths = if self.has_files { PathCompleter::any() } else { PathCompleter::dir() };
            all.extend(paths.complete(current));
        }
        all
    }
}

fn configurations() -> PathCompleter {
    PathCompleter::file().filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
}

/// Offers words, where values may be joined by a delimiter also behind the last one.
struct WordCompleter {
    words: fn() -> Vec<String>,
    delimiter: Option<char>,
}

impl ValueCompleter for WordCompleter {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let current = current.to_string_lossy();
        let begin = self.delimiter.and_then(|delimiter| current.rfind(delimiter)).map_or(0, |at| at + 1);
        let (before, begun) = current.split_at(begin);
        let words = (self.words)().into_iter().filter(|word| word.starts_with(begun));
        words.map(|word| CompletionCandidate::new(format!("{before}{word}"))).collect()
    }
}

fn formats() -> Vec<String> {
    Target::ALL.iter().map(|target| target.name().to_owned()).collect()
}

fn topics() -> Vec<String> {
    let command = Cli::command();
    let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(|sub| sub.get_name().to_owned());
    help::topic_names().map(str::to_owned).chain(commands).chain(help::key_names()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(line: &str, runs: &Path) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut facts = Facts::gather();
        facts.runs_dir = runs.to_owned();
        facts.launches_dir = runs.to_owned();
        let at = words.len() - 1;
        let mut command = definition(&words, &facts);
        let found = clap_complete::engine::complete(&mut command, words, at, None).unwrap();
        found.into_iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    fn make(runs: &Path, name: &str, file: &str) {
        let dir = runs.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(file), "{}").unwrap();
    }

    #[test]
    fn names_of_runs_of_the_right_kind_are_offered() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), "weather-20260101T000000Z-0001", run_dir::RUN_JSON);
        make(dir.path(), "weather-20260102T000000Z-0002", run_dir::RUN_JSON);
        make(dir.path(), "job-20260103T000000Z-0003", run_dir::LAUNCH_JSON);
        make(dir.path(), "cv-20260104T000000Z-0004", cv::FILE);
        fs::create_dir_all(dir.path().join("weather-20260101T000000Z-0001/checkpoints/step-1")).unwrap();
        let of = |line: &str| complete(line, dir.path());
        let both = ["weather-20260102T000000Z-0002", "weather-20260101T000000Z-0001"];
        assert_eq!(of("enn metrics we"), both);
        assert_eq!(of("enn compare weather-20260102T000000Z-0002 we"), both);
        assert_eq!(of("enn status j"), ["job-20260103T000000Z-0003"]);
        assert_eq!(of("enn rm c"), ["cv-20260104T000000Z-0004"]);
        assert_eq!(of("enn train --resume a"), ["auto"]);
        assert_eq!(of("enn metrics l"), ["latest"]);
        assert_eq!(of("enn export we"), ["weather-20260101T000000Z-0001"]);
        assert!(of("enn stop we").is_empty(), "none is under way");
        let elsewhere = format!("enn metrics --runs-dir {} we", dir.path().display());
        assert_eq!(complete(&elsewhere, Path::new("/nowhere")), both);
    }

    #[test]
    fn flags_formats_and_topics_are_offered() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(complete("enn export x --to onnx,pt", nowhere), ["onnx,pt2"]);
        assert!(complete("enn help rec", nowhere).contains(&"recovery".to_owned()));
        assert!(complete("enn help train.ep", nowhere).contains(&"train.epochs".to_owned()));
        assert!(complete("enn compare --so", nowhere).contains(&"--sort".to_owned()));
        assert!(complete("enn compare --sort va", nowhere).contains(&"val".to_owned()));
        assert!(complete("enn compa", nowhere).contains(&"compare".to_owned()));
    }
}
