//! A worker process on another node, as its hand tells of it.

use super::{cause, letter};
use crate::rendezvous::{NodeId, Rendezvous};
use enn_common::{
    id::WorkerId,
    wire::{
        control::{Intent, Phase},
        follower::{Order, StatusSnapshot, WorkerExit, WorkerRequest},
    },
};
use enn_process::Exit;
use nix::sys::signal::Signal;
use std::{
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

/// What the head writes to a hand on.
#[derive(Debug, Clone)]
pub(super) struct Line {
    rendezvous: Rc<Rendezvous>,
    node: NodeId,
}

impl Line {
    pub(super) fn new(rendezvous: Rc<Rendezvous>, node: NodeId) -> Self {
        Self { rendezvous, node }
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    /// Sends an order.
    pub(super) fn order(&self, order: &Order) {
        letter::post(&self.rendezvous, Some(self.node), order);
    }
}

/// A worker process on another node.
#[derive(Debug)]
pub(super) struct Far {
    line: Line,
    worker: WorkerId,
    /// 0 until the hand has told.
    pid: u32,
    glance: StatusSnapshot,
    /// When the glance came, and when anything last came from the node.
    glanced: Instant,
    heard: Instant,
    stderr: String,
    intent: Option<Intent>,
    /// Its end was told and not yet taken notice of.
    ended: Option<Exit>,
    lost: bool,
    exit: Option<Exit>,
}

impl Far {
    pub(super) fn new(line: Line, worker: WorkerId, pid: u32, now: Instant) -> Self {
        Self {
            line,
            worker,
            pid,
            glance: StatusSnapshot::default(),
            glanced: now,
            heard: now,
            stderr: String::new(),
            intent: None,
            ended: None,
            lost: false,
            exit: None,
        }
    }

    /// The hand started it.
    pub(super) fn started(&mut self, pid: u32) {
        self.pid = pid;
    }

    /// Its control page, as it was a moment ago.
    pub(super) fn glance(&mut self, glance: StatusSnapshot, now: Instant) {
        self.glance = glance;
        self.glanced = now;
        self.heard = now;
    }

    /// The node lives.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// When its hand must have said something again, and who that is; `None`: there is no more to hear of.
    pub(super) fn overdue(&self, patience: Duration) -> Option<(Instant, NodeId)> {
        (!self.lost).then(|| (self.heard + patience, self.line.node()))
    }

    /// The hand tells of its end.
    pub(super) fn ended(&mut self, end: WorkerExit) {
        self.glance = end.status;
        self.stderr = cause::tail(&end.stderr, cause::STDERR_LINES);
        self.intent = end.intent.map(|(op, kernel, sig, operands)| Intent { op, kernel, sig, operands });
        self.ended = Some(match (end.code, end.signal) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(Signal::SIGKILL as i32)),
        });
    }

    /// Its node is gone: it is dead for all who are left.
    pub(super) fn lost(&mut self) {
        self.lost = true;
        self.ended = Some(Exit::Signal(Signal::SIGKILL as i32));
    }

    /// Whether it is its node that is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    pub(super) fn reap(&mut self) -> Option<Exit> {
        let exit = self.ended.take().filter(|_| self.exit.is_none())?;
        self.exit = Some(exit);
        Some(exit)
    }

    pub(super) fn wish(&self, request: WorkerRequest, wanted: bool) {
        self.line.order(&Order::Request { worker: self.worker.0, request, wanted });
    }

    pub(super) fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            self.line.order(&Order::Signal { worker: self.worker.0, signal: signal as i32 });
        }
    }

    pub(super) fn log_also_in(&self, logs: &Path) {
        self.line.order(&Order::LogAlso { worker: self.worker.0, logs: logs.to_owned() });
    }

    pub(super) fn place(&self) -> (Phase, u64) {
        let phase = Phase::ALL.into_iter().find(|phase| *phase as u32 == self.glance.phase);
        (phase.unwrap_or(Phase::Boot), self.glance.step)
    }

    /// Time since its last sign of progress. Only time in which its node was heard counts: a slow link is no silence of the
    /// worker's.
    pub(super) fn silent(&self) -> Duration {
        silence(self.glance.silent, self.glanced, self.heard)
    }

    pub(super) fn waited_ns(&self) -> u64 {
        self.glance.waited_ns
    }

    pub(super) fn intent(&self) -> Option<Intent> {
        self.intent.clone()
    }

    pub(super) fn stderr_tail(&self) -> String {
        self.stderr.clone()
    }
}

/// A worker had been silent for so long when its page was `glanced` at; its node was last `heard`, and told of no change.
fn silence(then: Duration, glanced: Instant, heard: Instant) -> Duration {
    then + heard.saturating_duration_since(glanced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_link_is_no_silence() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(silence(Duration::from_secs(2), after(10), after(13)), Duration::from_secs(5));
        // Nothing has come since, for whatever reason.
        assert_eq!(silence(Duration::from_secs(2), after(10), after(10)), Duration::from_secs(2));
    }
}
