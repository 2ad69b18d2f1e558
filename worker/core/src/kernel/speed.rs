//! Times a kernel against its plain reference with CUDA events.
//!
//! Only kernels of a CUDA device are timed, since a host's clock also counts other processes. Each run starts on an idle device, so its time
//! includes the launch overhead: a difference of a few launches is not significant.

use crate::backend::event::Event;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch};
use enn_common::kernels::Fault;

/// Runs of the kernel and the reference each; the fastest counts.
const RUNS: usize = 3;
/// A kernel is slow if it takes this many times the reference's time, and at least [`LOST_MIN`] nanoseconds more.
const SLOWER_MIN: f64 = 1.5;
const LOST_MIN: u64 = 50_000;

/// Times a kernel against the reference and returns a fault if it is slow.
pub(super) type SpeedTest = fn(&Kernel, &Op, &Launch<'_>) -> Result<Option<Fault>, OpErrorKind>;

/// Returns a fault if `kernel` is much slower than the reference. The timed runs write the operands that the call writes.
pub(super) fn slow(kernel: &Kernel, op: &Op, l: &Launch<'_>) -> Result<Option<Fault>, OpErrorKind> {
    if !l.ins.iter().any(|tensor| tensor.device().is_cuda()) {
        return Ok(None);
    }
    let mut kernel_time = u64::MAX;
    let mut reference_time = u64::MAX;
    for _ in 0..RUNS {
        for (quickest, launch) in [(&mut kernel_time, kernel.launch), (&mut reference_time, op.row().launch)] {
            let from = Event::record()?;
            launch(op, l)?;
            *quickest = from.nanoseconds_to(&Event::record()?)?.min(*quickest);
        }
        if slow_fault(kernel_time, reference_time).is_none() {
            return Ok(None);
        }
    }
    Ok(slow_fault(kernel_time, reference_time))
}

/// Judges the nanoseconds of the kernel and the reference.
fn slow_fault(kernel: u64, reference: u64) -> Option<Fault> {
    let slower = kernel as f64 >= reference as f64 * SLOWER_MIN && kernel.saturating_sub(reference) >= LOST_MIN;
    let [kernel, reference] = [kernel, reference].map(|nanoseconds| nanoseconds as f64 / 1e6);
    slower.then(|| Fault::Slow { found: format!("{kernel:.3} ms, {reference:.3} ms") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_costs_much_time_is_slow() {
        assert_eq!(slow_fault(1_400_000, 1_000_000), None);
        assert_eq!(slow_fault(60_000, 20_000), None, "that is a launch or two");
        let found = slow_fault(3_000_000, 1_500_000);
        assert_eq!(found, Some(Fault::Slow { found: "3.000 ms, 1.500 ms".into() }));
    }
}
