//! Kernels that ended a process of an earlier round. A training loop of one's own has no control page: what it is about to try is
//! a file in the run's directory, and the launcher's journal says how the process ended that left it there.
//!
//! ```text
//! <run>/intents/ROUND.RANK.json   a kernel that runs for the first time on such operands; gone when it has run
//! <run>/intents/crashed.json      kernels that ended a process, as all ranks know them
//! ```
//! **Invariant:** a file that cannot be read or written costs what it says, never the training. A kernel is not accused because of
//! a process that others ended.

use crate::session::boot::TorchrunEnvironment;
use enn_common::{
    event::{Event, EventKind},
    fs::atomic,
    kernels::{self, Fault, KernelFault},
    wire::control::Intent,
};
use enn_core::kernel::Intents;
use serde::de::DeserializeOwned;
use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const FOLDER: &str = "intents";
const CRASHED: &str = "crashed.json";
const JOURNAL: &str = "events.jsonl";
/// Offset that a shell adds to the number of the signal that ended its program.
const SHELL_SIGNAL: i32 = 128;

/// The folder, as one rank uses it.
pub(super) struct Folder {
    path: PathBuf,
    round: u64,
    rank: u32,
    /// The first rank of its node reads for all of them.
    first: bool,
}

impl Folder {
    /// That of a run under `enn run`, made when it is not there.
    pub(super) fn of(environment: &TorchrunEnvironment) -> Option<Self> {
        let path = environment.run_dir.as_ref()?.join(FOLDER);
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&path) {
            tracing::warn!("{}: {error}; a kernel that ends this process will be tried again", path.display());
            return None;
        }
        let TorchrunEnvironment { round, rank, local_rank, .. } = *environment;
        Some(Self { path, round, rank, first: local_rank == 0 })
    }

    /// Where this rank says what it is about to try.
    pub(super) fn intents(&self) -> FileIntents {
        FileIntents(self.path.join(format!("{}.{}.json", self.round, self.rank)))
    }

    /// Kernels that ended processes of this node in earlier rounds, and those that all ranks learned of then.
    pub(super) fn crashed(&self) -> Vec<KernelFault> {
        if !self.first {
            return Vec::new();
        }
        let mut crashed: Vec<KernelFault> = read(&self.path.join(CRASHED)).unwrap_or_default();
        let left = self.left();
        let journal = if left.is_empty() { None } else { fs::read_to_string(self.path.with_file_name(JOURNAL)).ok() };
        for (path, place) in left {
            let how = journal.as_deref().and_then(|journal| ended(journal, place));
            if let (Some(how), Some(intent)) = (how, read::<KernelFault>(&path)) {
                crashed.push(KernelFault { fault: Fault::Crash { how }, ..intent });
            }
        }
        crashed
    }

    /// Keeps the faults that all ranks know, in place of the intents that they come from.
    pub(super) fn keep(&self, crashed: &[KernelFault]) {
        if !self.first {
            return;
        }
        let kept = crashed.is_empty() || {
            let path = self.path.join(CRASHED);
            let written = serde_json::to_vec(crashed).map_err(io::Error::from).and_then(|text| put(&path, &text));
            written.inspect_err(|error| tracing::warn!("{}: {error}", path.display())).is_ok()
        };
        if kept {
            for (path, _) in self.left() {
                // One that stays is read again in the next round, and says the same.
                let _gone = fs::remove_file(path);
            }
        }
    }

    /// Intents of earlier rounds: the file, and the round and rank of its process.
    fn left(&self) -> Vec<(PathBuf, (u64, u32))> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let place = |path: &Path| -> Option<(u64, u32)> {
            let (round, rank) = path.file_name()?.to_str()?.strip_suffix(".json")?.split_once('.')?;
            Some((round.parse().ok()?, rank.parse().ok()?))
        };
        let all = entries.filter_map(|entry| place(&entry.path()).map(|place| (entry.path(), place)));
        all.filter(|(_, (round, _))| *round < self.round).collect()
    }
}

/// Intents as a file, which is there while a kernel may end the process.
pub(super) struct FileIntents(PathBuf);

impl Intents for FileIntents {
    fn open(&self, intent: &Intent) {
        let Intent { op, kernel, sig, operands } = intent.clone();
        // How the process ends is not known here; the step does not matter: what crashed once is not tried again.
        let fault = KernelFault { op, kernel, sig, operands, fault: Fault::Crash { how: String::new() }, step: 0 };
        let text = serde_json::to_vec(&fault).map_err(io::Error::from);
        if let Err(error) = text.and_then(|text| put(&self.0, &text)) {
            tracing::warn!("{}: {error}", self.0.display());
        }
    }

    fn close(&self) {
        // What could not be written is not there.
        let _gone = fs::remove_file(&self.0);
    }
}

/// How the process at this place ended by itself; none for one that others ended, or that the journal does not know.
fn ended(journal: &str, place: (u64, u32)) -> Option<String> {
    let lines = journal.lines().filter(|line| line.contains("worker_exited"));
    let mut exits = lines.filter_map(|line| match serde_json::from_str::<Event>(line).ok()?.what {
        EventKind::WorkerExited { round, rank, code, signal, .. } if (round.0, rank.0) == place => Some((code, signal)),
        _ => None,
    });
    let (code, signal) = exits.next_back()?;
    let signal = signal.or_else(|| code.filter(|code| *code > SHELL_SIGNAL).map(|code| code - SHELL_SIGNAL));
    match (signal, code) {
        (Some(signal), _) => kernels::crash(signal).map(str::to_owned),
        (None, Some(code)) if code != 0 => Some(format!("exit code {code}")),
        (None, _) => None,
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a file of the user's own, whole or not at all. It need not outlive the machine.
fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    let beside = atomic::temporary(path);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?.write_all(text)?;
    fs::rename(beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::id::{Rank, Round};
    use std::os::unix::fs::PermissionsExt;

    fn folder(run: &Path, round: u64, rank: u32) -> Folder {
        let environment = TorchrunEnvironment {
            rank,
            world_size: 4,
            local_rank: rank,
            local_world_size: 4,
            store: None,
            round,
            progress_file: None,
            run_dir: Some(run.to_owned()),
        };
        Folder::of(&environment).unwrap()
    }

    /// The launcher's lines for ranks that ended in this way.
    fn journal(exits: &[(Option<i32>, Option<i32>)]) -> String {
        let line = |(rank, (code, signal)): (u32, &(Option<i32>, Option<i32>))| {
            let round = Round(0);
            let rank = Rank(rank);
            let code = *code;
            let signal = *signal;
            let what = EventKind::WorkerExited { round, rank, pid: 1, code, signal, seconds_to_notice: 0.0 };
            serde_json::to_string(&Event { time: 0.0, what }).unwrap() + "\n"
        };
        (0..).zip(exits).map(line).collect()
    }

    #[test]
    fn what_ended_a_process_is_told_in_every_later_round_and_what_others_ended_is_not() {
        let run = tempfile::tempdir().unwrap();
        for (rank, kernel) in [(0, "aborts"), (1, "ended by others"), (2, "runs"), (3, "kills the context")] {
            let intents = folder(run.path(), 0, rank).intents();
            let op = "linear".to_owned();
            let operands = "f32[5,7]".to_owned();
            intents.open(&Intent { op, kernel: kernel.to_owned(), sig: u64::MAX, operands });
            if kernel == "runs" {
                intents.close();
            }
        }
        let exits = [(None, Some(6)), (None, Some(15)), (Some(1), None), (Some(1), None)];
        fs::write(run.path().join(JOURNAL), journal(&exits)).unwrap();
        let file = folder(run.path(), 0, 0).path.join("0.0.json");
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(folder(run.path(), 0, 0).crashed().is_empty(), "its own round is not over");
        assert!(folder(run.path(), 1, 1).crashed().is_empty(), "the first rank of the node tells");
        let next = folder(run.path(), 1, 0);
        let mut told = next.crashed();
        told.sort_by(|a, b| a.kernel.cmp(&b.kernel));
        let how = |how: &str| Fault::Crash { how: how.to_owned() };
        let found: Vec<_> = told.iter().map(|fault| (fault.kernel.as_str(), fault.fault.clone())).collect();
        assert_eq!(found, [("aborts", how("SIGABRT")), ("kills the context", how("exit code 1"))]);
        assert_eq!(told[0].sig, u64::MAX);
        next.keep(&told);
        assert!(next.left().is_empty());
        assert_eq!(folder(run.path(), 2, 0).crashed(), told);
    }

    #[test]
    fn a_shells_code_is_the_signal_of_its_program() {
        let journal = journal(&[(Some(139), None), (Some(143), None), (Some(0), None)]);
        assert_eq!(ended(&journal, (0, 0)).as_deref(), Some("SIGSEGV"));
        assert_eq!((ended(&journal, (0, 1)), ended(&journal, (0, 2)), ended(&journal, (1, 0))), (None, None, None));
    }
}
