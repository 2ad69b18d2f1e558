//! How the ranks of a round are spread over nodes.

/// Ranks by node, those of a node after each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nodes {
    /// Nodes with as many ranks each.
    Even {
        nodes: u32,
        each: u32,
    },
    Uneven(Vec<u32>),
}

impl Nodes {
    /// Every rank said, in their order, how many are on its node.
    pub fn of(locals: &[i64]) -> Self {
        let mut nodes = Vec::new();
        let mut rest = locals;
        while let Some(&first) = rest.first() {
            let len = usize::try_from(first).unwrap_or(1).clamp(1, rest.len());
            nodes.push(len as u32);
            rest = &rest[len..];
        }
        match nodes.first() {
            Some(&each) if locals.iter().all(|&local| local == i64::from(each)) => {
                Self::Even { nodes: nodes.len() as u32, each }
            }
            _ => Self::Uneven(nodes),
        }
    }

    pub fn ranks(&self) -> u32 {
        match self {
            Self::Even { nodes, each } => nodes * each,
            Self::Uneven(nodes) => nodes.iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_ranks_may_say_is_taken_for_granted() {
        for locals in [&[0, 0][..], &[-1, 7], &[9]] {
            let nodes = Nodes::of(locals);
            assert!(matches!(nodes, Nodes::Uneven(_)), "{locals:?}");
            assert_eq!(nodes.ranks() as usize, locals.len());
        }
        assert_eq!(Nodes::of(&[3; 6]), Nodes::Even { nodes: 2, each: 3 });
    }
}
