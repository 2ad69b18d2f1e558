//! The leader's side of the rendezvous: messages of nodes go into the state, and its effects go out to the nodes.
//!
//! **Invariant:** the store is cleared before any node receives a round. Only that blocks, and it is bounded.

use super::{
    Elapsed,
    decide::decide,
    decision::{Decision, Reason},
    frame_connection::encode_frame,
    node_loss::NodeLoss,
    peer_sessions::{PeerEvent, PeerSessions},
    settings::Settings,
    state::{RendezvousEffect, Restart, RunStage, State},
};
use enn_broker::tcpstore::{ForeignConnection, StoreError, StoreHandle};
use enn_common::wire::node::{FromLeader, NodeDescription, NodeId, Roster, RoundEnd, RunEnd, ToLeader};
use mio::Token;
use std::{sync::Arc, time::Duration};

/// Shortest time between two reasons that waiting nodes receive. It grows with their number: among thousands of nodes
/// each newcomer makes a new reason.
const REASON_PERIOD: Duration = Duration::from_millis(250);
const REASON_PERIOD_PER_NODE: Duration = Duration::from_micros(300);
/// Keep-alive messages within the longest silence.
pub(super) const KEEP_ALIVES: u32 = 5;

/// A message of the coordinator to the leader's own node, in the same thread.
#[derive(Debug)]
pub(super) enum LocalEvent {
    /// A message that every node receives.
    Message(FromLeader),
    /// A round begins: the roster, the rank of this node, and all nodes by rank.
    Begin(Arc<Roster>, u32, Vec<NodeId>),
    /// Entry for the journal.
    Joined { node: NodeId, host: String, workers: u32 },
    /// Entry for the journal.
    Lost { node: NodeId, host: String, reason: String },
    /// A node sent a message for the program.
    NodeMessage(NodeId, Vec<u8>),
}

/// The rendezvous of a run, in the process of the leader.
pub(super) struct Coordinator {
    state: State,
    settings: Arc<Settings>,
    store: StoreHandle,
    sessions: PeerSessions,
    own: NodeId,
    local_events: Vec<LocalEvent>,
    /// The last reason that the nodes received, and its time.
    sent_reason: Option<Reason>,
    sent_reason_at: Option<Elapsed>,
    /// The next reason to send.
    pending_reason: Option<Reason>,
    until: Option<Elapsed>,
    last_tick: Elapsed,
    /// Start of the time in which this process has run without a pause.
    awake_since: Elapsed,
}

impl Coordinator {
    pub(super) fn new(
        now: Elapsed,
        state: State,
        settings: Arc<Settings>,
        store: StoreHandle,
        sessions: PeerSessions,
    ) -> Self {
        let own = state.leader;
        Self {
            state,
            settings,
            store,
            sessions,
            own,
            local_events: Vec::new(),
            sent_reason: None,
            sent_reason_at: None,
            pending_reason: None,
            until: None,
            last_tick: now,
            awake_since: now,
        }
    }

    pub(super) fn take_local_events(&mut self) -> Vec<LocalEvent> {
        std::mem::take(&mut self.local_events)
    }

    /// Returns the time at which `advance` has to be called, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Elapsed> {
        let report_at = self.pending_reason.as_ref().and(self.sent_reason_at).map(|at| at + self.reason_period());
        // Without connections no node can fall silent.
        let tick = (!self.sessions.is_empty()).then(|| self.last_tick + self.settings.silence_max / KEEP_ALIVES);
        [self.until, report_at, tick].into_iter().flatten().min()
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.stage, RunStage::Over(_))
    }

    /// Whether no other node is connected any more.
    pub(super) fn is_alone(&self) -> bool {
        self.sessions.is_empty()
    }

    /// This process did not run for a while: the time does not count as silence of other nodes.
    pub(super) fn on_resume(&mut self, now: Elapsed) {
        self.awake_since = now;
    }

    /// Adds the leader's own node.
    pub(super) fn join_local(&mut self, now: Elapsed, description: NodeDescription) {
        self.state.join(now, description, &self.settings);
    }

    /// Handles a message of the leader's own node.
    pub(super) fn handle_local(&mut self, now: Elapsed, message: ToLeader) {
        self.handle(now, self.own, message);
        self.settle(now);
    }

    /// Takes over a connection that the store accepted and that is no c10d client.
    pub(super) fn accept(&mut self, now: Elapsed, connection: ForeignConnection) {
        self.sessions.accept(now, connection);
    }

    /// The connection of a peer is ready; `closed` says that its end can be read.
    pub(super) fn ready(&mut self, now: Elapsed, token: Token, closed: bool) {
        self.sessions.ready(now, token, closed);
    }

    /// Sends a message of the program to a node. If it cannot be sent, the node is lost, and a notification follows.
    pub(super) fn send_message(&mut self, now: Elapsed, to: NodeId, bytes: Vec<u8>) {
        self.sessions.send(now, to, &[&encode_frame(&FromLeader::Message(bytes))]);
    }

    /// Removes a node whose connection is still open.
    pub(super) fn dismiss(&mut self, now: Elapsed, id: NodeId, loss: NodeLoss) {
        self.sessions.dismiss(now, id, &encode_frame(&FromLeader::Dismissed { reason: loss.to_string() }));
        self.state.lose(now, id, loss);
    }

    /// The leader's own node leaves the run, and the others go on.
    pub(super) fn hand_off(&mut self, now: Elapsed) {
        self.state.hand_off(&self.settings);
        self.deliver(now);
    }

    /// Ends the round for the supervisor.
    pub(super) fn close_round(&mut self, now: Elapsed, round: u64, end: RoundEnd, restart: Restart) {
        self.state.close_round(now, round, end, restart);
        self.settle(now);
    }

    /// Ends the run for the supervisor.
    pub(super) fn close_run(&mut self, now: Elapsed, end: RunEnd) {
        self.state.close_run(end);
        self.settle(now);
    }

    /// Returns the number of c10d clients that have connected to the store since the round began.
    pub(super) fn clients_seen(&self) -> u64 {
        self.store.clients_seen()
    }

    fn handle(&mut self, now: Elapsed, id: NodeId, message: ToLeader) {
        self.state.alive(now, id, None);
        match message {
            ToLeader::Ready => self.state.ready(now, id),
            ToLeader::Finished { round } => self.state.finish(id, round),
            ToLeader::Leave { why } => self.state.lose(now, id, NodeLoss::Left(why)),
            ToLeader::Alive { round } => self.state.alive(now, id, round),
            // Messages of a node that was removed are dropped.
            ToLeader::Message(bytes) if self.state.nodes.contains_key(&id) => {
                self.local_events.push(LocalEvent::NodeMessage(id, bytes))
            }
            ToLeader::Message(_) => {}
            ToLeader::Hello { .. } | ToLeader::Proof { .. } | ToLeader::Join(_) | ToLeader::Abandon => {}
        }
    }

    fn on_join(&mut self, now: Elapsed, mut description: NodeDescription) {
        let id = description.node;
        if let (Some(standby), Some(ip)) = (&mut description.standby, self.sessions.address(id))
            && standby.host.is_empty()
        {
            standby.host = ip.to_string();
        }
        if !self.state.join(now, description, &self.settings) {
            self.deliver(now);
        }
    }

    /// Handles the events of all peers, decides until the decision is to wait, and sends the reason.
    pub(super) fn advance(&mut self, now: Elapsed) {
        for event in self.sessions.take_events() {
            match event {
                PeerEvent::Joined(description) => self.on_join(now, description),
                PeerEvent::Message(id, message) => self.handle(now, id, message),
                PeerEvent::Lost(id, loss) => self.state.lose(now, id, loss),
            }
            // One by one: a message that a node sends after its failure must find the round ended.
            self.settle(now);
        }
        // After the events: a node whose messages wait here is not silent.
        self.tick(now);
        let reason = self.settle(now);
        self.report_reason(now, reason);
    }

    fn settle(&mut self, now: Elapsed) -> Reason {
        loop {
            // Before a node receives a round and starts workers.
            self.update_allowed_peers();
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

    fn tick(&mut self, now: Elapsed) {
        if self.sessions.is_empty() || now < self.last_tick + self.settings.silence_max / KEEP_ALIVES {
            return;
        }
        self.last_tick = now;
        self.sessions.sweep(now);
        for (id, time) in self.state.silent(now, self.awake_since, &self.settings) {
            self.dismiss(now, id, NodeLoss::Silent(time));
        }
        self.sessions.keep_alive(now, self.settings.silence_max / KEEP_ALIVES, &encode_frame(&FromLeader::Alive));
    }

    fn reason_period(&self) -> Duration {
        REASON_PERIOD + REASON_PERIOD_PER_NODE * u32::try_from(self.state.ready.len()).unwrap_or(u32::MAX)
    }

    fn report_reason(&mut self, now: Elapsed, reason: Reason) {
        // Before the first node asks for a round there is no reason for waiting.
        let idle = self.state.rounds == 0 && self.state.ready.is_empty();
        if idle || self.sent_reason.as_ref() == Some(&reason) {
            self.pending_reason = None;
        } else if self.sent_reason_at.is_some_and(|at| now < at + self.reason_period()) {
            self.pending_reason = Some(reason);
        } else {
            self.state.send_reason(now, &reason);
            self.sent_reason = Some(reason);
            self.sent_reason_at = Some(now);
            self.pending_reason = None;
            self.deliver(now);
        }
    }

    fn deliver(&mut self, now: Elapsed) {
        for effect in self.state.take_effects() {
            match effect {
                RendezvousEffect::Close(id, message) => self.sessions.dismiss(now, id, &encode_frame(&message)),
                RendezvousEffect::Send(ids, message) => {
                    let frame = encode_frame(&message);
                    let own = ids.contains(&self.own);
                    for id in ids.into_iter().filter(|id| *id != self.own) {
                        self.sessions.send(now, id, &[&frame]);
                    }
                    if own {
                        self.local_events.push(LocalEvent::Message(message));
                    }
                }
                RendezvousEffect::CloseAll(message) => {
                    let frame = encode_frame(&message);
                    for id in self.sessions.nodes() {
                        self.sessions.dismiss(now, id, &frame);
                    }
                    self.local_events.push(LocalEvent::Message(message));
                }
                RendezvousEffect::Begin { roster, ranks } => self.begin(now, &roster, &ranks),
                RendezvousEffect::Joined { node, host, workers } => {
                    self.local_events.push(LocalEvent::Joined { node, host, workers })
                }
                RendezvousEffect::Lost { node, host, reason } => {
                    self.local_events.push(LocalEvent::Lost { node, host, reason })
                }
            }
        }
    }

    fn begin(&mut self, now: Elapsed, roster: &Arc<Roster>, ranks: &[NodeId]) {
        if !self.settings.store_kept
            && let Err(error) = self.store.clear()
        {
            tracing::error!(%error, "the store could not be cleared for the next round");
        }
        if ranks.iter().all(|id| *id == self.own) {
            self.local_events.push(LocalEvent::Begin(Arc::clone(roster), 0, ranks.to_vec()));
            return;
        }
        let frame = encode_frame(&FromLeader::Roster(Box::new(Roster::clone(roster))));
        for (node_rank, id) in (0u32..).zip(ranks) {
            if *id == self.own {
                self.local_events.push(LocalEvent::Begin(Arc::clone(roster), node_rank, ranks.to_vec()));
            } else {
                self.sessions.send(now, *id, &[&frame, &encode_frame(&FromLeader::Begin { node_rank })]);
            }
        }
    }

    /// Lets c10d clients connect from the addresses of nodes only.
    fn update_allowed_peers(&mut self) {
        for (ip, any) in self.sessions.take_address_changes() {
            let applied = if any { self.store.admit(ip) } else { self.store.dismiss(ip) };
            if let Err(StoreError::Stopped) = applied {
                tracing::error!(%ip, "the store has stopped and cannot be told who may come");
            }
        }
    }
}
