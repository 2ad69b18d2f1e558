//! A worker process, here or on another node: the same words for both.

use super::{child::Child, far::Far, unix};
use enn_common::wire::{
    control::{Intent, Phase},
    follower::{StatusSnapshot, WorkerExit, WorkerRequest},
};
use enn_process::{Exit, Guard};
use nix::sys::signal::Signal;
use std::{io, path::Path, time::Duration};

/// A worker process.
#[derive(Debug)]
pub(super) enum Body {
    /// On this node.
    Here(Child),
    /// On another one.
    There(Box<Far>),
}

impl Body {
    /// The process on this node, to be watched.
    pub(super) fn here(&self) -> Option<&Child> {
        match self {
            Self::Here(child) => Some(child),
            Self::There(_) => None,
        }
    }

    /// What is known of it from its hand.
    pub(super) fn far(&self) -> Option<&Far> {
        match self {
            Self::Here(_) => None,
            Self::There(far) => Some(far),
        }
    }

    /// The same, to be told more.
    pub(super) fn there(&mut self) -> Option<&mut Far> {
        match self {
            Self::Here(_) => None,
            Self::There(far) => Some(far),
        }
    }

    /// 0 while the other node has not told.
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Here(child) => child.pid(),
            Self::There(far) => far.pid(),
        }
    }

    /// How it ended; `None` while it lives.
    pub(super) fn exit(&self) -> Option<Exit> {
        match self {
            Self::Here(child) => child.exit(),
            Self::There(far) => far.exit(),
        }
    }

    /// Sets a wish on its control page, or takes it back. The end is not taken back.
    pub(super) fn wish(&self, wish: WorkerRequest, wanted: bool) {
        match self {
            Self::Here(child) => child.wish(wish, wanted),
            Self::There(far) => far.wish(wish, wanted),
        }
    }

    /// What it was doing last.
    pub(super) fn place(&self) -> (Phase, u64) {
        match self {
            Self::Here(child) => child.place(),
            Self::There(far) => far.place(),
        }
    }

    /// Time since its last sign of progress, at `now_ns` of CLOCK_MONOTONIC.
    pub(super) fn silent(&self, now_ns: u64) -> Duration {
        match self {
            Self::Here(child) => child.silent(now_ns),
            Self::There(far) => far.silent(),
        }
    }

    /// Nanoseconds it has waited for others since the round began.
    pub(super) fn waited_ns(&self) -> u64 {
        match self {
            Self::Here(child) => child.waited_ns(),
            Self::There(far) => far.waited_ns(),
        }
    }

    /// Its logs appear below `logs` too, where those of its new round are looked for.
    pub(super) fn log_also_in(&self, logs: &Path) -> io::Result<()> {
        match self {
            Self::Here(child) => child.log_also_in(logs),
            Self::There(far) => {
                far.log_also_in(logs);
                Ok(())
            }
        }
    }

    /// The kernel that was running for the first time on such operands, if the worker said so last.
    pub(super) fn intent(&self) -> Option<Intent> {
        match self {
            Self::Here(child) => child.intent(),
            Self::There(far) => far.intent(),
        }
    }

    /// Signals the group, if the process has not been reaped.
    pub(super) fn signal(&self, signal: Signal) {
        match self {
            Self::Here(child) => child.signal(signal),
            Self::There(far) => far.signal(signal),
        }
    }

    /// Its end, when it has just become known.
    pub(super) fn reap(&mut self, guard: &mut Guard) -> Option<Exit> {
        match self {
            Self::Here(child) => child.reap(guard),
            Self::There(far) => far.reap(),
        }
    }

    /// The end of its standard error.
    pub(super) fn stderr_tail(&self) -> String {
        match self {
            Self::Here(child) => child.stderr_tail(),
            Self::There(far) => far.stderr_tail(),
        }
    }
}

impl Child {
    /// As a head looks at it.
    pub(super) fn glance(&self, worker: u32) -> StatusSnapshot {
        let (phase, step) = self.place();
        let silent = self.silent(unix::monotonic_ns());
        StatusSnapshot { worker, phase: phase as u32, step, waited_ns: self.waited_ns(), silent }
    }

    /// Its end, for the head.
    pub(super) fn end(&self, worker: u32, exit: Exit, late: Duration) -> WorkerExit {
        let (code, signal) = exit.code_or_signal();
        let stderr = if exit == Exit::Code(0) { String::new() } else { self.stderr_tail() };
        let intent = self.intent().map(|intent| (intent.op, intent.kernel, intent.sig, intent.operands));
        WorkerExit { code, signal, late, stderr, status: self.glance(worker), intent }
    }
}
