//! Which devices of a node are sick: those that failed twice, and those that NVML shows to be broken. Pure.
//!
//! **Invariant:** a worker that was killed, raised, ran out of memory or has a wrong kernel says nothing of its device.

use super::report::EffectList;
use enn_common::wire::node_agent::{DeviceFailure, NodeEvent, WorkerEvidence};
use enn_process::devices::GpuFinding;
use std::collections::BTreeMap;

/// A device that failed so often has no worker any more.
const FAILURES_MAX: u32 = 2;

/// Errors that only a device can cause, in the words of CUDA's runtime and in the names of both APIs; in lower case.
const DEVICE_ERRORS: [&str; 11] = [
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "hardware stack error",
    "device(s) is/are busy or unavailable",
    "cuda_error_ecc_uncorrectable",
    "cuda_error_nvlink_uncorrectable",
    "cuda_error_hardware_stack_error",
    "cuda_error_device_unavailable",
    "cudaerroreccuncorrectable",
    "cudaerrornvlinkuncorrectable",
    "cudaerrorhardwarestackerror",
];

/// Returns the line in which a worker reports an error of its device. A line that does not speak of CUDA is none.
fn device_error(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| {
        let line = line.to_ascii_lowercase();
        line.contains("cuda") && DEVICE_ERRORS.iter().any(|error| line.contains(error))
    })
}

/// Failures of the devices of a node, by local rank.
#[derive(Debug, Default)]
pub(super) struct DeviceFailures {
    counts: BTreeMap<u32, u32>,
    sick: BTreeMap<u32, DeviceFailure>,
}

impl DeviceFailures {
    /// A worker ended. Where it failed, its local rank and the error that it sent are known; where its device did, the leader hears of it.
    pub(super) fn on_evidence(
        &mut self,
        failed: Option<(u32, &str)>,
        evidence: &WorkerEvidence,
        gpu: Option<GpuFinding>,
        list: &mut EffectList<'_>,
    ) {
        let Some((local_rank, error)) = failed else { return };
        let trouble = gpu.as_ref().and_then(|gpu| gpu.trouble.clone());
        let is_certain = trouble.is_some();
        let said = || device_error(error).or_else(|| device_error(&evidence.stderr)).map(str::to_owned);
        let Some(reason) = trouble.or_else(said) else { return };
        let count = self.counts.entry(local_rank).or_default();
        *count += 1;
        let (device, devices) = gpu.map_or_else(|| (format!("device {local_rank}"), 0), |gpu| (gpu.gpu, gpu.gpus));
        let is_sick = is_certain || *count >= FAILURES_MAX;
        let reason = if is_certain || !is_sick { reason } else { format!("it failed {count} times: {reason}") };
        let failure = DeviceFailure { local_rank, device, reason, devices, is_sick };
        list.report(NodeEvent::DeviceFailed(Box::new(failure.clone())));
        if is_sick {
            self.sick.insert(local_rank, failure);
        }
    }

    /// Tells a leader of the sick devices.
    pub(super) fn report(&self, list: &mut EffectList<'_>) {
        self.sick.values().cloned().for_each(|failure| list.report(NodeEvent::DeviceFailed(Box::new(failure))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_agent::effect::NodeEffect;
    use std::time::Duration;

    /// Failures as they are reported; workers fail on the device of local rank 1.
    fn note(failures: &mut DeviceFailures, stderr: &str, trouble: Option<&str>) -> Vec<NodeEffect> {
        let mut effects = Vec::new();
        let trouble = trouble.map(str::to_owned);
        let gpu = GpuFinding { gpu: "GPU 3 (GPU-3f)".into(), gpus: 4, trouble };
        let evidence = WorkerEvidence { stderr: stderr.to_owned(), first_launch: None };
        let list = &mut EffectList::new(Duration::ZERO, &mut effects, true);
        failures.on_evidence(Some((1, "")), &evidence, Some(gpu), list);
        effects
    }

    fn failure(reason: &str, is_sick: bool) -> NodeEffect {
        let reason = reason.to_owned();
        let failure = DeviceFailure { local_rank: 1, device: "GPU 3 (GPU-3f)".into(), reason, devices: 4, is_sick };
        NodeEffect::Report(NodeEvent::DeviceFailed(Box::new(failure)))
    }

    const ECC: &str = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered";

    #[test]
    fn errors_of_devices_are_told_from_those_of_programs() {
        let of_devices = [
            ECC,
            "  what():  CUDA error: Hardware stack error",
            "node1: NCCL WARN Cuda failure 'uncorrectable NVLink error detected during the execution'",
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "CUDA_ERROR_ECC_UNCORRECTABLE: the driver says",
        ];
        for line in of_devices {
            assert_eq!(device_error(&format!("Traceback\n{line}\nmore")), Some(line.trim()));
        }
        let of_programs = [
            "",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "RuntimeError: CUDA error: unspecified launch failure",
            "RuntimeError: NCCL error: remote process exited or there was a network error",
            "RuntimeError: CUDA error: invalid device ordinal",
            "RuntimeError: No CUDA GPUs are available",
            "ValueError: uncorrectable ECC error in my own disk code",
        ];
        for line in of_programs {
            assert_eq!(device_error(line), None, "{line}");
        }
    }

    #[test]
    fn the_second_failure_makes_a_device_sick_and_an_uncorrectable_error_at_once() {
        let mut failures = DeviceFailures::default();
        assert_eq!(note(&mut failures, "KeyError: 'x'", None), []);
        assert_eq!(note(&mut failures, ECC, None), [failure(ECC, false)]);
        assert_eq!(note(&mut failures, "Killed", None), []);
        let twice = failure(&format!("it failed 2 times: {ECC}"), true);
        assert_eq!(note(&mut failures, ECC, None), [twice]);
        let mut failures = DeviceFailures::default();
        let shown = failure("1 uncorrectable ECC error", true);
        assert_eq!(note(&mut failures, "Killed", Some("1 uncorrectable ECC error")), std::slice::from_ref(&shown));
        let mut effects = Vec::new();
        let list = &mut EffectList::new(Duration::ZERO, &mut effects, true);
        failures.report(list);
        let error = "CUDA error: hardware stack error";
        failures.on_evidence(Some((0, error)), &WorkerEvidence::default(), None, list);
        let device = "device 0".to_owned();
        let said = DeviceFailure { local_rank: 0, device, reason: error.to_owned(), devices: 0, is_sick: false };
        assert_eq!(effects, [shown, NodeEffect::Report(NodeEvent::DeviceFailed(Box::new(said)))]);
    }
}
