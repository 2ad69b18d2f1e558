//! chaos.jsonl: what was done to whom, one line each, beside the run's own journal.
//!
//! **Invariant:** a fault is written down before the next one is done.

use super::{ChaosError, policy::Kind};
use serde_json::{Value, json};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Name of the file in a run directory.
const FILE: &str = "chaos.jsonl";

/// What happened, for people and for programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Deed {
    /// A fault was done.
    Done { kind: Kind, rank: u32, pid: u32, seconds: f64 },
    /// A fault that lasts is over.
    Over { kind: Kind, rank: u32, pid: u32 },
    /// Nobody was there.
    Missed { kind: Kind },
}

impl Deed {
    /// One line for people.
    pub(super) fn line(&self, at_s: f64) -> String {
        match self {
            Self::Done { kind, rank, pid, seconds } if *seconds > 0.0 => {
                format!("{at_s:10.3} s  {kind:<6}  rank {rank}  pid {pid}  for {seconds} s")
            }
            Self::Done { kind, rank, pid, .. } => format!("{at_s:10.3} s  {kind:<6}  rank {rank}  pid {pid}"),
            Self::Over { kind, rank, pid } => format!("{at_s:10.3} s  {kind:<6}  rank {rank}  pid {pid}  over"),
            Self::Missed { kind } => format!("{at_s:10.3} s  {kind:<6}  nobody to hit"),
        }
    }

    fn json(&self, at_s: f64) -> Value {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        match self {
            Self::Done { kind, rank, pid, seconds } => {
                json!({ "time": time, "at": at_s, "fault": kind.word(), "rank": rank, "pid": pid, "seconds": seconds })
            }
            Self::Over { kind, rank, pid } => {
                json!({ "time": time, "at": at_s, "over": kind.word(), "rank": rank, "pid": pid })
            }
            Self::Missed { kind } => json!({ "time": time, "at": at_s, "missed": kind.word() }),
        }
    }
}

/// The file, open at its end.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    path: PathBuf,
}

impl Record {
    pub(super) fn open(run_dir: &Path) -> Result<Self, ChaosError> {
        let path = run_dir.join(FILE);
        match OpenOptions::new().append(true).create(true).open(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(source) => Err(ChaosError::Record { path, source }),
        }
    }

    pub(super) fn write(&mut self, deed: &Deed, at_s: f64) -> Result<(), ChaosError> {
        let line = format!("{}\n", deed.json(at_s));
        self.file.write_all(line.as_bytes()).map_err(|source| ChaosError::Record { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_appended() {
        let dir = tempfile::tempdir().unwrap();
        let deed = Deed::Done { kind: Kind::Stop, rank: 1, pid: 7, seconds: 2.0 };
        for _ in 0..2 {
            Record::open(dir.path()).unwrap().write(&deed, 0.5).unwrap();
        }
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[1]["fault"], &lines[1]["seconds"]), (2, &"stop".into(), &2.0.into()));
        assert!(deed.line(0.5).ends_with("stop    rank 1  pid 7  for 2 s"), "{}", deed.line(0.5));
        assert!(Deed::Missed { kind: Kind::Kill }.line(61.0).contains("61.000 s  kill    nobody"));
    }
}
