//! T4, T6, T7, T8 and the rules on pure files and on variables: what things are called, and what must not be there.

use super::{
    hold,
    source::{PACKAGES, Source, Workspace, attributes, is_for_tests, rust_files},
};
use enn_launcher::doctor::variables::{FOR_WORKERS, OF_TORCHRUN, VARIABLES, Variable};
use std::{collections::BTreeSet, fs};
use syn::{Fields, Item, visit::Visit};

const FILE_NAMES_BANNED: [&str; 9] = ["utils", "util", "helpers", "helper", "misc", "imp", "stuff", "common", "shared"];
const VARIANTS_BANNED: [&str; 5] = ["Generic", "Other", "Unknown", "Misc", "Custom"];
/// Outside `common`, where a private type is part of a foreign format.
const SERIALIZE_ALLOWED: [&str; 3] =
    ["launcher/src/export", "launcher/checkpoint/src/convert", "launcher/checkpoint/src/gather"];
/// What a pure file must not name.
const IMPURE: [&str; 9] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "Instant::now",
    "SystemTime::now",
    "std::os",
    "nix::",
];

#[test]
fn t4_what_is_serialised_is_common() {
    struct Derives(Vec<usize>);
    impl<'ast> Visit<'ast> for Derives {
        fn visit_item(&mut self, item: &'ast Item) {
            if is_for_tests(attributes(item)) {
                return;
            }
            for attribute in attributes(item).iter().filter(|attribute| attribute.path().is_ident("derive")) {
                let list = attribute.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default();
                if list.split([',', ' ', ':']).any(|name| name == "Serialize") {
                    self.0.push(attribute.pound_token.span.start().line);
                }
            }
            syn::visit::visit_item(self, item);
        }
    }
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for source in workspace.all().filter(|source| source.package != "enn-common") {
        if SERIALIZE_ALLOWED.iter().any(|allowed| source.path.starts_with(allowed)) {
            continue;
        }
        let mut derives = Derives(Vec::new());
        derives.visit_file(source.tree());
        breaches.extend(derives.0.into_iter().map(|line| format!("{}:{line}", source.path.display())));
    }
    hold(
        "Serialize is derived in common only",
        "both ends of a format live in common; for a JSON answer use json!",
        breaches,
    );
}

#[test]
fn t6_every_file_opens_with_what_it_is() {
    let workspace = Workspace::load();
    let breaches = workspace
        .all()
        .filter(|source| !source.text.starts_with("//! ") || source.text.starts_with("//! stub"))
        .map(|source| source.path.display().to_string())
        .collect();
    hold("every file begins with //!", "say what it is and what it must never do", breaches);
}

#[test]
fn t7_files_are_named_by_a_noun_that_says_something() {
    let workspace = Workspace::load();
    let breaches = workspace
        .all()
        .filter(|source| {
            source
                .below_src()
                .iter()
                .any(|part| FILE_NAMES_BANNED.iter().any(|name| part == *name || part == format!("{name}.rs").as_str()))
        })
        .map(|source| source.path.display().to_string())
        .collect();
    hold("no utils, helpers, misc", "name the file by the thing in it", breaches);
}

#[test]
fn t7_errors_have_no_catch_all() {
    struct Variants<'a>(&'a Source, Vec<String>);
    impl<'ast> Visit<'ast> for Variants<'_> {
        fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
            for variant in &item.variants {
                let one_string = match &variant.fields {
                    Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
                        matches!(&fields.unnamed[0].ty, syn::Type::Path(path) if path.path.is_ident("String"))
                    }
                    _ => false,
                };
                if one_string && VARIANTS_BANNED.iter().any(|banned| variant.ident == *banned) {
                    self.1.push(format!("{}: {}::{}(String)", self.0.at(variant), item.ident, variant.ident));
                }
            }
        }
    }
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for source in workspace.all() {
        let mut variants = Variants(source, Vec::new());
        variants.visit_file(source.tree());
        breaches.extend(variants.1);
    }
    hold("an error is never a bare String", "give the case its name and its fields", breaches);
}

#[test]
fn t7_nothing_unwraps_outside_tests() {
    struct Unwraps(Vec<usize>);
    impl<'ast> Visit<'ast> for Unwraps {
        fn visit_item(&mut self, item: &'ast Item) {
            if !is_for_tests(attributes(item)) {
                syn::visit::visit_item(self, item);
            }
        }

        fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
            if call.method == "unwrap" {
                self.0.push(call.method.span().start().line);
            }
            syn::visit::visit_expr_method_call(self, call);
        }

        fn visit_macro(&mut self, call: &'ast syn::Macro) {
            if call.path.is_ident("todo") || call.path.is_ident("unimplemented") {
                self.0.push(call.bang_token.span.start().line);
            }
        }
    }
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    // The package `enn-tests` is test code throughout.
    for source in workspace.all().filter(|source| source.package != "enn-tests") {
        let mut unwraps = Unwraps(Vec::new());
        unwraps.visit_file(source.tree());
        breaches.extend(unwraps.0.into_iter().map(|line| format!("{}:{line}", source.path.display())));
    }
    hold("no unwrap, todo or unimplemented outside tests", "return an error, or expect an invariant by name", breaches);
}

#[test]
fn t8_every_command_and_handler_is_named_in_a_test() {
    let workspace = Workspace::load();
    let tests = workspace.test_text();
    let breaches = ["launcher/src/cli", "broker/src/handler"]
        .into_iter()
        .flat_map(|folder| rust_files(&workspace.root.join(folder)))
        .filter(|path| !["mod.rs", "error.rs", "target_run.rs"].iter().any(|name| path.ends_with(name)))
        .filter(|path| {
            let stem = path.file_stem().unwrap().to_str().unwrap();
            !tests.contains(&format!("\"{stem}"))
                && !tests.contains(&format!("{stem}("))
                && !tests.contains(&format!("{stem}::"))
        })
        .map(|path| path.strip_prefix(&workspace.root).unwrap().display().to_string())
        .collect();
    hold("each command and handler is named in a test", "write the test", breaches);
}

#[test]
fn pure_files_name_nothing_impure() {
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for source in workspace.all() {
        let name = source.path.file_name().unwrap();
        if name != "decide.rs" && name != "policy.rs" {
            continue;
        }
        for (index, line) in source.text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for impure in IMPURE.iter().filter(|impure| line.contains(**impure)) {
                breaches.push(format!("{}:{}: {impure}", source.path.display(), index + 1));
            }
        }
    }
    hold("decide.rs and policy.rs decide from values", "pass time and facts in; let the shell around it act", breaches);
}

/// Names in capitals between quotes, as environment variables are.
fn quoted_variables(text: &str) -> BTreeSet<String> {
    text.split('"')
        .skip(1)
        .step_by(2)
        .filter(|word| word.len() > 4)
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_variables_that_are_read_are_those_doctor_lists() {
    let workspace = Workspace::load();
    let quoted = |path: &str| {
        let text = fs::read_to_string(workspace.root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        quoted_variables(text.split("#[cfg(test)]").next().unwrap())
    };
    let facts = quoted("launcher/src/facts.rs");
    let boot = quoted("worker/src/session/boot.rs");
    let mut set = quoted("launcher/cluster/src/node_agent/environment.rs");
    set.extend(quoted("launcher/cluster/src/node_agent/programs/environment.rs"));
    let named = |name: &String, table: &[Variable]| table.iter().any(|variable| variable.name == name);
    let mut breaches = Vec::new();
    for name in facts.iter().filter(|name| !named(name, VARIABLES) && !named(name, OF_TORCHRUN)) {
        breaches.push(format!("{name} is read by facts.rs but not listed"));
    }
    for name in boot.iter().filter(|name| !named(name, VARIABLES) && !named(name, FOR_WORKERS)) {
        breaches.push(format!("{name} is read by boot.rs but not listed"));
    }
    let listed = VARIABLES.iter().chain(OF_TORCHRUN).filter(|variable| variable.reader != "build");
    for variable in listed.filter(|variable| !facts.contains(variable.name) && !boot.contains(variable.name)) {
        breaches.push(format!("{} is listed but nobody reads it", variable.name));
    }
    for variable in FOR_WORKERS.iter().filter(|variable| !set.contains(variable.name)) {
        breaches.push(format!("{} is listed but neither environment.rs nor contract.rs sets it", variable.name));
    }
    hold(
        "facts.rs and boot.rs read, and env.rs and contract.rs set, exactly the variables of doctor's table",
        "edit launcher/src/doctor/variables.rs",
        breaches,
    );
    let own = VARIABLES.iter().filter(|variable| variable.name.starts_with("ENN_")).count();
    assert!(own <= 15, "at most 15 variables of our own are for users to set");
}

#[test]
fn every_crate_denies_what_the_workspace_denies() {
    let workspace = Workspace::load();
    let breaches = PACKAGES
        .into_iter()
        .filter(|package| {
            let manifest = fs::read_to_string(workspace.root.join(package.folder).join("Cargo.toml")).unwrap();
            !manifest.contains("[lints]\nworkspace = true")
        })
        .map(|package| package.name.to_owned())
        .collect();
    hold("every package has the workspace's lints", "add [lints] workspace = true", breaches);
}
