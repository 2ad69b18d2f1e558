//! CPUs, cores, caches, sockets and NUMA nodes of a machine as a value.

use std::collections::{BTreeMap, BTreeSet};

/// One logical CPU. A shared resource is named by the smallest CPU that shares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    pub core: usize,
    /// Largest cache; `None` when the machine does not tell.
    pub cache: Option<usize>,
    pub socket: usize,
}

/// The part of a machine that this process may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    pub cpus: BTreeMap<usize, Cpu>,
    /// Allowed CPUs of each NUMA node; nodes without any are listed, empty.
    pub nodes: BTreeMap<usize, BTreeSet<usize>>,
}

/// Parses "0-2,4,6-7", the form of /sys; `None` for anything else. An empty list is valid.
pub(super) fn cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut all = BTreeSet::new();
    for range in text.trim().split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // A machine has fewer CPUs; a wrong number must not fill the memory.
        if last >= CPUS_MAX {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

const CPUS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-2,4, 6-7\n"), Some([0, 1, 2, 4, 6, 7].into()));
        assert_eq!(cpu_list("\n"), Some(BTreeSet::new()));
        for bad in ["a", "1-", "-1", "0-99999999999", "1:2"] {
            assert_eq!(cpu_list(bad), None, "{bad}");
        }
    }
}
