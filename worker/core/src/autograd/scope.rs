//! Scopes: names of places in the model, interned so that a record carries one number.

use smallvec::SmallVec;

/// Number of a scope; 0 is the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ScopeId(pub(crate) u32);

impl ScopeId {
    /// Position of the scope in the order of first use.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
struct Scope {
    name: String,
    parent: u32,
    children: SmallVec<[u32; 4]>,
}

#[derive(Debug)]
pub(super) struct Scopes(Vec<Scope>);

impl Default for Scopes {
    fn default() -> Self {
        Self(vec![Scope { name: String::new(), parent: 0, children: SmallVec::new() }])
    }
}

impl Scopes {
    /// Returns the scope `name` below `parent`, which is made at first use.
    pub(super) fn enter(&mut self, parent: ScopeId, name: &str) -> ScopeId {
        let found = self.0[parent.0 as usize].children.iter().find(|c| self.0[**c as usize].name == name);
        if let Some(id) = found {
            return ScopeId(*id);
        }
        let id = self.0.len() as u32;
        self.0.push(Scope { name: name.to_owned(), parent: parent.0, children: SmallVec::new() });
        self.0[parent.0 as usize].children.push(id);
        ScopeId(id)
    }

    /// Returns the dotted path of a scope; `top` for the root.
    pub(super) fn path(&self, id: ScopeId) -> String {
        let mut parts = Vec::new();
        let mut at = id.0;
        while at != 0 {
            let scope = &self.0[at as usize];
            parts.push(scope.name.as_str());
            at = scope.parent;
        }
        if parts.is_empty() {
            return "top".to_owned();
        }
        parts.reverse();
        parts.join(".")
    }

    /// Returns the dotted paths of all scopes by number; the root's is empty.
    pub(super) fn paths(&self) -> Vec<String> {
        let all = (0..self.0.len() as u32).map(|id| if id == 0 { String::new() } else { self.path(ScopeId(id)) });
        all.collect()
    }

    /// Returns name and parent of every scope except the root, in order of first use.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().skip(1).map(|s| (s.name.as_str(), s.parent))
    }
}

/// Leaves the scope when dropped.
#[must_use = "the scope ends when the guard is dropped"]
pub struct ScopeGuard<'a> {
    pub(super) current: &'a std::cell::Cell<ScopeId>,
    pub(super) outer: ScopeId,
}

impl Drop for ScopeGuard<'_> {
    fn drop(&mut self) {
        self.current.set(self.outer);
    }
}
