//! Whether a round begins, goes on or ends, and why. Pure: time and knowledge come in as values.

use super::{
    policy::Side,
    settings::Settings,
    state::{Loss, Stage, State, Time, Trouble},
};
use enn_common::wire::node::{RoundEnd, RunEnd};
use std::{fmt, time::Duration};

/// Nodes or ranks named in a sentence.
const NAMES_MAX: usize = 8;

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Nothing until something happens, or until this time.
    Wait(Option<Time>),
    /// Begin a round with those who are ready.
    Begin,
    /// Everybody who can come after the host died is here: go on gathering.
    Resume,
    /// End the round; nodes gather for the next.
    EndRound(RoundEnd),
    EndRun(RunEnd),
}

/// Why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// Too few nodes.
    Gathering { here: usize, names: Vec<String>, wanted: usize, min: u32, until: Time },
    /// Nodes with these fixed ranks are missing.
    Ranks { here: usize, wanted: u32, missing: Vec<u32>, more: usize, until: Time },
    /// There are enough nodes; more may come.
    LastCall { here: usize, max: u32, until: Time },
    /// Workers of the last round still live on these nodes.
    Settling { names: Vec<String>, more: usize, until: Time },
    /// A restart is put off.
    Backoff { restart: u32, until: Time },
    /// The host died and this node took over.
    Succeeding { side: Side, round: u64, until: Time },
    /// A round is on and there is no room for more.
    Full { nodes: usize, waiting: usize },
    /// A round is on.
    Running { nodes: usize },
    /// Everything that is needed is there.
    Complete { nodes: usize },
    /// The number of nodes may not change.
    NodesFixed,
    /// This side of the network has too few of the last round's nodes.
    Minority(Side),
    /// Too few nodes are left, or the whole run was asked to stop.
    TooFew { left: usize, min: u32 },
    /// Enough nodes are left.
    NodesLeft { left: usize },
    /// There is room for a node that waits.
    Room { nodes: usize, max: u32 },
    /// The run is over.
    Over,
}

/// Decides. O(1) but for names of a few nodes.
pub(super) fn decide(now: Time, state: &State, settings: &Settings) -> (Decision, Reason) {
    match state.stage {
        Stage::Over(_) => (Decision::Wait(None), Reason::Over),
        Stage::Running => running(state, settings),
        Stage::Succeeding(until) => succeeding(now, until, state, settings),
        Stage::Gathering => gathering(now, state, settings),
    }
}

fn running(state: &State, settings: &Settings) -> (Decision, Reason) {
    if let Some(Trouble { host, loss }) = &state.trouble {
        return after_loss(host, loss, state, settings);
    }
    if state.done >= state.running {
        return (Decision::EndRun(RunEnd::Finished), Reason::Complete { nodes: state.running });
    }
    let full = state.running >= settings.nodes_max as usize;
    match state.ready.first().and_then(|(_, id)| state.nodes.get(id)) {
        // Work that is done is not thrown away for a newcomer.
        Some(_) if full || state.done > 0 || !settings.elastic() => {
            (Decision::Wait(None), Reason::Full { nodes: state.running, waiting: state.ready.len() })
        }
        Some(newcomer) => {
            let end = RoundEnd::NodeWaiting { host: newcomer.card.host.clone() };
            (Decision::EndRound(end), Reason::Room { nodes: state.running, max: settings.nodes_max })
        }
        None => (Decision::Wait(None), Reason::Running { nodes: state.running }),
    }
}

fn after_loss(host: &str, loss: &Loss, state: &State, settings: &Settings) -> (Decision, Reason) {
    let end = RoundEnd::NodeLost { host: host.to_owned(), reason: loss.to_string() };
    let left = state.nodes.len();
    let too_few = left < settings.nodes_min as usize;
    let reason = match loss {
        Loss::Left(why) if state.stops(settings) => {
            let by = format!("{why} on {host}");
            return (Decision::EndRun(RunEnd::Stopped { by }), Reason::TooFew { left, min: settings.nodes_min });
        }
        _ if settings.elastic() && !state.may_go_on() => Reason::Minority(state.side),
        _ if !settings.elastic() && settings.restarts_max == 0 && too_few => Reason::NodesFixed,
        _ => {
            return (Decision::EndRound(end), Reason::NodesLeft { left });
        }
    };
    (Decision::EndRun(RunEnd::Failed { end, reason: reason.at(Duration::ZERO) }), reason)
}

fn succeeding(now: Time, until: Time, state: &State, settings: &Settings) -> (Decision, Reason) {
    let side = state.side;
    if now < until && side.here + side.dead < side.nodes {
        (Decision::Wait(Some(until)), Reason::Succeeding { side, round: state.rounds - 1, until })
    } else if state.may_go_on() {
        (Decision::Resume, Reason::NodesLeft { left: side.here })
    } else {
        let reason = Reason::Minority(side);
        let sentence =
            format!("the node that hosted the rendezvous at {} is gone, and {}", settings.place, reason.at(now));
        (Decision::EndRun(RunEnd::HostLost { reason: sentence }), reason)
    }
}

fn gathering(now: Time, state: &State, settings: &Settings) -> (Decision, Reason) {
    let left = state.nodes.len();
    if let Some(Trouble { host, loss: Loss::Left(why) }) = &state.trouble
        && state.stops(settings)
    {
        let by = format!("{why} on {host}");
        return (Decision::EndRun(RunEnd::Stopped { by }), Reason::TooFew { left, min: settings.nodes_min });
    }
    if state.reforming() && settings.elastic() && !state.may_go_on() {
        return minority(state);
    }
    if now < state.not_before {
        let reason = Reason::Backoff { restart: state.restarts, until: state.not_before };
        return (Decision::Wait(Some(state.not_before)), reason);
    }
    let until = state.opened_at + settings.join_timeout;
    let here = state.ready.len();
    let enough = here >= settings.nodes_min as usize && state.missing.is_empty();
    if !state.settling.is_empty() && now < until {
        let names = state.names(state.settling.iter().copied(), NAMES_MAX);
        let more = state.settling.len() - names.len();
        return (Decision::Wait(Some(until)), Reason::Settling { names, more, until });
    }
    if enough && (here >= settings.nodes_max as usize || state.reforming()) {
        return (Decision::Begin, Reason::Complete { nodes: here.min(settings.nodes_max as usize) });
    }
    if enough {
        let until = state.last_join + settings.last_call;
        let reason = Reason::LastCall { here, max: settings.nodes_max, until };
        return (if now >= until { Decision::Begin } else { Decision::Wait(Some(until)) }, reason);
    }
    let reason = lacking(here, until, state, settings);
    if now >= until {
        let reason_text = format!("after {} s {}", settings.join_timeout.as_secs_f64(), reason.at(now));
        return (Decision::EndRun(RunEnd::TimedOut { reason: reason_text }), reason);
    }
    (Decision::Wait(Some(until)), reason)
}

fn minority(state: &State) -> (Decision, Reason) {
    let reason = Reason::Minority(state.side);
    let (host, why) = match &state.last_loss {
        Some((host, loss)) => (host.clone(), loss.to_string()),
        None => ("of the last round".to_owned(), "it did not come back".to_owned()),
    };
    let end = RoundEnd::NodeLost { host, reason: why };
    (Decision::EndRun(RunEnd::Failed { end, reason: reason.at(Duration::ZERO) }), reason)
}

fn lacking(here: usize, until: Time, state: &State, settings: &Settings) -> Reason {
    if state.missing.is_empty() {
        let names = state.names(state.ready.iter().map(|(_, id)| *id), NAMES_MAX);
        // A run that lost nodes waits for as many as it needs, not for as many as it would like.
        let wanted = if state.reforming() { settings.nodes_min } else { settings.nodes_max } as usize;
        Reason::Gathering { here, names, wanted, min: settings.nodes_min, until }
    } else {
        let missing: Vec<u32> = state.missing.iter().copied().take(NAMES_MAX).collect();
        let more = state.missing.len() - missing.len();
        Reason::Ranks { here, wanted: settings.nodes_max, missing, more, until }
    }
}

impl Reason {
    /// The reason in words, with the time left at `now`.
    pub(super) fn at(&self, now: Time) -> String {
        Sentence { reason: self, now }.to_string()
    }
}

struct Sentence<'a> {
    reason: &'a Reason,
    now: Time,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded up: the last second is "1 s left".
        let left = |until: &Time| until.saturating_sub(self.now).as_millis().div_ceil(1000);
        match self.reason {
            Reason::Gathering { here, names, wanted, min, until } => {
                let names = list(names, here - names.len());
                let missing = (*min as usize).saturating_sub(*here);
                write!(
                    f,
                    "{here} of {wanted} nodes are here{names}; waiting for {missing} more, {} s left",
                    left(until)
                )
            }
            Reason::Ranks { here, wanted, missing, more, until } => {
                let ranks = missing.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                let more = if *more > 0 { format!(" and {more} more") } else { String::new() };
                let word = if missing.len() > 1 { "ranks" } else { "rank" };
                write!(
                    f,
                    "{here} of {wanted} nodes are here; waiting for node {word} {ranks}{more}, {} s left",
                    left(until)
                )
            }
            Reason::LastCall { here, max, until } => {
                write!(f, "{here} of {max} nodes are here, which is enough; last call for more, {} s left", left(until))
            }
            Reason::Settling { names, more, until } => {
                let names = list(names, *more);
                write!(f, "waiting for the workers of the last round to end{names}, {} s left", left(until))
            }
            Reason::Backoff { restart, until } => write!(f, "restart {restart} begins in {} s", left(until)),
            Reason::Succeeding { side, round, until } => write!(
                f,
                "the host of the rendezvous is gone and this node takes over: {} of {} nodes of round {round} are here \
                 ({} known dead), {} s left",
                side.here,
                side.nodes,
                side.dead,
                left(until)
            ),
            Reason::Full { nodes, waiting } => {
                write!(f, "the run has all its {nodes} nodes; {waiting} wait in case one is lost")
            }
            Reason::Running { nodes } => write!(f, "a round of {nodes} nodes is on"),
            Reason::Complete { nodes } => write!(f, "{nodes} nodes are here"),
            Reason::NodesFixed => {
                write!(f, "the run needs all its nodes and no restarts are allowed (--nnodes MIN:MAX, --max-restarts)")
            }
            Reason::Minority(side) => write!(
                f,
                "only {} of {} nodes of the last round are on this side ({} known dead): the others may go on without them",
                side.here, side.nodes, side.dead
            ),
            Reason::TooFew { left, min } => write!(f, "{left} nodes are left of {min} needed"),
            Reason::NodesLeft { left } => write!(f, "{left} nodes are left"),
            Reason::Room { nodes, max } => write!(f, "there is room: {nodes} of {max} nodes"),
            Reason::Over => write!(f, "the run is over"),
        }
    }
}

/// " (a, b and 3 more)".
fn list(names: &[String], more: usize) -> String {
    match (names.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" ({})", names.join(", ")),
        (false, _) => format!(" ({} and {more} more)", names.join(", ")),
    }
}

#[cfg(test)]
mod tests;
