//! Signals and the immediate end of the process.

use nix::sys::signal::{SigHandler, Signal, signal};

/// Leaves interrupts to the launcher: a signal sent to the whole job must not end a worker in the middle of a step; the
/// launcher says through the control page when to stop, and kills with a signal that cannot be ignored. And a file that grows
/// beyond what is allowed is an error of whoever writes it, not the end of the process.
pub(crate) fn ignore_signals() -> nix::Result<()> {
    for which in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGXFSZ] {
        // SAFETY: ignoring a signal installs no handler, so that no code of ours runs in signal context.
        unsafe { signal(which, SigHandler::SigIgn) }?;
    }
    Ok(())
}

/// Ends the process now, from any thread, without destructors: libtorch's would wait for a collective that never ends.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` is async-signal-safe and has no precondition.
    unsafe { nix::libc::_exit(code) }
}
