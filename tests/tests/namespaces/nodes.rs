//! `enn train` on nodes with cables that can be pulled, with the real worker: who is cut off is left behind, and the run goes on.

use enn_common::event::EventKind;
use enn_tests::{
    network::Network,
    nodes::{Agents, kill_9},
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// A node that is silent is lost after 5 s; a round is formed in a moment.
const CUT_NOTICED_MAX: Duration = Duration::from_secs(12);

#[test]
fn a_node_that_does_not_see_the_run_says_so_and_the_others_go_on() {
    let Some(network) = Network::here() else { return };
    let mut agents = Agents::new("1:2", 20_000, Some(&network));
    agents.start(1);
    agents.working(1, 5);
    agents.start_blind(2);
    assert_eq!(agents.end(2), Some(6), "{}", agents.printed(2));
    let printed = agents.printed(2);
    assert!(printed.contains("does not see the run directory") && printed.contains("--runs-dir"), "{printed}");
    agents.working(1, agents.step() + 1);
    let warned =
        |what: &EventKind| matches!(what, EventKind::Warned { message } if message.contains("cannot take part"));
    assert!(agents.events().iter().any(warned), "{}", agents.told());
    agents.signal(1, Signal::SIGTERM);
    assert_eq!(agents.end(1), Some(143), "{}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn a_node_that_is_cut_off_is_left_behind_and_taken_in_again_when_it_comes_back() {
    let Some(network) = Network::here() else { return };
    let mut agents = Agents::new("1:2", 20_000, Some(&network));
    [1, 2].into_iter().for_each(|node| agents.start(node));
    agents.working(2, 5);
    network.pull(2);
    let pulled = Instant::now();
    agents.working(1, agents.step() + 1);
    let took = pulled.elapsed();
    assert!(took < CUT_NOTICED_MAX, "it took {took:?}");
    println!("the others did a step {:.1} s after the cable was pulled", took.as_secs_f64());
    // It sees a head that is silent, and may not go on alone.
    assert_eq!(agents.end(2), Some(6), "{}", agents.printed(2));
    network.plug(2);
    agents.start(2);
    agents.working(2, agents.step() + 1);
    kill_9(agents.worker(2));
    agents.working(2, agents.step() + 1);
    agents.signal(1, Signal::SIGTERM);
    assert_eq!((agents.end(1), agents.end(2)), (Some(143), Some(143)), "{}", agents.told());
    agents.nothing_is_left();
}

#[test]
fn when_the_head_is_cut_off_the_others_go_on_and_it_ends() {
    let Some(network) = Network::here() else { return };
    let mut agents = Agents::new("2:3", 20_000, Some(&network));
    (1..=3).for_each(|node| agents.start(node));
    agents.working(3, 5);
    network.pull(1);
    let pulled = Instant::now();
    agents.working(2, agents.step() + 1);
    let took = pulled.elapsed();
    assert!(took < 2 * CUT_NOTICED_MAX, "it took {took:?}");
    println!("the others did a step {:.1} s after the head's cable was pulled", took.as_secs_f64());
    assert_ne!(agents.end(1), Some(0), "{}", agents.told());
    agents.signal(3, Signal::SIGTERM);
    assert_eq!((agents.end(2), agents.end(3)), (Some(143), Some(143)), "{}", agents.told());
    agents.nothing_is_left();
}
