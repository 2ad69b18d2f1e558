//! Plain values inside a pickle.

use super::{
    numpy,
    tree::{Tree, TreeId, TreeNode},
    unpickle::UnpickleError,
    value::Value,
};

/// Depth to which plain values are followed.
const VALUE_DEPTH_MAX: usize = 64;
/// Nodes a plain value may have when written out: shared nodes count as often as they are met.
const VALUE_NODES_MAX: usize = 1 << 20;

impl Tree<'_> {
    /// The plain value below `id`; an error for tensors, classes and what is nested too deep.
    pub(super) fn value(&self, id: TreeId) -> Result<Value, UnpickleError> {
        let mut left = VALUE_NODES_MAX;
        self.plain(id, VALUE_DEPTH_MAX, &mut left)
    }

    fn plain(&self, id: TreeId, depth: usize, left: &mut usize) -> Result<Value, UnpickleError> {
        let refused = UnpickleError::Unexpected { expected: "a plain value of bounded size" };
        if depth == 0 || *left == 0 {
            return Err(refused);
        }
        *left -= 1;
        let copied = match self.node(id) {
            TreeNode::Text(text) => text.len(),
            TreeNode::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        self.spend(copied + size_of::<Value>()).ok_or(refused.clone())?;
        let mut each = |items: &[TreeId]| {
            items.iter().map(|&item| self.plain(item, depth - 1, left)).collect::<Result<Vec<_>, _>>()
        };
        Ok(match self.node(id) {
            TreeNode::None => Value::None,
            TreeNode::Bool(bool) => Value::Bool(*bool),
            TreeNode::Int(int) => Value::Int(*int),
            TreeNode::Float(float) => Value::Float(*float),
            TreeNode::Text(text) => Value::Str((*text).to_owned()),
            TreeNode::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            TreeNode::Tuple(items) => Value::Tuple(each(items)?),
            TreeNode::List(items) => Value::List(each(items)?),
            // `torch.__version__` is a text with a class of its own.
            TreeNode::Object { callee, args, .. } if self.is_global(*callee, "torch.torch_version", "TorchVersion") => {
                let text = self.tuple(*args).and_then(|args| self.text(*args.first()?));
                let text = text.filter(|text| self.spend(text.len()).is_some());
                Value::Str(text.ok_or(refused)?.to_owned())
            }
            _ => {
                if let TreeNode::Object { .. } = self.node(id) {
                    if let Some(size) = self.size(id) {
                        return Ok(Value::Tuple(size.iter().map(|&n| Value::Int(n.cast_signed())).collect()));
                    }
                    if let Some(bytes) = self.encoded(id) {
                        return Ok(Value::Bytes(bytes));
                    }
                    if let Some(number) = numpy::scalar(self, id) {
                        return Ok(number);
                    }
                }
                let pairs = self.pairs(id).ok_or(refused)?;
                let pair = |&(key, value): &(TreeId, TreeId)| {
                    Ok((self.plain(key, depth - 1, left)?, self.plain(value, depth - 1, left)?))
                };
                Value::Dict(pairs.iter().map(pair).collect::<Result<_, _>>()?)
            }
        })
    }
}
