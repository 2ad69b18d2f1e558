//! Opcodes of protocols 0 and 1, whose operands are lines of text.

use super::{Machine, UnpickleError};
use crate::checkpoint::tree::TreeNode;

impl<'a> Machine<'a> {
    pub(super) fn text_opcode(&mut self, opcode: u8, at: usize, damaged: &UnpickleError) -> Result<(), UnpickleError> {
        if opcode == b'i' {
            let module = self.line(damaged)?;
            let name = self.line(damaged)?;
            let callee = self.named(module, name, at)?;
            let callee = self.add(callee);
            let items = self.since_mark().ok_or_else(|| damaged.clone())?;
            let args = self.add(TreeNode::Tuple(items));
            self.object(callee, args);
            return Ok(());
        }
        let raw = self.raw_line()?;
        let line = match std::str::from_utf8(raw) {
            Ok(line) => line,
            // A text of protocol 0 has one byte for each of the first 256 characters.
            Err(_) if opcode == b'V' => {
                self.push(TreeNode::Escaped);
                return Ok(());
            }
            Err(_) => return Err(damaged.clone()),
        };
        let index = || line.parse::<u32>().map_err(|_| damaged.clone());
        let node = match opcode {
            b'p' => return self.memoize(index()?, damaged),
            b'g' => return self.fetch(index()?, damaged),
            b'I' if line == "00" || line == "01" => TreeNode::Bool(line == "01"),
            b'I' | b'L' => integer(line.trim_end_matches('L')).ok_or_else(|| damaged.clone())?,
            b'F' => TreeNode::Float(line.trim().parse().map_err(|_| damaged.clone())?),
            b'S' => quoted(line).ok_or_else(|| damaged.clone())?,
            b'P' => {
                let id = self.add(TreeNode::Text(line));
                TreeNode::Persistent(id)
            }
            _ => plain(line),
        };
        self.push(node);
        Ok(())
    }
}

/// A whole number of any length.
fn integer<'a>(text: &str) -> Option<TreeNode<'a>> {
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().map_or(TreeNode::Huge, TreeNode::Int))
}

/// Returns the text between quotes.
fn quoted(line: &str) -> Option<TreeNode<'_>> {
    let line = line.trim_end();
    let quote = line.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    Some(plain(line.strip_prefix(quote)?.strip_suffix(quote)?))
}

fn plain(text: &str) -> TreeNode<'_> {
    if text.contains('\\') { TreeNode::Escaped } else { TreeNode::Text(text) }
}
