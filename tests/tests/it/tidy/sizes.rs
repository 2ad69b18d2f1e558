//! T3: files, functions and parameter lists stay small enough to be read at once.

use super::{
    hold,
    source::{Source, Workspace, attributes, is_for_tests, lines},
};
use syn::{Item, Signature, visit::Visit};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const PARAMETERS_MAX: usize = 6;

struct Functions<'a> {
    source: &'a Source,
    breaches: Vec<String>,
}

impl Functions<'_> {
    fn look(&mut self, signature: &Signature, body_lines: usize) {
        let name = &signature.ident;
        let place = self.source.at(signature);
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
        .filter(|(lines, _)| *lines > FILE_LINES_MAX)
        .map(|(lines, source)| {
            format!("{}: {lines} lines without tests, at most {FILE_LINES_MAX}", source.path.display())
        })
        .collect();
    hold("a file is one concept of at most 600 lines", "split it by the nouns in it", long);
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
    hold("a function is at most 70 lines and 6 parameters", "name the parts; group parameters into a struct", breaches);
}
