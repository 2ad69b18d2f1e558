//! The pages (.md): what stands in them, in text, in spans of code and in blocks of TOML.

#![expect(clippy::unwrap_used, reason = "it is part of tests, which fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The crates, which have pages.
pub const FOLDERS: [&str; 6] = ["common", "broker", "launcher", "worker", "tests", "examples"];
/// Folders of pages that belong to no crate.
const OTHERS: [&str; 2] = ["docs", "python"];
/// Sections of a configuration.
pub const SECTIONS: [&str; 4] = ["data", "train", "model", "cluster"];

pub struct Page {
    /// Its place in the repository.
    pub path: PathBuf,
    /// All of it.
    pub text: String,
    /// With lines of code made empty.
    pub prose: String,
}

impl Page {
    /// A line of it, as it is told.
    pub fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    /// Headings with their depth.
    pub fn sections(&self) -> impl Iterator<Item = (usize, &str)> {
        self.prose.lines().filter_map(|line| {
            let depth = line.bytes().take_while(|byte| *byte == b'#').count();
            line[depth..].strip_prefix(' ').filter(|_| depth > 0).map(|title| (depth, title))
        })
    }

    /// What headings are called behind a `#`, as GitHub does.
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let name = |(_, title): (usize, &str)| {
            let name = anchor(title);
            let again = seen.entry(name.clone()).and_modify(|count| *count += 1).or_default();
            if *again == 0 { name } else { format!("{name}-{again}") }
        };
        self.sections().map(name).collect()
    }

    /// Targets of links, with their lines.
    pub fn links(&self) -> Vec<(usize, String)> {
        let mut text = String::new();
        for (index, part) in self.prose.split('`').enumerate() {
            // A span of code may go on in the next line.
            text.extend(part.chars().filter(|one| index % 2 == 0 || *one == '\n'));
        }
        let mut found = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            found.extend(targets.map(|target| (index + 1, target.to_owned())));
        }
        found
    }

    /// Words between backticks, with their lines.
    pub fn words_of_code(&self) -> Vec<(usize, &str)> {
        let mut line = 1;
        let mut found = Vec::new();
        for (index, part) in self.prose.split('`').enumerate() {
            if index % 2 == 1 {
                found.extend(part.split_whitespace().map(|word| (line, word)));
            }
            line += part.matches('\n').count();
        }
        found
    }

    /// What may be keys: `key` and `section.key` in the text, and `key = …` in blocks of TOML.
    pub fn keys_told(&self) -> BTreeSet<String> {
        let last = |word: &str| word.rsplit('.').next().unwrap_or_default().to_owned();
        let mut told: BTreeSet<String> = self.words_of_code().into_iter().map(|(_, word)| last(word)).collect();
        for (_, text) in self.tables() {
            let pairs = text.split(['{', '\n', ',']).filter_map(|pair| pair.split_once('='));
            told.extend(pairs.map(|(key, _)| key.trim().to_owned()));
        }
        told
    }

    /// Settings in the text, `section.key = value`, with their lines.
    pub fn settings(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (index, line) in self.prose.lines().enumerate() {
            for code in line.split('`').skip(1).step_by(2) {
                let Some((key, value)) = code.split_once(" = ") else { continue };
                let is_key = key.contains('.') && SECTIONS.contains(&key.split('.').next().unwrap_or_default());
                let is_value = !value.is_empty() && !value.contains(['…', ',']) && value != "VALUE";
                if is_key && is_value {
                    found.push((index + 1, code.to_owned()));
                }
            }
        }
        found
    }

    /// The blocks of TOML, with the line where each begins.
    pub fn tables(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        let mut inside = false;
        for (index, line) in self.text.lines().enumerate() {
            match (inside, line.trim()) {
                (false, fence) if fence.starts_with("```toml") => {
                    found.push((index + 1, String::new()));
                    inside = true;
                }
                (true, "```") => inside = false,
                (true, _) => found.last_mut().unwrap().1.extend([line, "\n"]),
                (false, _) => {}
            }
        }
        found
    }
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// README.md and the pages of the crates.
pub fn pages() -> Vec<Page> {
    let root = root();
    let mut paths = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)).to_vec();
    FOLDERS.iter().chain(&OTHERS).for_each(|folder| markdown(&root.join(folder), &mut paths));
    let page = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let prose = prose(&text);
        Page { path: path.strip_prefix(root).unwrap().to_path_buf(), text, prose }
    };
    paths.into_iter().map(page).collect()
}

fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            markdown(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The text with fenced and indented code made empty lines.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let is_code = fence || fenced || line.starts_with("    ");
        prose.extend([if is_code { "" } else { line }, "\n"]);
    }
    prose
}

/// What a heading is called behind a `#`.
pub fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|one| one.is_alphanumeric() || matches!(one, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|one| if one == ' ' { '-' } else { one }).collect()
}
