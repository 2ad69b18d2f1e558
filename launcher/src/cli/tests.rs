//! Help is part of the interface: it is kept as snapshots. Every subcommand has help, a man page and completions.

use super::man::NAMES;
use super::*;
use clap::{CommandFactory, Parser};
use std::{fs, path::PathBuf};

mod releases;

fn help(name: &str) -> String {
    let mut command = Cli::command().term_width(100);
    let sub = if name.is_empty() { &mut command } else { command.find_subcommand_mut(name).unwrap() };
    sub.clone().bin_name(format!("enn {name}").trim()).render_long_help().to_string()
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn help_of_every_subcommand() {
    let names: Vec<_> = Cli::command().get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in std::iter::once(String::new()).chain(names) {
        let snapshot = format!("help_{}", if name.is_empty() { "enn" } else { &name });
        insta::assert_snapshot!(snapshot, help(&name));
    }
}

#[test]
fn every_flag_has_help_and_a_heading() {
    for sub in Cli::command().get_subcommands() {
        for argument in sub.get_arguments().filter(|argument| argument.get_id() != "help") {
            let place = format!("{} {}", sub.get_name(), argument.get_id());
            assert!(argument.get_help().is_some(), "{place} has no help");
            let positional = argument.is_positional() && argument.get_help_heading().is_none();
            assert!(positional || argument.get_help_heading().is_some(), "{place} has no heading");
        }
    }
}

#[test]
fn every_command_tells_the_version() {
    let told = |words: &[&str]| {
        let error = Cli::try_parse_from(words).unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::DisplayVersion, "{words:?}: {error}");
        error.to_string()
    };
    let version = format!("enn {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(told(&["enn", "--version"]), version);
    assert_eq!(format!("{}\n", version_line()), version);
    let asks = |line: &str| asks_for_version(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
    assert!(asks("enn --version") && asks("enn -V") && !asks("enn run --version") && !asks("enn"));
    for name in NAMES {
        assert_eq!(told(&["enn", name, "--version"]), version, "enn {name}");
    }
    assert_eq!(told(&["enn", "run", "--nproc-per-node", "2", "-V"]), version);
    assert_eq!(told(&["enn", "slurm", "submit", "--version"]), version);
    let theirs = Cli::try_parse_from(["enn", "run", "train.py", "--version"]);
    assert!(theirs.is_ok(), "what follows the program is the program's own: {theirs:?}");
    let error = run::Torchrun::try_parse_from(["enn-torchrun", "--version"]).unwrap_err();
    assert_eq!(error.to_string(), format!("enn-torchrun {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_and_help_know_all_commands() {
    for name in NAMES {
        assert!(
            crate::help::topic_names().all(|topic| topic != name),
            "the topic {name} would hide behind the command"
        );
        assert!(crate::help::beside(name).is_none_or(|topic| crate::help::on(topic).is_some()));
    }
    assert_eq!(completions::VARIABLE, "ENN_COMPLETE");
}

#[test]
fn every_subcommand_has_a_man_page() {
    for sub in Cli::command().get_subcommands() {
        let name = sub.get_name();
        let parsed = Cli::try_parse_from(["enn", "man", name]);
        assert!(parsed.is_ok(), "enn man {name}");
    }
}

#[test]
fn a_separator_behind_the_program_is_torchruns_unless_one_stands_before_it() {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let left = |line: &str, program: &str| {
        let command = words(program).into_iter().map(Into::into).collect();
        run::without_separator(command, &words(line)).join(std::ffi::OsStr::new(" ")).into_string().unwrap()
    };
    assert_eq!(left("enn run a.py -- --x", "a.py -- --x"), "a.py --x");
    assert_eq!(left("enn run -- a.py -- --x", "a.py -- --x"), "a.py -- --x");
    assert_eq!(left("enn run a.py b -- --x", "a.py b -- --x"), "a.py b -- --x");
    assert_eq!(left("enn run a.py", "a.py"), "a.py");
}

#[test]
fn torchruns_own_command_line_is_sound() {
    run::Torchrun::command().debug_assert();
    let parsed = run::Torchrun::try_parse_from(["enn-torchrun", "--nnode", "1:2", "-r3", "-m", "a.b", "--tee", "1"]);
    assert!(parsed.is_ok(), "{parsed:?}");
}

#[test]
fn tasks_are_listed_with_children_indented_and_what_is_missing_said() {
    let mut forest = enn_common::config::model::ModelConfig::default().forest().unwrap();
    forest.add(serde_json::from_str(r#"{"name": "all", "weight": 0.5, "reduction": "linear"}"#).unwrap()).unwrap();
    let text = task_table::text(&forest);
    assert!(text.contains("not ready to be trained: \"all\" joins nothing"), "{text}");
    forest.attach("temporal", "all").unwrap();
    let lines = [
        "task        weight  mode             tokens  depth  mixer      model",
        "spatial     1       spatial          64      4      gated_ema",
        "all         0.5     joins by linear",
        "  temporal  1       temporal         64      4      gated_ema",
    ];
    assert_eq!(task_table::text(&forest), lines.join("\n"));
}

#[test]
fn command_lines_of_convert_diff_prune_verify_and_transfer() {
    for (line, sound) in [
        (
            "ckpt convert a b --to shards --only model --only *.bias --strip model --dtype bfloat16 --shard-bytes 1000",
            true,
        ),
        ("ckpt convert a b --dtype int8", false),
        ("ckpt merge shards one.safetensors --replace", true),
        ("ckpt diff a b --tolerance 1e-6 --json", true),
        ("ckpt verify latest --deep", true),
        ("ckpt prune latest --keep 0 --dry-run", true),
        ("ckpt push latest s3://bucket/runs --all", true),
        ("ckpt pull s3://bucket/runs/a runs/a --step 40", true),
        ("ckpt pull s3://bucket/runs/a", false),
        ("data verify latest --json", true),
        ("compare", true),
        ("compare weather-1 latest --sort val --json", true),
        ("compare --json --csv", false),
        ("compare --sort size", false),
        ("compare a --last 3", false),
        ("mlflow --last 3 --to x --artifacts link", true),
        ("mlflow --artifacts all", false),
        ("help recovery", true),
        ("doctor -v", true),
        ("doctor --all --json", false),
        ("ls --all --json", true),
        ("ls --all --runs-dir x", false),
        ("rm weather-2026 hail --yes", true),
        ("rm", false),
        ("gc --older-than 30d --failed --keep 3 --dry-run", true),
        ("gc --older-than 30", false),
    ] {
        let parsed = Cli::try_parse_from(std::iter::once("enn").chain(line.split(' ')));
        assert_eq!(parsed.is_ok(), sound, "{line}: {parsed:?}");
    }
}

/// README.md, CONTRIBUTING.md and the pages of the folders: their paths and texts.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders: Vec<_> =
        ["launcher", "worker", "docs", "examples", "tests/bench"].map(|name| root.join(name)).into();
    let mut paths = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The words of each `enn …` and `torchrun …` in an indented line of a page: without Slurm before it, redirections and comments behind it.
fn commands(line: &str) -> impl Iterator<Item = Vec<&str>> {
    let line = line.strip_prefix("    ").and_then(|line| line.split(" #").next()).unwrap_or_default();
    let is_before = |word: &&str| matches!(*word, "srun" | "time") || word.starts_with("--") || word.contains('=');
    let is_in = |word: &&str| !["<", ">", "|", "&&"].contains(word);
    let parts = line.split("; ");
    let words =
        parts.map(move |part| part.split_whitespace().skip_while(is_before).take_while(is_in).collect::<Vec<_>>());
    words.filter(|words| matches!(words.first(), Some(&("enn" | "torchrun"))))
}

#[test]
fn command_lines_in_pages_are_understood() {
    let mut wrong = Vec::new();
    let mut understood = 0;
    for (path, text) in pages() {
        let text = text.replace("\\\n", " ");
        for words in text.lines().flat_map(commands) {
            let parsed = match words[0] {
                "enn" => Cli::try_parse_from(&words).map(drop),
                _ => run::Torchrun::try_parse_from(&words).map(drop),
            };
            match parsed {
                Err(error) if error.use_stderr() => {
                    wrong.push(format!("{}: {}\n{error}", path.display(), words.join(" ")));
                }
                _ => understood += 1,
            }
        }
    }
    assert!(understood > 60, "only {understood} command lines were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_is_in_the_page_of_all_commands() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/commands.md")).unwrap();
    let told = |name: &str| page.contains(&format!("`enn {name}`"));
    let command = Cli::command();
    let names = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(clap::Command::get_name);
    let untold: Vec<&str> = names.filter(|name| !told(name)).collect();
    assert!(untold.is_empty(), "docs/commands.md has no row for {}", untold.join(", "));
}

#[test]
fn flags_in_pages_are_those_of_their_commands() {
    let mut wrong = Vec::new();
    let mut known = 0;
    for (path, text) in pages() {
        let is_prose = |part: &&str| !part.starts_with("```");
        let prose: String =
            text.split_inclusive('\n').filter(|line| !line.starts_with("    ")).filter(is_prose).collect();
        for span in prose.split('`').skip(1).step_by(2).filter(|span| span.starts_with("enn ")) {
            let mut command = Cli::command();
            for word in span.split_whitespace().skip(1).map(|word| word.trim_end_matches(',')) {
                if let Some(below) = command.find_subcommand(word) {
                    command = below.clone();
                } else if let Some(flag) = word.strip_prefix("--").and_then(|flag| flag.split('=').next()) {
                    let is_it = |argument: &clap::Arg| argument.get_long() == Some(flag);
                    if ["help", "version", ""].contains(&flag) || command.get_arguments().any(is_it) {
                        known += 1;
                    } else {
                        wrong.push(format!("{}: {} has no --{flag}: {span}", path.display(), command.get_name()));
                    }
                }
            }
        }
    }
    assert!(known > 20, "only {known} flags were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
