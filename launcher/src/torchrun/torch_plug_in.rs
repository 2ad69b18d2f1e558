//! Hand-over to torch's own torchrun of what only it can do, since it is Python: plug-ins for the rendezvous and for logs. The whole
//! command is handed over, after the Python has confirmed that it has the plug-in.
//!
//! Source: `torch/distributed/elastic/rendezvous/registry.py` and `torch/distributed/run.py` of torch 2.8 to 2.15.

use super::{Flags, RunError, program};
use crate::facts::Facts;
use enn_common::secrets;
use enn_process::{OutputError, output_within};
use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::Command,
    time::Duration,
};

/// Rendezvous back ends of enn.
const OURS: [&str; 2] = ["static", "c10d"];
/// Further rendezvous back ends that torch brings.
const TORCHS: [&str; 2] = ["etcd", "etcd-v2"];
/// Default of `--logs-specs`: torch's built-in plug-in, which enn implements itself.
pub(super) const DEFAULT_LOGS: &str = "default";
const MODULE: &str = "torch.distributed.run";
/// Longest wait for a Python to list its plug-ins.
const ASK_MAX: Duration = Duration::from_secs(60);
/// Python program that lists the plug-ins of a group; it does not import torch.
const QUESTION: &str = "\
import importlib.util, sys
from importlib import metadata
group, all = sys.argv[1], metadata.entry_points()
found = all.select(group=group) if hasattr(all, 'select') else all.get(group, ())
if importlib.util.find_spec('torch'):
    print('enn: torch')
for name in sorted({point.name for point in found}):
    print('enn: plug-in ' + name)
";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchPlugIn {
    /// Flag or variable that names the plug-in.
    place: String,
    name: String,
    group: &'static str,
    /// Names that are valid without a plug-in.
    known: &'static [&'static str],
    /// Replacement in enn, for hints.
    instead: &'static str,
}

/// Returns the plug-in that these flags, which must have been filled in from variables, request.
pub fn requested_plug_in(flags: &Flags) -> Option<TorchPlugIn> {
    let backend = flags.rendezvous.rdzv_backend.as_deref().filter(|_| !flags.rendezvous.standalone);
    if let Some(name) = backend.filter(|name| !OURS.contains(name)) {
        return Some(TorchPlugIn {
            place: flags.place("--rdzv-backend"),
            name: name.to_owned(),
            group: "torchrun.handlers",
            known: &["static", "c10d", "etcd", "etcd-v2"],
            instead: "--rdzv-backend c10d --rdzv-endpoint HOST:PORT is enn's own and needs no other server",
        });
    }
    let name = flags.program.logs_specs.clone().filter(|name| name != DEFAULT_LOGS)?;
    let instead = "--redirects, --tee, --log-dir and the filters say in enn where output goes";
    Some(TorchPlugIn { place: "--logs-specs".to_owned(), name, group: "torchrun.logs_specs", known: &[], instead })
}

impl TorchPlugIn {
    /// Returns the flag or variable with the plug-in's name.
    pub fn label(&self) -> String {
        format!("{} \"{}\"", self.place, self.name)
    }

    /// Builds the command of torch's torchrun with these words. `own` are flags among them that torchrun does not have.
    ///
    /// # Errors
    /// Flags would be lost, or Python has no torch or no such plug-in.
    pub fn command(
        &self,
        own: &[String],
        words: &[OsString],
        script: &OsStr,
        facts: &Facts,
    ) -> Result<Command, RunError> {
        if !own.is_empty() {
            return Err(RunError::Lost { asked: self.label(), flags: own.join(", "), instead: self.instead });
        }
        let python = program::python(script, facts)?;
        self.check(&python)?;
        let mut command = secrets::command(&python);
        command.args(["-m", MODULE]).args(words);
        Ok(command)
    }

    /// Returns the note for the user about the hand-over.
    pub fn note(&self, command: &Command) -> String {
        let python = Path::new(command.get_program()).display();
        format!("{}: the command is handed to torch's own torchrun, {python} -m {MODULE}", self.label())
    }

    fn check(&self, python: &OsStr) -> Result<(), RunError> {
        let shown = Path::new(python).display().to_string();
        let mut command = secrets::command(python);
        command.args(["-c", QUESTION, self.group]);
        let output = output_within(command, ASK_MAX).map_err(|error| {
            let why = match error {
                OutputError::Start(error) => error.to_string(),
                OutputError::Failed(line) => line,
                OutputError::TimedOut(time) => format!("it printed nothing within {} s", time.as_secs()),
            };
            RunError::Python { asked: self.label(), python: shown.clone(), why }
        })?;
        let answers: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("enn: ")).collect();
        if !answers.contains(&"torch") {
            return Err(RunError::NoTorch { asked: self.label(), python: shown, instead: self.instead });
        }
        let plugs: Vec<&str> = answers.iter().filter_map(|answer| answer.strip_prefix("plug-in ")).collect();
        let known =
            plugs.contains(&self.name.as_str()) || TORCHS.contains(&self.name.as_str()) && !self.known.is_empty();
        if known {
            return Ok(());
        }
        let has = if plugs.is_empty() { "has none".to_owned() } else { format!("has {}", plugs.join(", ")) };
        let built_in = self.known.iter().map(|name| format!("{name}, ")).collect::<String>();
        let expected = format!("{built_in}or a plug-in of the entry points {} of {shown}, which {has}", self.group);
        let expected = expected.replacen(", or", " or", 1);
        Err(RunError::NoPlugIn {
            asked: self.label(),
            expected: expected.trim_start_matches("or ").to_owned(),
            instead: self.instead,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

    /// A Python that says these lines, whatever it is asked.
    fn python(dir: &tempfile::TempDir, lines: &str) -> PathBuf {
        let path = dir.path().join("python3");
        fs::write(&path, format!("#!/bin/sh\nprintf '{lines}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn flags(backend: Option<&str>, logs: Option<&str>) -> Flags {
        let mut flags = Flags::default();
        flags.rendezvous.rdzv_backend = backend.map(str::to_owned);
        flags.program.logs_specs = logs.map(str::to_owned);
        flags
    }

    fn command(flags: &Flags, says: &str, own: &[&str]) -> Result<Command, RunError> {
        let dir = tempfile::tempdir().unwrap();
        let facts = Facts { python_exec: Some(python(&dir, says).into_os_string()), ..Facts::gather() };
        let own: Vec<String> = own.iter().map(|name| (*name).to_owned()).collect();
        let words = ["--rdzv-backend", "x", "train.py", "--lr", "1"].map(OsString::from);
        requested_plug_in(flags).unwrap().command(&own, &words, OsStr::new("train.py"), &facts)
    }

    #[test]
    fn only_what_enn_does_not_do_itself_is_handed_over() {
        assert_eq!(requested_plug_in(&flags(None, None)), None);
        assert_eq!(requested_plug_in(&flags(Some("c10d"), None)), None);
        assert_eq!(requested_plug_in(&flags(None, Some("default"))), None);
        let mut standalone = flags(Some("etcd"), None);
        standalone.rendezvous.standalone = true;
        assert_eq!(requested_plug_in(&standalone), None, "it is not looked at");
        let pet = [("PET_RDZV_BACKEND".to_owned(), "etcd-v2".to_owned())].into_iter().collect();
        let by_variable = Flags::default().with_variables(&pet).unwrap();
        assert_eq!(requested_plug_in(&by_variable).unwrap().label(), "PET_RDZV_BACKEND \"etcd-v2\"");
        assert_eq!(requested_plug_in(&flags(None, Some("mine"))).unwrap().label(), "--logs-specs \"mine\"");
    }

    #[test]
    fn the_words_are_handed_over_as_they_are_where_python_has_what_is_asked_for() {
        for (flags, says) in [
            (flags(Some("etcd"), None), "enn: torch\\n"),
            (flags(Some("zeus"), None), "a banner\\nenn: torch\\nenn: plug-in zeus\\n"),
            (flags(None, Some("mine")), "enn: torch\\nenn: plug-in mine\\nenn: plug-in other\\n"),
        ] {
            let command = command(&flags, says, &[]).unwrap_or_else(|error| panic!("{error}"));
            let args: Vec<&OsStr> = command.get_args().collect();
            assert_eq!(args, ["-m", "torch.distributed.run", "--rdzv-backend", "x", "train.py", "--lr", "1"]);
        }
    }

    #[test]
    fn what_is_missing_or_would_be_lost_is_told() {
        let told = |flags: &Flags, says: &str, own: &[&str]| command(flags, says, own).unwrap_err().to_string();
        let etcd = flags(Some("etcd"), None);
        let lost = told(&etcd, "enn: torch\\n", &["--grace", "--hang-timeout"]);
        assert!(
            lost.starts_with(
                "--rdzv-backend \"etcd\" is for torch's own torchrun, which has no --grace, --hang-timeout\nhint: "
            ),
            "{lost}"
        );
        let bare = told(&etcd, "", &[]);
        assert!(bare.contains("is for torch's own torchrun, and found no torch in /"), "{bare}");
        let unknown = told(&flags(Some("zeuss"), None), "enn: torch\\nenn: plug-in zeus\\n", &[]);
        assert!(
            unknown.starts_with(
                "--rdzv-backend \"zeuss\": expected static, c10d, etcd, etcd-v2 or a plug-in of the entry points"
            ) && unknown.contains("which has zeus\nhint: "),
            "{unknown}"
        );
        let specs = told(&flags(None, Some("etcd")), "enn: torch\\n", &[]);
        assert!(
            specs.starts_with("--logs-specs \"etcd\": expected a plug-in of the entry points torchrun.logs_specs of"),
            "{specs}"
        );
    }
}
