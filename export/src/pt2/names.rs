//! Names of values in a program: Python identifiers, each once.

use enn_common::graph::{Graph, Id, Known};
use std::collections::HashSet;

/// Names of all values of a graph.
pub(super) struct Names {
    of: Vec<String>,
    taken: HashSet<String>,
}

impl Names {
    /// Inputs come first, so that they keep their names whatever else has them.
    pub(super) fn of(graph: &Graph) -> Self {
        let mut names = Self { of: vec![String::new(); graph.values().count()], taken: HashSet::new() };
        for id in graph.inputs() {
            names.of[id.0] = names.fresh(&graph.value(*id).name);
        }
        for (id, value) in graph.values().filter(|(id, _)| !graph.inputs().contains(id)) {
            let prefix = match value.data.as_ref().map(|data| data.known) {
                Some(Known::Parameter) => "p_",
                Some(Known::Buffer) => "b_",
                Some(Known::Constant) => "c_",
                None => "",
            };
            names.of[id.0] = names.fresh(&format!("{prefix}{}", value.name));
        }
        names
    }

    /// The name of a value.
    pub(super) fn get(&self, id: Id) -> &str {
        &self.of[id.0]
    }

    /// A name that nothing has yet.
    pub(super) fn fresh(&mut self, wish: &str) -> String {
        let wish = identifier(wish);
        let numbered = (1..).map(|number| format!("{wish}_{number}"));
        let free = std::iter::once(wish.clone()).chain(numbered).find(|name| !self.taken.contains(name));
        let name = free.unwrap_or(wish);
        self.taken.insert(name.clone());
        name
    }
}

/// A name as Python has them.
pub(super) fn identifier(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    let first = name.chars().next().filter(|c| !c.is_ascii_digit());
    first.map_or("_", |_| "").chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::graph::{DType, Dim};

    #[test]
    fn names_are_identifiers_and_unique() {
        let mut g = Graph::new();
        let w = g.known("head.weight", (DType::F32, &[1]), Known::Parameter, vec![0; 4]).unwrap();
        let again = g.known("head_weight", (DType::F32, &[1]), Known::Parameter, vec![0; 4]).unwrap();
        let x = g.input("p_head_weight", DType::F32, vec![Dim::BATCH]);
        let names = Names::of(&g);
        assert_eq!([x, w, again].map(|id| names.get(id)), ["p_head_weight", "p_head_weight_1", "p_head_weight_2"]);
        assert_eq!(["7 up", "", "é.x"].map(identifier), ["_7_up", "_", "__x"]);
    }
}
