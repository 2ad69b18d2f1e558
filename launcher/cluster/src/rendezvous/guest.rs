//! This node as a guest of another one's rendezvous: it looks for the host, keeps the connection, and takes over when the
//! host died and it is its turn.

use super::{
    coordinator::{Coordinator, KEEP_ALIVES},
    door::SAME_TOKEN,
    endpoint,
    guests::Guests,
    handle::serve,
    link::{Link, Refusal, Step},
    member::{Command, Member, Seat},
    news::{News, RoundEnd, RunEnd},
    pipe::Gone,
    seek::{Fate, Found, Last, Next, Search, WayBack},
    state::{State, Time},
};
use enn_common::wire::node::{FromHost, ToHost};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    thread,
};

impl Member {
    /// One step of the search. Whether another can follow at once.
    pub(super) fn seek(&mut self, now: Time) -> bool {
        let Seat::Seeking(search, link) = &mut self.seat else { return false };
        let next = search.next(now);
        if next != Next::Wait || !search.is_connecting() {
            *link = None;
        }
        match next {
            Next::Wait => {
                self.tell_search(now);
                return false;
            }
            Next::Resolve { attempt, host, port } => self.resolve(now, attempt, host, port),
            Next::Connect(_) if self.deaf.is_some() => search.refused("the network is cut".into(), false),
            Next::Connect(addr) => match Link::connect(now, addr, self.poll.registry(), &mut self.nonces) {
                Ok(connecting) => *link = Some(Box::new(connecting)),
                Err(error) => search.refused(error.to_string(), false),
            },
            Next::TakeOver { dead, until } => self.take_over(now, &dead, until),
            Next::GiveUp => self.give_up(),
        }
        true
    }

    /// Says what is being waited for, when that changed.
    fn tell_search(&mut self, now: Time) {
        let Seat::Seeking(search, _) = &self.seat else { return };
        let text = match &search.lost {
            Some(why) => format!("the host of the rendezvous is gone ({why}); looking for the node that takes over"),
            None => {
                let (host, port) = self.shared.store();
                format!("looking for the rendezvous at {host}:{port}: {}", search.error)
            }
        };
        if text != self.told && now > search.began {
            let left = search.deadline.saturating_sub(now).as_millis().div_ceil(1000);
            self.tell(News::Waiting(format!("{text}, {left} s left")));
            self.told = text;
        }
    }

    fn resolve(&mut self, now: Time, number: u64, host: String, port: u16) {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return self.resolved(now, number, Ok(vec![(ip, port).into()]));
        }
        // The system's resolver blocks as long as it likes; nobody waits for the thread.
        let to_self = self.to_self.clone();
        let waker = self.waker.clone();
        let ask = move || {
            let _gone = to_self.send(Command::Resolved { number, addrs: endpoint::resolve(&host, port) });
            let _gone = waker.wake();
        };
        if let Err(error) = thread::Builder::new().name("enn-resolve".into()).spawn(ask) {
            self.resolved(now, number, Err(format!("no thread to resolve its name: {error}")));
        }
    }

    pub(super) fn resolved(&mut self, now: Time, number: u64, addrs: Result<Vec<SocketAddr>, String>) {
        if let Seat::Seeking(search, _) = &mut self.seat {
            search.resolved(now, number, addrs);
        }
    }

    /// The connection to the host, or to one that may be it, can be read or written.
    pub(super) fn link_ready(&mut self, now: Time) {
        loop {
            let link = match &mut self.seat {
                Seat::Guest(link) | Seat::Seeking(_, Some(link)) => &mut **link,
                Seat::Seeking(_, None) | Seat::Host(_) | Seat::Out => return,
            };
            let turned = link.turn(now, self.key.as_ref());
            if let Seat::Seeking(search, Some(link)) = &mut self.seat
                && link.is_answered()
            {
                search.answered();
            }
            match turned {
                Ok(steps) if steps.is_empty() => return,
                Ok(steps) => steps.into_iter().for_each(|step| self.step(now, step)),
                Err(gone) => return self.link_gone(now, &gone),
            }
        }
    }

    fn link_gone(&mut self, now: Time, gone: &Gone) {
        match &mut self.seat {
            Seat::Guest(_) => {
                let fate = if matches!(gone, Gone::Closed) { Fate::Closed } else { Fate::Unknown };
                self.host_lost(now, gone.to_string(), fate);
            }
            Seat::Seeking(search, link) => {
                *link = None;
                search.refused(connect_error(gone), matches!(gone, Gone::Closed));
            }
            Seat::Host(_) | Seat::Out => {}
        }
    }

    fn step(&mut self, now: Time, step: Step) {
        match step {
            Step::Welcome => self.welcome(now),
            Step::Said(FromHost::Dismissed { reason }) => {
                let host = self.settings.host.clone();
                self.tell(News::HostLost(reason.clone()));
                self.end_round(RoundEnd::NodeLost { host, reason: reason.clone() });
                // The host lives: only it may be found.
                let at = self.shared.store();
                self.way_back.get_or_insert(WayBack::to(at.clone(), now, &self.settings));
                let host_rank = self.host_rank;
                let last = Last { at, host_rank, roster: None, own_rank: self.rank, fate: Fate::Closed };
                self.seat = Seat::seeking(Search::successor(now, last, reason));
            }
            // What came with the word that made this node give the host up.
            Step::Said(_) if !matches!(self.seat, Seat::Guest(_)) => {}
            Step::Said(message) => self.listen(message),
            Step::Refused(refusal) => {
                let reason = self.refusal(&refusal);
                self.end(RunEnd::Refused { reason });
            }
        }
    }

    /// The greeting is over: this node says who it is, and goes on where it was.
    fn welcome(&mut self, now: Time) {
        let Seat::Seeking(search, link) = &mut self.seat else { return };
        let (Some(Found { target, dead }), Some(link)) = (search.found(), link.take()) else { return };
        if dead.is_some() {
            self.host_rank = target.rank;
        }
        self.seat = Seat::Guest(link);
        self.shared.set_store(target.at);
        let card = self.card(dead.as_deref());
        self.say(now, ToHost::Join(Box::new(card)));
        if self.ready {
            self.say(now, ToHost::Ready);
        }
    }

    /// Tells the host that this node lives, and notices when the host does not.
    pub(super) fn keep_alive(&mut self, now: Time) {
        let round = self.round();
        let Seat::Guest(link) = &mut self.seat else { return };
        let quiet = now.saturating_sub(link.heard);
        if quiet >= self.settings.silence_max {
            let why = format!("nothing was heard of it for {:.1} s", quiet.as_secs_f64());
            return self.host_lost(now, why, Fate::Unknown);
        }
        if now >= link.ticked + self.settings.silence_max / KEEP_ALIVES {
            link.ticked = now;
            self.say(now, ToHost::Alive { round });
        }
    }

    /// The host is gone: the round is over, and somebody has to take over.
    pub(super) fn host_lost(&mut self, now: Time, why: String, fate: Fate) {
        if let Seat::Guest(link) = std::mem::replace(&mut self.seat, Seat::Out)
            && fate == Fate::Unknown
        {
            let registry = self.poll.registry();
            let pipe = if self.deaf.is_some() { link.silence(registry) } else { link.abandon(registry) };
            self.abandoned.push(pipe);
        }
        let members = self.roster.as_ref().and_then(|roster| Some((roster.members.unpack()?, self.host_rank?)));
        if fate == Fate::Unknown && self.roster.is_some() {
            self.way_back.get_or_insert(WayBack::to(self.shared.store(), now, &self.settings));
        }
        let host = members.and_then(|(members, rank)| members.into_iter().nth(usize::try_from(rank).ok()?));
        let host = host.map_or_else(|| self.shared.store().0, |member| member.host);
        self.tell(News::HostLost(why.clone()));
        self.end_round(RoundEnd::NodeLost { host, reason: why.clone() });
        let last = Last {
            at: self.shared.store(),
            host_rank: self.host_rank,
            roster: self.roster.as_deref(),
            own_rank: self.rank,
            fate,
        };
        self.seat = Seat::seeking(Search::successor(now, last, why));
    }

    /// The host died and it is this node's turn.
    fn take_over(&mut self, now: Time, dead: &[u32], until: Time) {
        let (Some(roster), Some(listeners)) = (self.roster.clone(), self.standby.take()) else {
            return self.give_up();
        };
        let card = self.card(Some(dead));
        let own = roster.successors.iter().find(|heir| heir.node_rank == self.rank);
        let host = own.map_or_else(|| "127.0.0.1".to_owned(), |heir| heir.at.host.clone());
        let at = (host, endpoint::port_of(&listeners));
        let coordinator = serve(listeners, &self.settings, &self.to_self, &self.waker).and_then(|store| {
            let guests = self.poll.registry().try_clone().and_then(|registry| Guests::new(registry, self.key.clone()));
            let guests = guests.map_err(|source| super::RendezvousError::System { what: "sockets", source })?;
            let state = State::inherit(self.own, &roster, dead.len(), &self.settings, (now, until));
            Ok(Coordinator::new(now, state, self.settings.clone(), store, guests))
        });
        match coordinator {
            Ok(mut coordinator) => {
                tracing::info!(host = %at.0, port = at.1, "this node takes over as the host of the rendezvous");
                coordinator.join_own(now, card);
                if self.ready {
                    coordinator.say_own(now, ToHost::Ready);
                }
                self.shared.set_store(at);
                self.seat = Seat::Host(Box::new(coordinator));
            }
            Err(error) => {
                tracing::error!(%error, "this node cannot take over");
                self.give_up();
            }
        }
    }

    fn give_up(&mut self) {
        let Seat::Seeking(search, _) = &self.seat else { return };
        let (host, port) = self.shared.store();
        let error = &search.error;
        let end = match &search.lost {
            None => RunEnd::TimedOut {
                reason: format!(
                    "nobody answered at the rendezvous' endpoint {host}:{port} for {} s: {error}\nhint: the node that owns \
                     that address must run enn with the same endpoint, and its port must be reachable",
                    self.settings.join_timeout.as_secs_f64()
                ),
            },
            Some(why) if search.is_way_back() => RunEnd::HostLost { reason: why.clone() },
            Some(why) => RunEnd::HostLost {
                reason: format!(
                    "the rendezvous at {host}:{port} is gone ({why}), and nobody takes over: {}",
                    self.heirless()
                ),
            },
        };
        self.end(end);
    }

    /// Why nobody takes over.
    fn heirless(&self) -> &'static str {
        match &self.roster {
            _ if !self.settings.elastic() => "the run needs all its nodes (with --nnodes MIN:MAX others may take over)",
            None => "no round had begun",
            Some(roster) if roster.members.len() <= 2 => "of two nodes neither can know which one is cut off",
            Some(_) => "no node that might have done so answers",
        }
    }

    /// The refusal in words, with what this node knows of its own token.
    fn refusal(&self, refusal: &Refusal) -> String {
        let (host, port) = self.shared.store();
        let from = self.settings.token.as_ref().map_or_else(String::new, |token| token.from.to_string());
        match refusal {
            Refusal::Token => format!(
                "the rendezvous at {host}:{port} does not accept this node's token, which is from \
                 {from}\nhint: {SAME_TOKEN}"
            ),
            Refusal::TokenMissing => {
                format!("the rendezvous at {host}:{port} asks for a token and this node has none\nhint: {SAME_TOKEN}")
            }
            Refusal::HostUnproved => format!(
                "the rendezvous at {host}:{port} does not know this node's token, which is from {from}\nhint: \
                 {SAME_TOKEN}; or check that the endpoint is the right one"
            ),
            Refusal::Said(reason) => reason.clone(),
        }
    }
}

fn connect_error(gone: &Gone) -> String {
    match gone {
        Gone::Closed => "connection refused or closed".into(),
        Gone::Broken(io::ErrorKind::TimedOut) => "no answer".into(),
        gone => gone.to_string(),
    }
}
