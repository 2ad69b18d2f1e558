//! What makes workers leave a round without a failure: others can join, the run is resized or paused, a straggler loses its
//! seat, micro-batches change. And what people ask for, at the control socket.

use super::{
    dispatcher::Agent,
    error::AgentError,
    policy::Decision,
    round::Mode,
    seats::{self, Home, Seating, Taker},
    spec::Signal,
    straggler::Look,
    worker::Place,
};
use enn_common::{
    event::EventKind,
    id::{Rank, WorkerId},
    wire::command::Request,
};
use std::time::{Duration, Instant};

impl Agent<'_> {
    /// Does what is asked, or says why not.
    pub(super) fn obey(&mut self, request: Request) -> Result<Result<String, String>, AgentError> {
        if self.verdict.is_some() || self.state.mode.is_last() {
            return Ok(Err("the run is ending".into()));
        }
        let stopping = "the run is stopping: its workers save and end";
        match request {
            // Who was not answered asks again.
            Request::Stop {} if self.stop.is_some() => Ok(Ok(stopping.into())),
            _ if self.is_stopping() => Ok(Err(stopping.into())),
            Request::Stop {} => self.stop_for(Signal::Interrupt, "enn stop"),
            Request::Drain { node: Some(node) } if self.sources.nodes.rendezvous().is_some() && self.reforms() => {
                Ok(self.drain(&node))
            }
            Request::Drain { node: None } if self.sources.nodes.are_several() => {
                Ok(Err("the run has several nodes: say which one (--node HOST)".into()))
            }
            Request::Drain { node: Some(node) } if node != self.spec.host => {
                Ok(Err(format!("the run has one node, {}; found \"{node}\"", self.spec.host)))
            }
            Request::Drain { .. } => self.stop_for(Signal::Terminate, "enn drain"),
            Request::Cut { node, seconds } => Ok(self.cut(&node, seconds)),
            _ if !self.reforms() => Ok(Err("the run's workers do not meet again: it is no training, or one with \
                                            --policy restart (stop it, and go on with --resume)"
                .into())),
            Request::Resize { workers } => Ok(self.resize(workers)),
            Request::Pause {} => Ok(self.ask_to_pause()),
            Request::Continue {} => Ok(self.ask_to_continue()),
        }
    }

    fn stop_for(&mut self, signal: Signal, asked_by: &str) -> Result<Result<String, String>, AgentError> {
        (self.emit)(EventKind::StopRequested { signal: asked_by.into(), second: false });
        self.stop = Some(signal);
        self.signalled = Some(signal);
        self.wished();
        if self.stop_by.is_none() {
            self.ask_to_stop()?;
        }
        let grace = self.spec.grace.as_secs_f64();
        Ok(Ok(format!("the workers finish the step, save and end; they have {grace:.0} s")))
    }

    fn resize(&mut self, workers: u32) -> Result<String, String> {
        let rooms = self.sources.nodes.rooms();
        let before = self.world;
        let most = rooms.iter().fold(0u32, |most, room| most.saturating_add(room.most));
        if workers == 0 || workers > most {
            let place = if rooms.len() == 1 { "this machine" } else { "these machines" };
            return Err(format!("found {workers} workers, expected 1 to {most} on {place}"));
        }
        if workers == before {
            return Ok(format!("the run has {workers} workers already"));
        }
        self.world = workers;
        self.resized = Some(workers);
        (self.emit)(EventKind::Resized { before, workers });
        self.wished();
        let then = match (workers > before, self.paused) {
            (_, Some(_)) => "when it continues",
            (true, None) => "as soon as the new ones are warm",
            (false, None) => "after the present step",
        };
        Ok(format!("the run goes on with {workers} workers instead of {before}, {then}"))
    }

    fn ask_to_pause(&mut self) -> Result<String, String> {
        if self.paused.is_some() {
            return Err("the run is paused already".into());
        }
        self.paused = Some(Instant::now());
        self.wished();
        Ok("the workers leave the round after the present step and stay warm (go on with enn continue)".into())
    }

    fn ask_to_continue(&mut self) -> Result<String, String> {
        match self.paused.take() {
            Some(_) => {
                self.wished();
                Ok("the run goes on".into())
            }
            None => Err("the run is not paused".into()),
        }
    }

    /// Nobody is to do anything until the run is continued. Why the round before ended has been told.
    pub(super) fn pause(&mut self) {
        let step = self.pool.furthest().map_or(self.state.reached, |(step, _)| step);
        (self.emit)(EventKind::Paused { round: self.state.round, step });
        self.state.cause = None;
        self.state.culprit = None;
        self.state.failed_at = None;
        self.recovering = None;
        self.state.mode = Mode::Paused(Instant::now());
    }

    /// A paused run is continued, or is to save and end.
    pub(super) fn wake(&mut self, since: Instant) -> Result<(), AgentError> {
        let savers = self.pool.savers();
        if self.is_stopping() {
            return if savers.is_empty() { self.close() } else { self.go_on(seats::last(&savers)) };
        }
        (self.emit)(EventKind::Continued { seconds: since.elapsed().as_secs_f64() });
        if let Some(cause) = self.state.cause.take() {
            // Who died meanwhile is a failure as any other: a run that dies whenever it is paused must end, too.
            let (decision, reason) = self.verdict_on_failure();
            if decision == Decision::GiveUp {
                return self.give_up(cause, reason);
            }
            self.history.restarts += 1;
            if savers.is_empty() {
                self.round_failed(cause, true);
                self.outcome.restarts += 1;
            }
        }
        if savers.is_empty() {
            return self.begin_anew();
        }
        let seating = self.seating()?;
        self.go_on(seating)
    }

    /// The seats of the next round. Whoever stands and gets none is sent away.
    pub(super) fn seating(&mut self) -> Result<Seating, AgentError> {
        let mut candidates = self.pool.candidates();
        if !candidates.warm.is_empty() && candidates.kept.len() > 1 {
            candidates.kept.retain(|kept| Some(kept.worker) != self.state.evicted);
        }
        let leaving = self.sources.nodes.leaving();
        for list in [&mut candidates.kept, &mut candidates.warm, &mut candidates.warming] {
            list.retain(|candidate| !leaving.contains(&candidate.slot.home));
        }
        let seating = seats::give(&candidates, &self.bounds());
        let has_seat = |id: WorkerId| seating.iter().any(|(_, taker)| *taker == Taker::Kept(id));
        let left = self.pool.seated().filter(|worker| worker.stands() && !has_seat(worker.id));
        let left = left.map(|worker| worker.id).collect();
        self.unseat(left)?;
        Ok(seating)
    }

    /// Sends away workers that stand and lose their seats.
    fn unseat(&mut self, left: Vec<WorkerId>) -> Result<(), AgentError> {
        for id in left {
            self.pool.send_away(id, Instant::now());
            let Some(worker) = self.pool.get_mut(id) else { continue };
            let home = worker.slot.home;
            let rank = worker.rank();
            if let Some(rank) = rank {
                worker.place = Place::Dismissed(self.state.round, rank);
            }
            self.sources.nodes.dismiss(home, id)?;
        }
        Ok(())
    }

    /// Nodes that were drained need not wait for the run to be continued, when others keep the state.
    pub(super) fn leave_drained(&mut self) -> Result<(), AgentError> {
        let leaving = self.sources.nodes.leaving();
        let (to_leave, to_stay): (Vec<_>, Vec<_>) =
            self.pool.savers().into_iter().partition(|saver| leaving.contains(&saver.slot.home));
        if to_stay.is_empty() {
            return Ok(());
        }
        self.unseat(to_leave.into_iter().map(|saver| saver.worker).collect())
    }

    /// Asks the workers to leave the round when there is a reason to.
    pub(super) fn regroup(&mut self) {
        let done = self.pool.seated().any(|worker| worker.done.is_some());
        let busy = done || self.is_stopping() || self.state.finished > 0 || !self.pool.all_ready();
        if busy || !self.reforms() {
            return;
        }
        if let Some(wish) = self.wish() {
            self.state.wish = Some(wish);
            self.pool.ask_to_regroup(true);
            self.state.mode = Mode::Regrouping(Instant::now() + self.spec.regroup_wait);
        }
    }

    fn wish(&mut self) -> Option<String> {
        if self.paused.is_some() {
            return Some("the run is paused".into());
        }
        // This one hands over the lead, also when nobody works on it.
        let to_leave = |home: &Home| *home == Home::OWN || self.pool.on(*home).any(|worker| worker.seat().is_some());
        if let Some(home) = self.sources.nodes.leaving().into_iter().find(to_leave) {
            return Some(format!("node {} is drained", self.sources.nodes.host(home)));
        }
        let seated = self.pool.seated().count();
        let world = self.world as usize;
        if seated > world {
            return Some(format!("the run goes on with {world} workers instead of {seated}"));
        }
        let candidates = self.pool.candidates();
        if let Some(worker) = self.state.evicted.and_then(|id| self.pool.get(id)) {
            let rank = worker.rank().unwrap_or(Rank(0));
            let pid = worker.child.pid();
            return Some(format!("a spare takes the seat of rank {rank} (pid {pid}), which the others wait for"));
        }
        let missing = world - seated;
        let joining = candidates.warm.len().min(missing);
        if joining > 0 && (candidates.warm.len() >= missing || candidates.warming.is_empty()) {
            return Some(format!("{joining} of {missing} missing workers can join"));
        }
        let step = self.pool.reached();
        if self.parts.may_grow(step) {
            self.parts.grow(step);
            let split = self.parts.split();
            (self.emit)(EventKind::MicroBatchesGrown { round: self.state.round, split });
            return Some(format!("no rank was short of memory for long; micro-batches are cut into {split} only"));
        }
        None
    }

    /// A rank ran out of memory: it changed nothing, and all leave the round to go on with smaller micro-batches.
    pub(super) fn out_of_memory(&mut self, rank: Rank, step: u64, error: String) -> Result<(), AgentError> {
        // When several ranks say so, the first one's word is enough.
        if !self.reforms() || !self.state.mode.is_under_way() {
            return Ok(());
        }
        self.parts.exhausted(self.state.split, step);
        let round = self.state.round;
        let split = self.parts.split();
        (self.emit)(EventKind::MicroBatchesSplit { round, split, rank, error });
        let reason = format!("rank {rank} ran out of memory; micro-batches are cut into {split}");
        self.state.wish = Some(reason.clone());
        self.leave(reason)
    }

    /// When the pages are looked at next for one whom the others wait for.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        let quiet = self.state.mode == Mode::Working && self.reforms() && !self.is_stopping();
        let several = self.pool.seated().nth(1).is_some();
        (quiet && several && self.pool.all_ready()).then(|| self.watch.next(self.spec.straggler_window, now))
    }

    /// Looks at the pages, when it is time.
    pub(super) fn look(&mut self, now: Instant) {
        if self.next_look(now).is_none_or(|at| at > now) {
            return;
        }
        let look = |worker: &super::worker::Worker| {
            let (_, step) = worker.child.place();
            Look { worker: worker.id, step, waited: Duration::from_nanos(worker.child.waited_ns()) }
        };
        let looks = self.pool.seated().map(look).collect();
        let Some(found) = self.watch.look(looks, now) else { return };
        let Some(worker) = self.pool.get(found.worker) else { return };
        let rank = worker.rank().unwrap_or(Rank(0));
        let pid = worker.child.pid();
        let evicted = self.spec.evict_stragglers && !self.pool.candidates().warm.is_empty();
        if found.news || evicted {
            let round = self.state.round;
            let slower_by = found.slower_by;
            (self.emit)(EventKind::Straggler { round, rank, pid, slower_by, evicted });
        }
        if evicted {
            self.state.evicted = Some(found.worker);
        }
    }
}
