//! One run for each weak spot that a supervisor had.

use super::{
    faults::{DiskFault, Fault, PlannedFault},
    processes::{Hang, Trap, TrapPoint},
    run_plan::RunPlan,
    scripts::ScriptPlan,
    world::{Time, World},
};
use crate::{node_agent::effect::NodeEnd, supervisor::effect::RunEnd};
use enn_common::wire::{
    command::Request,
    node_agent::{RunEnding, StopSignal},
};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A run of so many nodes with one worker each, which needs all of them.
fn plan(nodes: u32) -> RunPlan {
    RunPlan::for_tests(nodes)
}

fn at(seconds: u64, fault: Fault) -> PlannedFault {
    PlannedFault { at: Duration::from_secs(seconds), fault }
}

/// A fault so long after the tenth second.
fn after_ten(milliseconds: u64, fault: Fault) -> PlannedFault {
    PlannedFault { at: 10 * SECOND + Duration::from_millis(milliseconds), fault }
}

fn stop() -> Fault {
    Fault::Signal { which: Some(0), signal: StopSignal::Terminate, second: None }
}

/// Runs it to its end.
fn run(plan: RunPlan, faults: Vec<PlannedFault>) -> World {
    let mut world = World::new(plan, faults, 7, true);
    if let Err(violation) = world.run() {
        panic!("{violation:?}\n{}", world.take_trace().map(|trace| trace.tail(200)).unwrap_or_default());
    }
    world
}

fn end(world: &World) -> &RunEnd {
    &world.observer.finished.as_ref().unwrap().end
}

fn unsaved(world: &World) -> Option<&str> {
    world.observer.finished.as_ref().unwrap().unsaved.as_deref()
}

/// The time at which it must be over.
fn check_time(world: &mut World, most: Time) {
    let now = world.now;
    if now > most {
        panic!("over after {now:?}\n{}", world.take_trace().map(|trace| trace.tail(200)).unwrap_or_default());
    }
}

#[test]
fn a_worker_that_never_connects_is_found_by_the_hang_timeout() {
    let trap = Fault::Trap(TrapPoint::BeforeConnected, Trap::Hang(Hang::Whole));
    let mut world = run(plan(2), vec![at(6, trap), at(6, Fault::KillWorker(1))]);
    assert_eq!(end(&world), &RunEnd::Finished);
    check_time(&mut world, 77 * SECOND);
}

#[test]
fn a_script_that_waits_for_one_that_imports_does_not_hang() {
    let trap = Fault::Trap(TrapPoint::BeforeConnected, Trap::Hang(Hang::Whole));
    let scripts = Some(ScriptPlan { detached: false, hollow: 0, parts: None });
    let plan = RunPlan { hang_timeout: Some(5 * SECOND), scripts, steps: 5, ..plan(2) };
    let world = run(plan, vec![at(0, trap)]);
    assert_eq!(end(&world), &RunEnd::Finished);
    // Imports have half a minute, however short the limit is.
    assert!(world.now >= 30 * SECOND, "{:?}", world.now);
}

#[test]
fn scripts_that_cannot_share_the_parts_with_all_who_are_left_go_on_with_fewer() {
    let scripts = Some(ScriptPlan { detached: false, hollow: 0, parts: 8.try_into().ok() });
    let lost = Fault::KillNode { which: 3, closes: true, back: None };
    let plan = RunPlan { nodes_min: 1, scripts, ..plan(4) };
    let world = run(plan.clone(), vec![at(10, lost)]);
    assert_eq!((end(&world), world.observer.rounds), (&RunEnd::Finished, 2));
    // Nobody starts with three.
    let three = RunPlan { nodes: 3, nodes_max: 3, ..plan };
    let ended = run(three, Vec::new());
    assert!(
        matches!(end(&ended), RunEnd::Failed { cause } if cause.contains("by 3 ranks, but by 1, 2, 4, 8")),
        "{:?}",
        end(&ended)
    );
}

#[test]
fn spares_take_the_seats_where_all_scripts_start_again() {
    let scripts = Some(ScriptPlan { detached: false, hollow: 0, parts: None });
    let plan = RunPlan { spares: 1, scripts, ..plan(2) };
    let world = run(plan, vec![at(10, Fault::DetachScript(0)), at(11, Fault::KillWorker(1))]);
    assert_eq!(end(&world), &RunEnd::Finished);
    assert_eq!(world.observer.finished.as_ref().unwrap().restarts, 1);
    // Two of the first round, the two spares that stood by, and two more spares.
    assert_eq!(world.processes.len(), 6);
}

#[test]
fn a_stop_does_not_wait_for_a_worker_that_never_connects() {
    let trap = Fault::Trap(TrapPoint::BeforeConnected, Trap::Hang(Hang::Whole));
    let plan = RunPlan { hang_timeout: None, grace: 20 * SECOND, ..plan(2) };
    let mut world = run(plan, vec![at(0, trap), at(8, stop())]);
    assert_eq!(end(&world), &RunEnd::Stopped(StopSignal::Terminate));
    check_time(&mut world, 14 * SECOND);
}

#[test]
fn the_state_that_a_saver_that_hangs_keeps_is_taken_from_another_one() {
    let trap = Fault::Trap(TrapPoint::BeforeReady, Trap::Hang(Hang::Whole));
    let plan = RunPlan { hang_timeout: Some(60 * SECOND), ..plan(3) };
    let mut world = run(plan, vec![at(12, Fault::KillWorker(2)), at(12, stop()), at(12, trap)]);
    let saved = unsaved(&world).is_none();
    check_time(&mut world, if saved { 60 * SECOND } else { Duration::ZERO });
    assert_eq!((end(&world), unsaved(&world)), (&RunEnd::Stopped(StopSignal::Terminate), None));
    assert!(world.disk.furthest > Some(4), "{:?}", world.disk.furthest);
}

#[test]
fn a_saver_that_hangs_alone_is_named() {
    let trap = Fault::Trap(TrapPoint::BeforeReady, Trap::Hang(Hang::Whole));
    let plan = RunPlan { hang_timeout: Some(60 * SECOND), ..plan(2) };
    let world = run(plan, vec![at(12, Fault::KillWorker(1)), at(12, stop()), at(12, trap)]);
    let unsaved = unsaved(&world).unwrap_or_default();
    assert!(unsaved.contains("rank 0 kept it and did not save it within 10 s"), "{unsaved}");
}

#[test]
fn a_stop_waits_for_a_disk_that_hangs_as_long_as_for_workers() {
    let hung = Fault::Disk(DiskFault::Hung, 400 * SECOND);
    let mut world = run(plan(2), vec![at(10, hung.clone()), at(11, stop())]);
    assert_eq!(end(&world), &RunEnd::Stopped(StopSignal::Terminate));
    let said = unsaved(&world).unwrap_or_default().to_owned();
    assert!(
        said.contains("the disk of /runs/r did not take it within 10 s") && said.contains("the state after step"),
        "{said}"
    );
    check_time(&mut world, 50 * SECOND);
    // Training has ended by itself, and nobody is in a hurry until the user is.
    let mut world = run(plan(2), vec![at(20, hung), at(60, Fault::Request(Request::Stop {})), at(61, stop())]);
    let said = unsaved(&world).unwrap_or_default().to_owned();
    assert!(said.contains("the checkpoint of its last step 40 could not be written"), "{said}");
    check_time(&mut world, 90 * SECOND);
}

#[test]
fn the_stacks_of_a_round_that_hangs_are_kept() {
    let world = run(plan(2), vec![at(10, Fault::HangWorker(1, Hang::Main))]);
    assert_eq!((end(&world), world.observer.stacks), (&RunEnd::Finished, 1));
}

#[test]
fn a_gap_costs_a_run_of_fixed_size_nothing_but_the_gap() {
    let cut = Fault::CutNode { which: 1, there: true, back: true, time: 12 * SECOND };
    let world = run(plan(3), vec![at(10, cut)]);
    assert_eq!(end(&world), &RunEnd::Finished);
    assert_eq!(world.processes.len(), 3, "all workers went on");
    assert_eq!(world.observer.finished.as_ref().unwrap().restarts, 0);
}

#[test]
fn a_leader_that_is_cut_off_while_it_forms_a_membership_is_not_obeyed() {
    for milliseconds in (5..60).step_by(5) {
        let lost = Fault::KillNode { which: 5, closes: true, back: None };
        let cut = Fault::CutNode { which: 0, there: true, back: false, time: 14 * SECOND };
        run(RunPlan { nodes_min: 1, link_delay_ms: 30, ..plan(6) }, vec![at(10, lost), after_ten(milliseconds, cut)]);
    }
}

#[test]
fn a_node_that_was_out_of_reach_takes_part_again() {
    let cut = Fault::CutNode { which: 1, there: true, back: true, time: 12 * SECOND };
    for nodes_min in [1, 2] {
        let plan = RunPlan { nodes_min, steps: 80, ..plan(3) };
        let world = run(plan, vec![at(10, cut.clone())]);
        assert_eq!(end(&world), &RunEnd::Finished);
        let ended = world.observer.node_ends.values().filter(|end| **end == NodeEnd::Ended(RunEnding::Finished));
        assert_eq!(ended.count(), 3, "{:?}", world.observer.node_ends);
    }
}
