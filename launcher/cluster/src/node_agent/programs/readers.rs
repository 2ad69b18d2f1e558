//! The last wait of a run on this node: until the readers of standard output and error have taken what the workers wrote.
//!
//! **Invariant:** nothing that was written is dropped unless the user asks for that with a second signal, or its reader is gone.

use enn_common::event::EventKind;
use enn_process::{Signals, logs::Pump, wait_ready};
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    io,
    time::{Duration, Instant},
};

/// Silence about a wait for a reader.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// Longest time to complete the log files once the readers are given up.
const COMPLETE_MAX: Duration = Duration::from_secs(2);
/// Signals that do not ask for anything here.
const NO_REQUESTS: [Signal; 2] = [Signal::SIGCHLD, Signal::SIGWINCH];

/// Signals that asked the run to stop, before and during the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) first: Option<Signal>,
    /// Whether another followed.
    pub(crate) second: bool,
}

/// Waits for the readers. Returns the signals that came meanwhile; [`Pump::lost`] tells what was given up.
pub(super) fn wait(
    pump: &Pump,
    mut signals: Option<&mut Signals>,
    mut requests: Requests,
    emit: &mut dyn FnMut(EventKind),
) -> io::Result<Requests> {
    pump.finish();
    let mut silent_until = Some(Instant::now() + SILENT_MAX);
    loop {
        if ended(pump, signals.as_deref(), silent_until)? {
            return Ok(requests);
        }
        let came = signals.as_mut().map(|signals| signals.take()).unwrap_or_default();
        for signal in came.into_iter().filter(|signal| !NO_REQUESTS.contains(signal)) {
            if requests.first.is_some() {
                requests.second = true;
                give_up(pump, emit)?;
                return Ok(requests);
            }
            requests.first = Some(signal);
            emit(EventKind::Warned {
                message: format!("{}: the run is over; {}", signal.as_str(), waiting(pump, true)),
            });
            silent_until = None;
        }
        if silent_until.is_some_and(|until| Instant::now() >= until) {
            // Who has asked twice already waits for nothing that takes so long.
            if requests.second {
                give_up(pump, emit)?;
                return Ok(requests);
            }
            emit(EventKind::Warned { message: waiting(pump, requests.first.is_some()) });
            silent_until = None;
        }
    }
}

/// Waits for the end of the output, a signal, or the time; whether the output has ended.
fn ended(pump: &Pump, signals: Option<&Signals>, until: Option<Instant>) -> io::Result<bool> {
    let mut fds = vec![PollFd::new(pump.ended(), PollFlags::POLLIN)];
    fds.extend(signals.map(|signals| PollFd::new(signals.fd(), PollFlags::POLLIN)));
    wait_ready(&mut fds, until)?;
    Ok(fds[0].any().unwrap_or(true))
}

fn give_up(pump: &Pump, emit: &mut dyn FnMut(EventKind)) -> io::Result<()> {
    let backlog = pump.backlog();
    pump.give_up_consoles();
    let deadline = Instant::now() + COMPLETE_MAX;
    while !ended(pump, None, Some(deadline))? && Instant::now() < deadline {}
    let console = backlog.map_or("the console", |backlog| backlog.console);
    let lost = pump.lost().max(backlog.map_or(0, |backlog| backlog.bytes));
    let message = format!(
        "{lost} bytes of the workers' output were not written to {console}: its reader took nothing and a second signal ended \
         the wait\nhint: `enn logs` shows what the run kept"
    );
    emit(EventKind::Warned { message });
    Ok(())
}

/// Returns what is waited for, and how to end it.
fn waiting(pump: &Pump, asked: bool) -> String {
    let how =
        if asked { "one more signal ends the wait and drops" } else { "two signals (Ctrl-C) end the wait and drop" };
    let what = pump.backlog().map_or_else(
        || "waiting until the workers' output is written".to_owned(),
        |backlog| {
            let console = backlog.console;
            format!("waiting for the reader of {console} to take {} bytes of the workers' output", backlog.bytes)
        },
    );
    format!("{what}\nhint: {how} what is left")
}
