//! Whether a kernel takes longer than its plain reference, by the device's clock.
//!
//! On a device only: a host's clock counts what other processes do. Each run begins on a device that waits, so that its time holds what the
//! host needs to launch it: a difference of a few launches says nothing.

use crate::backend::event::Event;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch};
use enn_common::kernels::Fault;

/// Runs of each; the quickest counts.
const RUNS: usize = 3;
/// A kernel must take so many times the reference's time, and so many nanoseconds more.
const SLOWER_MIN: f64 = 1.5;
const LOST_MIN: u64 = 50_000;

/// Tells whether a kernel is slow.
pub(super) type Clock = fn(&Kernel, &Op, &Launch<'_>) -> Result<Option<Fault>, OpErrorKind>;

/// What to hold against `kernel`, if it is much slower. It writes what the call writes.
///
/// # Errors
/// The launches', and the device's.
pub(super) fn slow(kernel: &Kernel, op: &Op, l: &Launch<'_>) -> Result<Option<Fault>, OpErrorKind> {
    if !l.ins.iter().any(|tensor| tensor.device().is_cuda()) {
        return Ok(None);
    }
    let mut quickest = [u64::MAX; 2];
    for _ in 0..RUNS {
        for (quickest, launch) in quickest.iter_mut().zip([kernel.launch, op.row().launch]) {
            let from = Event::record()?;
            launch(op, l)?;
            *quickest = from.nanoseconds_to(&Event::record()?)?.min(*quickest);
        }
        if judged(quickest).is_none() {
            return Ok(None);
        }
    }
    Ok(judged(quickest))
}

/// Of nanoseconds of the kernel and the reference.
fn judged([kernel, reference]: [u64; 2]) -> Option<Fault> {
    let slower = kernel as f64 >= reference as f64 * SLOWER_MIN && kernel.saturating_sub(reference) >= LOST_MIN;
    let [kernel, reference] = [kernel, reference].map(|nanoseconds| nanoseconds as f64 / 1e6);
    slower.then(|| Fault::Slow { found: format!("{kernel:.3} ms, {reference:.3} ms") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_costs_much_time_is_slow() {
        assert_eq!(judged([1_400_000, 1_000_000]), None);
        assert_eq!(judged([60_000, 20_000]), None, "that is a launch or two");
        let found = judged([3_000_000, 1_500_000]);
        assert_eq!(found, Some(Fault::Slow { found: "3.000 ms, 1.500 ms".into() }));
    }
}
