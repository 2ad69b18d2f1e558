//! A machine for every verdict.

use super::*;
use crate::{
    doctor::findings::{ExportSupport, ResourceLimits},
    libtorch::{Installation, Libtorch},
};
use enn_common::exit::ExitCode;
use std::{path::PathBuf, time::Duration};

pub(in crate::doctor) fn good() -> Findings {
    Findings {
        inputs: DoctorInputs {
            worker: Ok("/opt/enn-worker".into()),
            installation: Installation::Checkout,
            libtorch: Ok(Libtorch { lib: "/opt/libtorch/lib".into(), from: "ENN_LIBTORCH".into(), note: None }),
            library_path: Some("/opt/libtorch/lib".into()),
            cores: 8,
            gpus: 0,
            python: Some("/usr/bin/python3".into()),
            temporary_dir: "/tmp".into(),
            cwd: PathBuf::from("/work"),
            has_slurm: false,
            exports: vec![
                ExportSupport { format: "onnx", is_ready: false },
                ExportSupport { format: "pt2", is_ready: true },
            ],
            variables: vec![("ENN_LOG".into(), "debug".into())],
        },
        probe: Ok(Probe {
            version: "0.1.0".into(),
            libtorch_built: "2.11.0".into(),
            libtorch: "2.11.0".into(),
            cuda_build: false,
            cuda_devices: 0,
            cuda: None,
            nccl: None,
            runs_archives: true,
            cpu_capability: Some("AVX2".into()),
            threads: 8,
        }),
        fork_server: Some(Ok(Trial::Forks { modules: vec!["torch".into()], seconds: 2.0 })),
        nvidia_driver: None,
        gpu_devices: 0,
        gpu_troubles: Some(Vec::new()),
        memory_available: Some(16 * GIB),
        disk_free: Some(100 * GIB),
        shm_free: Some(GIB),
        limits: ResourceLimits { nofile: Some(65_536), memlock: None, core: Some(0) },
    }
}

fn with(change: impl FnOnce(&mut Findings)) -> Report {
    let mut findings = good();
    change(&mut findings);
    check(&findings)
}

fn item<'a>(report: &'a Report, name: &str) -> &'a Check {
    report.items.iter().find(|item| item.name == name).unwrap_or_else(|| panic!("no item {name}"))
}

fn fix(report: &Report, name: &str) -> String {
    item(report, name).fix.clone().unwrap_or_else(|| panic!("{name} has no fix"))
}

#[test]
fn a_good_machine_needs_no_fix() {
    let report = check(&good());
    assert_eq!(report.exit_code(), ExitCode::Success);
    assert!(report.items.iter().all(|item| item.state == CheckState::Ok && item.fix.is_none()), "{report}");
}

#[test]
fn a_missing_or_broken_worker_is_missing_and_says_how_to_get_one() {
    let report = with(|f| {
        (f.probe, f.inputs.worker) =
            (Err(ProbeFailure::NoWorker), Err("no enn-worker was found: a; b\nhint: `make build`".into()))
    });
    assert_eq!(report.exit_code(), ExitCode::Machine);
    assert_eq!(item(&report, "enn-worker").found, "no enn-worker was found: a; b");
    assert_eq!(fix(&report, "enn-worker"), "`make build`");
    let line = "error while loading shared libraries: libtorch_cpu.so: cannot open shared object file";
    let report = with(|f| f.probe = Err(ProbeFailure::Failed(line.into())));
    assert!(item(&report, "enn-worker").found.contains(line));
    assert!(fix(&report, "enn-worker").contains("make libtorch"));
    let report = with(|f| {
        f.probe = Err(ProbeFailure::Failed(line.into()));
        f.inputs.libtorch = Err("no libtorch 2.13 was found: a; b\nhint: pip install torch==2.13.0".into());
    });
    assert_eq!(fix(&report, "enn-worker"), "pip install torch==2.13.0");
    let report = with(|f| f.probe = Err(ProbeFailure::TimedOut(Duration::from_secs(60))));
    assert!(item(&report, "enn-worker").found.contains("60 s"));
    assert_eq!(report.exit_code(), ExitCode::Machine);
}

#[test]
fn another_libtorch_than_the_one_built_against_is_missing() {
    let report = with(|f| f.probe.as_mut().unwrap().libtorch = "2.12.0".into());
    assert_eq!(item(&report, "libtorch").state, CheckState::Missing);
    assert!(item(&report, "libtorch").found.contains("2.12.0") && item(&report, "libtorch").found.contains("2.11.0"));
    assert_eq!(report.exit_code(), ExitCode::Machine);
}

#[test]
fn no_libtorch_says_all_that_was_tried_and_one_that_was_passed_over_is_a_note() {
    let report = with(|f| {
        f.probe = Err(ProbeFailure::Failed("libtorch_cpu.so: cannot open shared object file".into()));
        f.inputs.libtorch = Err("no libtorch 2.11 was found: a; b\nhint: `make libtorch`".into());
    });
    assert_eq!(item(&report, "libtorch").found, "no libtorch 2.11 was found: a; b");
    assert_eq!(fix(&report, "libtorch"), "`make libtorch`");
    let passed_over = "the torch of python3 is passed over: /t is torch 2.5.1, expected 2.11";
    let report = with(|f| f.inputs.libtorch.as_mut().unwrap().note = Some(passed_over.into()));
    assert!(fix(&report, "libtorch").starts_with(passed_over));
    assert_eq!(report.exit_code(), ExitCode::Success);
}

#[test]
fn gpus_with_errors_are_named() {
    let found = |troubles| item(&with(|f| f.gpu_troubles = troubles), "GPU health").found.clone();
    let gpu = |number: u32, trouble: Option<&str>| (format!("GPU {number}"), trouble.map(str::to_owned));
    assert_eq!(found(Some(vec![gpu(0, None), gpu(1, None)])), "2 GPUs, no uncorrectable errors");
    assert_eq!(found(Some(vec![gpu(0, None), gpu(1, Some("lost"))])), "GPU 1: lost");
    assert!(found(None).contains("does not answer"));
}

#[test]
fn unused_gpus_are_noted_with_the_command_for_each_case() {
    let report = with(|f| f.gpu_devices = 4);
    assert!(fix(&report, "CUDA").contains("make cuda"));
    assert_eq!(report.exit_code(), ExitCode::Success, "the CPU build still works");
    let cuda = |devices| {
        move |f: &mut Findings| {
            f.gpu_devices = 4;
            let probe = f.probe.as_mut().unwrap();
            probe.cuda_build = true;
            probe.cuda_devices = devices;
            probe.cuda = Some("13.0".into());
        }
    };
    let report = with(cuda(0));
    assert!(fix(&report, "CUDA").contains("CUDA_VISIBLE_DEVICES"));
    assert!(fix(&report, "NCCL").contains("nvidia-nccl"));
    let report = with(cuda(4));
    assert_eq!(item(&report, "CUDA").state, CheckState::Ok);
    assert!(item(&report, "CUDA").found.contains("4 of 4 GPUs"));
}

#[test]
fn little_disk_is_missing_and_small_limits_are_notes() {
    let report = with(|f| f.disk_free = Some(10 * MIB));
    assert_eq!(item(&report, "disk").state, CheckState::Missing);
    assert!(item(&report, "disk").found.starts_with("10.0 MiB"));
    let report = with(|f| f.limits.nofile = Some(256));
    assert!(fix(&report, "open files").contains("ulimit -n"));
    let report = with(|f| (f.gpu_devices, f.shm_free, f.limits.memlock) = (1, Some(64 * MIB), Some(8 * MIB)));
    assert!(fix(&report, "/dev/shm").contains("--shm-size"));
    assert!(fix(&report, "locked memory").contains("ulimit -l"));
    assert_eq!(report.exit_code(), ExitCode::Success);
}

#[test]
fn text_and_json_say_the_same() {
    let report = with(|f| (f.probe, f.disk_free) = (Err(ProbeFailure::NoWorker), Some(0)));
    let text = report.to_string();
    let json = report.json();
    assert_eq!(json["ok"], false);
    for item in json["items"].as_array().unwrap() {
        assert!(text.contains(item["found"].as_str().unwrap()), "{item} is not in\n{text}");
        if let Some(fix) = item["mend"].as_str() {
            assert!(text.contains(fix));
        }
    }
    let set: Vec<_> = json["variables"].as_array().unwrap().iter().filter(|v| v["value"] == "debug").collect();
    assert_eq!(set.len(), 1);
    assert_eq!(set[0]["name"], "ENN_LOG");
    assert!(text.contains("= debug"));
}

#[test]
fn scripts_that_cannot_be_forked_say_why() {
    let why = "no fork server: its Python has no torch; workers are executed";
    let report = with(|findings| findings.fork_server = Some(Ok(Trial::Executes(why.into()))));
    assert_eq!(item(&report, "fork server").state, CheckState::Note);
    assert!(
        item(&report, "fork server").found.contains("has no torch")
            && fix(&report, "fork server").contains("PYTHON_EXEC")
    );
    assert_eq!(report.exit_code(), ExitCode::Success, "executed workers are as good");
    let report = with(|findings| findings.inputs.python = None);
    assert!(report.items.iter().all(|item| item.name != "fork server"));
}
