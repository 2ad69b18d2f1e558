//! Help is part of the interface: it is kept as snapshots. Every subcommand has help, a man page and completions.

use super::*;
use clap::CommandFactory;

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
        "spatial     1       spatial          64      4      retention",
        "all         0.5     joins by linear",
        "  temporal  1       temporal         64      4      retention",
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
    ] {
        let parsed = Cli::try_parse_from(std::iter::once("enn").chain(line.split(' ')));
        assert_eq!(parsed.is_ok(), sound, "{line}: {parsed:?}");
    }
}
