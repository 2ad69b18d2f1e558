//! The host's side: what nodes say goes into the state, what was decided goes out to them.
//!
//! **Invariant:** the store is cleared before any node hears of a round. Nothing here blocks but that, which is bounded.

use super::{
    decide::{Decision, Reason, decide},
    guests::{Guests, Said},
    pipe::frame_of,
    settings::Settings,
    state::{Loss, Restart, Stage, State, Time, Told},
};
use enn_broker::tcpstore::{ForeignConnection, StoreError, StoreHandle};
use enn_common::wire::node::{FromHost, NodeDescription, NodeId, Roster, RoundEnd, RunEnd, ToHost};
use mio::Token;
use std::{sync::Arc, time::Duration};

/// Those who wait are told of a new reason at most this often, and less often the more they are: with thousands of nodes
/// every newcomer is a new reason.
const REASON_PERIOD: Duration = Duration::from_millis(250);
const REASON_PERIOD_PER_NODE: Duration = Duration::from_micros(300);
/// Keep-alives within the longest silence.
pub(super) const KEEP_ALIVES: u32 = 5;

/// What the host's own node is told.
#[derive(Debug)]
pub(super) enum Heard {
    /// As any other node.
    Said(FromHost),
    /// A round begins, with this rank for it.
    Begin(Arc<Roster>, u32, Vec<NodeId>),
    /// For the journal.
    Joined { node: NodeId, host: String, workers: u32 },
    /// For the journal.
    Lost { node: NodeId, host: String, reason: String },
    /// A node wrote a letter.
    Letter(NodeId, Vec<u8>),
}

/// The rendezvous of a run, in the process of the node that hosts it.
pub(super) struct Coordinator {
    state: State,
    settings: Arc<Settings>,
    store: StoreHandle,
    guests: Guests,
    own: NodeId,
    heard: Vec<Heard>,
    /// The reason that was told last and when; the one that is to be told.
    told: Option<Reason>,
    told_at: Option<Time>,
    untold: Option<Reason>,
    until: Option<Time>,
    ticked: Time,
    /// Since when this process has listened without a pause.
    awake: Time,
}

impl Coordinator {
    pub(super) fn new(now: Time, state: State, settings: Arc<Settings>, store: StoreHandle, guests: Guests) -> Self {
        let own = state.host;
        Self {
            state,
            settings,
            store,
            guests,
            own,
            heard: Vec::new(),
            told: None,
            told_at: None,
            untold: None,
            until: None,
            ticked: now,
            awake: now,
        }
    }

    /// What the host's own node is to hear.
    pub(super) fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }

    /// When `advance` has to be called, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Time> {
        let tell = self.untold.as_ref().and(self.told_at).map(|at| at + self.reason_period());
        // Without guests nobody can fall silent.
        let tick = (!self.guests.is_empty()).then(|| self.ticked + self.settings.silence_max / KEEP_ALIVES);
        [self.until, tell, tick].into_iter().flatten().min()
    }

    /// Whether the run is over.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.stage, Stage::Over(_))
    }

    /// Whether nobody is connected any more.
    pub(super) fn is_alone(&self) -> bool {
        self.guests.is_empty()
    }

    /// This process did not run for a while: nobody is blamed for not having been heard.
    pub(super) fn woke(&mut self, now: Time) {
        self.awake = now;
    }

    /// The host's own node says who it is.
    pub(super) fn join_own(&mut self, now: Time, card: NodeDescription) {
        self.state.join(now, card, &self.settings);
    }

    /// The host's own node says something.
    pub(super) fn say_own(&mut self, now: Time, message: ToHost) {
        self.handle(now, self.own, message);
        self.settle(now);
    }

    /// The store accepted a connection that is no c10d client.
    pub(super) fn take(&mut self, now: Time, stranger: ForeignConnection) {
        self.guests.take(now, stranger);
    }

    /// A guest's connection can be read or written; `closed`: up to its end.
    pub(super) fn ready(&mut self, now: Time, token: Token, closed: bool) {
        self.guests.ready(now, token, closed);
    }

    /// Sends a letter to a node. What cannot be sent is a node lost, told later.
    pub(super) fn post(&mut self, now: Time, to: NodeId, bytes: Vec<u8>) {
        self.guests.send(now, to, &[&frame_of(&FromHost::Message(bytes))]);
    }

    /// Gives up a node whose connection still stands.
    pub(super) fn dismiss(&mut self, now: Time, id: NodeId, loss: Loss) {
        self.guests.dismiss(now, id, &frame_of(&FromHost::Dismissed { reason: loss.to_string() }));
        self.state.lose(now, id, loss);
    }

    /// The host's own node leaves the run to the others.
    pub(super) fn bequeath(&mut self, now: Time) {
        self.state.bequeath(&self.settings);
        self.deliver(now);
    }

    /// The supervisor ends the round.
    pub(super) fn close_round(&mut self, now: Time, round: u64, end: RoundEnd, restart: Restart) {
        self.state.close_round(now, round, end, restart);
        self.settle(now);
    }

    /// The supervisor ends the run.
    pub(super) fn close_run(&mut self, now: Time, end: RunEnd) {
        self.state.close_run(end);
        self.settle(now);
    }

    /// Returns how many c10d clients have come to the store since the round began.
    pub(super) fn clients_seen(&self) -> u64 {
        self.store.clients_seen()
    }

    fn handle(&mut self, now: Time, id: NodeId, message: ToHost) {
        self.state.alive(now, id, None);
        match message {
            ToHost::Ready => self.state.ready(now, id),
            ToHost::Finished { round } => self.state.finish(id, round),
            ToHost::Leave { why } => self.state.lose(now, id, Loss::Left(why)),
            ToHost::Alive { round } => self.state.alive(now, id, round),
            // One that was given up a moment ago has nothing to say any more.
            ToHost::Message(bytes) if self.state.nodes.contains_key(&id) => self.heard.push(Heard::Letter(id, bytes)),
            ToHost::Message(_) => {}
            ToHost::Hello { .. } | ToHost::Proof { .. } | ToHost::Join(_) | ToHost::Abandon => {}
        }
    }

    fn came(&mut self, now: Time, mut card: NodeDescription) {
        let id = card.node;
        if let (Some(standby), Some(ip)) = (&mut card.standby, self.guests.peer(id))
            && standby.host.is_empty()
        {
            standby.host = ip.to_string();
        }
        if !self.state.join(now, card, &self.settings) {
            self.deliver(now);
        }
    }

    /// Hears everybody, decides until there is nothing to do but wait, and tells what came of it.
    pub(super) fn advance(&mut self, now: Time) {
        for said in self.guests.take_said() {
            match said {
                Said::Came(card) => self.came(now, card),
                Said::Message(id, message) => self.handle(now, id, message),
                Said::Gone(id, loss) => self.state.lose(now, id, loss),
            }
            // One by one: what a node says after its failure must find the round ended by that.
            self.settle(now);
        }
        // Behind what was said: nobody is silent whose words wait here.
        self.tick(now);
        let reason = self.settle(now);
        self.explain(now, reason);
    }

    fn settle(&mut self, now: Time) -> Reason {
        loop {
            // Before anybody there can hear of a round and start workers.
            self.mind_the_door();
            let (decision, reason) = decide(now, &self.state, &self.settings);
            let wait = match &decision {
                Decision::Wait(until) => Some(*until),
                decision => {
                    tracing::debug!(?decision, reason = %reason.at(now), "the rendezvous decided");
                    None
                }
            };
            self.state.apply(now, decision, &self.settings);
            self.deliver(now);
            if let Some(until) = wait {
                self.until = until;
                return reason;
            }
        }
    }

    fn tick(&mut self, now: Time) {
        if self.guests.is_empty() || now < self.ticked + self.settings.silence_max / KEEP_ALIVES {
            return;
        }
        self.ticked = now;
        self.guests.sweep(now);
        for (id, time) in self.state.silent(now, self.awake, &self.settings) {
            self.dismiss(now, id, Loss::Silent(time));
        }
        self.guests.keep_alive(now, self.settings.silence_max / KEEP_ALIVES, &frame_of(&FromHost::Alive));
    }

    fn reason_period(&self) -> Duration {
        REASON_PERIOD + REASON_PERIOD_PER_NODE * u32::try_from(self.state.ready.len()).unwrap_or(u32::MAX)
    }

    fn explain(&mut self, now: Time, reason: Reason) {
        // Before anybody asks for a round nobody waits for one.
        let idle = self.state.rounds == 0 && self.state.ready.is_empty();
        if idle || self.told.as_ref() == Some(&reason) {
            self.untold = None;
        } else if self.told_at.is_some_and(|at| now < at + self.reason_period()) {
            self.untold = Some(reason);
        } else {
            self.state.tell_reason(now, &reason);
            self.told = Some(reason);
            self.told_at = Some(now);
            self.untold = None;
            self.deliver(now);
        }
    }

    fn deliver(&mut self, now: Time) {
        for told in self.state.take_told() {
            match told {
                Told::To(id, message) => self.guests.dismiss(now, id, &frame_of(&message)),
                Told::These(ids, message) => {
                    let frame = frame_of(&message);
                    let own = ids.contains(&self.own);
                    for id in ids.into_iter().filter(|id| *id != self.own) {
                        self.guests.send(now, id, &[&frame]);
                    }
                    if own {
                        self.heard.push(Heard::Said(message));
                    }
                }
                Told::All(message) => {
                    let frame = frame_of(&message);
                    for id in self.guests.nodes() {
                        self.guests.dismiss(now, id, &frame);
                    }
                    self.heard.push(Heard::Said(message));
                }
                Told::Begin { roster, ranks } => self.begin(now, &roster, &ranks),
                Told::Joined { node, host, workers } => self.heard.push(Heard::Joined { node, host, workers }),
                Told::Lost { node, host, reason } => self.heard.push(Heard::Lost { node, host, reason }),
            }
        }
    }

    fn begin(&mut self, now: Time, roster: &Arc<Roster>, ranks: &[NodeId]) {
        if !self.settings.store_kept
            && let Err(error) = self.store.clear()
        {
            tracing::error!(%error, "the store could not be cleared for the next round");
        }
        if ranks.iter().all(|id| *id == self.own) {
            self.heard.push(Heard::Begin(Arc::clone(roster), 0, ranks.to_vec()));
            return;
        }
        let frame = frame_of(&FromHost::Roster(Box::new(Roster::clone(roster))));
        for (node_rank, id) in (0u32..).zip(ranks) {
            if *id == self.own {
                self.heard.push(Heard::Begin(Arc::clone(roster), node_rank, ranks.to_vec()));
            } else {
                self.guests.send(now, *id, &[&frame, &frame_of(&FromHost::Begin { node_rank })]);
            }
        }
    }

    /// c10d clients may come from where nodes are.
    fn mind_the_door(&mut self) {
        for (ip, any) in self.guests.take_doors() {
            let told = if any { self.store.admit(ip) } else { self.store.dismiss(ip) };
            if let Err(StoreError::Stopped) = told {
                tracing::error!(%ip, "the store has stopped and cannot be told who may come");
            }
        }
    }
}
