//! Arrays of numpy inside a pickle.

use super::{
    item,
    item_error::ItemError,
    numpy::{self, MULTIARRAY},
    stored::StoredTensor,
    tree::{Tree, TreeId, TreeNode},
};

const NUMERIC: [&str; 2] = ["numpy.core.numeric", "numpy._core.numeric"];

struct ArrayParts<'t> {
    dtype: TreeId,
    sizes: Vec<u64>,
    is_fortran: bool,
    data: &'t TreeNode<'t>,
}

pub(super) fn is_array(tree: &Tree<'_>, id: TreeId) -> bool {
    let TreeNode::Object { callee, .. } = tree.node(id) else { return false };
    let is = |modules: [&'static str; 2], name: &'static str| {
        modules.iter().any(|module| tree.is_global(*callee, module, name))
    };
    is(MULTIARRAY, "_reconstruct") || is(NUMERIC, "_frombuffer")
}

/// An array as a tensor whose bytes are in the pickle itself.
pub(super) fn array(tree: &Tree<'_>, id: TreeId) -> Result<StoredTensor, ItemError> {
    let unsupported = |what: String| ItemError::Unsupported { what };
    let found = parts(tree, id).ok_or_else(|| unsupported("an array of numpy in a form that is not known".into()))?;
    let element = numpy::element(tree, found.dtype)?;
    let TreeNode::Bytes(bytes) = found.data else {
        return Err(unsupported(
            "an array whose bytes the pickle holds as text (protocol 2 or older), or of objects".into(),
        ));
    };
    let count = found.sizes.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
    let needed = count.and_then(|count| count.checked_mul(element.bytes()));
    if needed != Some(bytes.len() as u64) {
        return Err(unsupported(format!("an array of size {:?} over {} bytes", found.sizes, bytes.len())));
    }
    let strides = if found.is_fortran {
        let reversed: Vec<u64> = found.sizes.iter().rev().copied().collect();
        item::strides(&reversed).into_iter().rev().collect()
    } else {
        item::strides(&found.sizes)
    };
    let at = tree.offset(bytes).ok_or(ItemError::Cut)?;
    Ok(StoredTensor { element, sizes: found.sizes, strides, first: 0, at, bytes: bytes.len() as u64, crc32: 0 })
}

fn parts<'t>(tree: &'t Tree<'t>, id: TreeId) -> Option<ArrayParts<'t>> {
    let (name, args, state) = tree.object(id)?;
    if name == "_frombuffer" {
        let [data, dtype, sizes, order, ..] = args else { return None };
        let is_fortran = tree.text(*order) == Some("F");
        return Some(ArrayParts {
            dtype: *dtype,
            sizes: tree.size(*sizes)?,
            is_fortran,
            data: tree.node(buffer(tree, *data)),
        });
    }
    let state = tree.tuple(state?)?;
    // The version in front is missing in old ones.
    let [sizes, dtype, order, data] = state.get(state.len().checked_sub(4)?..)? else { return None };
    let is_fortran = matches!(tree.node(*order), TreeNode::Bool(true) | TreeNode::Int(1));
    Some(ArrayParts { dtype: *dtype, sizes: tree.size(*sizes)?, is_fortran, data: tree.node(*data) })
}

/// Returns the argument of `bytearray(…)`.
fn buffer(tree: &Tree<'_>, id: TreeId) -> TreeId {
    match tree.object(id) {
        Some(("bytearray" | "bytes", args, _)) => args.first().copied().unwrap_or(id),
        _ => id,
    }
}
