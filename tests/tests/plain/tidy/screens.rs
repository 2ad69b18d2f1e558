//! T10: what is shown passes through one place, and who is started inherits no secret.

use super::{
    hold,
    source::{Source, Workspace, attributes, is_for_tests},
};
use syn::{Expr, Item, spanned::Spanned, visit::Visit};

/// Who writes on standard output and error: they let `common::shown` make text harmless, or carry bytes that are not theirs.
const WRITERS: [(&str, &str); 10] = [
    ("launcher/ui/src/message.rs", "sentences and the log, made harmless"),
    ("launcher/ui/src/terminal.rs", "bars, of messages that are harmless"),
    ("launcher/ui/src/sink.rs", "the lines of `ui::lines`, which are harmless, and JSON that is made so"),
    ("launcher/src/cli/output.rs", "text and JSON, made harmless; documents and pages as they are"),
    ("launcher/src/cli/runtime.rs", "a protocol between programs"),
    ("launcher/process/src/logs/pump.rs", "what workers write, as they wrote it"),
    ("common/src/panics.rs", "one sentence, made harmless"),
    ("worker/src/session/program.rs", "a protocol between programs; one sentence, made harmless"),
    ("worker/src/probe/mod.rs", "a protocol between programs"),
    ("launcher/ui/src/top/screen.rs", "a screen of its own, drawn from harmless lines"),
];
/// Who starts programs by itself.
const STARTERS: [(&str, &str); 1] = [("common/src/secrets.rs", "it leaves the secrets out")];

/// Calls of functions whose path ends with two names, code for tests left out.
struct Calls<'a> {
    of: &'a [(&'a str, &'a str)],
    lines: Vec<usize>,
}

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let names: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let is_called = |(module, name): &(&str, &str)| names.ends_with(&[(*module).to_owned(), (*name).to_owned()]);
        if self.of.iter().any(is_called) {
            self.lines.push(path.span().start().line);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        // So may whether lines can be drawn over on it, and how wide it is.
        let is_question = match &*call.func {
            Expr::Path(path) => path.path.segments.iter().any(|segment| segment.ident == "terminal"),
            _ => false,
        };
        if !is_question {
            syn::visit::visit_expr_call(self, call);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        // Whether a stream is a terminal may be asked by everybody.
        let is_question = call.method == "is_terminal" && matches!(*call.receiver, Expr::Call(_));
        if !is_question {
            syn::visit::visit_expr_method_call(self, call);
        }
    }
}

fn calls(source: &Source, of: &[(&str, &str)]) -> Vec<usize> {
    let mut calls = Calls { of, lines: Vec::new() };
    calls.visit_file(source.tree());
    calls.lines
}

fn breaches(of: &[(&str, &str)], allowed: &[(&str, &str)]) -> Vec<String> {
    let workspace = Workspace::load();
    let is_ours = |source: &&Source| !matches!(source.package, "enn-tests" | "enn-examples");
    let is_allowed = |source: &Source| allowed.iter().any(|(file, _)| source.path.ends_with(file));
    let others = workspace.all().filter(is_ours).filter(|source| !is_allowed(source));
    let place = |source: &Source| {
        let path = source.path.display().to_string();
        calls(source, of).into_iter().map(move |line| format!("{path}:{line}")).collect::<Vec<_>>()
    };
    others.flat_map(place).collect()
}

#[test]
fn t10_what_is_shown_passes_through_few_places() {
    let streams = [("io", "stdout"), ("io", "stderr")];
    let way_out = "call `ui::message::print` or a function of `cli::output`, or give the file its reason in WRITERS";
    hold(
        "standard output and error are written in few files, which make text harmless",
        way_out,
        breaches(&streams, &WRITERS),
    );
}

#[test]
fn t10_who_is_started_inherits_no_secret() {
    let starts = [("Command", "new")];
    let way_out = "start it by `enn_common::secrets::command`; one that needs a secret by `trusted_command`";
    hold("a program is started without the secrets of this one", way_out, breaches(&starts, &STARTERS));
}

#[test]
fn t10_the_lint_sees_a_call() {
    let seen = |code: &str| {
        let mut calls = Calls { of: &[("io", "stderr"), ("Command", "new")], lines: Vec::new() };
        calls.visit_file(
            &syn::parse_file(&format!("fn f() {{ {code}; }} #[cfg(test)] mod tests {{ fn g() {{ {code}; }} }}"))
                .unwrap(),
        );
        calls.lines.len()
    };
    for bad in ["std::io::stderr().write_all(b\"\")", "let c = std::process::Command::new(program)"] {
        assert_eq!(seen(bad), 1, "{bad}");
    }
    for good in ["std::io::stderr().is_terminal()", "ui::terminal::draws(&std::io::stderr())"] {
        assert_eq!(seen(good), 0, "{good}");
    }
}
