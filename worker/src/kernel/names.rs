//! Names of operations and kernels: whether a configured one is there, and the table's own spelling of one that was told.

use super::{Extra, policy};
use crate::op::row::PLAIN;
use crate::op::{self};
use std::collections::BTreeMap;

/// A configured name that nothing has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelNameError {
    /// No such operation, or one with the plain reference only.
    #[error(
        "kernels.{key}: no operation of this worker with a choice of kernels has that name\n  hint: there are {known}"
    )]
    Operation {
        key: String,
        /// Operations with a choice.
        known: String,
    },
    /// No such kernel.
    #[error("kernels.{key}: \"{found}\" is no kernel of it\n  hint: there are {known}")]
    Kernel {
        key: String,
        /// Configured kernel.
        found: String,
        /// Its kernels.
        known: String,
    },
}

/// Operations and their kernels, the user's own included.
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

/// Whether every configured name is there.
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

/// The names of an operation and a kernel as this program has them; none when it has them no more.
pub(super) fn interned(op: &str, kernel: &str, extras: &[Extra]) -> Option<(&'static str, &'static str)> {
    let rows = op::rows().filter(|row| row.name == op);
    let own = rows.flat_map(|row| row.kernels.iter().map(|kernel| (row.name, kernel.id)));
    let added = extras.iter().filter(|extra| extra.op == op).map(|extra| (extra.op, extra.kernel.id));
    own.chain(added).find(|(_, id)| *id == kernel)
}
