//! Many seeds, each a run with its faults.

use super::{
    faults::{Fault, PlannedFault, plan_deaf_membership, plan_faults},
    random::Random,
    run_plan::RunPlan,
    scripts, shrink,
    sick_devices::plan_sick_devices,
};
use std::time::Duration;

/// Seeds in a profile without optimisation, and in another one.
const SEEDS: (u64, u64) = (100, 2000);
/// The same of runs of scripts.
const SCRIPT_SEEDS: (u64, u64) = (40, 500);
/// The same of runs of programs.
const PROGRAM_SEEDS: (u64, u64) = (60, 700);
/// Lines of a trace that are printed.
const TRACE_LINES: usize = 150;

/// The run and the faults of a seed.
fn of_seed(seed: u64) -> (RunPlan, Vec<PlannedFault>) {
    let mut random = Random::new(seed);
    let plan = RunPlan::of(&mut random);
    with_faults(random, plan)
}

/// The run of programs of a seed, and its faults.
fn programs_of_seed(seed: u64) -> (RunPlan, Vec<PlannedFault>) {
    let mut random = Random::new(seed);
    let plan = RunPlan { programs: true, ..RunPlan::of(&mut random) };
    with_faults(random, plan)
}

fn with_faults(mut random: Random, mut plan: RunPlan) -> (RunPlan, Vec<PlannedFault>) {
    let mut faults = plan_faults(&mut random, &plan);
    let last = faults.iter().map(|planned| planned.at + planned.fault.time()).max().unwrap_or_default();
    faults.push(PlannedFault { at: last + Duration::from_secs(20), fault: Fault::Relief });
    // A leader dies between two effects of a batch in every other seed.
    if random.one_in(2) && plan.several_nodes() {
        let at = random.time(Duration::ZERO, plan.duration());
        faults.push(PlannedFault { at, fault: Fault::KillLeaderAfter(random.below(40)) });
    }
    if random.one_in(16) && plan.several_nodes() {
        faults.extend(plan_deaf_membership(&mut random, &plan));
    }
    // A spare gets the seat of a worker that is too slow.
    if random.one_in(16) && !plan.programs {
        plan.evict_stragglers = true;
        plan.spares = plan.spares.max(1);
        let at = Duration::from_secs(4) + random.time(Duration::ZERO, plan.duration() / 2);
        faults.push(PlannedFault { at, fault: Fault::SlowWorker(random.below(1 << 20)) });
    }
    faults.extend(plan_sick_devices(&mut random, &plan));
    (plan, faults)
}

/// A variable for the one who looks for a fault.
#[expect(clippy::disallowed_methods, reason = "a test is told by variables which seeds to run, and nothing else is")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str) -> Option<u64> {
    variable(name)?.parse().ok()
}

/// Text about a seed that fails, or is to be seen.
fn report(seed: u64, plan: &RunPlan, failure: &shrink::Failure) -> String {
    let traced = shrink::run(plan, &failure.faults, seed, true);
    let lines = number("ENN_TRACE_LINES").and_then(|lines| usize::try_from(lines).ok()).unwrap_or(TRACE_LINES);
    let trace = traced.trace.map(|trace| trace.tail(lines)).unwrap_or_default();
    let faults: Vec<String> =
        failure.faults.iter().map(|one| format!("  {:9.4} {:?}", one.at.as_secs_f64(), one.fault)).collect();
    let shrink::Failure { violation, .. } = failure;
    format!(
        "seed {seed} violates rule {} at {:.4} s: {}\n{plan:?}\nfaults:\n{}\ntrace:\n{trace}\n",
        violation.rule,
        violation.at.as_secs_f64(),
        violation.what,
        faults.join("\n"),
    )
}

/// Makes the run of a seed, and its faults.
type MakeRun = fn(u64) -> (RunPlan, Vec<PlannedFault>);

/// Runs one seed; a report where it fails.
fn check(seed: u64, make: MakeRun) -> Result<u64, String> {
    let (plan, faults) = make(seed);
    let result = shrink::run(&plan, &faults, seed, false);
    match result.end {
        Ok(()) => Ok(result.rounds),
        Err(violation) => Err(report(seed, &plan, &shrink::shrink(&plan, &faults, seed, violation))),
    }
}

#[test]
fn seeds() {
    run_seeds(of_seed, SEEDS);
}

#[test]
fn seeds_of_programs() {
    run_seeds(programs_of_seed, PROGRAM_SEEDS);
}

#[test]
fn seeds_of_scripts() {
    run_seeds(scripts::of_seed, SCRIPT_SEEDS);
}

fn run_seeds(make: MakeRun, counts: (u64, u64)) {
    if let Some(seed) = number("ENN_SEED") {
        if variable("ENN_TRACE").is_some() {
            let (plan, faults) = make(seed);
            let result = shrink::run(&plan, &faults, seed, true);
            println!("{plan:?}\n{}", result.trace.map(|trace| trace.tail(usize::MAX)).unwrap_or_default());
        }
        if let Err(report) = check(seed, make) {
            panic!("{report}");
        }
        return;
    }
    let count = number("ENN_SIMULATION_SEEDS").unwrap_or(if cfg!(debug_assertions) { counts.0 } else { counts.1 });
    let first = number("ENN_FIRST_SEED").unwrap_or(1);
    let most = number("ENN_FAILURES").unwrap_or(1);
    let mut failures = Vec::new();
    for seed in first..first + count {
        if let Err(report) = check(seed, make) {
            failures.push(report);
            if failures.len() as u64 >= most {
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Large runs, for the long suite.
#[test]
#[ignore = "minutes; make soak runs it"]
fn large_runs() {
    let nodes = number("ENN_SIMULATION_NODES").and_then(|nodes| u32::try_from(nodes).ok()).unwrap_or(1000);
    let first = number("ENN_FIRST_SEED").unwrap_or(1);
    for seed in first..first + number("ENN_SIMULATION_SEEDS").unwrap_or(20) {
        let mut random = Random::new(seed);
        let plan = RunPlan::large(&mut random, nodes, 8);
        let faults = plan_faults(&mut random, &plan);
        if let Err(violation) = shrink::run(&plan, &faults, seed, false).end {
            panic!("seed {seed} of {nodes} nodes: {violation:?}\n{faults:?}");
        }
    }
}
