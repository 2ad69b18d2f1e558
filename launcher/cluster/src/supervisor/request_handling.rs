//! Requests of users: what is accepted, and what is refused why.

use super::{
    effect::RequestId,
    machine::Supervisor,
    phase::Phase,
    requests::{AcceptedRequest, HOLD_MAX, HeldRequest, LEADS_NO_MORE, REPLICATION_WAIT_MAX, rejection},
    seating::NodeIndex,
};
use enn_common::{
    event::EventKind,
    wire::{
        command::Request,
        node_agent::{NodeCommand, StopSignal},
    },
};
use std::{collections::BTreeSet, time::Duration};

impl Supervisor {
    /// A user asks for something.
    pub(super) fn hold_request(&mut self, id: RequestId, request: Request) {
        if self.phase == Phase::Over || self.control_closed {
            return self.out.push(rejection(id, LEADS_NO_MORE));
        }
        self.requests.held.push(HeldRequest { id, request, until: self.now + HOLD_MAX });
    }

    /// Handles the requests for which it is time, and answers.
    pub(super) fn serve_requests(&mut self) {
        for held in std::mem::take(&mut self.requests.held) {
            // A node that is not here yet may know of other requests. A stop comes after all of them.
            let is_early = self.successor && !self.nodes.is_settled() && held.request != (Request::Stop {});
            if !is_early {
                self.serve_request(held.id, held.request);
            } else if self.now < held.until {
                self.requests.held.push(held);
            } else {
                let reason = "this node has just taken over and waits for the others; ask again";
                self.out.push(rejection(held.id, reason));
            }
        }
        self.out.extend(self.requests.answers(self.now));
    }

    fn serve_request(&mut self, id: RequestId, request: Request) {
        match self.handle_request(request) {
            Ok(says) => {
                let requests = self.requests_handled;
                // Also what was asked for before by another user is promised now.
                let unheard = if self.has_begun() { self.nodes.unaware(requests) } else { BTreeSet::new() };
                let until = self.now + REPLICATION_WAIT_MAX;
                self.requests.accepted.insert(id, AcceptedRequest { says, requests, unheard, until });
            }
            Err(reason) => self.out.push(rejection(id, reason)),
        }
    }

    /// Does what is asked, or says why not.
    fn handle_request(&mut self, request: Request) -> Result<String, String> {
        if self.is_ending() {
            return Err("the run is ending".into());
        }
        if self.is_stopping() {
            // A user who was not answered asks again.
            let again = request == Request::Stop {} && self.stop.is_some();
            let says = "the run is stopping: its workers save and end".to_owned();
            return if again { Ok(says) } else { Err(says) };
        }
        let several = self.settings.several_nodes;
        match request {
            Request::Stop {} => Ok(self.stop_for(StopSignal::Interrupt, "enn stop")),
            Request::Drain { node: Some(node) } if several && self.reforms() => self.drain(&node),
            Request::Drain { node: None } if self.nodes.are_several() => {
                Err("the run has several nodes: say which one (--node HOST)".into())
            }
            Request::Drain { node: Some(node) } if node != self.settings.host => {
                Err(format!("the run has one node, {}; found \"{node}\"", self.settings.host))
            }
            Request::Drain { .. } => Ok(self.stop_for(StopSignal::Terminate, "enn drain")),
            Request::Cut { node, seconds } => self.cut(&node, seconds),
            Request::Resize { .. } | Request::Pause {} | Request::Continue {} if !self.reforms() => Err(
                "the run's workers do not meet again: it is no training, or one with --policy restart (stop it, and \
                     go on with --resume)"
                    .into(),
            ),
            Request::Resize { workers } => self.resize(workers),
            Request::Pause {} => self.ask_to_pause(),
            Request::Continue {} => self.ask_to_continue(),
        }
    }

    /// Something was asked for. Nodes that may take over hear of it before any worker does, and before it is answered.
    pub(super) fn request_handled(&mut self) {
        self.requests_handled += 1;
        self.replicate();
    }

    fn stop_for(&mut self, signal: StopSignal, asked_by: &str) -> String {
        self.signalled(signal, asked_by, false);
        format!("the workers finish the step, save and end; they have {:.0} s", self.settings.run.grace.as_secs_f64())
    }

    fn resize(&mut self, workers: u32) -> Result<String, String> {
        let rooms = self.nodes.rooms();
        let before = self.world;
        let most = self.nodes.seats();
        if workers == 0 || workers > most {
            let place = if rooms.len() == 1 { "this machine" } else { "these machines" };
            return Err(format!("found {workers} workers, expected 1 to {most} on {place}"));
        }
        if workers == before {
            return Ok(format!("the run has {workers} workers already"));
        }
        self.world = workers;
        self.resized = Some(workers);
        self.journal(EventKind::Resized { before, workers });
        self.request_handled();
        let then = match (workers > before, self.paused.is_some()) {
            (_, true) => "when it continues",
            (true, false) => "as soon as the new ones are warm",
            (false, false) => "after the present step",
        };
        Ok(format!("the run goes on with {workers} workers instead of {before}, {then}"))
    }

    fn ask_to_pause(&mut self) -> Result<String, String> {
        if self.paused.is_some() {
            return Err("the run is paused already".into());
        }
        self.paused = Some(self.now);
        self.request_handled();
        Ok("the workers leave the round after the present step and stay warm (go on with enn continue)".into())
    }

    fn ask_to_continue(&mut self) -> Result<String, String> {
        if self.paused.take().is_none() {
            return Err("the run is not paused".into());
        }
        self.request_handled();
        Ok("the run goes on".into())
    }

    /// The workers of a node leave it, and the run goes on with the others.
    pub(super) fn drain(&mut self, host: &str) -> Result<String, String> {
        let drained = self.nodes.on_host(host);
        let briefs = self.nodes.briefs();
        if drained.is_empty() {
            let hosts: Vec<String> = briefs.into_iter().map(|brief| brief.host).collect();
            return Err(format!("the run has the nodes {}; found \"{host}\"", hosts.join(", ")));
        }
        let left = briefs.iter().filter(|brief| brief.host != host).count();
        if left < self.settings.nodes_min as usize {
            let least = self.settings.nodes_min;
            return Err(format!("{left} nodes would be left of {least} that the run needs (--nnodes MIN:MAX)"));
        }
        let leads = drained.contains(&NodeIndex::OWN);
        for node in drained {
            self.nodes.leave(node);
            self.dismiss_spares(Some(node));
        }
        self.count_world();
        self.request_handled();
        let then = if leads { "another node leads, " } else { "" };
        Ok(format!("the workers of node {host} leave it after the present step, {then}and {left} nodes go on"))
    }

    /// Cuts the link to a node for a while.
    fn cut(&mut self, host: &str, seconds: u32) -> Result<String, String> {
        let nodes: Vec<NodeIndex> =
            self.nodes.on_host(host).into_iter().filter(|node| *node != NodeIndex::OWN).collect();
        if nodes.is_empty() {
            let others: Vec<String> = self.nodes.briefs().into_iter().skip(1).map(|brief| brief.host).collect();
            let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
            return Err(format!("found \"{host}\", expected a node that another one leads: {others}"));
        }
        for node in nodes {
            self.send(node, NodeCommand::CutLink { time: Duration::from_secs(seconds.into()) });
        }
        Ok(format!("the link between node {host} and the head is cut for {seconds} s; its workers' own links are not"))
    }
}
