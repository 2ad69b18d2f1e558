//! Short runs in which a leader dies before every effect in turn.

use super::{
    faults::{Fault, PlannedFault},
    processes::Hang,
    random::Random,
    run_plan::{RunPlan, Sharding},
    shrink,
};
use enn_common::{
    config::train::Recovery,
    wire::{command::Request, node_agent::StopSignal},
};
use std::time::Duration;

/// Scenarios, and effects of each before which the leader dies in a profile without optimisation.
const SCENARIOS: u64 = 50;
const CRASHES_IN_DEV: u64 = 10;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A small run of so many nodes, and one thing that happens to it.
fn scenario(number: u64) -> (RunPlan, Vec<PlannedFault>) {
    let mut random = Random::new(number * 7919);
    let nodes = 3 + number % 3;
    let workers = 1 + u32::try_from(number % 2).unwrap_or(0);
    let plan = RunPlan {
        nodes: usize::try_from(nodes).unwrap_or(3),
        nodes_min: 1,
        nodes_max: u32::try_from(nodes).unwrap_or(3),
        workers,
        workers_max: workers + 1,
        workers_min: 1,
        spares: u32::try_from(number % 2).unwrap_or(0),
        on_failure: if number % 10 == 9 { Recovery::Restart } else { Recovery::Reform },
        max_restarts: 3,
        hang_timeout: Some(ms(8000)),
        sharding: if number % 7 == 6 { Sharding::Groups(2) } else { Sharding::Replicated },
        in_memory: number.is_multiple_of(3),
        steps: 8,
        step_time: ms(300),
        save_steps: 3,
        epoch_steps: 4,
        connect_time: ms(200),
        load_time: ms(300),
        disk_time: ms(30),
        link_delay_ms: 2,
        ..RunPlan::of(&mut random)
    };
    let at = ms(3800) + random.up_to_ms(2500);
    let fault = match number % 10 {
        0 => None,
        1 => Some(Fault::KillWorker(number)),
        2 => Some(Fault::Signal { which: None, signal: StopSignal::Terminate, second: None }),
        3 => Some(Fault::Request(Request::Stop {})),
        4 => Some(Fault::Request(Request::Drain { node: Some("n0".to_owned()) })),
        5 => Some(Fault::Request(Request::Drain { node: Some("n1".to_owned()) })),
        6 => Some(Fault::HangWorker(number, Hang::Main)),
        7 => Some(Fault::Request(Request::Resize { workers: 2 })),
        8 => Some(Fault::KillNode { which: number, closes: true, back: Some(ms(2000)) }),
        _ => Some(Fault::KillWorker(number / 2)),
    };
    let faults = fault.into_iter().map(|fault| PlannedFault { at, fault }).collect();
    (plan, faults)
}

#[test]
fn a_leader_dies_before_every_effect() {
    for number in 0..SCENARIOS {
        let (plan, faults) = scenario(number);
        let undisturbed = shrink::run(&plan, &faults, number, false);
        if let Err(violation) = undisturbed.end {
            let traced = shrink::run(&plan, &faults, number, true);
            let trace = traced.trace.map(|trace| trace.tail(150)).unwrap_or_default();
            panic!("scenario {number} without a crash: {violation:?}\n{plan:?}\n{faults:?}\n{trace}");
        }
        let stride = if cfg!(debug_assertions) { (undisturbed.effects / CRASHES_IN_DEV).max(1) } else { 1 };
        let mut effect = 1;
        while effect <= undisturbed.effects {
            if let Err(violation) = shrink::run_with(&plan, &faults, number, false, Some(effect)).end {
                let traced = shrink::run_with(&plan, &faults, number, true, Some(effect));
                let trace = traced.trace.map(|trace| trace.tail(150)).unwrap_or_default();
                panic!("scenario {number}, crash before effect {effect}: {violation:?}\n{plan:?}\n{faults:?}\n{trace}");
            }
            effect += stride;
        }
    }
}
