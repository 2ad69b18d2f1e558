//! The owner loop of a node's group: joins rounds, starts and watches the workers, and does what the rendezvous decides.

use super::{
    contract::Ranks,
    error::GroupError,
    readers::{self, Requests},
    spec::GroupSpec,
    wait::{Event, Sources, seconds_since_epoch},
    watchdog::{Expired, Watchdog},
    worker::{self, Means, Worker},
};
use crate::rendezvous::{News, Rendezvous, RoundEnd, RoundPlan, RunEnd};
use enn_common::{
    event::{EventKind, NodeBrief},
    failure::Failure,
    id::{LocalRank, Rank, Round},
};
use enn_process::{
    Cgroup, Exit, Guard, Mark, Signals,
    logs::Pump,
    preload::{Ready, Starter},
    stacks,
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Longest wait for output that is still in the pipes of workers that ended.
const SETTLE_MAX: Duration = Duration::from_millis(250);
/// Longest time for looking at the stacks of a hung group.
const STACKS_MAX: Duration = Duration::from_secs(20);
/// How often progress is looked at, as a part of the time after which its lack is a hang.
const PROGRESS_LOOKS: u32 = 10;

/// What became of the run on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupOutcome {
    /// How the run ended.
    pub end: RunEnd,
    /// Rounds this node took part in.
    pub rounds: u64,
    /// Restarts of the run.
    pub restarts: u32,
    /// The signal that asked this node to stop.
    pub stopped_by: Option<Signal>,
    /// Bytes of the workers' output that were not written, because a second signal ended the wait for their reader.
    pub output_lost: u64,
}

/// Runs the group until the run ends. Every event goes to `emit`.
///
/// The calling thread must live until this returns: workers die with the thread that forked them.
///
/// # Errors
/// When the machine refuses something the launcher itself needs; a worker's failure is an outcome.
pub fn run(spec: &GroupSpec, emit: &mut dyn FnMut(EventKind)) -> Result<GroupOutcome, GroupError> {
    let system = |what| move |source| GroupError::System { what, source };
    let mark = Mark::new(spec.inherited_mark.as_deref());
    // The guard early: it must not inherit what comes after.
    let cgroup = (!spec.leave_background).then(|| Cgroup::create(&format!("enn-{}", mark.own())));
    let cgroup = cgroup.transpose().inspect_err(|error| tracing::debug!(%error, "no control group for the workers"));
    let cgroup = cgroup.ok().flatten();
    // What may be left behind is not the guard's: it ends the workers with their groups.
    let guarded = Some(&mark).filter(|_| !spec.leave_background);
    let mut guard = Guard::start(guarded, cgroup.as_ref()).map_err(system("start the guard process"))?;
    enn_process::adopt_orphans().map_err(system("adopt orphaned processes"))?;
    let mut handled = spec.signals.clone();
    let own = [Signal::SIGCHLD, Signal::SIGUSR1, Signal::SIGWINCH];
    handled.extend(own.iter().filter(|signal| !spec.signals.contains(signal)));
    let signals = Signals::install(&handled).map_err(system("handle signals"))?;
    worker::progress_dir(&spec.run_dir).map_err(system("make the directory for progress files"))?;
    let starter = match &spec.preload {
        Some(preload) => Starter::fork(preload.clone(), &worker::common_command(spec, 0), &spec.run_dir, &mut guard),
        None => Starter::execute(),
    };
    let pump = Pump::start(spec.logs.clone())?;
    let watchdog = spec.timer_file.as_deref().map(Watchdog::start).transpose();
    let watchdog = watchdog.map_err(system("make the pipe of TORCHELASTIC_TIMER_FILE"))?;
    let sources = Sources::new(Rendezvous::start(spec.rendezvous.clone())?, signals, watchdog);
    let group = Group {
        spec,
        emit,
        sources,
        pump,
        guard,
        starter,
        mark,
        cgroup,
        workers: Vec::new(),
        plan: None,
        round_over: false,
        phase: Phase::Joining,
        end: None,
        stopped_by: None,
        stopped_twice: false,
        looked: Instant::now(),
        outputs: None,
        rounds: 0,
        restarts: 0,
    };
    group.sources.rendezvous.join();
    group.run()
}

/// What the group is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Waiting for a round.
    Joining,
    /// The round is known; waiting for the fork server, which imports.
    Loading,
    /// The workers work.
    Running,
    /// No worker of this node is left, and the end of the round has not been told yet: others may still work.
    Idle,
    /// Workers were asked to end, and get KILL at the given time.
    Stopping(Instant),
    /// Workers got KILL.
    Killed,
}

struct Group<'a> {
    spec: &'a GroupSpec,
    emit: &'a mut dyn FnMut(EventKind),
    sources: Sources,
    pump: Pump,
    guard: Guard,
    starter: Starter,
    mark: Mark,
    cgroup: Option<Cgroup>,
    workers: Vec<Worker>,
    plan: Option<RoundPlan>,
    /// The end of the round of `plan` was told.
    round_over: bool,
    phase: Phase,
    end: Option<RunEnd>,
    stopped_by: Option<Signal>,
    /// Whether a second signal followed.
    stopped_twice: bool,
    /// When progress was last looked at, and the last output seen then.
    looked: Instant,
    outputs: Option<Instant>,
    rounds: u64,
    restarts: u32,
}

impl Group<'_> {
    fn run(mut self) -> Result<GroupOutcome, GroupError> {
        let end = self.run_rounds();
        self.starter.end(&mut self.guard);
        // After an error some may live; they are killed before their last output is waited for.
        self.workers.clear();
        self.wait_for_readers()?;
        Ok(GroupOutcome {
            end: end?,
            rounds: self.rounds,
            restarts: self.restarts,
            stopped_by: self.stopped_by,
            output_lost: self.pump.lost(),
        })
    }

    /// What the workers wrote reaches the launcher's own standard output and error.
    fn wait_for_readers(&mut self) -> Result<(), GroupError> {
        let requests = Requests { first: self.stopped_by, second: self.stopped_twice };
        let waited = readers::wait(&self.pump, self.sources.signals.as_mut(), requests, self.emit);
        let source = |source| GroupError::System { what: "wait for the readers of the output", source };
        self.stopped_by = waited.map_err(source)?.first;
        self.tell_troubles();
        Ok(())
    }

    fn tell_troubles(&mut self) {
        for trouble in self.pump.take_errors() {
            (self.emit)(EventKind::Warned { message: trouble.to_string() });
        }
    }

    /// Rounds, until the run ends.
    fn run_rounds(&mut self) -> Result<RunEnd, GroupError> {
        loop {
            if self.workers.iter().all(|worker| worker.process.exit().is_some())
                && let Some(end) = self.settled()
            {
                return Ok(end);
            }
            for event in self.sources.wait(&self.workers, &self.starter, self.deadline())? {
                self.handle(event)?;
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Stopping(kill_at) => Some(kill_at),
            Phase::Running => self.spec.rendezvous.hang_timeout.map(|limit| self.looked + limit / PROGRESS_LOOKS),
            _ => None,
        }
    }

    /// No worker is left: what that means. `Some` ends the run on this node.
    fn settled(&mut self) -> Option<RunEnd> {
        // The end of the run, too, begins with stopping.
        if !matches!(self.phase, Phase::Stopping(_) | Phase::Killed) {
            return None;
        }
        self.clear_round();
        if self.end.is_some() {
            return self.end.take();
        }
        if let Some(signal) = self.stopped_by {
            return Some(RunEnd::Stopped { by: format!("{} on {}", signal.as_str(), self.spec.rendezvous.host) });
        }
        // To join before the round is over would say that this node's workers left the next one.
        if self.round_over {
            self.phase = Phase::Joining;
            self.sources.rendezvous.join();
        } else {
            self.phase = Phase::Idle;
        }
        None
    }

    /// After a round's workers: what they left behind is killed, unless it may live on; what they wrote is shown.
    fn clear_round(&mut self) {
        let ended_well = matches!(self.end, Some(RunEnd::Finished));
        if !(self.spec.leave_background && ended_well) {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            let own: Vec<u32> = self.own_processes().collect();
            enn_process::sweep(&self.mark, &own);
        }
        self.pump.settle(Instant::now() + SETTLE_MAX);
        self.tell_troubles();
        self.workers.clear();
    }

    /// Children of the launcher that are no workers.
    fn own_processes(&self) -> impl Iterator<Item = u32> {
        self.starter.pids().chain([self.guard.pid()])
    }

    fn handle(&mut self, event: Event) -> Result<(), GroupError> {
        match event {
            Event::Signalled(Signal::SIGCHLD) => {
                let works = |pid| self.workers.iter().any(|worker| worker.process.pid() == pid);
                enn_process::reap_orphans(|pid| works(pid) || self.own_processes().any(|own| own == pid));
            }
            Event::Signalled(Signal::SIGWINCH) if !self.spec.signals.contains(&Signal::SIGWINCH) => self.pump.resize(),
            Event::Signalled(signal) => self.signalled(signal),
            Event::Ended { worker, late } => self.ended(worker, late),
            Event::Preload => self.preloaded()?,
            Event::News => {
                while let Some(news) = self.sources.rendezvous.news() {
                    self.news(news)?;
                }
            }
            Event::Timers => self.look_at_timers(),
            Event::TimeUp => self.time_up(),
        }
        Ok(())
    }

    /// Ends the workers that are still in a part of their program that they wanted to have left by now.
    fn look_at_timers(&mut self) {
        let Some(watchdog) = &mut self.sources.watchdog else { return };
        for wrong in watchdog.read() {
            (self.emit)(EventKind::Warned { message: format!("a worker's timer cannot be understood: {wrong}") });
        }
        let workers = &self.workers;
        let mark = &self.mark;
        let works = |pid| workers.iter().any(|worker| worker.process.pid() == pid && worker.process.exit().is_none());
        watchdog.forget(|pid| works(pid) || mark.is_carried_by(pid));
        for Expired { pid, scope, signal } in watchdog.expired(seconds_since_epoch()) {
            let rank = self.workers.iter().find(|worker| worker.process.pid() == pid).map(|worker| worker.ranks.rank);
            let who = rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
            let signal = Signal::try_from(signal).ok();
            let then = signal.map_or("it named no signal".to_owned(), |signal| format!("it gets {signal}"));
            (self.emit)(EventKind::Warned {
                message: format!("the timer \"{scope}\" of {who}pid {pid} has expired: {then}"),
            });
            if let Some(signal) = signal {
                enn_process::signal_one(pid, signal);
            }
        }
    }

    fn signalled(&mut self, signal: Signal) {
        // Slurm ends what it puts back into the queue: after SIGUSR1 that is no second wish of the user's.
        let second = self.stopped_by.is_some_and(|first| first != Signal::SIGUSR1);
        (self.emit)(EventKind::StopRequested { signal: signal.as_str().into(), second });
        if second {
            self.stopped_twice = true;
            return self.kill();
        }
        // Another node may have told of the same signal before it came here.
        if self.stopped_by != Some(signal) {
            self.sources.rendezvous.leave(signal.as_str().to_owned());
            self.ask_to_stop(signal);
        }
    }

    fn ask_to_stop(&mut self, signal: Signal) {
        self.stopped_by.get_or_insert(signal);
        for worker in &self.workers {
            // SIGUSR1 says that the time limit is near: programs that do not know it are asked to end.
            match signal {
                Signal::SIGUSR1 => worker.ask_to_stop(signal),
                _ => worker.process.signal(signal),
            }
        }
        if !matches!(self.phase, Phase::Killed) {
            self.phase = Phase::Stopping(Instant::now() + self.spec.grace);
        }
    }

    fn ended(&mut self, index: usize, late: Duration) {
        let began = Instant::now();
        let leave = self.spec.leave_background;
        let Some(exit) = self.workers[index].reap(&mut self.guard, leave) else { return };
        let (code, signal) = exit.code_or_signal();
        let round = self.round();
        let rank = Rank(self.workers[index].ranks.rank);
        let pid = self.workers[index].process.pid();
        let seconds_to_notice = (late + began.elapsed()).as_secs_f64();
        (self.emit)(EventKind::WorkerExited { round: Round(round), rank, pid, code, signal, seconds_to_notice });
        if self.phase != Phase::Running {
            return;
        }
        if exit != Exit::Code(0) {
            if let Some(failure) = worker::root_cause(self.spec, round, &self.workers) {
                self.failed(failure);
            }
        } else if self.workers.iter().all(Worker::succeeded) {
            self.phase = Phase::Idle;
            self.sources.rendezvous.finished(round);
        }
    }

    fn failed(&mut self, failure: Failure) {
        self.sources.rendezvous.failed(failure.round, failure);
        self.stop();
    }

    fn news(&mut self, news: News) -> Result<(), GroupError> {
        match news {
            News::Waiting(reason) => (self.emit)(EventKind::Waiting { reason }),
            News::NodeJoined { host, workers, .. } => (self.emit)(EventKind::NodeJoined { host, workers }),
            News::NodeLost { host, reason, .. } => (self.emit)(EventKind::NodeLost { host, reason }),
            // What follows is told as the end of a round or of the run; nobody writes letters here.
            News::HostLost(_) | News::Letter { .. } => {}
            News::Round(plan) => self.begin(plan)?,
            News::RoundEnded(end) => self.round_ended(&end, None),
            News::RunEnded(end) => {
                match &end {
                    RunEnd::Failed { end, reason } => self.round_ended(end, Some(reason)),
                    RunEnd::HostLost { reason } | RunEnd::TimedOut { reason } | RunEnd::Refused { reason } => {
                        (self.emit)(EventKind::GaveUp { reason: reason.clone() });
                    }
                    RunEnd::Stopped { by } if self.stopped_by.is_none() => {
                        (self.emit)(EventKind::GaveUp { reason: format!("the run was stopped: {by}") });
                        // Nodes leave with the name of their signal: all of them end by it, and are put back into the queue
                        // by it, whichever gets it first.
                        let signal = by.split(' ').next().and_then(|name| name.parse().ok());
                        self.ask_to_stop(signal.unwrap_or(Signal::SIGTERM));
                    }
                    RunEnd::Stopped { .. } | RunEnd::Finished => {}
                }
                self.end = Some(end);
                self.stop();
            }
        }
        Ok(())
    }

    fn begin(&mut self, plan: RoundPlan) -> Result<(), GroupError> {
        if self.stopped_by.is_some() {
            return Ok(());
        }
        let round = Round(plan.round);
        let ranks = Ranks::of_node(&plan);
        let nodes =
            plan.members.iter().map(|member| NodeBrief { host: member.host.clone(), workers: member.local_world });
        let master = format!("{}:{}", plan.master.0, plan.master.1);
        (self.emit)(EventKind::RoundFormed { round, restart: plan.restarts, master, nodes: nodes.collect() });
        let world_size = ranks.first().map_or(0, |ranks| ranks.world);
        (self.emit)(EventKind::RoundStarted { round, world_size, attempt: plan.restarts, resume_step: None });
        self.rounds += 1;
        self.restarts = plan.restarts;
        self.round_over = false;
        self.plan = Some(plan);
        if self.starter.is_loading() {
            self.phase = Phase::Loading;
            return Ok(());
        }
        self.start_workers()
    }

    /// The fork server said something: a round that waits for it begins.
    fn preloaded(&mut self) -> Result<(), GroupError> {
        self.starter.advance(&mut self.guard);
        self.tell_start();
        if self.phase == Phase::Loading && !self.starter.is_loading() {
            // Imports are work: they are not what a hang is counted from.
            self.sources.rendezvous.progress();
            self.start_workers()?;
        }
        Ok(())
    }

    /// Tells what there is to say of how the workers are started.
    fn tell_start(&mut self) {
        if let Some(ready) = self.starter.take_ready() {
            let Ready { modules, seconds, warm, .. } = ready;
            (self.emit)(EventKind::Preloaded { modules, seconds, warm });
        }
        for message in self.starter.take_messages() {
            (self.emit)(EventKind::Warned { message });
        }
    }

    /// Starts the workers of the round; forked ones begin together.
    fn start_workers(&mut self) -> Result<(), GroupError> {
        let Some(plan) = self.plan.clone() else { return Ok(()) };
        let round = Round(plan.round);
        self.phase = Phase::Running;
        self.looked = Instant::now();
        let mut unstartable = None;
        for ranks in Ranks::of_node(&plan) {
            let means = Means {
                pump: &self.pump,
                guard: &mut self.guard,
                mark: &self.mark,
                cgroup: self.cgroup.as_ref(),
                starter: &mut self.starter,
            };
            match Worker::start(self.spec, &plan, ranks, means) {
                Ok(worker) => {
                    let local_rank = LocalRank(ranks.local_rank);
                    let rank = Rank(ranks.rank);
                    let pid = worker.process.pid();
                    let host = self.spec.rendezvous.host.clone();
                    let forked = worker.is_held();
                    (self.emit)(EventKind::WorkerStarted { round, local_rank, rank, pid, host, forked });
                    self.workers.push(worker);
                }
                Err(Ok(failure)) => {
                    unstartable = Some(*failure);
                    break;
                }
                Err(Err(error)) => return Err(error),
            }
        }
        if unstartable.is_none() {
            self.workers.iter_mut().for_each(Worker::release);
        }
        self.tell_start();
        if let Some(failure) = unstartable {
            self.failed(failure);
        }
        Ok(())
    }

    /// The round is over before its work was done; `last` says why no other follows.
    fn round_ended(&mut self, end: &RoundEnd, last: Option<&str>) {
        self.round_over = true;
        let round = Round(self.round());
        match end {
            RoundEnd::Failed(failure) => (self.emit)(EventKind::FailureReported { failure: failure.clone() }),
            RoundEnd::Hung { idle } => self.look_at_stacks(*idle),
            RoundEnd::NodeLost { .. } | RoundEnd::NodeWaiting { .. } if last.is_none() => {
                (self.emit)(EventKind::RoundLeft { round, reason: end.to_string() });
                return self.stop();
            }
            RoundEnd::NodeLost { .. } | RoundEnd::NodeWaiting { .. } => {}
        }
        let used = self.restarts + u32::from(last.is_none());
        let restarts_left = self.spec.rendezvous.restarts_max.saturating_sub(used);
        let cause = match (end, last) {
            // The failure itself was reported just now.
            (RoundEnd::Failed(_), Some(reason)) => reason.to_owned(),
            (_, Some(reason)) => format!("{end} ({reason})"),
            (_, None) => end.to_string(),
        };
        (self.emit)(EventKind::RoundFailed { round, cause, restarting: last.is_none(), restarts_left });
        self.stop();
    }

    fn look_at_stacks(&mut self, idle: Duration) {
        let living = self.workers.iter().filter(|worker| worker.process.exit().is_none());
        let targets: Vec<stacks::StackTarget> =
            living.map(|worker| stacks::StackTarget { rank: worker.ranks.rank, pid: worker.process.pid() }).collect();
        let dir = self.spec.run_dir.join("stacks").join(self.round().to_string());
        let found = stacks::collect(&targets, &dir, STACKS_MAX);
        let round = Round(self.round());
        let seconds = idle.as_secs_f64();
        (self.emit)(EventKind::HangDetected { round, seconds, stacks: Some(dir) });
        for line in found.summary() {
            (self.emit)(EventKind::Warned { message: line });
        }
    }

    fn time_up(&mut self) {
        match self.phase {
            Phase::Stopping(kill_at) if Instant::now() >= kill_at => {
                let living = self.workers.iter().filter(|worker| worker.process.exit().is_none()).count();
                let seconds = self.spec.grace.as_secs_f64();
                let message = format!("{living} workers did not end within {seconds:.1} s and were killed");
                (self.emit)(EventKind::Warned { message });
                self.kill();
            }
            Phase::Running => {
                self.looked = Instant::now();
                let outputs = self.pump.last_output();
                // Every file is looked at, so that none counts twice.
                let touched =
                    self.workers.iter_mut().filter_map(|worker| worker.progressed().then_some(())).count() > 0;
                if outputs != self.outputs || touched {
                    self.outputs = outputs;
                    self.sources.rendezvous.progress();
                }
            }
            _ => {}
        }
    }

    /// Asks the workers to end; they are killed after the grace.
    fn stop(&mut self) {
        if matches!(self.phase, Phase::Stopping(_) | Phase::Killed) {
            return;
        }
        for worker in &self.workers {
            worker.process.signal(Signal::SIGTERM);
        }
        self.phase = Phase::Stopping(Instant::now() + self.spec.grace);
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed;
        for worker in &self.workers {
            worker.process.signal(Signal::SIGKILL);
        }
    }

    fn round(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.round)
    }
}
