//! Devices that fail: `enn run --on-failure replace` leaves out one whose workers died twice of an error that only a device can cause, and
//! one of which NVML shows an uncorrectable error. NVML is a library of three GPUs, built here.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_tests::launch::{Place, end, kill, until};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Child, Command},
};

const STEPS: u64 = 600;
/// What a worker writes whose device fails.
const ERROR: &str = "CUDA error: hardware stack error";

fn place(task: &str) -> Place {
    let program = env!("CARGO_BIN_EXE_script_under_test");
    Place::new(&format!("export ENN_FAKE_SCRIPT=steps={STEPS},step_ms=5,{task}\nexec {program}"))
}

fn start(place: &Place, flags: &[&str], variables: &[(&str, &Path)]) -> Child {
    let all = [&["--standalone", "--on-failure=replace"], flags].concat();
    place.command(&all).envs(variables.iter().copied()).spawn().unwrap()
}

/// Fields of the events of one kind.
fn fields(place: &Place, kind: &str, name: &str) -> Vec<Value> {
    let found = place.events().into_iter().filter(|event| event["event"] == kind);
    found.map(|event| event[name].clone()).collect()
}

/// Builds the library of NVML in a folder.
fn build_nvml(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nvml.c");
    let library = folder.join("libnvidia-ml.so.1");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-Wall", "-o"]).arg(library).arg(source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

#[test]
fn a_device_that_failed_twice_is_left_out_and_the_world_shrinks() {
    let place = place("sick=1");
    let ended = end(start(&place, &["--workers=1:2", "--spares=1"], &[]));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let reason = format!("device 1 is left out from now on: it failed 2 times: {ERROR}");
    let once = format!("device 1 failed: {ERROR}; if it fails again, it is left out");
    assert!(ended.stderr.contains(&reason) && ended.stderr.contains(&once), "{}", ended.stderr);
    assert_eq!(fields(&place, "device_sick", "left_out"), [true]);
    let events = place.events();
    let at = events.iter().position(|event| event["event"] == "device_sick").unwrap();
    let is_on_it = |event: &&Value| {
        event["local_rank"] == 1 && ["worker_started", "spare_started"].iter().any(|kind| event["event"] == *kind)
    };
    assert_eq!(events[at + 1..].iter().find(is_on_it), None);
    assert_eq!(fields(&place, "round_started", "world_size").last(), Some(&Value::from(1)));
}

#[test]
fn a_device_that_the_run_needs_is_named_and_kept() {
    let place = place("sick=1");
    let ended = end(start(&place, &["--nproc-per-node=2"], &[]));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("device 1 is sick, but the run cannot do without it"), "{}", ended.stderr);
    assert_eq!(fields(&place, "device_sick", "left_out"), [false]);
    assert_eq!(fields(&place, "round_started", "world_size").last(), Some(&Value::from(2)));
}

#[test]
fn a_device_with_uncorrectable_errors_is_left_out_at_once_and_another_one_takes_its_place() {
    let nvml = tempfile::tempdir().unwrap();
    build_nvml(nvml.path());
    // An error of an earlier run.
    fs::write(nvml.path().join("ecc-2"), "3").unwrap();
    let place = place("");
    let variables =
        [("LD_LIBRARY_PATH", nvml.path()), ("FAKE_NVML", nvml.path()), ("CUDA_VISIBLE_DEVICES", Path::new("1,2,0"))];
    let child = start(&place, &["--nproc-per-node=2"], &variables);
    let kill_on = |local_rank: u32, recovered: usize| {
        let is_on_it = |event: &Value| {
            let is_start = event["event"] == "worker_started";
            (is_start && event["local_rank"] == local_rank)
                .then(|| i32::try_from(event["pid"].as_i64().unwrap()).unwrap())
        };
        until("a worker", || place.events().iter().any(|event| is_on_it(event).is_some()));
        until("a step", || fields(&place, "recovered", "seconds").len() >= recovered);
        // A worker says that it is ready when it has done steps.
        until("all are ready", || fields(&place, "worker_ready", "rank").len() >= 2 + recovered);
        kill(place.events().iter().filter_map(is_on_it).next_back().unwrap(), Signal::SIGKILL);
    };
    kill_on(1, 0);
    until("the next step", || fields(&place, "recovered", "seconds").len() == 1);
    fs::write(nvml.path().join("ecc-2"), "5").unwrap();
    kill_on(1, 1);
    let ended = end(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(fields(&place, "device_sick", "device"), ["GPU 2 (GPU-fake-2)"], "{}", ended.stderr);
    assert_eq!(fields(&place, "device_sick", "reason"), ["2 uncorrectable ECC errors"]);
    assert_eq!(fields(&place, "device_sick", "left_out"), [true]);
    // Two at first, the one that was killed from outside, and its successor on the third device.
    assert_eq!(fields(&place, "worker_started", "local_rank"), [0, 1, 1, 2]);
}
