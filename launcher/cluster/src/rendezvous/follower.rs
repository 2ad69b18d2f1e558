//! This node as a follower: discovery of the leader, the connection to it, and taking over after its loss.

use super::{
    Elapsed,
    authentication::SAME_TOKEN,
    coordinator::{Coordinator, KEEP_ALIVES},
    discovery::{Discovery, DiscoveryStep, FoundLeader, LeaderFate, LostLeader, WayBack},
    endpoint,
    frame_connection::ConnectionError,
    handle::serve,
    leader_connection::{HandshakeError, LeaderConnection, LinkEvent},
    member_thread::{MemberCommand, MemberThread, Role},
    notification::{Notification, RoundEnd, RunEnd},
    peer_sessions::PeerSessions,
    state::State,
};
use enn_common::wire::node::{FromLeader, ToLeader};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    thread,
};

impl MemberThread {
    /// Makes one step of the discovery. Returns whether another can follow at once.
    pub(super) fn discovery_step(&mut self, now: Elapsed) -> bool {
        let Role::Discovering(discovery, link) = &mut self.role else { return false };
        let next = discovery.next(now);
        if next != DiscoveryStep::Wait || !discovery.is_connecting() {
            *link = None;
        }
        match next {
            DiscoveryStep::Wait => {
                self.report_discovery(now);
                return false;
            }
            DiscoveryStep::Resolve { attempt, host, port } => self.resolve(now, attempt, host, port),
            DiscoveryStep::Connect(_) if self.link_cut.is_some() => {
                discovery.refused("the network is cut".into(), false)
            }
            DiscoveryStep::Connect(addr) => {
                match LeaderConnection::connect(now, addr, self.poll.registry(), &mut self.nonces) {
                    Ok(connecting) => *link = Some(Box::new(connecting)),
                    Err(error) => discovery.refused(error.to_string(), false),
                }
            }
            DiscoveryStep::TakeOver { dead, until } => self.take_over(now, &dead, until),
            DiscoveryStep::GiveUp => self.give_up(),
        }
        true
    }

    /// Reports the reason for waiting, when it changed.
    fn report_discovery(&mut self, now: Elapsed) {
        let Role::Discovering(discovery, _) = &self.role else { return };
        let text = match &discovery.lost {
            Some(why) => format!("the host of the rendezvous is gone ({why}); looking for the node that takes over"),
            None => {
                let (host, port) = self.shared.store();
                format!("looking for the rendezvous at {host}:{port}: {}", discovery.error)
            }
        };
        if text != self.reported && now > discovery.began {
            let left = discovery.deadline.saturating_sub(now).as_millis().div_ceil(1000);
            self.notify(Notification::Waiting(format!("{text}, {left} s left")));
            self.reported = text;
        }
    }

    fn resolve(&mut self, now: Elapsed, number: u64, host: String, port: u16) {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return self.resolved(now, number, Ok(vec![(ip, port).into()]));
        }
        // The system's resolver may block for long, so that nothing waits for the thread.
        let to_self = self.to_self.clone();
        let waker = self.waker.clone();
        let ask = move || {
            let _gone = to_self.send(MemberCommand::Resolved { number, addrs: endpoint::resolve(&host, port) });
            let _gone = waker.wake();
        };
        if let Err(error) = thread::Builder::new().name("enn-resolve".into()).spawn(ask) {
            self.resolved(now, number, Err(format!("no thread to resolve its name: {error}")));
        }
    }

    pub(super) fn resolved(&mut self, now: Elapsed, number: u64, addrs: Result<Vec<SocketAddr>, String>) {
        if let Role::Discovering(discovery, _) = &mut self.role {
            discovery.resolved(now, number, addrs);
        }
    }

    /// The connection to the leader, or to a candidate, is ready.
    pub(super) fn link_ready(&mut self, now: Elapsed) {
        loop {
            let link = match &mut self.role {
                Role::Follower(link) | Role::Discovering(_, Some(link)) => &mut **link,
                Role::Discovering(_, None) | Role::Leader(_) | Role::Ended => return,
            };
            let outcome = link.process(now, self.key.as_ref());
            if let Role::Discovering(discovery, Some(link)) = &mut self.role
                && link.is_answered()
            {
                discovery.answered();
            }
            match outcome {
                Ok(events) if events.is_empty() => return,
                Ok(events) => events.into_iter().for_each(|event| self.on_link_event(now, event)),
                Err(gone) => return self.on_link_closed(now, &gone),
            }
        }
    }

    fn on_link_closed(&mut self, now: Elapsed, gone: &ConnectionError) {
        match &mut self.role {
            Role::Follower(_) => {
                let fate =
                    if matches!(gone, ConnectionError::Closed) { LeaderFate::Closed } else { LeaderFate::Unknown };
                self.leader_lost(now, gone.to_string(), fate);
            }
            Role::Discovering(discovery, link) => {
                *link = None;
                discovery.refused(connect_error(gone), matches!(gone, ConnectionError::Closed));
            }
            Role::Leader(_) | Role::Ended => {}
        }
    }

    fn on_link_event(&mut self, now: Elapsed, event: LinkEvent) {
        match event {
            LinkEvent::Accepted => self.on_accepted(now),
            LinkEvent::Message(FromLeader::Dismissed { reason }) => {
                let host = self.settings.host.clone();
                self.notify(Notification::LeaderLost(reason.clone()));
                self.end_round(RoundEnd::NodeLost { host, reason: reason.clone() });
                // The leader lives: discovery must find no other.
                let at = self.shared.store();
                self.way_back.get_or_insert(WayBack::to(at.clone(), now, &self.settings));
                let leader_rank = self.leader_rank;
                let last = LostLeader { at, leader_rank, roster: None, own_rank: self.rank, fate: LeaderFate::Closed };
                self.role = Role::discovering(Discovery::successor(now, last, reason));
            }
            // Messages behind the one that ended the connection are dropped.
            LinkEvent::Message(_) if !matches!(self.role, Role::Follower(_)) => {}
            LinkEvent::Message(message) => self.on_leader_message(message),
            LinkEvent::Refused(handshake_error) => {
                let reason = self.handshake_error_text(&handshake_error);
                self.end(RunEnd::Refused { reason });
            }
        }
    }

    /// The handshake is complete: this node joins, and goes on where it was.
    fn on_accepted(&mut self, now: Elapsed) {
        let Role::Discovering(discovery, link) = &mut self.role else { return };
        let (Some(FoundLeader { candidate, dead }), Some(link)) = (discovery.found(), link.take()) else { return };
        if dead.is_some() {
            self.leader_rank = candidate.rank;
        }
        self.role = Role::Follower(link);
        self.shared.set_store(candidate.at);
        let description = self.description(dead.as_deref());
        self.send_to_leader(now, ToLeader::Join(Box::new(description)));
        if self.ready {
            self.send_to_leader(now, ToLeader::Ready);
        }
    }

    /// Sends keep-alive messages, and detects a silent leader.
    pub(super) fn keep_alive(&mut self, now: Elapsed) {
        let round = self.round();
        let Role::Follower(link) = &mut self.role else { return };
        let quiet = now.saturating_sub(link.last_received);
        if quiet >= self.settings.silence_max {
            let why = format!("nothing was heard of it for {:.1} s", quiet.as_secs_f64());
            return self.leader_lost(now, why, LeaderFate::Unknown);
        }
        if now >= link.last_keep_alive + self.settings.silence_max / KEEP_ALIVES {
            link.last_keep_alive = now;
            self.send_to_leader(now, ToLeader::Alive { round });
        }
    }

    /// The leader is lost: the round ends, and discovery of the next leader begins.
    pub(super) fn leader_lost(&mut self, now: Elapsed, why: String, fate: LeaderFate) {
        if let Role::Follower(link) = std::mem::replace(&mut self.role, Role::Ended)
            && fate == LeaderFate::Unknown
        {
            let registry = self.poll.registry();
            let connection = if self.link_cut.is_some() { link.detach(registry) } else { link.abandon(registry) };
            self.abandoned.push(connection);
        }
        let members = self.roster.as_ref().and_then(|roster| Some((roster.members.unpack()?, self.leader_rank?)));
        if fate == LeaderFate::Unknown && self.roster.is_some() {
            self.way_back.get_or_insert(WayBack::to(self.shared.store(), now, &self.settings));
        }
        let host = members.and_then(|(members, rank)| members.into_iter().nth(usize::try_from(rank).ok()?));
        let host = host.map_or_else(|| self.shared.store().0, |member| member.host);
        self.notify(Notification::LeaderLost(why.clone()));
        self.end_round(RoundEnd::NodeLost { host, reason: why.clone() });
        let last = LostLeader {
            at: self.shared.store(),
            leader_rank: self.leader_rank,
            roster: self.roster.as_deref(),
            own_rank: self.rank,
            fate,
        };
        self.role = Role::discovering(Discovery::successor(now, last, why));
    }

    /// Makes this node the leader.
    fn take_over(&mut self, now: Elapsed, dead: &[u32], until: Elapsed) {
        let (Some(roster), Some(listeners)) = (self.roster.clone(), self.standby.take()) else {
            return self.give_up();
        };
        let description = self.description(Some(dead));
        let own = roster.successors.iter().find(|successor| successor.node_rank == self.rank);
        let host = own.map_or_else(|| "127.0.0.1".to_owned(), |successor| successor.at.host.clone());
        let at = (host, endpoint::port_of(&listeners));
        let coordinator = serve(listeners, &self.settings, &self.to_self, &self.waker).and_then(|store| {
            let sessions =
                self.poll.registry().try_clone().and_then(|registry| PeerSessions::new(registry, self.key.clone()));
            let sessions = sessions.map_err(|source| super::RendezvousError::System { what: "sockets", source })?;
            let state = State::take_over(self.own, &roster, dead.len(), &self.settings, now, until);
            Ok(Coordinator::new(now, state, self.settings.clone(), store, sessions))
        });
        match coordinator {
            Ok(mut coordinator) => {
                tracing::info!(host = %at.0, port = at.1, "this node takes over as the host of the rendezvous");
                coordinator.join_local(now, description);
                if self.ready {
                    coordinator.handle_local(now, ToLeader::Ready);
                }
                self.shared.set_store(at);
                self.role = Role::Leader(Box::new(coordinator));
            }
            Err(error) => {
                tracing::error!(%error, "this node cannot take over");
                self.give_up();
            }
        }
    }

    fn give_up(&mut self) {
        let Role::Discovering(discovery, _) = &self.role else { return };
        let (host, port) = self.shared.store();
        let error = &discovery.error;
        let end = match &discovery.lost {
            None => RunEnd::TimedOut {
                reason: format!(
                    "nobody answered at the rendezvous' endpoint {host}:{port} for {} s: {error}\nhint: the node that owns \
                     that address must run enn with the same endpoint, and its port must be reachable",
                    self.settings.join_timeout.as_secs_f64()
                ),
            },
            Some(why) if discovery.is_way_back() => RunEnd::LeaderLost { reason: why.clone() },
            Some(why) => RunEnd::LeaderLost {
                reason: format!(
                    "the rendezvous at {host}:{port} is gone ({why}), and nobody takes over: {}",
                    self.no_successor_reason()
                ),
            },
        };
        self.end(end);
    }

    /// Returns why no node takes over, as a clause.
    fn no_successor_reason(&self) -> &'static str {
        match &self.roster {
            _ if !self.settings.elastic() => "the run needs all its nodes (with --nnodes MIN:MAX others may take over)",
            None => "no round had begun",
            Some(roster) if roster.members.len() <= 2 => "of two nodes neither can know which one is cut off",
            Some(_) => "no node that might have done so answers",
        }
    }

    /// Returns the error as a sentence, with the source of this node's token.
    fn handshake_error_text(&self, handshake_error: &HandshakeError) -> String {
        let (host, port) = self.shared.store();
        let from = self.settings.token.as_ref().map_or_else(String::new, |token| token.from.to_string());
        match handshake_error {
            HandshakeError::Token => format!(
                "the rendezvous at {host}:{port} does not accept this node's token, which is from \
                 {from}\nhint: {SAME_TOKEN}"
            ),
            HandshakeError::TokenMissing => {
                format!("the rendezvous at {host}:{port} asks for a token and this node has none\nhint: {SAME_TOKEN}")
            }
            HandshakeError::LeaderUnproved => format!(
                "the rendezvous at {host}:{port} does not know this node's token, which is from {from}\nhint: \
                 {SAME_TOKEN}; or check that the endpoint is the right one"
            ),
            HandshakeError::Rejected(reason) => reason.clone(),
        }
    }
}

fn connect_error(gone: &ConnectionError) -> String {
    match gone {
        ConnectionError::Closed => "connection refused or closed".into(),
        ConnectionError::Broken(io::ErrorKind::TimedOut) => "no answer".into(),
        gone => gone.to_string(),
    }
}
