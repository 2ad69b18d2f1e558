//! Names of values in a program: unique Python identifiers.

use crate::model::reserve;
use enn_common::graph::{Graph, Id, Known};
use std::collections::HashSet;

pub(super) struct Names {
    of: Vec<String>,
    taken: HashSet<String>,
}

impl Names {
    /// Assigns names. Inputs come first, so that they keep their names; results of nodes are named by their operation.
    pub(super) fn of(graph: &Graph) -> Self {
        let mut names = Self { of: vec![String::new(); graph.values().count()], taken: HashSet::new() };
        for id in graph.inputs() {
            names.of[id.0] = names.fresh(&graph.value(*id).name);
        }
        for (id, value) in graph.values() {
            let prefix = match value.data.as_ref().map(|data| data.known) {
                Some(Known::Parameter) => "p_",
                Some(Known::Buffer) => "b_",
                Some(Known::Constant) => "c_",
                None => continue,
            };
            names.of[id.0] = names.fresh(&format!("{prefix}{}", value.name));
        }
        for node in graph.nodes() {
            let is_output = graph.outputs().contains(&node.out);
            let name = if is_output { &graph.value(node.out).name } else { node.op.name() };
            names.of[node.out.0] = names.fresh(name);
        }
        names
    }

    pub(super) fn get(&self, id: Id) -> &str {
        &self.of[id.0]
    }

    /// Reserves an unused name similar to `like`.
    pub(super) fn fresh(&mut self, like: &str) -> String {
        reserve(&mut self.taken, identifier(like), 1)
    }
}

/// Turns a name into a Python identifier that is none of libtorch's own: v0, v1, …
pub(super) fn identifier(name: &str) -> String {
    let letters: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let reserved = letters.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    let begins = letters.starts_with(|c: char| !c.is_ascii_digit());
    if begins && !reserved { letters } else { format!("_{letters}") }
}

/// Reserved words of Python.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// Returns the path of a tensor as Python attributes: an underscore is appended to a part that is a keyword, as in `feed.in_.weight`, and
/// to one that is already named so, so that different paths stay different.
pub(super) fn attributes(path: &str) -> String {
    let is_keyword = |part: &str| KEYWORDS.contains(&part.trim_end_matches('_'));
    let part = |part: &str| if is_keyword(part) { format!("{part}_") } else { part.to_owned() };
    path.split('.').map(part).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::graph::{DType, Dim};

    #[test]
    fn names_are_identifiers_and_unique() {
        let mut g = Graph::new();
        let w = g.known("head.weight", DType::F32, &[1], Known::Parameter, vec![0; 4]).unwrap();
        let again = g.known("head_weight", DType::F32, &[1], Known::Parameter, vec![0; 4]).unwrap();
        let x = g.input("p_head_weight", DType::F32, vec![Dim::BATCH]);
        let names = Names::of(&g);
        assert_eq!([x, w, again].map(|id| names.get(id)), ["p_head_weight", "p_head_weight_1", "p_head_weight_2"]);
        assert_eq!(attributes("block.0.feed.in.weight"), "block.0.feed.in_.weight");
        assert_eq!(attributes("in_.weight"), "in__.weight", "in.weight is another tensor");
        assert_eq!(["7 up", "", "é.x", "v12", "v"].map(identifier), ["_7_up", "_", "__x", "_v12", "_v"]);
    }
}
