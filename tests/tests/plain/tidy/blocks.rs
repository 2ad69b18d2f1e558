//! Blocks of code in pages: each is run by a test, is checked here, or says why it is not run. `tests/src/blocks.rs` lists the comments.

#![expect(clippy::unwrap_used, reason = "it is part of tests")]

use super::hold;
use enn_tests::{
    blocks::{Block, Mark, simple_commands},
    pages::{Page, pages, root},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Languages of fenced blocks.
const LANGUAGES: [&str; 5] = ["toml", "python", "rust", "json", "text"];
/// Programs that tests of pages run. Each line of `enn` is also parsed by its real command line (launcher/src/cli/tests.rs).
const RUN: [&str; 6] = ["enn", "grep", "cut", "sed", "cat", "head"];
/// What is parsed by the command line of `enn-torchrun`, in the same tests.
const TORCHRUN: [&str; 2] = ["torchrun", "enn-torchrun"];
/// Where tests of pages are, which run blocks.
const RUNNERS: [&str; 3] = ["tests/", "python/tests/", "launcher/"];

/// What pages say of this repository: targets of make, and packages with their tests and programs.
struct Repository {
    targets: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl Repository {
    fn load() -> Self {
        let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
        let target = |line: &str| line.split_once(": ").filter(|_| line.contains(":")).map(|(name, _)| name.to_owned());
        let targets = makefile.lines().filter(|line| line.contains(" ## ")).filter_map(target).collect();
        let mut names = BTreeSet::new();
        for manifest in manifests(root()) {
            let text = fs::read_to_string(manifest).unwrap();
            let name = |line: &str| line.strip_prefix("name = \"")?.strip_suffix('"').map(str::to_owned);
            names.extend(text.lines().filter_map(name));
        }
        names.extend(folders(&root().join("tests/tests")).into_iter().chain(folders(&root().join("worker/tests"))));
        Self { targets, names }
    }

    /// What is wrong with a command that builds or tests.
    fn breach(&self, words: &[&str]) -> Option<String> {
        match words[0] {
            "make" => {
                let targets = words[1..].iter().take_while(|word| !word.contains('='));
                let unknown = targets.into_iter().find(|word| !self.targets.contains(**word))?;
                Some(format!("the Makefile has no target {unknown}"))
            }
            _ => words.windows(2).find_map(|pair| {
                let names_one = matches!(pair[0], "-p" | "--test" | "--bin");
                (names_one && !self.names.contains(pair[1]))
                    .then(|| format!("{} {} is not in the workspace", pair[0], pair[1]))
            }),
        }
    }
}

/// Manifests of packages.
fn manifests(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            found.extend(manifests(&path));
        } else if name == "Cargo.toml" {
            found.push(path);
        }
    }
    found
}

fn folders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_dir());
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Blocks and lines of each kind.
#[derive(Default)]
struct Count(BTreeMap<&'static str, usize>);

impl Count {
    fn add(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }
}

/// What is wrong with a line of a list of commands.
fn line(text: &str, block: &Block, repository: &Repository, count: &mut Count) -> Option<String> {
    let not_run = block.why_not_run(text).is_some();
    for words in simple_commands(text) {
        let program = words[0];
        let kind = match program {
            program if RUN.contains(&program) && !not_run => "commands run",
            program if TORCHRUN.contains(&program) => "commands parsed",
            "enn" => "commands parsed, with a reason why they are not run",
            "export" => "commands parsed",
            "make" | "cargo" => match repository.breach(&words) {
                Some(breach) if !not_run => return Some(breach),
                _ => "commands of make and cargo, whose targets exist",
            },
            _ if program.ends_with("python") || matches!(program, "python3" | "git") => {
                let path = words[1..].iter().find(|word| word.ends_with(".py") || word.contains(".rs"));
                match path {
                    Some(path) if !root().join(path).exists() && !not_run => {
                        return Some(format!("{path} is not there"));
                    }
                    _ => "commands of Python and git, whose files exist",
                }
            }
            _ if not_run => "commands with a reason why they are not run",
            program => return Some(format!("no test runs {program}, and no comment says why")),
        };
        count.add(kind);
    }
    None
}

/// What is wrong with a fenced block.
fn fenced(page: &Page, block: &Block, language: &str, count: &mut Count) -> Option<String> {
    if !LANGUAGES.contains(&language) {
        return Some(format!("a fence has one of the languages {}, and not {language:?}", LANGUAGES.join(", ")));
    }
    let is_output = block.marks.contains(&Mark::Output);
    let run_by = block.marks.iter().find_map(|mark| if let Mark::RunBy(path) = mark { Some(path) } else { None });
    if let Some(path) = run_by {
        let text = fs::read_to_string(root().join(path)).unwrap_or_default();
        let name = page.path.to_str().unwrap();
        if !RUNNERS.iter().any(|folder| path.starts_with(folder)) || !text.contains(name) {
            return Some(format!("{path} does not read {name}"));
        }
    }
    let not_run = block.why_not_run("").is_some();
    let kind = match language {
        "toml" => "tables of TOML, resolved and trained with",
        "python" if not_run => "blocks of Python with a reason why they are not run",
        "python" => "blocks of Python run",
        "rust" if run_by.is_some() => "blocks of Rust run",
        "rust" if not_run => "blocks of Rust with a reason why they are not run",
        "rust" => return Some("no test runs this block of Rust, and no comment says why".to_owned()),
        "json" => {
            let values = serde_json::Deserializer::from_str(&block.text).into_iter::<serde_json::Value>();
            match values.collect::<Result<Vec<_>, _>>() {
                Ok(_) => "blocks of JSON parsed",
                Err(error) => return Some(format!("no JSON: {error}")),
            }
        }
        _ if is_output => "outputs compared with those of the commands",
        _ => "pictures and outputs that are only shown",
    };
    count.add(kind);
    None
}

#[test]
fn every_block_is_run_or_checked_or_says_why_not() {
    let repository = Repository::load();
    assert!(repository.targets.len() > 20 && repository.names.len() > 20, "make or cargo have changed");
    let mut count = Count::default();
    let mut breaches = Vec::new();
    for page in pages() {
        let blocks = match page.blocks() {
            Ok(blocks) => blocks,
            Err(wrong) => {
                breaches.extend(wrong);
                continue;
            }
        };
        for block in &blocks {
            let place = |at: usize| page.at(at);
            match &block.language {
                Some(language) => {
                    let breach = fenced(&page, block, language, &mut count);
                    breaches.extend(breach.map(|breach| format!("{}: {breach}", place(block.line))));
                }
                None => {
                    for (at, text) in block.commands() {
                        let breach = line(&text, block, &repository, &mut count);
                        breaches.extend(breach.map(|breach| format!("{}: {breach}: {text}", place(at))));
                    }
                }
            }
        }
    }
    for (kind, number) in &count.0 {
        println!("{number:>4} {kind}");
    }
    hold(
        "a block of code in a page is run or checked",
        "let a test run it, give its fence a language, or put <!-- not run: REASON --> in front of it (tests/src/blocks.rs)",
        breaches,
    );
}
