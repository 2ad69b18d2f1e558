//! The host's side: what nodes say goes into the state, what was decided goes out to them.
//!
//! **Invariant:** the store is cleared before any node hears of a round. Nothing here blocks but that, which is bounded.

use super::{
    decide::{Decision, Reason, decide},
    settings::Settings,
    state::{Loss, State, Time, Told},
};
use enn_broker::store::StoreHandle;
use enn_common::wire::node::{Card, FromHost, NodeId, Roster, ToHost};
use std::{sync::Arc, time::Duration};

/// Those who wait are told of a new reason at most this often: with thousands of nodes every newcomer is one.
const REASON_PERIOD: Duration = Duration::from_millis(250);

/// What the host's own node is told.
#[derive(Debug)]
pub(super) enum Heard {
    /// As any other node.
    Said(FromHost),
    /// A round begins, with this rank for it.
    Begin(Arc<Roster>, u32),
    /// For the journal.
    Joined { host: String, workers: u32 },
    /// For the journal.
    Lost { host: String, reason: String },
}

/// The rendezvous of a run, in the process of the node that hosts it.
pub(super) struct Coordinator {
    state: State,
    settings: Arc<Settings>,
    store: StoreHandle,
    own: NodeId,
    heard: Vec<Heard>,
    /// The reason that was told last and when; the one that is to be told.
    told: Option<Reason>,
    told_at: Option<Time>,
    untold: Option<Reason>,
    until: Option<Time>,
}

impl Coordinator {
    pub(super) fn new(state: State, settings: Arc<Settings>, store: StoreHandle) -> Self {
        let own = state.host;
        Self { state, settings, store, own, heard: Vec::new(), told: None, told_at: None, untold: None, until: None }
    }

    /// What the host's own node is to hear.
    pub(super) fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }

    /// When `advance` has to be called, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Time> {
        let tell = self.untold.as_ref().and(self.told_at).map(|at| at + REASON_PERIOD);
        [self.until, tell].into_iter().flatten().min()
    }

    /// The host's own node says who it is.
    pub(super) fn join_own(&mut self, now: Time, card: Card) {
        self.state.join(now, card, &self.settings);
    }

    /// The host's own node says something.
    pub(super) fn say_own(&mut self, now: Time, message: ToHost) {
        self.handle(now, self.own, message);
    }

    fn handle(&mut self, now: Time, id: NodeId, message: ToHost) {
        self.state.alive(now, id, None);
        match message {
            ToHost::Ready => self.state.ready(now, id),
            ToHost::Failed { round, failure } => self.state.fail(id, round, *failure, self.store.clients_seen()),
            ToHost::Finished { round } => self.state.finish(id, round),
            ToHost::Leave { why } => self.state.lose(now, id, Loss::Left(why)),
            ToHost::Alive { idle } => self.state.alive(now, id, Some(idle)),
            ToHost::Hello { .. } | ToHost::Proof { .. } | ToHost::Join(_) => {}
        }
    }

    /// Decides until there is nothing to do but wait, and tells what came of it.
    pub(super) fn advance(&mut self, now: Time) {
        loop {
            let (decision, reason) = decide(now, &self.state, &self.settings);
            let wait = match &decision {
                Decision::Wait(until) => Some(*until),
                decision => {
                    tracing::debug!(?decision, reason = %reason.at(now), "the rendezvous decided");
                    None
                }
            };
            self.state.apply(now, decision, &self.settings);
            self.deliver();
            if let Some(until) = wait {
                self.until = until;
                return self.explain(now, reason);
            }
        }
    }

    fn explain(&mut self, now: Time, reason: Reason) {
        if self.told.as_ref() == Some(&reason) {
            self.untold = None;
        } else if self.told_at.is_some_and(|at| now < at + REASON_PERIOD) {
            self.untold = Some(reason);
        } else {
            self.state.tell_reason(now, &reason);
            self.told = Some(reason);
            self.told_at = Some(now);
            self.untold = None;
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        for told in self.state.take_told() {
            match told {
                Told::To(id, message) => self.tell(id, &message),
                Told::These(ids, message) => ids.into_iter().for_each(|id| self.tell(id, &message)),
                Told::All(message) => self.heard.push(Heard::Said(message)),
                Told::Begin { roster, ranks } => self.begin(&roster, &ranks),
                Told::Joined { host, workers } => self.heard.push(Heard::Joined { host, workers }),
                Told::Lost { host, reason } => self.heard.push(Heard::Lost { host, reason }),
            }
        }
    }

    fn tell(&mut self, id: NodeId, message: &FromHost) {
        if id == self.own {
            self.heard.push(Heard::Said(message.clone()));
        }
    }

    fn begin(&mut self, roster: &Arc<Roster>, ranks: &[NodeId]) {
        if let Err(error) = self.store.clear() {
            tracing::error!(%error, "the store could not be cleared for the next round");
        }
        for (rank, id) in (0u32..).zip(ranks) {
            if *id == self.own {
                self.heard.push(Heard::Begin(Arc::clone(roster), rank));
            }
        }
    }
}
