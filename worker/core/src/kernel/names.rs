//! Names of operations and kernels: checks of configured names, and the lookup of a received name in the table.

use super::{Extra, policy};
use crate::op::row::PLAIN;
use crate::op::{self};
use std::collections::BTreeMap;

/// A configured name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelNameError {
    #[error(
        "kernels.{key}: no operation of this worker with a choice of kernels has that name\n  hint: there are {known}"
    )]
    Operation { key: String, known: String },
    #[error("kernels.{key}: \"{found}\" is no kernel of it\n  hint: there are {known}")]
    Kernel { key: String, found: String, known: String },
}

/// Returns all operations with their kernels, including the user's own.
fn all(extras: &[Extra]) -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut all: BTreeMap<&'static str, Vec<&'static str>> = BTreeMap::new();
    for row in op::rows() {
        for kernel in row.kernels {
            all.entry(row.name).or_default().push(kernel.id);
        }
    }
    for extra in extras {
        all.entry(extra.op).or_default().push(extra.kernel.id);
    }
    all
}

/// Checks that every configured name exists.
pub(super) fn check(order: &BTreeMap<String, Vec<String>>, extras: &[Extra]) -> Result<(), KernelNameError> {
    let all = all(extras);
    for (key, wanted) in order {
        let operations = policy::operations(key);
        let ids: Vec<&str> = operations.iter().filter_map(|name| all.get(name.as_str())).flatten().copied().collect();
        let is_operation = op::rows().any(|row| operations.iter().any(|name| name == row.name));
        if !is_operation {
            let known = all.keys().copied().collect::<Vec<_>>().join(", ");
            return Err(KernelNameError::Operation { key: key.clone(), known });
        }
        let missing = wanted.iter().find(|name| {
            let wanted = std::slice::from_ref(*name);
            !policy::means_plain(name, PLAIN) && policy::order(&ids, Some(wanted), PLAIN).is_empty()
        });
        if let Some(missing) = missing {
            let known = ids.into_iter().chain([PLAIN]).collect::<Vec<_>>().join(", ");
            return Err(KernelNameError::Kernel { key: key.clone(), found: missing.clone(), known });
        }
    }
    Ok(())
}

/// Returns the static names of an operation and a kernel; `None` when this build does not have them.
pub(super) fn interned(op: &str, kernel: &str, extras: &[Extra]) -> Option<(&'static str, &'static str)> {
    let rows = op::rows().filter(|row| row.name == op);
    let own = rows.flat_map(|row| row.kernels.iter().map(|kernel| (row.name, kernel.id)));
    let added = extras.iter().filter(|extra| extra.op == op).map(|extra| (extra.op, extra.kernel.id));
    own.chain(added).find(|(_, id)| *id == kernel)
}
