//! Each reason, with the decision it goes with.

use super::{
    super::{
        settings::tests::settings,
        state::{RendezvousEffect, Restart},
    },
    *,
};
use enn_common::wire::node::{FromLeader, NodeDescription, NodeId};

const SECOND: Duration = Duration::from_secs(1);

fn of(nodes_min: u32, nodes_max: u32) -> Settings {
    Settings { nodes_min, nodes_max, ..settings() }
}

fn come(state: &mut State, now: Elapsed, id: u64, settings: &Settings) {
    let description = NodeDescription {
        node: NodeId(id),
        host: format!("n{id}"),
        local_world: 1,
        role: "default".into(),
        node_rank: settings.node_rank.map(|_| u32::try_from(id).unwrap()),
        standby: None,
        terms: settings.terms(),
        last: None,
    };
    assert!(state.join(now, description, settings));
    state.ready(now, NodeId(id));
}

/// A rendezvous with these nodes, decided until it waits.
fn with(ids: &[u64], settings: &Settings) -> State {
    let mut state = State::open(NodeId(ids[0]), settings, Duration::ZERO);
    ids.iter().for_each(|id| come(&mut state, Duration::ZERO, *id, settings));
    settle(&mut state, Duration::ZERO, settings);
    state
}

fn settle(state: &mut State, now: Elapsed, settings: &Settings) -> (Decision, String) {
    loop {
        let (decision, reason) = decide(now, state, settings);
        let waits = matches!(decision, Decision::Wait(_));
        state.apply(now, decision.clone(), settings);
        if waits {
            return (decision, reason.at(now));
        }
    }
}

#[test]
fn gathering_names_who_is_here_and_what_is_missing() {
    let settings = of(4, 4);
    let (decision, reason) = decide(60 * SECOND, &with(&[1, 3], &settings), &settings);
    assert_eq!(decision, Decision::Wait(Some(600 * SECOND)));
    assert_eq!(reason.at(60 * SECOND), "2 of 4 nodes are here (n1, n3); waiting for 2 more, 540 s left");
    let (decision, _) = decide(600 * SECOND, &with(&[1, 3], &settings), &settings);
    assert!(matches!(decision, Decision::EndRun(RunEnd::TimedOut { reason }) if reason.contains("(n1, n3)")));
    let many: Vec<u64> = (0..12).collect();
    let (_, reason) = decide(SECOND, &with(&many, &of(20, 20)), &of(20, 20));
    assert!(reason.at(SECOND).contains("(n0, n1, n2, n3, n4, n5, n6, n7 and 4 more); waiting for 8 more"));
}

#[test]
fn fixed_ranks_name_those_that_are_missing() {
    let settings = Settings { node_rank: Some(1), ..of(4, 4) };
    let (_, reason) = decide(SECOND, &with(&[1, 3], &settings), &settings);
    assert_eq!(reason.at(SECOND), "2 of 4 nodes are here; waiting for node ranks 0, 2, 599 s left");
    let large = Settings { node_rank: Some(1), ..of(100, 100) };
    let (_, reason) = decide(SECOND, &with(&[1], &large), &large);
    assert!(reason.at(SECOND).contains("ranks 0, 2, 3, 4, 5, 6, 7, 8 and 91 more"), "{}", reason.at(SECOND));
}

#[test]
fn the_last_call_is_counted_from_the_last_node() {
    let settings = of(2, 4);
    let mut state = with(&[1, 2], &settings);
    come(&mut state, 10 * SECOND, 3, &settings);
    let (decision, reason) = decide(15 * SECOND, &state, &settings);
    assert_eq!(decision, Decision::Wait(Some(40 * SECOND)));
    let expected = "3 of 4 nodes are here, which is enough; last call for more, 25 s left";
    assert_eq!(reason.at(15 * SECOND), expected);
    assert_eq!(decide(40 * SECOND, &state, &settings).0, Decision::Begin);
    come(&mut state, 16 * SECOND, 4, &settings);
    assert_eq!(decide(16 * SECOND, &state, &settings).0, Decision::Begin);
}

#[test]
fn a_restart_waits_for_workers_and_for_its_time() {
    let settings = of(2, 2);
    let mut state = with(&[0, 1], &settings);
    assert_eq!(settle(&mut state, SECOND, &settings).1, "a round of 2 nodes is on");
    let end = || RoundEnd::Hung { idle: SECOND };
    state.close_round(SECOND, 1, end(), Restart { number: 9, wait: SECOND });
    assert_eq!(settle(&mut state, SECOND, &settings).1, "a round of 2 nodes is on", "another one was meant");
    state.close_round(SECOND, 0, end(), Restart { number: 1, wait: 5 * SECOND });
    let effect = |effect: &RendezvousEffect| matches!(effect, RendezvousEffect::Send(ids, FromLeader::RoundEnded(_)) if ids.len() == 2);
    assert!(state.take_effects().iter().any(effect));
    assert_eq!(settle(&mut state, SECOND, &settings).1, "restart 1 begins in 5 s");
    state.ready(2 * SECOND, NodeId(0));
    let (decision, reason) = settle(&mut state, 6 * SECOND, &settings);
    assert_eq!(decision, Decision::Wait(Some(606 * SECOND)));
    assert_eq!(reason, "waiting for the workers of the last round to end (n1), 600 s left");
    state.ready(7 * SECOND, NodeId(1));
    assert_eq!(decide(7 * SECOND, &state, &settings).0, Decision::Begin);
}

#[test]
fn a_full_run_says_so_and_room_ends_the_round() {
    let settings = of(1, 2);
    let mut state = with(&[0, 1], &settings);
    come(&mut state, SECOND, 2, &settings);
    assert_eq!(settle(&mut state, SECOND, &settings).1, "the run has all its 2 nodes; 1 wait in case one is lost");
    let mut state = State::open(NodeId(0), &settings, Duration::ZERO);
    come(&mut state, Duration::ZERO, 0, &settings);
    settle(&mut state, 30 * SECOND, &settings);
    come(&mut state, 31 * SECOND, 1, &settings);
    let (decision, reason) = decide(31 * SECOND, &state, &settings);
    assert!(matches!(decision, Decision::EndRound(RoundEnd::NodeWaiting { host }) if host == "n1"));
    assert_eq!(reason.at(SECOND), "there is room: 1 of 2 nodes");
    state.finish(NodeId(0), 0);
    assert_eq!(decide(31 * SECOND, &state, &settings).0, Decision::EndRun(RunEnd::Finished));
}

#[test]
fn lost_nodes_end_a_run_or_a_round() {
    let decided = |settings: &Settings, lost: &[u64], loss: NodeLoss| {
        let mut state = with(&[0, 1, 2], settings);
        lost.iter().for_each(|id| state.lose(SECOND, NodeId(*id), loss.clone()));
        let (decision, reason) = decide(SECOND, &state, settings);
        (decision, reason.at(SECOND))
    };
    let silent = NodeLoss::Silent(5 * SECOND);
    let (decision, reason) = decided(&of(3, 3), &[2], silent.clone());
    assert!(matches!(decision, Decision::EndRun(RunEnd::Failed { end: RoundEnd::NodeLost { .. }, .. })));
    assert!(reason.starts_with("the run needs all its nodes and no restarts are allowed"), "{reason}");
    let (decision, reason) = decided(&of(1, 3), &[2], silent.clone());
    assert!(matches!(decision, Decision::EndRound(_)));
    assert_eq!(reason, "2 nodes are left");
    let (decision, reason) = decided(&of(1, 3), &[1, 2], silent);
    assert!(matches!(decision, Decision::EndRun(RunEnd::Failed { .. })));
    assert!(reason.starts_with("only 1 of 3 nodes of the last round are on this side (0 known dead)"), "{reason}");
    let (decision, _) = decided(&of(1, 3), &[1, 2], NodeLoss::Closed);
    assert!(matches!(decision, Decision::EndRound(_)), "the dead have no side");
    let (decision, reason) = decided(&of(3, 3), &[1], NodeLoss::Left("SIGTERM".into()));
    assert_eq!(decision, Decision::EndRun(RunEnd::Stopped { by: "SIGTERM on n1".into() }));
    assert_eq!(reason, "2 nodes are left of 3 needed");
}

#[test]
fn the_supervisor_ends_the_run_once() {
    let settings = of(1, 1);
    let mut state = with(&[0], &settings);
    state.take_effects();
    let end = RunEnd::Failed { end: RoundEnd::Hung { idle: SECOND }, reason: "no restarts are allowed".into() };
    state.close_run(end.clone());
    state.close_run(RunEnd::Finished);
    assert_eq!(state.take_effects(), [RendezvousEffect::CloseAll(FromLeader::RunEnded(end))]);
    assert_eq!(decide(SECOND, &state, &settings).0, Decision::Wait(None));
}

#[test]
fn one_that_takes_over_waits_for_the_last_rounds_nodes() {
    let settings = of(2, 5);
    let mut old = with(&[0, 1, 2, 3, 4], &settings);
    let Some(RendezvousEffect::Begin { roster, .. }) =
        old.take_effects().into_iter().find(|effect| matches!(effect, RendezvousEffect::Begin { .. }))
    else {
        panic!("no round")
    };
    let mut state = State::take_over(NodeId(1), &roster, 1, &settings, SECOND, 4 * SECOND);
    let (decision, reason) = decide(SECOND, &state, &settings);
    assert_eq!(decision, Decision::Wait(Some(4 * SECOND)));
    let expected = "the host of the rendezvous is gone and this node takes over: 0 of 5 nodes of round 0 are here (1 known dead), 3 s left";
    assert_eq!(reason.at(SECOND), expected);
    let (decision, _) = decide(4 * SECOND, &state, &settings);
    let Decision::EndRun(RunEnd::LeaderLost { reason }) = decision else { panic!("{decision:?}") };
    assert!(
        reason.starts_with("the node that hosted the rendezvous at 127.0.0.1:0 is gone, and only 0 of 5"),
        "{reason}"
    );
    state.side.here = 3;
    assert_eq!(decide(4 * SECOND, &state, &settings).0, Decision::Resume);
}
