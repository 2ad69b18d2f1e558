//! `--on-failure replace`: workers that fail are replaced while the others live.

use super::{
    EnnFlags, Flags, RunError,
    values::{self, Expected},
};
use crate::facts::Facts;
use enn_cluster::supervise::ReplaceSpec;

/// Failures in a row without a step between them, as `enn train` allows.
pub(super) const RESTARTS_MAX: u32 = 3;
/// Most spares of a node, as for `enn train`.
const SPARES_MAX: u32 = 64;

/// Returns the smallest and the largest number of workers that `--workers` says; `None`: it is not given.
///
/// # Errors
/// The value cannot be parsed, or `--nproc-per-node` is given, too.
pub(super) fn workers_range(own: &EnnFlags, flags: &Flags) -> Result<Option<(u32, u32)>, RunError> {
    let Some(text) = own.workers.as_deref() else { return Ok(None) };
    if flags.rendezvous.nproc_per_node.is_some() {
        let hint = "--workers 1:4 starts 4 workers, and goes on with as few as 1";
        return Err(RunError::Together { first: "--workers", second: "--nproc-per-node", hint });
    }
    let expected = Expected { what: "N or MIN:MAX with 0 < MIN <= MAX", hint: "--workers 1:4" };
    values::nodes(text).map(Some).map_err(|_| expected.error(own.place("--workers"), text, true))
}

/// Returns how the workers of this node are replaced; `None`: all are restarted.
///
/// # Errors
/// A flag that does not fit the policy or the number of workers.
pub(super) fn replace(
    own: &EnnFlags,
    flags: &Flags,
    workers: u32,
    facts: &Facts,
) -> Result<Option<ReplaceSpec>, RunError> {
    let range = workers_range(own, flags)?;
    if !own.replaces() {
        let elastic = range.is_some_and(|(least, most)| least < most);
        let workers = own.place("--workers") + " MIN:MAX";
        let without = [
            ("--spares".to_owned(), own.spares.is_some()),
            ("--warm-device".to_owned(), own.warm_device),
            (workers, elastic),
        ];
        return match without.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(RunError::NeedsReplace { flag }),
            None => Ok(None),
        };
    }
    let of_restarts = "it is for --on-failure restart; leave one of the two out";
    let devices = "a worker that is told of one device only cannot take another seat; leave one of the two out";
    let unfit = [
        ("--virtual-local-rank", flags.program.virtual_local_rank, devices),
        ("--restart-window", own.restart_window.is_some(), of_restarts),
        ("--backoff", own.backoff.is_some(), of_restarts),
        ("--retry-early", own.retry_early, of_restarts),
    ];
    if let Some((second, _, hint)) = unfit.into_iter().find(|(_, given, _)| *given) {
        return Err(RunError::Together { first: "--on-failure replace", second, hint });
    }
    let spares = spares(own)?;
    if own.warm_device && spares < workers {
        return Err(RunError::WarmDevices { spares, workers });
    }
    let socket_parent = facts.socket_parent.clone();
    let workers_min = range.map_or(workers, |(least, _)| least);
    Ok(Some(ReplaceSpec { spares, warm_device: own.warm_device, workers_min, socket_parent }))
}

fn spares(own: &EnnFlags) -> Result<u32, RunError> {
    let Some(text) = own.spares.as_deref() else { return Ok(0) };
    let expected = Expected { what: "a whole number from 0 to 64", hint: "--spares 1 for one on each node" };
    let found = values::count(text).ok().filter(|spares| *spares <= SPARES_MAX);
    found.ok_or_else(|| expected.error(own.place("--spares"), text, true))
}
