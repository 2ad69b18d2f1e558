//! What happens at last: the run comes to an end in bounded time once the faults are over, and nothing outlives it.

use super::{
    faults::Fault,
    processes::Process,
    world::{Time, World},
};
use std::time::Duration;

/// Time in which a run without progress is over, besides its work: succession, lock, hang, halt, kill, and settling.
const RECOVERY: Duration = Duration::from_secs(240);
/// The same where only the wait for readiness notices a hang.
const READY_WAIT: Duration = Duration::from_secs(2200);

impl World {
    /// When the run must be over at the latest.
    pub(super) fn end_of_time(&self) -> Time {
        let last = self.faults.iter().map(|planned| planned.at + planned.fault.time()).max().unwrap_or_default();
        let slow = self.faults.iter().any(|planned| matches!(planned.fault, Fault::SlowWorker(_)));
        let work = self.plan.duration() * if slow { 9 } else { 3 };
        let patience = if self.plan.hang_timeout.is_some() { RECOVERY } else { READY_WAIT };
        last + work + patience + self.plan.grace
    }

    /// The run did not come to an end.
    pub(super) fn not_over(&mut self) {
        let mut left = Vec::new();
        for agent in self.agents.values() {
            let phase = agent.leader.as_ref().map(|leader| leader.supervisor.phase_name());
            let workers = agent.workers.values().filter(|pid| self.processes.get(pid).is_some_and(|one| one.alive));
            let count = workers.count();
            left.push(format!("n{} leads: {phase:?}, {count} workers, ended: {}", agent.id, agent.end.is_some()));
        }
        let idle = self.now.saturating_sub(self.observer.last_step_at).as_secs();
        self.violation("liveness", format!("the run is not over, {idle} s after its last step: {}", left.join("; ")));
    }

    /// Checks after the end.
    pub(super) fn check_end(&mut self) {
        let now = self.now;
        let alive = |process: &&Process| process.alive && process.unkillable_until.is_none_or(|until| until <= now);
        if let Some(pid) = self.processes.values().find(alive).map(|process| process.pid) {
            self.violation("liveness", format!("process {pid} lives after the end"));
        }
        let rounds = self.observer.rounds;
        let most = self.observer.rounds_max();
        if rounds > most {
            self.violation("liveness", format!("{rounds} rounds, at most {most} are explained"));
        }
    }
}
