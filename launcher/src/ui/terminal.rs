//! Whether a stream is a terminal on which lines can be drawn over: one that says it is dumb, or nothing of itself, only takes text.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicBool, Ordering},
};

static IS_DUMB: AtomicBool = AtomicBool::new(false);

/// Takes down, once and before anything is shown, that `TERM` says the terminal only takes text.
pub(crate) fn set_dumb(is_dumb: bool) {
    IS_DUMB.store(is_dumb, Ordering::Relaxed);
}

/// Whether lines can be drawn over on this stream.
pub(crate) fn draws(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !IS_DUMB.load(Ordering::Relaxed)
}
