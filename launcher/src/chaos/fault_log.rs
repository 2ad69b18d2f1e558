//! chaos.jsonl: a line for every injected fault, beside the run's own journal.
//!
//! **Invariant:** a fault is recorded before the next one is injected.

use super::{ChaosError, policy::FaultKind};
use serde_json::{Value, json};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Name of the file in a run directory.
const FILE: &str = "chaos.jsonl";

/// An injected fault, the end of one, or a fault for which there was no worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FaultEvent {
    /// A fault began; its length in `seconds`, 0 where it has none.
    Injected { kind: FaultKind, rank: u32, pid: u32, seconds: f64 },
    /// A fault that has a length ended.
    Ended { kind: FaultKind, rank: u32, pid: u32 },
    /// No worker was alive.
    Missed { kind: FaultKind },
}

impl FaultEvent {
    /// Formats the event as a line of text, `at_s` seconds after the beginning.
    pub(super) fn line(&self, at_s: f64) -> String {
        match self {
            Self::Injected { kind, rank, pid, seconds } if *seconds > 0.0 => {
                format!("{at_s:10.3} s  {kind:<6}  rank {rank}  pid {pid}  for {seconds} s")
            }
            Self::Injected { kind, rank, pid, .. } => format!("{at_s:10.3} s  {kind:<6}  rank {rank}  pid {pid}"),
            Self::Ended { kind, rank, pid } => format!("{at_s:10.3} s  {kind:<6}  rank {rank}  pid {pid}  over"),
            Self::Missed { kind } => format!("{at_s:10.3} s  {kind:<6}  no worker to hit"),
        }
    }

    fn json(&self, at_s: f64) -> Value {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        match self {
            Self::Injected { kind, rank, pid, seconds } => {
                json!({ "time": time, "at": at_s, "fault": kind.word(), "rank": rank, "pid": pid, "seconds": seconds })
            }
            Self::Ended { kind, rank, pid } => {
                json!({ "time": time, "at": at_s, "over": kind.word(), "rank": rank, "pid": pid })
            }
            Self::Missed { kind } => json!({ "time": time, "at": at_s, "missed": kind.word() }),
        }
    }
}

/// The file chaos.jsonl, opened for appending.
#[derive(Debug)]
pub(super) struct FaultLog {
    file: File,
    path: PathBuf,
}

impl FaultLog {
    pub(super) fn open(run_dir: &Path) -> Result<Self, ChaosError> {
        let path = run_dir.join(FILE);
        match OpenOptions::new().append(true).create(true).open(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(source) => Err(ChaosError::FaultLog { path, source }),
        }
    }

    pub(super) fn write(&mut self, event: &FaultEvent, at_s: f64) -> Result<(), ChaosError> {
        let line = format!("{}\n", event.json(at_s));
        self.file.write_all(line.as_bytes()).map_err(|source| ChaosError::FaultLog { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended() {
        let dir = tempfile::tempdir().unwrap();
        let event = FaultEvent::Injected { kind: FaultKind::Stop, rank: 1, pid: 7, seconds: 2.0 };
        for _ in 0..2 {
            FaultLog::open(dir.path()).unwrap().write(&event, 0.5).unwrap();
        }
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[1]["fault"], &lines[1]["seconds"]), (2, &"stop".into(), &2.0.into()));
        assert!(event.line(0.5).ends_with("stop    rank 1  pid 7  for 2 s"), "{}", event.line(0.5));
        assert!(FaultEvent::Missed { kind: FaultKind::Kill }.line(61.0).contains("61.000 s  kill    no worker"));
    }
}
