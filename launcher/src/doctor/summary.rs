//! What works on this machine and what does not, on one screen. Pure.

use super::{
    findings::{ExportSupport, Findings},
    policy::gpu_count,
    report::{Check, CheckState, Report},
};
use enn_process::preload::Trial;
use std::fmt::Write;

/// Format of `enn export` that libtorch itself checks, where it runs such archives.
const ARCHIVES: &str = "pt2";

/// The degree to which something works here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbilityState {
    Works,
    /// Something about it is missing or slower.
    Partly,
    Absent,
}

/// Something that ENN does.
struct Ability {
    name: &'static str,
    state: AbilityState,
    /// With what it works, or what is missing.
    why: String,
    fix: Option<String>,
}

impl AbilityState {
    fn word(self) -> &'static str {
        match self {
            Self::Works => "yes",
            Self::Partly => "partly",
            Self::Absent => "no",
        }
    }
}

/// Formats what works, then what should be looked at, a line each.
pub(super) fn text(findings: &Findings, report: &Report) -> String {
    let abilities = [
        train_on_cpu(findings, report),
        train_on_gpus(findings, report),
        run_scripts(findings),
        exports(findings),
        slurm(findings),
    ];
    let width = abilities.iter().map(|ability| ability.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Ability { name, state, why, fix } in &abilities {
        let fix = fix.as_ref().map(|fix| format!(" -> {fix}")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:6}  {name:width$}  {why}{fix}", state.word());
    }
    let noted: Vec<&Check> = report.items.iter().filter(|item| item.state != CheckState::Ok).collect();
    if !noted.is_empty() {
        text.push('\n');
    }
    for item in noted {
        let fix = item.fix.as_ref().map(|fix| format!(" -> {fix}")).unwrap_or_default();
        let word = if item.state == CheckState::Missing { "missing" } else { "note" };
        let _ = writeln!(text, "{word}: {}: {}{fix}", item.name, first_line(&item.found));
    }
    text.push_str("\nenn doctor --all: everything that was found, and the environment variables\n");
    text
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Returns the check of this name that found something missing.
fn missing<'r>(report: &'r Report, names: &[&str]) -> Option<&'r Check> {
    report.items.iter().find(|item| item.state == CheckState::Missing && names.contains(&item.name))
}

fn works(name: &'static str, why: String) -> Ability {
    Ability { name, state: AbilityState::Works, why, fix: None }
}

fn absent(name: &'static str, why: impl Into<String>) -> Ability {
    Ability { name, state: AbilityState::Absent, why: why.into(), fix: None }
}

fn train_on_cpu(findings: &Findings, report: &Report) -> Ability {
    const NAME: &str = "train on CPUs";
    if let Some(check) = missing(report, &["enn-worker", "libtorch", "disk"]) {
        return absent(NAME, format!("{} is missing, see below", check.name));
    }
    let libtorch = findings.probe.as_ref().map_or("unknown", |probe| &probe.libtorch);
    works(NAME, format!("{} cores, libtorch {libtorch}", findings.inputs.cores))
}

fn train_on_gpus(findings: &Findings, report: &Report) -> Ability {
    const NAME: &str = "train on GPUs";
    if findings.gpu_devices == 0 {
        return absent(NAME, "no NVIDIA GPU here");
    }
    let usable = findings.probe.as_ref().map_or(0, |probe| if probe.cuda_build { probe.cuda_devices } else { 0 });
    if missing(report, &["enn-worker", "libtorch"]).is_some() || usable == 0 {
        return absent(NAME, format!("{}, none usable, see below", gpu_count(findings.gpu_devices)));
    }
    let is_sick = findings.gpu_troubles.as_ref().is_none_or(|gpus| gpus.iter().any(|(_, trouble)| trouble.is_some()));
    let state = if is_sick { AbilityState::Partly } else { AbilityState::Works };
    Ability { name: NAME, state, why: format!("{usable} of {}", gpu_count(findings.gpu_devices)), fix: None }
}

fn run_scripts(findings: &Findings) -> Ability {
    const NAME: &str = "enn run";
    let Some(python) = &findings.inputs.python else {
        let why = "programs of any kind; no Python for scripts".to_owned();
        return Ability { name: NAME, state: AbilityState::Partly, why, fix: Some("install python3".into()) };
    };
    match &findings.fork_server {
        Some(Ok(Trial::Forks { seconds, .. })) => {
            works(NAME, format!("scripts of {}, forked with PyTorch imported in {seconds:.1} s", python.display()))
        }
        _ => works(NAME, format!("scripts of {}, started one by one", python.display())),
    }
}

fn exports(findings: &Findings) -> Ability {
    const NAME: &str = "export";
    // Nothing that could be installed checks an archive in place of libtorch.
    let lacks_archives = findings.probe.as_ref().is_ok_and(|probe| !probe.runs_archives);
    let counts = |one: &&ExportSupport| !(lacks_archives && one.format == ARCHIVES);
    let names = |is_ready: bool| -> Vec<&str> {
        let exports = findings.inputs.exports.iter().filter(counts);
        exports.filter(|one| one.is_ready == is_ready).map(|one| one.format).collect()
    };
    let others = names(false);
    let fix = (!others.is_empty()).then(|| format!("enn export --prepare {}", others.join(",")));
    let state = if others.is_empty() { AbilityState::Works } else { AbilityState::Partly };
    Ability { name: NAME, state, why: names(true).join(", "), fix }
}

fn slurm(findings: &Findings) -> Ability {
    const NAME: &str = "Slurm";
    if findings.inputs.has_slurm {
        return works(NAME, "sbatch is on PATH: enn slurm submit".to_owned());
    }
    absent(NAME, "sbatch is not on PATH")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        findings::ProbeFailure,
        policy::{check, tests::good},
    };

    fn of(findings: &Findings) -> String {
        text(findings, &check(findings))
    }

    #[test]
    fn a_good_machine_needs_one_screen_and_nothing_is_noted() {
        let text = of(&good());
        let expected = [
            "yes     train on CPUs  8 cores, libtorch 2.11.0",
            "no      train on GPUs  no NVIDIA GPU here",
            "yes     enn run        scripts of /usr/bin/python3, forked with PyTorch imported in 2.0 s",
            "partly  export         pt2 -> enn export --prepare onnx",
            "no      Slurm          sbatch is not on PATH",
            "",
            "enn doctor --all: everything that was found, and the environment variables",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_archive_that_libtorch_does_not_run_is_no_format_that_works() {
        let mut findings = good();
        findings.probe.as_mut().unwrap().runs_archives = false;
        assert!(!of(&findings).contains("pt2"));
    }

    #[test]
    fn what_is_missing_has_a_line_with_its_fix() {
        let mut findings = good();
        findings.probe = Err(ProbeFailure::NoWorker);
        findings.gpu_devices = 2;
        findings.inputs.has_slurm = true;
        let text = of(&findings);
        assert!(text.contains("no      train on CPUs  enn-worker is missing, see below\n"), "{text}");
        assert!(text.contains("no      train on GPUs  2 GPUs, none usable, see below\n"), "{text}");
        assert!(text.contains("\nmissing: enn-worker: not found -> `make build`"), "{text}");
        assert!(text.contains("yes     Slurm"), "{text}");
        assert!(text.lines().count() < 24, "{text}");
    }
}
