//! T3: files, functions and parameter lists stay small enough to be read at once.

use super::{
    hold,
    source::{Source, Workspace, attributes, is_for_tests, lines},
};
use syn::{Item, Signature, visit::Visit};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const PARAMETERS_MAX: usize = 7;

/// Files and functions beyond a limit, with the reason why they read best as they are.
const EXEMPT: [(&str, &str); 5] = [
    ("launcher/src/rendezvous/state.rs", "one state machine; its transitions are read together"),
    ("launcher/src/stage/rows.rs", "one pass over a table; parts in files of their own would share seven values"),
    ("launcher/src/rendezvous/handle.rs: start", "it sets the values of one start, one on each line"),
    ("launcher/src/stage/windows/mod.rs: draft", "it fills the fields of one struct in order"),
    ("launcher/src/export/describe.rs: sidecar", "the description of an artifact is made of eight independent values"),
];

fn is_exempt(place: &str) -> bool {
    EXEMPT.iter().any(|(exempt, _)| *exempt == place)
}

struct Functions<'a> {
    source: &'a Source,
    breaches: Vec<String>,
}

impl Functions<'_> {
    fn look(&mut self, signature: &Signature, body_lines: usize) {
        let name = &signature.ident;
        let place = self.source.at(signature);
        if is_exempt(&format!("{}: {name}", self.source.path.display())) {
            return;
        }
        if body_lines > FUNCTION_LINES_MAX {
            self.breaches.push(format!("{place}: {name} has {body_lines} lines, at most {FUNCTION_LINES_MAX}"));
        }
        let parameters = signature.inputs.len();
        if parameters > PARAMETERS_MAX {
            self.breaches.push(format!("{place}: {name} takes {parameters} parameters, at most {PARAMETERS_MAX}"));
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
    let long = workspace
        .all()
        .map(|source| (source.code_lines(), source))
        .filter(|(lines, source)| *lines > FILE_LINES_MAX && !is_exempt(&source.path.display().to_string()))
        .map(|(lines, source)| {
            format!("{}: {lines} lines without tests, at most {FILE_LINES_MAX}", source.path.display())
        })
        .collect();
    hold("a file is one concept of at most 600 lines", "split it by the nouns in it, or exempt it with a reason", long);
}

#[test]
fn t3_functions_are_short_and_take_few_parameters() {
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for source in workspace.all() {
        let mut functions = Functions { source, breaches: Vec::new() };
        functions.visit_file(&source.tree);
        breaches.extend(functions.breaches);
    }
    hold("a function is at most 70 lines and 7 parameters", "name the parts, or exempt it with a reason", breaches);
}
