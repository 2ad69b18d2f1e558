//! The agent as the head of several nodes: who comes and goes, and what the hands report.

use super::{
    body::Body,
    dispatcher::Agent,
    error::AgentError,
    far::Far,
    letter,
    seats::{self, Bounds, Home},
    spec::{Ended, Signal},
};
use crate::rendezvous::{News, NodeId, RunEnd};
use enn_broker::BrokerEvent;
use enn_common::{
    event::EventKind,
    id::{Round, WorkerId},
    wire::follower::{Ending, NodeIntroduction, Order, Report, RunSnapshot, SeatFacts, StatusSnapshot, WorkerExit},
};
use nix::sys::signal::Signal as Posix;
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

/// Longest wait for the other nodes to hear that the run is over.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

impl Agent<'_> {
    /// The rendezvous has news.
    pub(super) fn hear(&mut self) -> Result<(), AgentError> {
        let Some(rendezvous) = self.sources.nodes.rendezvous().cloned() else { return Ok(()) };
        rendezvous.clear();
        while let Some(news) = rendezvous.news() {
            match news {
                // Workers work on while nodes come and go.
                News::Waiting(_) if self.state.mode.is_under_way() => {}
                News::Waiting(reason) => (self.emit)(EventKind::Waiting { reason }),
                News::NodeJoined { host, workers, .. } => (self.emit)(EventKind::NodeJoined { host, workers }),
                News::NodeLost { node, host, reason } => {
                    (self.emit)(EventKind::NodeLost { host: host.clone(), reason: reason.clone() });
                    self.node_lost(node, &host, &reason)?;
                }
                News::Round(plan) => {
                    self.sources.nodes.agreed(&plan);
                    self.count_world();
                }
                News::RoundEnded(_) => self.sources.nodes.disagreed(),
                News::RunEnded(end) => self.rendezvous_over(&end)?,
                // This node is the host.
                News::HostLost(_) => {}
                News::Letter { from, bytes } => {
                    if let Some(report) = letter::open(&bytes) {
                        self.told(from, report)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Workers wanted: as many as the nodes were asked for, or as `enn resize` says.
    pub(super) fn count_world(&mut self) {
        let rooms = self.sources.nodes.rooms();
        let (asked, most): (u32, u32) =
            rooms.iter().fold((0, 0), |(asked, most), room| (asked + room.share, most.saturating_add(room.most)));
        self.world = self.resized.map_or(asked, |workers| workers.min(most));
    }

    pub(super) fn bounds(&self) -> Bounds {
        // A run that was not to go on with fewer is not to when it was resized, or has lost a node, either.
        let fixed = self.spec.workers_min >= self.spec.world;
        let fewest = if fixed { self.world } else { self.spec.workers_min.min(self.world) };
        let rooms = seats::shares(&self.sources.nodes.rooms(), self.world);
        Bounds { fewest, most: self.world, rooms }
    }

    /// Nodes whose agent must have said something by now, or must by then.
    fn stuck(&self) -> Vec<(Instant, NodeId)> {
        let Some(patience) = self.sources.nodes.patience() else { return Vec::new() };
        let heard = self.pool.all().filter_map(|worker| worker.child.far()?.overdue(patience));
        let awaited = self.sources.nodes.awaited();
        let awaited = awaited.into_iter().flat_map(|(nodes, at)| nodes.iter().map(move |node| (at, *node)));
        heard.chain(awaited).collect()
    }

    /// When a node has been silent for too long though its connection stands.
    pub(super) fn next_stuck(&self) -> Option<Instant> {
        self.stuck().into_iter().map(|(at, _)| at).min()
    }

    /// Gives up the nodes of which that is so: nobody would notice the death of their workers.
    pub(super) fn lose_stuck(&mut self, now: Instant) -> Result<(), AgentError> {
        let stuck = self.stuck().into_iter().filter(|(at, _)| *at <= now).map(|(_, node)| node);
        for node in stuck.collect::<BTreeSet<_>>() {
            let why = "its agent does nothing, though its connection stands";
            if let Some(rendezvous) = self.sources.nodes.rendezvous() {
                rendezvous.dismiss(node, why.into());
            }
            let host = self.sources.nodes.home(node).map_or_else(String::new, |home| self.sources.nodes.host(home));
            self.node_lost(node, &host, why)?;
        }
        Ok(())
    }

    /// All workers of a node are dead in the same instant.
    fn node_lost(&mut self, node: NodeId, host: &str, reason: &str) -> Result<(), AgentError> {
        self.callers.lost(node);
        let was_leaving =
            self.sources.nodes.home(node).is_some_and(|home| self.sources.nodes.leaving().contains(&home));
        let Some(home) = self.sources.nodes.lost(node) else { return Ok(()) };
        if was_leaving {
            // Should it come again, it may stay.
            self.wished();
        }
        self.count_world();
        let ids: Vec<WorkerId> = self.pool.on(home).map(|worker| worker.id).collect();
        for id in &ids {
            let Some(worker) = self.pool.get_mut(*id) else { continue };
            worker.words.get_or_insert_with(|| format!("its node {host} was lost: {reason}"));
            if let Some(far) = worker.child.there() {
                far.lost();
            }
            self.ended(*id, Duration::ZERO)?;
        }
        ids.into_iter().try_for_each(|id| self.judge(id))
    }

    /// Nobody comes any more. `end` says why.
    fn rendezvous_over(&mut self, end: &RunEnd) -> Result<(), AgentError> {
        self.sources.nodes.over();
        let reason = match end {
            RunEnd::Finished => return Ok(()),
            RunEnd::Stopped { by } => {
                self.part_from_all()?;
                if !self.is_stopping() && !self.state.mode.is_last() {
                    (self.emit)(EventKind::GaveUp { reason: format!("the run was stopped: {by}") });
                    self.signalled(Signal::Terminate, false)?;
                }
                return Ok(());
            }
            RunEnd::Failed { end, reason } => format!("{end} ({reason})"),
            RunEnd::TimedOut { reason } | RunEnd::HostLost { reason } | RunEnd::Refused { reason } => reason.clone(),
        };
        self.part_from_all()?;
        if self.state.mode.is_last() {
            return Ok(());
        }
        (self.emit)(EventKind::GaveUp { reason: reason.clone() });
        self.giving_up.get_or_insert(reason);
        if self.nodes_min < self.nodes_max && matches!(end, RunEnd::Failed { .. } | RunEnd::HostLost { .. }) {
            // The other side may go on in the same directory: nothing more is written here.
            self.kill();
            return Ok(());
        }
        self.ask_to_stop()
    }

    /// The others hear, too, that the meeting is over, and kill their workers; no letter goes either way any more.
    fn part_from_all(&mut self) -> Result<(), AgentError> {
        for (node, host) in self.sources.nodes.others() {
            self.node_lost(node, &host, "the nodes meet no more")?;
        }
        Ok(())
    }

    /// A hand reports.
    fn told(&mut self, from: NodeId, report: Report) -> Result<(), AgentError> {
        if let Report::Introduced(here) = report {
            return self.node_here(from, *here);
        }
        let Some(home) = self.sources.nodes.home(from) else { return Ok(()) };
        let now = Instant::now();
        self.pool.on_mut(home).filter_map(|worker| worker.child.there()).for_each(|far| far.heard(now));
        // A node speaks for its own workers only.
        if report.worker().is_some_and(|worker| !self.lives_on(home, worker)) {
            return Ok(());
        }
        match report {
            Report::Introduced(_) => Ok(()),
            Report::Unfit { reason } => {
                let host = self.sources.nodes.host(home);
                (self.emit)(EventKind::Warned { message: format!("node {host} cannot take part: {reason}") });
                Ok(())
            }
            Report::Started { worker, pid } => {
                self.started(WorkerId(worker), pid);
                Ok(())
            }
            Report::NotStarted { worker, error } => {
                let status = StatusSnapshot { worker, ..StatusSnapshot::default() };
                let code = Some(1);
                let late = Duration::ZERO;
                let stderr = String::new();
                let end = WorkerExit { code, signal: None, late, stderr, status, intent: None };
                if let Some(worker) = self.pool.get_mut(WorkerId(worker)) {
                    worker.words.get_or_insert(error);
                }
                self.far_ended(WorkerId(worker), end)
            }
            Report::Ended { worker, exit } => self.far_ended(WorkerId(worker), *exit),
            Report::Joined { worker } => self.spoken(BrokerEvent::Joined { worker: WorkerId(worker), pid: 0 }),
            Report::Message { worker, round, message } => {
                let round = round.map(Round);
                let worker = WorkerId(worker);
                self.spoken(BrokerEvent::Reported { round, worker, message: *message })
            }
            Report::Left { worker, error } => self.spoken(BrokerEvent::Left { worker: WorkerId(worker), error }),
            Report::Refused { error } => self.spoken(BrokerEvent::Refused { error }),
            Report::Synced { worker } => self.spoken(BrokerEvent::Synced { token: worker.into() }),
            Report::StatusChanged(glances) => {
                for glance in glances {
                    let worker = self.pool.on_mut(home).find(|worker| worker.id.0 == glance.worker);
                    if let Some(far) = worker.and_then(|worker| worker.child.there()) {
                        far.glance(glance, now);
                    }
                }
                Ok(())
            }
            Report::Signalled { signal, second } => self.signalled(Signal::named(&signal), second),
            Report::SnapshotReceived { requests } => {
                self.callers.heard(from, requests);
                Ok(())
            }
        }
    }

    fn lives_on(&self, home: Home, worker: u32) -> bool {
        self.pool.get(WorkerId(worker)).is_some_and(|worker| worker.slot.home == home)
    }

    fn far_ended(&mut self, id: WorkerId, end: WorkerExit) -> Result<(), AgentError> {
        let late = end.late;
        if let Some(far) = self.pool.get_mut(id).and_then(|worker| worker.child.there()) {
            far.ended(end);
        }
        self.ended(id, late)
    }

    /// A hand started a process.
    fn started(&mut self, id: WorkerId, pid: u32) {
        let Some(worker) = self.pool.get_mut(id) else { return };
        if let Some(far) = worker.child.there() {
            far.started(pid);
        }
        self.announce(id);
    }

    /// A node is here, for the first time or in a new membership.
    fn node_here(&mut self, from: NodeId, here: NodeIntroduction) -> Result<(), AgentError> {
        let Some((home, new)) = self.sources.nodes.here(from, &here) else { return Ok(()) };
        if new {
            self.count_world();
        }
        if new && self.heir {
            self.adopt_all(home, &here)?;
        }
        if let Some(stop) = here.snapshot.as_ref().and_then(|standing| standing.stop.as_deref()) {
            // It came to that node, or to the head before, when nobody led.
            self.stop_as_was_asked(stop)?;
        }
        if let Some(line) = self.sources.nodes.line(home).filter(|_| new && self.has_begun()) {
            let standing = self.standing(self.state.round, &self.state.attempt);
            line.order(&Order::Snapshot(Box::new(standing)));
        }
        // Workers that were given up when the node was taken for lost.
        for worker in here.workers.iter().filter(|living| self.pool.get(WorkerId(living.worker)).is_none()) {
            if let Some(line) = self.sources.nodes.line(home) {
                line.order(&Order::Signal { worker: worker.worker, signal: Posix::SIGKILL as i32 });
            }
        }
        Ok(())
    }

    /// Has a process for worker `id` started on another node; `None`: it is for this one to start.
    pub(super) fn far(&self, home: Home, id: WorkerId, seat: Option<SeatFacts>, logs: &Path) -> Option<Body> {
        let line = self.sources.nodes.line(home)?.clone();
        line.order(&Order::Spawn { worker: id.0, seat, logs: logs.to_owned() });
        Some(Body::There(Box::new(Far::new(line, id, 0, Instant::now()))))
    }

    /// The workers of a node leave it, and the run goes on with the others; what follows, or why not.
    pub(super) fn drain(&mut self, host: &str) -> Result<String, String> {
        let homes = self.sources.nodes.on_host(host);
        let briefs = self.sources.nodes.briefs();
        if homes.is_empty() {
            let hosts: Vec<String> = briefs.into_iter().map(|brief| brief.host).collect();
            return Err(format!("the run has the nodes {}; found \"{host}\"", hosts.join(", ")));
        }
        let left = briefs.iter().filter(|brief| brief.host != host).count();
        if left < self.nodes_min as usize {
            let least = self.nodes_min;
            return Err(format!("{left} nodes would be left of {least} that the run needs (--nnodes MIN:MAX)"));
        }
        let leads = homes.contains(&Home::OWN);
        for home in homes {
            self.sources.nodes.leave(home);
            let spares = self.pool.spares().filter(|spare| spare.slot.home == home);
            let spares: Vec<WorkerId> = spares.map(|spare| spare.id).collect();
            spares.into_iter().for_each(|id| self.pool.send_away(id, Instant::now()));
        }
        self.count_world();
        self.wished();
        let then = if leads { "another node leads, " } else { "" };
        Ok(format!("the workers of node {host} leave it after the present step, {then}and {left} nodes go on"))
    }

    /// This node was drained, all stand, and the others go on from there; unless they have nothing to go on from.
    pub(super) fn hand_over(&mut self) -> Result<(), AgentError> {
        if self.sources.committer.pending > 0 {
            // The next head must find it.
            return Ok(());
        }
        let host = self.spec.host.clone();
        if !self.pool.savers().iter().any(|saver| saver.slot.home != Home::OWN) {
            self.sources.nodes.stay(Home::OWN);
            self.wished();
            self.count_world();
            let message = format!("node {host} is not drained: no worker of another node has the state of training");
            (self.emit)(EventKind::Warned { message });
            return self.go_on_or_pause();
        }
        let reason = "it was drained (enn drain), and another node leads";
        (self.emit)(EventKind::NodeLost { host: host.clone(), reason: reason.into() });
        let standing = self.standing(self.state.round, &self.state.attempt);
        self.sources.nodes.hand_over(RunSnapshot { drained: Some(host), ..standing });
        // The next head opens its own. Nobody waits at this one, which is what it waits for.
        self.callers.dismiss();
        self.sources.control = None;
        self.pool.keep_own();
        self.outcome.handed_over = true;
        self.close()
    }

    /// Whether there is a run that another node could take over.
    pub(super) fn has_begun(&self) -> bool {
        self.heir || self.outcome.rounds > 0
    }

    /// People asked for something. Who may take over hears it before it is done.
    pub(super) fn wished(&mut self) {
        self.wishes += 1;
        if self.has_begun() {
            let standing = self.standing(self.state.round, &self.state.attempt);
            self.sources.nodes.order_all(&Order::Snapshot(Box::new(standing)));
        }
    }

    /// Cuts the link to a node; what follows, or why not.
    pub(super) fn cut(&self, host: &str, seconds: u32) -> Result<String, String> {
        let homes = self.sources.nodes.on_host(host);
        let lines: Vec<_> = homes.into_iter().filter_map(|home| self.sources.nodes.line(home)).collect();
        if lines.is_empty() {
            let others = self.sources.nodes.briefs().into_iter().skip(1).map(|brief| brief.host);
            let others: Vec<String> = others.collect();
            let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
            return Err(format!("found \"{host}\", expected a node that another one leads: {others}"));
        }
        lines.into_iter().for_each(|line| line.order(&Order::Cut { seconds }));
        Ok(format!("the link between node {host} and the head is cut for {seconds} s; its workers' own links are not"))
    }

    /// Sends away the nodes on which nobody works any more and nobody is to.
    pub(super) fn part(&mut self) {
        for home in self.sources.nodes.leaving() {
            if self.pool.on(home).next().is_none()
                && let Some(line) = self.sources.nodes.part(home)
            {
                line.order(&Order::Leave { why: "it was drained (enn drain)".into() });
            }
        }
    }

    /// The hands hear how the run ended.
    pub(super) fn farewell(&self) {
        let Some(rendezvous) = self.sources.nodes.rendezvous() else { return };
        let ending = match &self.outcome.ended {
            Ended::Finished => Ending::Finished,
            Ended::Stopped(signal) => Ending::Stopped { signal: signal.name().to_owned() },
            Ended::Failed { cause } => Ending::Failed { cause: cause.clone() },
        };
        self.sources.nodes.order_all(&Order::End(ending));
        self.sources.nodes.finished();
        if self.sources.nodes.are_several() {
            rendezvous.await_end(FAREWELL_MAX);
        }
    }
}
