//! Devices that fail again and again: the worker that has one dies some steps after it was seated, and what it leaves says why.
//!
//! **Invariant 18:** where a leader wrote that a device is left out, it starts and seats no other worker there; it writes that only of a device
//! that its node reported as sick; and a run that finishes in spite of such a device leaves it out where it may.

use super::{
    faults::{Fault, PlannedFault},
    links::Machine,
    processes::{EndedBy, Pid},
    random::Random,
    run_plan::RunPlan,
    world::World,
};
use crate::rendezvous::NodeId;
use enn_common::{
    id::WorkerId,
    wire::node_agent::{DeviceFailure, WorkerEvidence},
};
use enn_process::devices::GpuFinding;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Failures of a device at most, so that a run which needs it comes to an end.
const FAILURES_MAX: u32 = 6;
/// One in so many steps on a sick device fails.
const FAILS_ONE_IN: u64 = 4;

/// A device that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FailingDevice {
    /// NVML shows that it has an uncorrectable error.
    is_shown: bool,
    left: u32,
}

/// Sick devices of the world, and what leaders know of them.
#[derive(Debug, Default)]
pub(super) struct SickDevices {
    devices: BTreeMap<(Machine, u32), FailingDevice>,
    /// Devices that the nodes of a leader reported as sick.
    reported: BTreeMap<u64, BTreeSet<(NodeId, u32)>>,
    /// Devices that a leader left out.
    pub(super) left_out: BTreeMap<u64, BTreeSet<(NodeId, u32)>>,
}

/// Adds a sick device to the faults of every fourth run.
pub(super) fn plan_sick_devices(random: &mut Random, plan: &RunPlan) -> Option<PlannedFault> {
    if !random.one_in(4) || plan.programs {
        return None;
    }
    let at = random.time(Duration::ZERO, plan.duration() / 2);
    let local_rank = u32::try_from(random.below(plan.workers.into())).unwrap_or(0);
    let machine = random.below(plan.nodes as u64);
    Some(PlannedFault { at, fault: Fault::SickDevice { machine, local_rank, is_shown: random.one_in(3) } })
}

impl World {
    /// A device fails from now on.
    pub(super) fn sicken(&mut self, machine: u64, local_rank: u32, is_shown: bool) {
        let machine = Machine(usize::try_from(machine).unwrap_or(0));
        self.sick.devices.insert((machine, local_rank), FailingDevice { is_shown, left: FAILURES_MAX });
    }

    /// Whether the worker's device fails in this step; the worker is dead then.
    pub(super) fn device_fails(&mut self, pid: Pid) -> bool {
        if self.sick.devices.is_empty() {
            return false;
        }
        let Some(process) = self.processes.get(&pid) else { return false };
        let Some(seat) = process.seat() else { return false };
        let place = (process.machine, seat.local_rank);
        if self.sick.devices.get(&place).is_none_or(|sick| sick.left == 0) || !self.random.one_in(FAILS_ONE_IN) {
            return false;
        }
        self.sick.devices.entry(place).and_modify(|sick| sick.left -= 1);
        self.processes.entry(pid).and_modify(|process| process.failed_device = Some(place.1));
        self.trace(|| format!("the device of process {pid} fails"));
        self.observer.note_device_failure();
        self.end_process(pid, Some(1), None, EndedBy::Fault);
        true
    }

    /// What is found out about the end of a worker whose device failed.
    pub(super) fn device_evidence(&self, pid: Pid, evidence: &mut WorkerEvidence) -> Option<GpuFinding> {
        let process = self.processes.get(&pid)?;
        let local_rank = process.failed_device?;
        evidence.stderr = "CUDA error: hardware stack error".to_owned();
        let sick = self.sick.devices.get(&(process.machine, local_rank)).filter(|sick| sick.is_shown)?;
        let trouble = Some("1 uncorrectable ECC error".to_owned());
        let gpus = self.plan.workers_max + u32::from(sick.left % 2 == 0);
        Some(GpuFinding { gpu: format!("GPU {local_rank}"), gpus, trouble })
    }

    /// A leader hears of a failure.
    pub(super) fn device_failure_observed(&mut self, id: u64, node: NodeId, failure: &DeviceFailure) {
        let is_real = self.observer.machine_of(node.0).map(|machine| (machine, failure.local_rank));
        if !is_real.is_some_and(|place| self.sick.devices.contains_key(&place)) {
            self.violation("18", format!("n{} blames device {}, which is well", node.0, failure.local_rank));
        }
        if failure.is_sick {
            self.sick.reported.entry(id).or_default().insert((node, failure.local_rank));
        }
    }

    /// A leader writes that a device is left out.
    pub(super) fn left_out_observed(&mut self, id: u64, local_rank: u32, host: &str) {
        let reported = self.sick.reported.entry(id).or_default();
        let is_there = |node: NodeId| host.is_empty() || self.observer.host_of(node) == host;
        let found = reported.iter().rev().find(|(node, rank)| *rank == local_rank && is_there(*node)).copied();
        match found {
            Some(place) => _ = self.sick.left_out.entry(id).or_default().insert(place),
            None => {
                self.violation("18", format!("n{id} leaves out device {local_rank} of {host:?}, which is not sick"))
            }
        }
    }

    /// A leader starts or seats a worker that had not this slot.
    pub(super) fn check_left_out(&mut self, id: u64, node: NodeId, slot: u32, worker: WorkerId) {
        if self.sick.left_out.get(&id).is_some_and(|left_out| left_out.contains(&(node, slot))) {
            self.violation(
                "18",
                format!("n{id} gives worker {worker} device {slot} of n{}, which is left out", node.0),
            );
        }
    }
}

/// Runs two workers on one node, the second of which has a sick device; returns how many devices were left out, and the
/// failures.
fn run(plan: RunPlan, is_shown: bool) -> (usize, u32) {
    let fault = Fault::SickDevice { machine: 0, local_rank: 1, is_shown };
    let faults = vec![PlannedFault { at: Duration::ZERO, fault }];
    let mut world = World::new(plan, faults, 7, false);
    world.run().unwrap();
    let left_out = world.sick.left_out.values().map(BTreeSet::len).sum();
    let left: u32 = world.sick.devices.values().map(|sick| sick.left).sum();
    (left_out, FAILURES_MAX - left)
}

fn plan() -> RunPlan {
    RunPlan { nodes_min: 1, workers: 2, workers_max: 2, max_restarts: 20, ..RunPlan::for_tests(1) }
}

#[test]
fn the_run_goes_on_without_a_device_that_failed_twice_or_shows_an_error() {
    let (left_out, failures) = run(RunPlan { workers_min: 1, ..plan() }, false);
    assert_eq!((left_out, failures), (1, 2));
    let (left_out, failures) = run(RunPlan { workers_min: 1, ..plan() }, true);
    assert_eq!((left_out, failures), (1, 1));
    // Another device takes its place.
    let (left_out, failures) = run(RunPlan { workers_min: 2, workers_max: 3, ..plan() }, false);
    assert_eq!((left_out, failures), (1, 2));
}

#[test]
fn a_device_that_the_run_needs_is_kept() {
    let (left_out, failures) = run(RunPlan { workers_min: 2, ..plan() }, false);
    assert_eq!((left_out, failures), (0, FAILURES_MAX));
}
