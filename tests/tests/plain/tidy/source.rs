//! The workspace's sources: lines, syntax tree, what is test and what is not.

#![expect(clippy::unwrap_used, reason = "it is part of tests")]

use std::{
    cell::OnceCell,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use syn::{Attribute, Expr, ExprLit, Item, Lit, Meta, UseTree, spanned::Spanned, visit::Visit};

/// A package of the workspace.
pub(super) struct Package {
    pub(super) name: &'static str,
    /// Folder, from the root of the workspace.
    pub(super) folder: &'static str,
}

const fn package(name: &'static str, folder: &'static str) -> Package {
    Package { name, folder }
}

/// The packages, each after those that it imports.
pub(super) const PACKAGES: [Package; 16] = [
    package("enn-common", "common"),
    package("enn-broker", "broker"),
    package("enn-process", "launcher/process"),
    package("enn-cluster", "launcher/cluster"),
    package("enn-checkpoint", "launcher/checkpoint"),
    package("enn-data", "launcher/data"),
    package("enn-ui", "launcher/ui"),
    package("enn-serve", "launcher/serve"),
    package("enn-export", "launcher/export"),
    package("enn-launcher", "launcher"),
    package("enn-core", "worker/core"),
    package("enn-comm", "worker/comm"),
    package("enn-model", "worker/model"),
    package("enn-worker", "worker"),
    package("enn-tests", "tests"),
    package("enn-examples", "examples"),
];

/// One file under a package's `src`.
pub(super) struct Source {
    /// Name of the package.
    pub(super) package: &'static str,
    /// Folder of the package.
    pub(super) folder: &'static str,
    /// Path from the root of the workspace.
    pub(super) path: PathBuf,
    pub(super) text: String,
    tree: OnceCell<syn::File>,
    /// Whether the file exists for tests only: by its name, or because it is a module under `cfg(test)`.
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
        for Package { name, folder } in PACKAGES {
            for path in rust_files(&root.join(folder).join("src")) {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(&root).unwrap().to_path_buf();
                let is_test = is_test_file(path.strip_prefix(folder).unwrap());
                sources.push(Source::new(name, folder, path, text, is_test));
            }
        }
        let for_tests: Vec<PathBuf> = sources.iter().flat_map(Source::modules_for_tests).collect();
        for source in &mut sources {
            source.is_test |= for_tests.iter().any(|module| is_in_module(&source.path, module));
        }
        Self { root, sources }
    }

    /// Sources of a package, files of tests left out.
    pub(super) fn sources(&self, package: &str) -> impl Iterator<Item = &Source> {
        self.all().filter(move |source| source.package == package)
    }

    /// Sources of all packages, files of tests left out.
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
        PACKAGES.iter().for_each(|package| text.push_str(&self.integration_test_text(package)));
        text
    }

    /// Lines of a package that users compile, with the tests in them.
    pub(super) fn lines(&self, package: &str) -> usize {
        let sources = self.all().filter(|source| source.package == package);
        sources.map(|source| source.text.lines().count()).sum()
    }

    /// Text of a package's integration tests.
    pub(super) fn integration_test_text(&self, package: &Package) -> String {
        let folder = self.root.join(package.folder).join("tests");
        rust_files(&folder).into_iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

impl Source {
    /// Its syntax, parsed when it is first asked for: most rules look at few files.
    pub(super) fn new(package: &'static str, folder: &'static str, path: PathBuf, text: String, is_test: bool) -> Self {
        Self { package, folder, path, text, tree: OnceCell::new(), is_test }
    }

    /// The file as syntax, parsed when it is asked for.
    pub(super) fn tree(&self) -> &syn::File {
        let parsed = || syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        self.tree.get_or_init(parsed)
    }

    /// "path:line".
    pub(super) fn at(&self, node: &impl Spanned) -> String {
        format!("{}:{}", self.path.display(), node.span().start().line)
    }

    /// Path below the package's `src`.
    pub(super) fn below_src(&self) -> &Path {
        self.path.strip_prefix(Path::new(self.folder).join("src")).unwrap()
    }

    /// First module below the package's root: `session` for session/boot.rs; "" for lib.rs and main.rs.
    pub(super) fn module(&self) -> String {
        let below = self.below_src().iter().next().unwrap().to_str().unwrap();
        let name = below.strip_suffix(".rs").unwrap_or(below);
        if matches!(name, "lib" | "main") { String::new() } else { name.to_owned() }
    }

    /// Lines outside `cfg(test)` items.
    pub(super) fn code_lines(&self) -> usize {
        let tests: usize = self.tree().items.iter().filter(|item| is_for_tests(attributes(item))).map(lines).sum();
        self.text.lines().count() - tests
    }

    /// The lines with their numbers, without those of `cfg(test)` items.
    pub(super) fn numbered_code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.tree().items.iter().filter(|item| is_for_tests(attributes(item)));
        let tests: Vec<_> = tests.map(|item| item.span().start().line..=item.span().end().line).collect();
        let numbered = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        numbered.filter(move |(number, _)| !tests.iter().any(|lines| lines.contains(number)))
    }

    /// The files, without `.rs`, of modules that are declared for tests only.
    fn modules_for_tests(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for item in &self.tree().items {
            let Item::Mod(module) = item else { continue };
            if module.content.is_some() || !is_for_tests(&module.attrs) {
                continue;
            }
            let folder = self.path.parent().unwrap();
            let is_folder = ["lib", "main", "mod"].iter().any(|name| self.path.file_stem().unwrap() == *name);
            let path = match path_attribute(&module.attrs) {
                Some(path) => without_parents(&folder.join(path.strip_suffix(".rs").unwrap())),
                None if is_folder => folder.join(module.ident.to_string()),
                None => self.path.with_extension("").join(module.ident.to_string()),
            };
            found.push(path);
        }
        found
    }

    /// First segments of the paths that begin with `root` ("crate", "enn_common"), tests left out.
    pub(super) fn modules_used(&self, root: &str) -> BTreeSet<(String, usize)> {
        let mut uses = Uses { root, found: BTreeSet::new() };
        uses.visit_file(self.tree());
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

/// The value of `#[path = "…"]`.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    })
}

/// A relative path with each `..` resolved.
fn without_parents(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.iter() {
        if part == ".." {
            found.pop();
        } else {
            found.push(part);
        }
    }
    found
}

/// Whether `file` is NAME.rs or below the folder NAME; `module` is the path to NAME.
fn is_in_module(file: &Path, module: &Path) -> bool {
    file.with_extension("") == module || file.starts_with(module)
}

/// Whether the file is tests.rs, NAME_tests.rs, or under a folder called tests; `path` begins at the package.
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
