//! Decides whether a round begins, goes on or ends, and why. Pure: time and state are parameters.

use super::{
    Elapsed,
    decision::{Decision, Reason},
    node_loss::{NodeLoss, PendingLoss},
    settings::Settings,
    state::{RunStage, State},
};
use enn_common::wire::node::{RoundEnd, RunEnd};
use std::time::Duration;

/// Largest number of nodes or ranks that a sentence names.
const NAMES_MAX: usize = 8;

/// Returns the decision and its reason, in O(1) but for the names of a few nodes.
pub(super) fn decide(now: Elapsed, state: &State, settings: &Settings) -> (Decision, Reason) {
    match state.stage {
        RunStage::Over(_) => (Decision::Wait(None), Reason::Over),
        RunStage::Running => running(state, settings),
        RunStage::TakingOver(until) => taking_over(now, until, state, settings),
        RunStage::Gathering => gathering(now, state, settings),
    }
}

fn running(state: &State, settings: &Settings) -> (Decision, Reason) {
    if let Some(PendingLoss { host, loss }) = &state.pending_loss {
        return after_loss(host, loss, state, settings);
    }
    if state.done >= state.running {
        return (Decision::EndRun(RunEnd::Finished), Reason::Complete { nodes: state.running });
    }
    let full = state.running >= settings.nodes_max as usize;
    match state.ready.first().and_then(|(_, id)| state.nodes.get(id)) {
        // Finished work is not discarded for a new node.
        Some(_) if full || state.done > 0 || !settings.elastic() => {
            (Decision::Wait(None), Reason::Full { nodes: state.running, waiting: state.ready.len() })
        }
        Some(newcomer) => {
            let end = RoundEnd::NodeWaiting { host: newcomer.description.host.clone() };
            (Decision::EndRound(end), Reason::Room { nodes: state.running, max: settings.nodes_max })
        }
        None => (Decision::Wait(None), Reason::Running { nodes: state.running }),
    }
}

fn after_loss(host: &str, loss: &NodeLoss, state: &State, settings: &Settings) -> (Decision, Reason) {
    let end = RoundEnd::NodeLost { host: host.to_owned(), reason: loss.to_string() };
    let left = state.nodes.len();
    let too_few = left < settings.nodes_min as usize;
    let reason = match loss {
        NodeLoss::Left(why) if state.must_stop(settings) => {
            let by = format!("{why} on {host}");
            return (Decision::EndRun(RunEnd::Stopped { by }), Reason::TooFew { left, min: settings.nodes_min });
        }
        _ if settings.elastic() && !state.has_quorum() => Reason::NoQuorum(state.side),
        _ if !settings.elastic() && settings.restarts_max == 0 && too_few => Reason::NodesFixed,
        _ => {
            return (Decision::EndRound(end), Reason::NodesLeft { left });
        }
    };
    (Decision::EndRun(RunEnd::Failed { end, reason: reason.at(Duration::ZERO) }), reason)
}

fn taking_over(now: Elapsed, until: Elapsed, state: &State, settings: &Settings) -> (Decision, Reason) {
    let side = state.side;
    if now < until && side.here + side.dead < side.nodes {
        (Decision::Wait(Some(until)), Reason::TakingOver { side, round: state.rounds - 1, until })
    } else if state.has_quorum() {
        (Decision::Resume, Reason::NodesLeft { left: side.here })
    } else {
        let reason = Reason::NoQuorum(side);
        let sentence =
            format!("the node that hosted the rendezvous at {} is gone, and {}", settings.location, reason.at(now));
        (Decision::EndRun(RunEnd::LeaderLost { reason: sentence }), reason)
    }
}

fn gathering(now: Elapsed, state: &State, settings: &Settings) -> (Decision, Reason) {
    let left = state.nodes.len();
    if let Some(PendingLoss { host, loss: NodeLoss::Left(why) }) = &state.pending_loss
        && state.must_stop(settings)
    {
        let by = format!("{why} on {host}");
        return (Decision::EndRun(RunEnd::Stopped { by }), Reason::TooFew { left, min: settings.nodes_min });
    }
    if state.reforming() && settings.elastic() && !state.has_quorum() {
        return no_quorum(state);
    }
    if now < state.not_before {
        let reason = Reason::Backoff { restart: state.restarts, until: state.not_before };
        return (Decision::Wait(Some(state.not_before)), reason);
    }
    let until = state.opened_at + settings.join_timeout;
    let here = state.ready.len();
    let enough = here >= settings.nodes_min as usize && state.missing.is_empty();
    if !state.stopping.is_empty() && now < until {
        let names = state.names(state.stopping.iter().copied(), NAMES_MAX);
        let more = state.stopping.len() - names.len();
        return (Decision::Wait(Some(until)), Reason::Stopping { names, more, until });
    }
    if enough && (here >= settings.nodes_max as usize || state.reforming()) {
        return (Decision::Begin, Reason::Complete { nodes: here.min(settings.nodes_max as usize) });
    }
    if enough {
        let until = state.last_join + settings.last_call;
        let reason = Reason::LastCall { here, max: settings.nodes_max, until };
        return (if now >= until { Decision::Begin } else { Decision::Wait(Some(until)) }, reason);
    }
    let reason = missing_nodes(here, until, state, settings);
    if now >= until {
        let reason_text = format!("after {} s {}", settings.join_timeout.as_secs_f64(), reason.at(now));
        return (Decision::EndRun(RunEnd::TimedOut { reason: reason_text }), reason);
    }
    (Decision::Wait(Some(until)), reason)
}

fn no_quorum(state: &State) -> (Decision, Reason) {
    let reason = Reason::NoQuorum(state.side);
    let (host, why) = match &state.last_loss {
        Some((host, loss)) => (host.clone(), loss.to_string()),
        None => ("of the last round".to_owned(), "it did not come back".to_owned()),
    };
    let end = RoundEnd::NodeLost { host, reason: why };
    (Decision::EndRun(RunEnd::Failed { end, reason: reason.at(Duration::ZERO) }), reason)
}

fn missing_nodes(here: usize, until: Elapsed, state: &State, settings: &Settings) -> Reason {
    if state.missing.is_empty() {
        let names = state.names(state.ready.iter().map(|(_, id)| *id), NAMES_MAX);
        // A run that lost nodes waits for the smallest number of nodes, not for the largest.
        let wanted = if state.reforming() { settings.nodes_min } else { settings.nodes_max } as usize;
        Reason::Gathering { here, names, wanted, min: settings.nodes_min, until }
    } else {
        let missing: Vec<u32> = state.missing.iter().copied().take(NAMES_MAX).collect();
        let more = state.missing.len() - missing.len();
        Reason::Ranks { here, wanted: settings.nodes_max, missing, more, until }
    }
}

#[cfg(test)]
mod tests;
