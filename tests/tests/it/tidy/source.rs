//! The workspace's sources, parsed once: lines, syntax tree, what is test and what is not.

#![expect(clippy::unwrap_used, reason = "it is part of tests")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use syn::{Attribute, Item, UseTree, spanned::Spanned, visit::Visit};

/// Crates in the order of their floors.
pub(super) use enn_tests::pages::CRATES;

/// One file under a crate's `src`.
pub(super) struct Source {
    /// Folder of the crate.
    pub(super) krate: &'static str,
    /// Path from the root of the workspace.
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) tree: syn::File,
    /// A file that exists for tests only: `tests.rs`, or under a folder of that name.
    pub(super) is_test: bool,
}

/// All of them.
pub(super) struct Workspace {
    pub(super) root: PathBuf,
    sources: Vec<Source>,
}

impl Workspace {
    pub(super) fn load() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf();
        let mut sources = Vec::new();
        for krate in CRATES {
            for path in rust_files(&root.join(krate).join("src")) {
                let text = fs::read_to_string(&path).unwrap();
                let tree = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let path = path.strip_prefix(&root).unwrap().to_path_buf();
                let is_test = is_test_file(path.strip_prefix(krate).unwrap());
                sources.push(Source { krate, path, text, tree, is_test });
            }
        }
        Self { root, sources }
    }

    /// Sources of a crate, files of tests left out.
    pub(super) fn sources(&self, krate: &'static str) -> impl Iterator<Item = &Source> {
        self.all().filter(move |source| source.krate == krate)
    }

    /// Sources of all crates, files of tests left out.
    pub(super) fn all(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| !source.is_test)
    }

    /// Text of everything that is a test: test files, integration tests, `cfg(test)` modules' files.
    pub(super) fn test_text(&self) -> String {
        let mut text = String::new();
        for source in &self.sources {
            if source.is_test || source.text.contains("#[cfg(test)]") {
                text.push_str(&source.text);
            }
        }
        CRATES.iter().for_each(|krate| text.push_str(&self.integration_test_text(krate)));
        text
    }

    /// Text of a crate's integration tests.
    pub(super) fn integration_test_text(&self, krate: &str) -> String {
        let folder = self.root.join(krate).join("tests");
        rust_files(&folder).into_iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

impl Source {
    /// "path:line".
    pub(super) fn at(&self, node: &impl Spanned) -> String {
        format!("{}:{}", self.path.display(), node.span().start().line)
    }

    /// First module below the crate's root: `session` for session/boot.rs; "" for lib.rs and main.rs.
    pub(super) fn module(&self) -> String {
        let below = self.path.iter().nth(2).unwrap().to_str().unwrap();
        let name = below.strip_suffix(".rs").unwrap_or(below);
        if matches!(name, "lib" | "main") { String::new() } else { name.to_owned() }
    }

    /// Lines outside `cfg(test)` items.
    pub(super) fn code_lines(&self) -> usize {
        let tests: usize = self.tree.items.iter().filter(|item| is_for_tests(attributes(item))).map(lines).sum();
        self.text.lines().count() - tests
    }

    /// First segments of the paths that begin with `root` ("crate", "enn_common"), tests left out.
    pub(super) fn modules_used(&self, root: &str) -> BTreeSet<(String, usize)> {
        let mut uses = Uses { root, found: BTreeSet::new() };
        uses.visit_file(&self.tree);
        uses.found
    }
}

struct Uses<'a> {
    root: &'a str,
    found: BTreeSet<(String, usize)>,
}

impl Uses<'_> {
    fn tree(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.found.insert((path.ident.to_string(), path.ident.span().start().line)),
            UseTree::Name(name) => self.found.insert((name.ident.to_string(), name.ident.span().start().line)),
            UseTree::Rename(name) => self.found.insert((name.ident.to_string(), name.ident.span().start().line)),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(tree));
                false
            }
            UseTree::Glob(_) => false,
        };
    }
}

impl<'ast> Visit<'ast> for Uses<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut tree = &item.tree;
        if let UseTree::Group(group) = tree {
            group.items.iter().for_each(|tree| self.under_root(tree));
            return;
        }
        if let UseTree::Path(path) = tree
            && path.ident == self.root
        {
            tree = &path.tree;
            self.tree(tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter();
        if segments.next().is_some_and(|first| first.ident == self.root)
            && let Some(second) = segments.next()
        {
            self.found.insert((second.ident.to_string(), second.span().start().line));
        }
        syn::visit::visit_path(self, path);
    }
}

impl Uses<'_> {
    fn under_root(&mut self, tree: &UseTree) {
        if let UseTree::Path(path) = tree
            && path.ident == self.root
        {
            self.tree(&path.tree);
        }
    }
}

/// tests.rs, NAME_tests.rs, or under a folder called tests; `path` begins at the crate.
fn is_test_file(path: &Path) -> bool {
    path.iter()
        .filter_map(|part| part.to_str())
        .any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
}

/// Whether an item is compiled for tests only.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().starts_with("test")))
    })
}

/// Attributes of any item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Lines a piece of syntax spans.
pub(super) fn lines(node: &impl Spanned) -> usize {
    node.span().end().line + 1 - node.span().start().line
}

/// All .rs files under a folder, sorted; none when it is not there.
pub(super) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}
