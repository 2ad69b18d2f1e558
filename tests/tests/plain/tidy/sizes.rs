//! T3: files, functions, parameter lists and packages stay small enough to be read and built.
//!
//! A limit is for code that reads better in parts. Where it does not, the place is exempt, with the reason; an exemption that is no longer
//! needed is a breach, too.

use super::{
    hold,
    source::{PACKAGES, Source, Workspace, attributes, is_for_tests, lines},
};
use std::collections::BTreeSet;
use syn::{Item, Signature, visit::Visit};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const PARAMETERS_MAX: usize = 7;
/// With tests: a package is what is compiled at once.
const PACKAGE_LINES_MAX: usize = 25_000;

/// Files and functions (`file: function`) beyond a limit, with the reason why they read best as they are.
const EXEMPT: [(&str, &str); 4] = [
    ("launcher/data/src/stage/windows/mod.rs: draft", "it fills the fields of one struct in order"),
    (
        "launcher/ui/src/lines.rs: event_lines",
        "one match over all events: the compiler asks for an arm where an event is new",
    ),
    (
        "launcher/ui/src/model.rs: apply",
        "one match over all events: the compiler asks for an arm where an event is new",
    ),
    ("launcher/src/export/describe.rs: sidecar", "the description of an artifact is made of eight independent values"),
];

/// What is beyond a limit: the place as EXEMPT names it, and a sentence.
struct Excess {
    place: String,
    sentence: String,
}

/// Fails with what is beyond a limit and not exempt, and with exemptions among `entries` that nothing needs.
fn hold_limits(rule: &str, found: Vec<Excess>, entries: impl Iterator<Item = &'static str>) {
    let needed: BTreeSet<&str> = found.iter().map(|excess| excess.place.as_str()).collect();
    let mut breaches = Vec::new();
    for entry in entries.filter(|entry| !needed.contains(entry)) {
        breaches.push(format!("{entry} is in EXEMPT, but within the limits"));
    }
    let is_exempt = |excess: &Excess| EXEMPT.iter().any(|(place, _)| *place == excess.place);
    breaches.extend(found.into_iter().filter(|excess| !is_exempt(excess)).map(|excess| excess.sentence));
    hold(
        rule,
        "split it by the things in it, or give the reason in EXEMPT of tests/tests/plain/tidy/sizes.rs",
        breaches,
    );
}

/// Whether an entry of EXEMPT is about a function.
fn is_function(entry: &str) -> bool {
    entry.contains(": ")
}

struct Functions<'a> {
    source: &'a Source,
    found: Vec<Excess>,
}

impl Functions<'_> {
    fn look(&mut self, signature: &Signature, body_lines: usize) {
        let name = &signature.ident;
        let at = self.source.at(signature);
        let mut add = |what: String| {
            let place = format!("{}: {name}", self.source.path.display());
            self.found.push(Excess { place, sentence: format!("{at}: {name} {what}") });
        };
        if body_lines > FUNCTION_LINES_MAX {
            add(format!("has {body_lines} lines, at most {FUNCTION_LINES_MAX}"));
        }
        let parameters = signature.inputs.len();
        if parameters > PARAMETERS_MAX {
            add(format!("takes {parameters} parameters, at most {PARAMETERS_MAX}"));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.look(&function.sig, lines(&function.block));
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.look(&function.sig, lines(&function.block));
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.look(&function.sig, function.default.as_ref().map_or(0, lines));
        syn::visit::visit_trait_item_fn(self, function);
    }

    // Foreign functions have the parameters their other side gave them.
    fn visit_item_foreign_mod(&mut self, _: &'ast syn::ItemForeignMod) {}
}

#[test]
fn t3_files_are_short() {
    let workspace = Workspace::load();
    let long = workspace.all().map(|source| (source.path.display().to_string(), source.code_lines()));
    let long = long.filter(|(_, lines)| *lines > FILE_LINES_MAX).map(|(place, lines)| Excess {
        sentence: format!("{place}: {lines} lines without tests, at most {FILE_LINES_MAX}"),
        place,
    });
    let entries = EXEMPT.iter().map(|(place, _)| *place).filter(|entry| !is_function(entry));
    hold_limits("a file is one concept of at most 600 lines", long.collect(), entries);
}

#[test]
fn t3_functions_are_short_and_take_few_parameters() {
    let workspace = Workspace::load();
    let mut found = Vec::new();
    for source in workspace.all() {
        let mut functions = Functions { source, found: Vec::new() };
        functions.visit_file(source.tree());
        found.extend(functions.found);
    }
    let entries = EXEMPT.iter().map(|(place, _)| *place).filter(|entry| is_function(entry));
    hold_limits("a function is at most 70 lines and 7 parameters", found, entries);
}

#[test]
fn t3_packages_are_small_enough_to_build() {
    let workspace = Workspace::load();
    let lines = PACKAGES.iter().map(|package| (package.folder, workspace.lines(package.name)));
    let breaches = lines.filter(|(_, lines)| *lines > PACKAGE_LINES_MAX);
    let breaches = breaches.map(|(folder, lines)| format!("{folder} has {lines} lines, at most {PACKAGE_LINES_MAX}"));
    hold("a package has at most 25,000 lines", "move a part of it to a package of its own", breaches.collect());
}
