//! The pages (.md) hold together: the first one is short, links lead somewhere, sections are listed, and what is said of the configuration
//! is so.

#![expect(clippy::unwrap_used, reason = "it is part of tests")]

use super::{
    hold,
    source::{PACKAGES, rust_files},
};
use enn_common::config::{Facts, RawConfig, error::ConfigErrorKind, resolve};
use enn_tests::pages::{Page, SECTIONS, anchor, pages, root};
use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};
use syn::visit::Visit;

/// Bytes of README.md: what a person reads in five minutes.
const README_BYTES_MAX: usize = 16 * 1024;
/// The list of the pages of the book.
const BOOK: &str = "docs/SUMMARY.md";
/// A configuration that says nothing but the data.
const SMALLEST: &str =
    "[data]\nfiles = [\"t.csv\"]\n[data.rows]\nfeatures = [\"a\"]\ntargets = [\"y\"]\n[data.split]\ncolumn = \"g\"\n";
/// What stands behind the point where a word is the name of a file.
const FILE_ENDINGS: [&str; 4] = ["rs", "py", "csv", "pt"];
/// Sections of a page from which on it lists them.
const SECTIONS_LISTED_MIN: usize = 3;
/// Methods of `Section` whose first argument is a key.
const READERS: [&str; 18] = [
    "integer",
    "integer_if",
    "integer_required",
    "integers",
    "number",
    "number_if",
    "numbers",
    "pair",
    "truth",
    "truth_if",
    "text",
    "text_required",
    "texts",
    "columns",
    "name",
    "name_or_old",
    "node",
    "free",
];

/// Keys that are sections, or are named by a variable where they are read.
const READ_OTHERWISE: [&str; 6] = ["rows", "windows", "arrays", "split", "features", "cell_weights"];

/// `folder` and a relative path, without `.` and `..`.
fn joined(folder: &Path, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(target).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
    }
    path
}

#[test]
fn the_first_page_is_short() {
    let bytes = pages()[0].text.len();
    let breach = format!("README.md has {bytes} bytes, at most {README_BYTES_MAX}");
    let breaches = if bytes > README_BYTES_MAX { vec![breach] } else { Vec::new() };
    hold(
        "README.md is read in five minutes",
        "move what is for later to the page beside the crate that does it",
        breaches,
    );
}

#[test]
fn links_of_pages_lead_somewhere() {
    let pages = pages();
    let root = root();
    let mut breaches = Vec::new();
    let mut checked = 0;
    for page in &pages {
        for (line, target) in page.links().into_iter().filter(|(_, target)| !target.contains("://")) {
            checked += 1;
            let (file, heading) =
                target.split_once('#').map_or((target.as_str(), None), |(file, name)| (file, Some(name)));
            let path = if file.is_empty() { page.path.clone() } else { joined(page.path.parent().unwrap(), file) };
            let known = pages.iter().find(|page| page.path == path);
            let place = page.at(line);
            match (known, heading) {
                (Some(known), Some(heading)) if !known.anchors().contains(heading) => {
                    breaches.push(format!("{place}: {} has no heading #{heading}", path.display()));
                }
                (None, Some(_)) => breaches.push(format!("{place}: {} is no page", path.display())),
                (None, None) if !root.join(&path).exists() => {
                    breaches.push(format!("{place}: {} is not there", path.display()));
                }
                _ => {}
            }
        }
    }
    assert!(checked > 50, "only {checked} links were found");
    hold("a relative link leads to a file, and to a heading of it", "mend the link", breaches);
}

#[test]
fn every_page_is_in_the_book() {
    let pages = pages();
    let book = pages.iter().find(|page| page.path == Path::new(BOOK)).unwrap();
    let folder = book.path.parent().unwrap();
    let listed: BTreeSet<PathBuf> = book.links().into_iter().map(|(_, target)| joined(folder, &target)).collect();
    let missing = pages.iter().filter(|page| page.path != book.path && !listed.contains(&page.path));
    let breaches = missing.map(|page| page.path.display().to_string()).collect();
    hold("`make book` makes a book of all pages", "add a line to docs/SUMMARY.md", breaches);
}

#[test]
fn pages_list_their_sections() {
    let mut breaches = Vec::new();
    for page in pages().iter().skip(1) {
        let listed: BTreeSet<String> = page.links().into_iter().map(|(_, target)| target).collect();
        let titles: Vec<&str> = page.sections().filter(|(depth, _)| *depth == 2).map(|(_, title)| title).collect();
        if titles.len() < SECTIONS_LISTED_MIN {
            continue;
        }
        let missing = titles.into_iter().filter(|title| !listed.contains(&format!("#{}", anchor(title))));
        breaches.extend(missing.map(|title| format!("{}: \"{title}\" is not listed", page.path.display())));
    }
    hold("a page begins with a list of its sections", "add the section to the list", breaches);
}

#[test]
fn pages_that_code_names_are_there() {
    let pages = pages();
    let names: BTreeSet<&str> = pages.iter().filter_map(|page| page.path.file_name()?.to_str()).collect();
    let root = root();
    let mut breaches = Vec::new();
    // Those of other packages are below these.
    let folders = PACKAGES.iter().map(|package| package.folder).filter(|folder| !folder.contains('/'));
    for path in folders.flat_map(|folder| rust_files(&root.join(folder))) {
        for (index, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let words = line.split(|one: char| !(one.is_ascii_alphanumeric() || matches!(one, '_' | '.')));
            let named = words.map(|word| word.trim_end_matches('.')).filter(|word| is_page(word));
            let lost = named.filter(|word| !names.contains(word));
            breaches.extend(lost.map(|word| format!("{}:{}: {word}", path.display(), index + 1)));
        }
    }
    hold("a page that a comment names is in the repository", "name the page that tells it now", breaches);
}

/// A name in capitals, as pages have.
fn is_page(word: &str) -> bool {
    word.strip_suffix(".md").is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase()))
}

/// Keys that `resolve` reads from a file of this name.
fn keys_of(file: &str) -> BTreeSet<String> {
    struct Keys(BTreeSet<String>);
    impl<'ast> Visit<'ast> for Keys {
        fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
            if let Some(syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(key), .. })) = call.args.first()
                && READERS.iter().any(|reader| call.method == reader)
            {
                self.0.insert(key.value());
            }
            syn::visit::visit_expr_method_call(self, call);
        }
    }
    let root = root();
    let text = fs::read_to_string(root.join("common/src/config/resolve").join(file)).unwrap();
    let mut keys = Keys(BTreeSet::new());
    keys.visit_file(&syn::parse_file(&text).unwrap());
    assert!(keys.0.len() > 3, "no keys in {file}");
    keys.0
}

#[test]
fn every_key_of_a_configuration_is_in_a_page() {
    let pages = pages();
    let mut breaches = Vec::new();
    for (file, page) in [
        ("data.rs", "launcher/DATA.md"),
        ("train.rs", "launcher/TRAINING.md launcher/FAULTS.md"),
        ("model.rs", "launcher/TRAINING.md"),
        ("tasks.rs", "launcher/TRAINING.md"),
    ] {
        let of_it = pages.iter().filter(|one| page.split(' ').any(|name| one.path == Path::new(name)));
        let told: BTreeSet<String> = of_it.flat_map(Page::keys_told).collect();
        let untold = keys_of(file).into_iter().filter(|key| !told.contains(key.as_str()));
        breaches
            .extend(untold.map(|key| format!("{key}, which common/src/config/resolve/{file} reads, is not in {page}")));
    }
    hold("every key is told of in a page", "add a row to the table it belongs to", breaches);
}

#[test]
fn keys_that_pages_name_are_read() {
    let mut keys: BTreeSet<String> = READ_OTHERWISE.map(str::to_owned).into();
    ["data.rs", "train.rs", "model.rs", "tasks.rs"].into_iter().for_each(|file| keys.extend(keys_of(file)));
    let mut breaches = Vec::new();
    for page in pages() {
        for (line, word) in page.words_of_code() {
            let mut parts = word.split('.');
            let section = parts.next().unwrap_or_default();
            let (true, Some(last)) = (SECTIONS.contains(&section), parts.next_back()) else { continue };
            let key = last.split(|one: char| !(one.is_ascii_alphanumeric() || one == '_')).next().unwrap_or_default();
            if !key.is_empty() && !FILE_ENDINGS.contains(&key) && !keys.contains(key) {
                breaches.push(format!("{}: {word}", page.at(line)));
            }
        }
    }
    hold("a key that a page names is one that is read", "look for its name in common/src/config/resolve", breaches);
}

#[test]
fn configurations_in_pages_resolve() {
    let facts = Facts { cores: 8, gpus: 0, cuda_worker: false, cwd: PathBuf::from("/") };
    // What an example leaves out, or what only its neighbour says.
    let left_out =
        |kind: &ConfigErrorKind| matches!(kind, ConfigErrorKind::Missing(_) | ConfigErrorKind::Layouts { .. });
    let mut breaches = Vec::new();
    let mut tables = 0;
    for page in pages() {
        for (line, text) in page.tables() {
            tables += 1;
            let resolved = RawConfig::parse(&text, &page.path).and_then(|raw| resolve(&raw, &facts));
            let errors = resolved.err().unwrap_or_default().into_iter().filter(|error| !left_out(&error.kind));
            breaches.extend(errors.map(|error| format!("the block at {}: {error}", page.at(line))));
        }
        // A key that the text sets, in a configuration that says nothing else but the data.
        for (line, word) in page.settings() {
            let mut raw = RawConfig::parse(SMALLEST, &page.path).unwrap();
            let resolved = raw.set(&word).map_err(|error| vec![*error]).and_then(|()| resolve(&raw, &facts));
            let errors = resolved.err().unwrap_or_default().into_iter();
            breaches.extend(errors.map(|error| format!("`{word}` at {}: {error}", page.at(line))));
        }
    }
    assert!(tables > 3, "only {tables} blocks were found");
    hold("a configuration in a page resolves", "mend the example", breaches);
}
