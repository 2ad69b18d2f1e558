//! Programs that may attach to the broker of their node (`enn run --on-failure replace`): the commands that ENN's own workers get, too.
//!
//! **Invariant:** what a worker prints is shown and kept as that of any program; its logs appear in each round in which it has a seat.

use super::{
    program_start::{ProgramStart, ScriptStart, SpareKind, ranks_of, ranks_of_spare},
    program_worker::{self, Means, NotStarted, ProgramWorker},
    script_services::{Scripts, WaitingStart},
    shell::ProgramShell,
    spec::ReplaceSpec,
};
use crate::{
    node_agent::{
        background::GPU_LOOK_MAX, effect::NodeEffect, environment::ScriptPlaces, error::AgentError, input::NodeInput,
    },
    rendezvous::Rendezvous,
};
use enn_broker::{BrokerEvent, Command};
use enn_common::{
    event::EventKind,
    id::WorkerId,
    wire::{
        message::Assignment,
        node_agent::{StopSignal, WorkerEvidence, WorkerFlag},
    },
};
use nix::sys::signal::Signal;
use std::{collections::BTreeMap, rc::Rc, time::Instant};

impl ProgramShell {
    /// Serves a broker, to which the workers may attach. They meet in the store of the rendezvous.
    pub(crate) fn serve_scripts(&mut self, spec: &ReplaceSpec, rendezvous: Rc<Rendezvous>) -> Result<(), AgentError> {
        self.scripts = Some(Scripts::serve(spec, &self.spec, rendezvous)?);
        Ok(())
    }

    /// Does one thing about workers that may attach.
    pub(super) fn carry_out_for_scripts(&mut self, effect: NodeEffect) {
        match effect {
            // Each node has a run directory of its own.
            NodeEffect::LookAtRun(_) => self.pending.push(NodeInput::RunSeen(Ok(()))),
            NodeEffect::Admit { worker, standby } => self.ask_broker(Command::Expect { worker, standby }),
            NodeEffect::Spawn { worker, seat, local_rank, .. } => {
                self.scripts.iter_mut().for_each(|scripts| {
                    scripts.waiting.push(WaitingStart { worker, seat, local_rank });
                });
                self.start_waiting();
            }
            NodeEffect::SetFlag { worker, flag: WorkerFlag::Stop, on: true } => {
                self.ask_broker(Command::StopScript { worker });
            }
            NodeEffect::Seat { round, seats } => self.seat(round, seats),
            NodeEffect::EndRound { reason } => self.ask_broker(Command::EndRound { reason }),
            NodeEffect::Disconnect { worker } => self.ask_broker(Command::Dismiss { worker }),
            NodeEffect::DisconnectAll => self.ask_broker(Command::CloseAll),
            NodeEffect::SyncBroker { worker } => self.ask_broker(Command::Sync { token: worker.0.into() }),
            NodeEffect::ReadEvidence { worker } => self.read_script_evidence(worker),
            NodeEffect::Forget { worker } => {
                self.workers.remove(&worker);
                self.scripts.iter_mut().for_each(|scripts| _ = scripts.signalled.remove(&worker));
            }
            // Of ENN's own workers: scripts leave a round wherever they are, and write their own checkpoints.
            NodeEffect::SetFlag { .. }
            | NodeEffect::Broadcast(_)
            | NodeEffect::LinkLogs { .. }
            | NodeEffect::Persist { .. }
            | NodeEffect::Release { .. }
            | NodeEffect::Keep { .. } => {}
            // The others are those of any programs, or the owner loop's.
            NodeEffect::StartPrograms(_)
            | NodeEffect::FindCause
            | NodeEffect::ClearGroup { .. }
            | NodeEffect::Signal { .. }
            | NodeEffect::CollectStacks { .. }
            | NodeEffect::ReadPages
            | NodeEffect::Report(_)
            | NodeEffect::Journal(_)
            | NodeEffect::CutLink { .. }
            | NodeEffect::RejoinMembership
            | NodeEffect::LeaveMembership { .. }
            | NodeEffect::FinishMembership { .. }
            | NodeEffect::Lead { .. }
            | NodeEffect::End(_) => {}
        }
    }

    fn ask_broker(&mut self, command: Command) {
        self.pending.extend(self.scripts.as_ref().and_then(|scripts| scripts.broker.ask(command)));
    }

    /// Reads what the broker has to tell.
    pub(super) fn read_broker(&mut self, inputs: &mut Vec<NodeInput>) {
        let Some(scripts) = &mut self.scripts else { return };
        for event in scripts.broker.read() {
            if let BrokerEvent::Progressed { worker, phase, step } = event {
                if let Some(known) = self.workers.get_mut(&worker) {
                    known.page = program_worker::ScriptPage { phase, step, at: Instant::now() };
                }
            } else {
                inputs.push(NodeInput::Broker(event));
            }
        }
    }

    /// A signal asks the run to stop. Workers that wait for their start are not started any more.
    pub(super) fn stop_scripts(&mut self, signal: Signal) -> Option<NodeInput> {
        let scripts = self.scripts.as_mut()?;
        scripts.is_stopped_twice = scripts.stopped_by.is_some();
        scripts.stopped_by.get_or_insert(signal);
        for WaitingStart { worker, .. } in scripts.waiting.drain(..) {
            let error = "the run is to stop".to_owned();
            self.answers.sender().send(NodeInput::SpawnFailed { worker, error });
        }
        Some(NodeInput::Signal(StopSignal::named(signal.as_str())))
    }

    /// Notes that a worker is about to be signalled; returns the signal that asked the run to stop.
    pub(super) fn note_signalled(&mut self, worker: WorkerId) -> Option<Signal> {
        let scripts = self.scripts.as_mut()?;
        scripts.signalled.insert(worker);
        scripts.stopped_by
    }

    /// Starts the workers that wait, as far as the fork server lets them. A spare waits for it; one with a seat only in the first round,
    /// since the survivors of a failure wait for it.
    pub(super) fn start_waiting(&mut self) {
        let is_loading = self.starter.is_loading();
        let is_expected = self.starter.is_expected();
        let Some(scripts) = &mut self.scripts else { return };
        let is_first = !scripts.has_started;
        let waits = |start: &WaitingStart| if start.seat.is_some() { is_loading && is_first } else { is_expected };
        let due: Vec<WaitingStart> = scripts.waiting.extract_if(.., |start| !waits(start)).collect();
        for start in due {
            self.start_script(start);
        }
    }

    fn start_script(&mut self, start: WaitingStart) {
        let WaitingStart { worker, seat, local_rank } = start;
        let Some(scripts) = &mut self.scripts else { return };
        scripts.has_started = true;
        let broker = scripts.broker.broker();
        let places = ScriptPlaces { socket: broker.script_socket(), seat_dir: broker.seat_dir() };
        let kind = if scripts.spec.warm_device { SpareKind::WithDevice } else { SpareKind::Cold };
        let spare = seat.is_none().then_some(kind);
        let seat = ProgramStart {
            // The logs of a worker that was ordered before this round began are those of this round.
            round: self.round.max(seat.map_or(0, |seat| seat.round)),
            restarts: seat.map_or(0, |seat| seat.restarts),
            store: scripts.rendezvous.store(),
            ranks: seat.as_ref().map_or_else(|| ranks_of_spare(local_rank), ranks_of),
            script: Some(ScriptStart { worker, places, spare }),
        };
        let means = Means {
            pump: &self.pump,
            guard: &mut self.guard,
            mark: &self.mark,
            cgroup: self.cgroup.as_ref(),
            starter: &mut self.starter,
        };
        self.pending.push(match ProgramWorker::start(&self.spec, &seat, means) {
            Ok(mut started) => {
                let pid = started.process.pid();
                let forked = started.is_held();
                started.release();
                self.workers.insert(worker, started);
                NodeInput::Spawned { worker, pid, forked }
            }
            Err(NotStarted::Program(failure)) => {
                let error = failure.message.clone().unwrap_or_default();
                self.scripts.iter_mut().for_each(|scripts| scripts.failure = Some(failure.clone()));
                NodeInput::SpawnFailed { worker, error }
            }
            Err(NotStarted::Machine(error)) => NodeInput::SpawnFailed { worker, error: error.to_string() },
        });
        self.tell_start();
    }

    /// A round begins with these seats.
    fn seat(&mut self, round: u64, seats: BTreeMap<WorkerId, Assignment>) {
        self.round = round;
        let mut places = Vec::new();
        // One that has lost its seat stands by; those that start for one come later.
        self.workers.values_mut().for_each(|known| known.is_spare = true);
        for (worker, seat) in &seats {
            let Some(known) = self.workers.get_mut(worker) else { continue };
            known.is_spare = false;
            known.ranks.rank = seat.rank;
            known.ranks.local_rank = seat.local_rank;
            known.ranks.world = seat.world_size;
            known.ranks.local_world = seat.local_world_size;
            places.push((seat.local_rank, known.logs().to_owned()));
        }
        let Some(scripts) = &self.scripts else { return };
        let threads = seats.values().next().map_or(1, |seat| seat.threads);
        let store = scripts.rendezvous.store();
        self.pending.extend(scripts.broker.begin_round(round, seats, store, threads));
        let attempt = u32::try_from(round).unwrap_or(u32::MAX);
        for (local_rank, logs) in places {
            if let Err(error) = self.pump.link(attempt, local_rank, &logs) {
                // The log is where it was; only `enn logs` of this round does not show it.
                tracing::debug!("{error}");
            }
        }
    }

    /// A worker ended: if it failed by itself, as the first of its round, its failure is reported.
    fn read_script_evidence(&mut self, worker: WorkerId) {
        let Some(known) = self.workers.get(&worker) else { return };
        let evidence = WorkerEvidence { stderr: known.stderr(), first_launch: None };
        let has_failed = !known.succeeded();
        let is_failure = has_failed && !known.is_spare;
        let local_rank = known.ranks.local_rank;
        let Some(scripts) = &mut self.scripts else { return };
        let gpus = scripts.gpus.clone();
        let answers = self.answers.sender();
        let look = move || {
            let gpu = if has_failed { gpus.look(local_rank, GPU_LOOK_MAX) } else { None };
            answers.send(NodeInput::Evidence { worker, evidence, gpu });
        };
        // Without an answer the node state goes on after a while.
        let _full = scripts.looks.submit(look);
        let is_first = scripts.failure.as_ref().is_none_or(|failure| failure.round != self.round);
        if is_failure && is_first && scripts.stopped_by.is_none() && !scripts.signalled.contains(&worker) {
            let signalled = &scripts.signalled;
            let unasked = self.workers.iter().filter(|(id, worker)| !worker.is_spare && !signalled.contains(id));
            let unasked: Vec<&ProgramWorker> = unasked.map(|(_, worker)| worker).collect();
            if let Some(failure) = program_worker::root_cause(&self.spec, self.round, &unasked).map(Box::new) {
                scripts.failure = Some(failure.clone());
                self.pending.push(NodeInput::Notice(EventKind::FailureReported { failure }));
            }
        }
    }
}
