//! T9: what was read from a file, a message or a store becomes a path by `RelPath` only.

use super::{hold, source::Workspace};
use syn::{Expr, visit::Visit};

/// Where manifests, metadata, archives, indices and the names of a store are read.
const PLACES: [&str; 7] = [
    "common/src/checkpoint",
    "common/src/artifact",
    "common/src/staged",
    "launcher/checkpoint/src/convert",
    "launcher/checkpoint/src/gather",
    "launcher/checkpoint/src/remote",
    "launcher/src/export",
];
/// Stands above a path of a field that this program filled by itself.
const OWN: &str = "// own path:";

struct Joins {
    lines: Vec<usize>,
}

/// Whether an argument is a field of something, or the text of one.
fn is_field(argument: &Expr) -> bool {
    match argument {
        Expr::Reference(inner) => is_field(&inner.expr),
        Expr::Unary(inner) => is_field(&inner.expr),
        Expr::Paren(inner) => is_field(&inner.expr),
        Expr::MethodCall(call) => {
            let is_same = matches!(call.method.to_string().as_str(), "as_str" | "as_ref" | "clone" | "deref");
            // What a call of this program made is its own.
            is_same && call.args.is_empty() && !matches!(*call.receiver, Expr::MethodCall(_) | Expr::Call(_))
        }
        Expr::Field(_) => true,
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Joins {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "join" && call.args.first().is_some_and(is_field) {
            self.lines.push(call.method.span().start().line);
        }
        syn::visit::visit_expr_method_call(self, call);
    }
}

#[test]
fn t9_paths_that_are_read_are_checked() {
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for source in workspace.all().filter(|source| PLACES.iter().any(|place| source.path.starts_with(place))) {
        let text: Vec<&str> = source.text.lines().collect();
        let mut joins = Joins { lines: Vec::new() };
        joins.visit_file(source.tree());
        let is_own = |line: usize| line >= 2 && text[line - 2].contains(OWN);
        let lines = joins.lines.into_iter().filter(|line| !is_own(*line));
        breaches.extend(lines.map(|line| format!("{}:{line}", source.path.display())));
    }
    hold(
        "a field that was read is joined to a directory only as a RelPath",
        "make it a RelPath, and call `locate` or `below`; above what this program made write `// own path:` and why",
        breaches,
    );
}

#[test]
fn t9_the_lint_sees_a_join() {
    let seen = |code: &str| {
        let file = syn::parse_file(&format!("fn f() {{ {code}; }}")).unwrap();
        let mut joins = Joins { lines: Vec::new() };
        joins.visit_file(&file);
        joins.lines.len()
    };
    for bad in ["dir.join(&file.path)", "dir.join(table.file.as_str())", "x.dir().join(&*entry.name)"] {
        assert_eq!(seen(bad), 1, "{bad}");
    }
    for good in
        ["dir.join(self.key(name).as_ref())", "dir.join(\"a\")", "dir.join(name::MANIFEST)", "file.path.below(dir)"]
    {
        assert_eq!(seen(good), 0, "{good}");
    }
}
