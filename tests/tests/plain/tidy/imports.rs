//! Imports between the files of a package: `use` lines and paths, each resolved to the file that defines what it names.
//!
//! A `mod x;` is no import, nor is a `pub use` of a module's own children. Tests are left out. Names that a macro generates belong to the
//! module that they are looked up in.

use super::source::{Source, attributes, is_for_tests};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::{Attribute, Item, UseTree, Visibility, spanned::Spanned, visit::Visit};

/// Names in the order of a path: `crate::a::b` is `["crate", "a", "b"]`, and the module a::b is `["a", "b"]`.
type Names = Vec<String>;

/// A chain of re-exports longer than this is a circle of names.
const DEPTH_MAX: usize = 16;

/// One import.
pub(super) struct Import<'a> {
    pub(super) from: &'a Source,
    pub(super) line: usize,
    pub(super) to: &'a Source,
    /// The path that the file names.
    pub(super) path: String,
}

struct Use {
    /// The name in scope; none for a glob.
    name: Option<String>,
    path: Names,
    line: usize,
    is_public: bool,
}

struct Module<'a> {
    source: &'a Source,
    /// Everything defined here, but for modules.
    items: BTreeSet<String>,
    children: BTreeSet<String>,
    uses: Vec<Use>,
    /// Paths in the code, with their lines.
    paths: Vec<(Names, usize)>,
}

enum Target {
    Module(Names),
    /// An item of this module.
    Item(Names),
    /// A path that begins in another package, or at a local name.
    External(Names),
}

/// The imports of a package.
#[derive(Default)]
pub(super) struct Imports<'a> {
    /// Between its files.
    pub(super) inside: Vec<Import<'a>>,
    /// From its files to our other packages: the path from that package's root.
    pub(super) outside: Vec<(&'a Source, usize, Names)>,
}

/// Returns the imports of a package with these sources.
pub(super) fn imports<'a>(sources: impl Iterator<Item = &'a Source>) -> Imports<'a> {
    let mut modules = Modules(BTreeMap::new());
    for source in sources {
        if let Some(names) = names_of(source) {
            modules.add(names, source, &source.tree().items);
        }
    }
    modules.imports()
}

/// The module that a file is; none for the roots of binaries, which nothing can import.
fn names_of(source: &Source) -> Option<Names> {
    let path = source.below_src().with_extension("");
    let mut names: Names = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    match names.last().map(String::as_str) {
        Some("lib") if names.len() == 1 => names.clear(),
        Some("main") if names.len() == 1 => return None,
        Some("mod") => drop(names.pop()),
        _ if names[0] == "bin" => return None,
        _ => {}
    }
    Some(names)
}

struct Modules<'a>(BTreeMap<Names, Module<'a>>);

impl<'a> Modules<'a> {
    fn add(&mut self, names: Names, source: &'a Source, items: &'a [Item]) {
        let mut module =
            Module { source, items: BTreeSet::new(), children: BTreeSet::new(), uses: Vec::new(), paths: Vec::new() };
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            if let Item::Mod(child) = item {
                module.children.insert(child.ident.to_string());
                if let Some((_, items)) = &child.content {
                    self.add([names.clone(), vec![child.ident.to_string()]].concat(), source, items);
                }
                continue;
            }
            module.items.extend(name_of(item));
            Collector(&mut module).visit_item(item);
        }
        self.0.insert(names, module);
    }

    fn imports(&self) -> Imports<'a> {
        let mut found = Imports::default();
        for (names, module) in &self.0 {
            let uses = module.uses.iter().map(|one| (one.name.is_none(), one.is_public, &one.path, one.line));
            let paths = module.paths.iter().map(|(path, line)| (false, false, path, *line));
            for (is_glob, is_public, path, line) in uses.chain(paths) {
                let target = match self.resolve(names, path, 0) {
                    Target::Item(target) => target,
                    Target::Module(target) if is_glob => target,
                    // What the code takes from an imported module is seen where it is named.
                    Target::Module(_) => continue,
                    Target::External(path) if path[0].starts_with("enn_") => {
                        found.outside.push((module.source, line, path));
                        continue;
                    }
                    Target::External(_) => continue,
                };
                if !(is_public && target.starts_with(names)) {
                    found.inside.extend(self.import(module, &target, path, line));
                }
            }
        }
        found
    }

    fn import(&self, from: &Module<'a>, target: &Names, path: &Names, line: usize) -> Option<Import<'a>> {
        let to = self.0.get(target)?.source;
        let is_own = to.path == from.source.path;
        (!is_own).then(|| Import { from: from.source, line, to, path: path.join("::") })
    }

    /// Resolves a path that is named in the module `scope`.
    fn resolve(&self, scope: &Names, path: &[String], depth: usize) -> Target {
        let mut at = scope.clone();
        let mut rest = path;
        while let [first, behind @ ..] = rest {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = behind;
        }
        let is_anchored = rest.len() < path.len();
        self.walk(&at, rest, depth)
            .unwrap_or_else(|| if is_anchored { Target::Item(at) } else { Target::External(path.to_vec()) })
    }

    /// Follows names from a module; none when the first of them is not in it.
    fn walk(&self, at: &Names, path: &[String], depth: usize) -> Option<Target> {
        let [name, rest @ ..] = path else { return Some(Target::Module(at.clone())) };
        let module = self.0.get(at)?;
        if depth > DEPTH_MAX {
            return None;
        }
        let below = |module: Names| self.walk(&module, rest, depth + 1).unwrap_or(Target::Item(module));
        let child = || module.children.contains(name).then(|| [at.clone(), vec![name.clone()]].concat());
        if !rest.is_empty()
            && let Some(child) = child()
        {
            return Some(below(child));
        }
        if module.items.contains(name) {
            return Some(Target::Item(at.clone()));
        }
        // One name can be that of a module and of a function in it: the function is what is imported last.
        let mut found = None;
        for one in module.uses.iter().filter(|one| one.name.as_ref() == Some(name)) {
            match self.resolve(at, &one.path, depth + 1) {
                Target::Item(item) => return Some(Target::Item(item)),
                Target::Module(module) => found = Some(below(module)),
                Target::External(path) => found = found.or(Some(Target::External([path, rest.to_vec()].concat()))),
            }
        }
        let in_globs = || {
            let globs = module.uses.iter().filter(|one| one.name.is_none());
            globs.into_iter().find_map(|glob| match self.resolve(at, &glob.path, depth + 1) {
                Target::Module(module) if module != *at => self.walk(&module, path, depth + 1),
                _ => None,
            })
        };
        found.or_else(|| child().map(Target::Module)).or_else(in_globs)
    }
}

/// The name that an item defines.
fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Collects the `use` lines and paths of a module, those in function bodies, attributes and the arguments of macros, too.
struct Collector<'m, 'a>(&'m mut Module<'a>);

impl Collector<'_, '_> {
    fn use_tree(&mut self, tree: &UseTree, before: &[String], is_public: bool) {
        let mut add = |name: Option<String>, path: Names, line: usize| {
            self.0.uses.push(Use { name, path, line, is_public });
        };
        match tree {
            UseTree::Path(path) => {
                self.use_tree(&path.tree, &[before, &[path.ident.to_string()]].concat(), is_public);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.use_tree(tree, before, is_public)),
            UseTree::Name(name) if name.ident == "self" => {
                add(before.last().cloned(), before.to_vec(), name.ident.span().start().line);
            }
            UseTree::Name(name) => {
                let path = [before, &[name.ident.to_string()]].concat();
                add(path.last().cloned(), path, name.ident.span().start().line);
            }
            UseTree::Rename(name) => {
                let own = if name.ident == "self" { Vec::new() } else { vec![name.ident.to_string()] };
                add(Some(name.rename.to_string()), [before, &own].concat(), name.ident.span().start().line);
            }
            UseTree::Glob(glob) => add(None, before.to_vec(), glob.span().start().line),
        }
    }

    /// Finds paths in tokens that are not parsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut line = 0;
        // How many colons stand behind the last name of the path.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.path(&mut path, line);
                        line = name.span().start().line;
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.path(&mut path, line);
                    colons = 0;
                    self.tokens(group.stream());
                }
                _ => {
                    self.path(&mut path, line);
                    colons = 0;
                }
            }
        }
        self.path(&mut path, line);
    }

    fn path(&mut self, path: &mut Names, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.0.paths.push((path, line));
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_, '_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            syn::visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.use_tree(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_none() {
            self.path(&mut names, path.span().start().line);
        }
        syn::visit::visit_path(self, path);
    }

    // `pub(in crate::x)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn source(path: &str, text: &str) -> Source {
        Source::new("enn-p", "p", PathBuf::from("p/src").join(path), text.to_owned(), false)
    }

    #[test]
    fn paths_lead_to_the_file_that_defines_a_name() {
        let sources = [
            source("lib.rs", "mod a; pub mod b; pub use a::One; use b::Two;"),
            source("a/mod.rs", "mod deep; pub use deep::*; pub struct One;"),
            source("a/deep.rs", "pub fn deepest() {} use super::One; use crate::{Two as Other, b};"),
            source(
                "b.rs",
                "pub struct Two; fn f() { println!(\"{}\", crate::a::deepest()); std::fs::read(x); Self::g() }",
            ),
        ];
        let found: BTreeSet<String> = imports(sources.iter())
            .inside
            .into_iter()
            .map(|import| {
                let name = |source: &Source| source.below_src().display().to_string();
                format!("{} {} {}", name(import.from), import.path, name(import.to))
            })
            .collect();
        let expected = [
            "a/deep.rs crate::Two b.rs",
            "a/deep.rs super::One a/mod.rs",
            "b.rs crate::a::deepest a/deep.rs",
            "lib.rs b::Two b.rs",
        ];
        assert_eq!(found, expected.map(str::to_owned).into());
    }
}
