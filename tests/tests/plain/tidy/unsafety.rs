//! T5: `unsafe` only in files whose name says so, and never without its reason.

use super::{
    hold,
    source::{Source, Workspace},
};
use syn::visit::Visit;

const FILES: [&str; 5] = ["sys.rs", "result.rs", "safe.rs", "unix.rs", "mmap.rs"];
/// A SAFETY comment may stand this many lines above the keyword: a statement can begin before its unsafe part.
const LINES_ABOVE_MAX: usize = 6;

struct Blocks {
    lines: Vec<usize>,
}

impl<'ast> Visit<'ast> for Blocks {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.lines.push(block.unsafe_token.span.start().line);
        syn::visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        self.lines.extend(block.unsafety.map(|token| token.span.start().line));
        syn::visit::visit_item_impl(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        // Declared, not used: its callers say why they may. It still belongs in these files.
        syn::visit::visit_signature(self, signature);
    }
}

fn blocks(source: &Source) -> Vec<usize> {
    let mut blocks = Blocks { lines: Vec::new() };
    blocks.visit_file(source.tree());
    blocks.lines
}

#[test]
fn t5_unsafe_lives_in_files_named_for_it() {
    let workspace = Workspace::load();
    let breaches = workspace
        .all()
        .filter(|source| !source.path.file_name().is_some_and(|name| FILES.iter().any(|file| name == *file)))
        .flat_map(|source| blocks(source).into_iter().map(|line| format!("{}:{line}", source.path.display())))
        .collect();
    hold(
        "unsafe is in sys.rs, result.rs, safe.rs, unix.rs or mmap.rs only",
        "wrap it there, and call the wrapper",
        breaches,
    );
}

#[test]
fn t5_every_unsafe_block_says_why_it_is_sound() {
    let workspace = Workspace::load();
    let mut breaches = Vec::new();
    for source in workspace.all() {
        let text: Vec<&str> = source.text.lines().collect();
        for line in blocks(source) {
            let above = line.saturating_sub(LINES_ABOVE_MAX + 1)..line;
            if !text[above].iter().any(|line| line.contains("SAFETY:")) {
                breaches.push(format!("{}:{line}", source.path.display()));
            }
        }
    }
    hold("an unsafe block has a SAFETY comment", "say which promise is kept, and by whom", breaches);
}
