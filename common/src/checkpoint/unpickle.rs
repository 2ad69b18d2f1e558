//! Reads pickles without running them: a small machine that builds a tree of nodes and calls nothing.
//!
//! **Invariant:** never panics, never allocates more than a small multiple of the input. A global that is not on the caller's list is
//! refused, or becomes an opaque name that stands for nothing.

mod error;
mod text;

pub use error::UnpickleError;

use super::{
    element::Element,
    mention::{Mention, Mentions},
    tree::{Tree, TreeId, TreeNode},
};
use std::collections::HashMap;

/// Modules and the names in them that a pickle may mention, besides the element types and storages of PyTorch.
pub(super) type AllowList = &'static [(&'static str, &'static [&'static str])];

/// Reads a whole pickle. Bytes behind STOP are ignored.
pub(super) fn unpickle<'a>(bytes: &'a [u8], allow: AllowList) -> Result<Tree<'a>, UnpickleError> {
    run(bytes, allow, None)
}

/// Reads a pickle; a global that is not on the list is named in the tree instead, and stands there as a name.
pub(super) fn unpickle_any<'a>(bytes: &'a [u8], allow: AllowList) -> Result<Tree<'a>, UnpickleError> {
    run(bytes, allow, Some(Mentions::default()))
}

fn run<'a>(bytes: &'a [u8], allow: AllowList, mentions: Option<Mentions>) -> Result<Tree<'a>, UnpickleError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        allow,
        mentions,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        if let Some(root) = machine.step()? {
            let Machine { nodes, mentions, at, .. } = machine;
            return Ok(Tree::new(bytes, at, nodes, root, mentions.unwrap_or_default()));
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    allow: AllowList,
    /// Globals that are not on the list; `None`: they are refused.
    mentions: Option<Mentions>,
    nodes: Vec<TreeNode<'a>>,
    stack: Vec<TreeId>,
    marks: Vec<usize>,
    memo: HashMap<u32, TreeId>,
}

impl<'a> Machine<'a> {
    /// Runs one opcode; the root when it was STOP.
    fn step(&mut self) -> Result<Option<TreeId>, UnpickleError> {
        let at = self.at;
        let opcode = self.take(1)?[0];
        let damaged = UnpickleError::Operand { opcode, at };
        match opcode {
            b'.' => return self.stack.pop().map(Some).ok_or(damaged),
            0x80 => _ = self.take(1)?,
            0x95 => _ = self.take(8)?,
            b'(' => self.marks.push(self.stack.len()),
            b'0' => _ = self.stack.pop().ok_or(damaged)?,
            b'1' => _ = self.since_mark().ok_or(damaged)?,
            b'2' => {
                let top = self.top().ok_or(damaged)?;
                self.stack.push(top);
            }
            b'N' | 0x88 | 0x89 | b'K' | b'M' | b'J' | b'G' | 0x8a | 0x8b => self.number(opcode)?,
            b'X' | 0x8c | 0x8d | b'C' | b'B' | 0x8e | 0x96 | b'U' | b'T' => self.string(opcode, &damaged)?,
            b'h' | b'j' | b'q' | b'r' | 0x94 => self.memory(opcode, &damaged)?,
            b'c' | 0x93 => self.global(opcode, at, &damaged)?,
            b'I' | b'L' | b'F' | b'S' | b'V' | b'p' | b'g' | b'P' | b'i' => self.text_opcode(opcode, at, &damaged)?,
            _ => self.compound(opcode, at).ok_or(damaged)??,
        }
        Ok(None)
    }

    fn number(&mut self, opcode: u8) -> Result<(), UnpickleError> {
        let node = match opcode {
            b'N' => TreeNode::None,
            0x88 => TreeNode::Bool(true),
            0x89 => TreeNode::Bool(false),
            b'K' => TreeNode::Int(i64::from(self.take(1)?[0])),
            b'M' => TreeNode::Int(i64::from(u16::from_le_bytes(self.array()?))),
            b'J' => TreeNode::Int(i64::from(i32::from_le_bytes(self.array()?))),
            b'G' => TreeNode::Float(f64::from_be_bytes(self.array()?)),
            _ => {
                let length = if opcode == 0x8a { self.length1()? } else { self.length4()? };
                long(self.take(length)?)
            }
        };
        self.push(node);
        Ok(())
    }

    fn string(&mut self, opcode: u8, damaged: &UnpickleError) -> Result<(), UnpickleError> {
        let length = match opcode {
            0x8c | b'C' | b'U' => self.length1()?,
            0x8d | 0x8e | 0x96 => usize::try_from(u64::from_le_bytes(self.array()?)).unwrap_or(usize::MAX),
            _ => self.length4()?,
        };
        let bytes = self.take(length)?;
        let node = match opcode {
            b'X' | 0x8c | 0x8d => TreeNode::Text(std::str::from_utf8(bytes).map_err(|_| damaged.clone())?),
            // What Python 2 called a string: a name, or raw bytes.
            b'U' | b'T' => std::str::from_utf8(bytes).map_or(TreeNode::Bytes(bytes), TreeNode::Text),
            _ => TreeNode::Bytes(bytes),
        };
        self.push(node);
        Ok(())
    }

    fn memory(&mut self, opcode: u8, damaged: &UnpickleError) -> Result<(), UnpickleError> {
        let index = match opcode {
            b'h' | b'q' => u32::from(self.take(1)?[0]),
            0x94 => u32::try_from(self.memo.len()).unwrap_or(u32::MAX),
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(opcode, b'h' | b'j') { self.fetch(index, damaged) } else { self.memoize(index, damaged) }
    }

    fn fetch(&mut self, index: u32, damaged: &UnpickleError) -> Result<(), UnpickleError> {
        let id = *self.memo.get(&index).ok_or_else(|| damaged.clone())?;
        self.stack.push(id);
        Ok(())
    }

    fn memoize(&mut self, index: u32, damaged: &UnpickleError) -> Result<(), UnpickleError> {
        let top = self.top().ok_or_else(|| damaged.clone())?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn global(&mut self, opcode: u8, at: usize, damaged: &UnpickleError) -> Result<(), UnpickleError> {
        let (module, name) = if opcode == b'c' {
            (self.line(damaged)?, self.line(damaged)?)
        } else {
            let name = self.pop_text();
            let module = self.pop_text();
            (module.ok_or_else(|| damaged.clone())?, name.ok_or_else(|| damaged.clone())?)
        };
        let node = self.named(module, name, at)?;
        self.push(node);
        Ok(())
    }

    /// A class or function by its name.
    fn named(&mut self, module: &'a str, name: &'a str, at: usize) -> Result<TreeNode<'a>, UnpickleError> {
        let is_element = || Element::of_torch(name).or_else(|| Element::of_storage(name)).is_some();
        let is_listed = self.allow.iter().any(|(m, names)| *m == module && names.contains(&name));
        if is_listed || module == "torch" && is_element() {
            return Ok(TreeNode::Global(module, name));
        }
        let found = Mention { module: clip(module), name: clip(name), at };
        match &mut self.mentions {
            Some(mentions) => mentions.add(found),
            None => return Err(UnpickleError::Global { module: found.module, name: found.name, at }),
        }
        Ok(TreeNode::Foreign(module, name))
    }

    /// Containers and objects. `None`: the operands do not fit.
    fn compound(&mut self, opcode: u8, at: usize) -> Option<Result<(), UnpickleError>> {
        match opcode {
            b')' => self.push(TreeNode::Tuple(Vec::new())),
            b']' => self.push(TreeNode::List(Vec::new())),
            b'}' => self.push(TreeNode::Dict(Vec::new())),
            0x85..=0x87 => {
                let count = usize::from(opcode - 0x84);
                let start = self.stack.len().checked_sub(count).filter(|&start| start >= self.floor())?;
                let items = self.stack.split_off(start);
                self.push(TreeNode::Tuple(items));
            }
            b't' => {
                let items = self.since_mark()?;
                self.push(TreeNode::Tuple(items));
            }
            b'l' => {
                let items = self.since_mark()?;
                self.push(TreeNode::List(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.list()?.push(item);
            }
            b'e' | 0x90 => {
                let items = self.since_mark()?;
                self.list()?.extend(items);
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.pairs()?.push((key, value));
            }
            b'u' | b'd' => {
                let items = self.since_mark()?;
                if !items.len().is_multiple_of(2) {
                    return None;
                }
                if opcode == b'd' {
                    self.push(TreeNode::Dict(Vec::new()));
                }
                self.pairs()?.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            _ => return self.make(opcode, at),
        }
        Some(Ok(()))
    }

    /// Objects: what is called or made, and what it is given.
    fn make(&mut self, opcode: u8, at: usize) -> Option<Result<(), UnpickleError>> {
        match opcode {
            0x8f => self.set("set", Vec::new()),
            0x91 => {
                let items = self.since_mark()?;
                self.set("frozenset", items);
            }
            b'R' | 0x81 | 0x92 => {
                if opcode == 0x92 {
                    // Arguments by keyword: those of a class that is not ours.
                    self.pop()?;
                }
                let args = self.pop()?;
                let callee = self.pop()?;
                self.object(callee, args);
            }
            b'o' => {
                let mut items = self.since_mark()?;
                let callee = (!items.is_empty()).then(|| items.remove(0))?;
                let args = self.add(TreeNode::Tuple(items));
                self.object(callee, args);
            }
            b'b' => {
                let value = self.pop()?;
                let object = self.top()?;
                let TreeNode::Object { state, .. } = self.nodes.get_mut(object)? else { return None };
                *state = Some(value);
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(TreeNode::Persistent(id));
            }
            _ => return Some(Err(UnpickleError::Opcode { opcode, at })),
        }
        Some(Ok(()))
    }

    fn push(&mut self, node: TreeNode<'a>) {
        let id = self.add(node);
        self.stack.push(id);
    }

    /// A node that is not on the stack.
    fn add(&mut self, node: TreeNode<'a>) -> TreeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn object(&mut self, callee: TreeId, args: TreeId) {
        self.push(TreeNode::Object { callee, args, state: None, items: Vec::new(), elements: Vec::new() });
    }

    fn set(&mut self, name: &'static str, elements: Vec<TreeId>) {
        let callee = self.add(TreeNode::Global("builtins", name));
        let args = self.add(TreeNode::Tuple(Vec::new()));
        self.push(TreeNode::Object { callee, args, state: None, items: Vec::new(), elements });
    }

    /// Nothing below the last mark may be taken.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Option<TreeId> {
        if self.stack.len() <= self.floor() {
            return None;
        }
        self.stack.pop()
    }

    fn pop_text(&mut self) -> Option<&'a str> {
        let id = self.pop()?;
        if let Some(TreeNode::Text(text)) = self.nodes.get(id) { Some(text) } else { None }
    }

    fn top(&self) -> Option<TreeId> {
        self.stack.last().copied()
    }

    fn since_mark(&mut self) -> Option<Vec<TreeId>> {
        let mark = self.marks.pop()?;
        (mark <= self.stack.len()).then(|| self.stack.split_off(mark))
    }

    fn list(&mut self) -> Option<&mut Vec<TreeId>> {
        let top = self.top()?;
        match self.nodes.get_mut(top)? {
            TreeNode::List(items) | TreeNode::Object { elements: items, .. } => Some(items),
            _ => None,
        }
    }

    fn pairs(&mut self) -> Option<&mut Vec<(TreeId, TreeId)>> {
        let top = self.top()?;
        match self.nodes.get_mut(top)? {
            TreeNode::Dict(items) | TreeNode::Object { items, .. } => Some(items),
            _ => None,
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], UnpickleError> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(UnpickleError::Short { at: self.bytes.len() })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], UnpickleError> {
        let short = UnpickleError::Short { at: self.bytes.len() };
        self.take(N)?.try_into().map_err(|_| short)
    }

    fn length1(&mut self) -> Result<usize, UnpickleError> {
        Ok(usize::from(self.take(1)?[0]))
    }

    fn length4(&mut self) -> Result<usize, UnpickleError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn line(&mut self, damaged: &UnpickleError) -> Result<&'a str, UnpickleError> {
        std::str::from_utf8(self.raw_line()?).map_err(|_| damaged.clone())
    }

    /// The bytes up to the next line's end, which is passed.
    fn raw_line(&mut self) -> Result<&'a [u8], UnpickleError> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or(UnpickleError::Short { at: self.bytes.len() })?;
        let line = self.take(end + 1)?;
        Ok(&line[..end])
    }
}

/// Little-endian two's complement of any length.
fn long<'a>(bytes: &[u8]) -> TreeNode<'a> {
    if bytes.len() > 8 {
        return TreeNode::Huge;
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    TreeNode::Int(i64::from_le_bytes(wide))
}

/// Names in errors are short, whatever the file holds.
fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
#[path = "unpickle_tests.rs"]
mod tests;
