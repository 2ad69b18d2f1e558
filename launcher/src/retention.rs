//! Retention of the runs of `enn run`: runs that are too old are removed, and the oldest ones until the others fit into a
//! size.
//!
//! **Invariant:** a run whose launcher lives is never removed, nor one without a recorded end that was written to lately,
//! nor a run of `enn train`.

use crossbeam_channel::{Receiver, bounded};
use enn_process::{logs, run_dir};
use enn_ui::runs::{self, size};
use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Days for which a run is kept unless the user says otherwise.
const DAYS: u64 = 30;
/// Bytes of all runs together that are kept unless the user says otherwise.
const BYTES: u64 = 4 << 30;
/// A run without a recorded end may still be under way where its lock is not seen, unless it was silent for this long.
const SILENT_MIN: Duration = Duration::from_secs(24 * 3600);
/// Longest time that the end of a launch waits for the removal of old runs. The next launch removes those that are
/// left.
const WAIT_MAX: Duration = Duration::from_secs(2);
const DAY_S: u64 = 24 * 3600;

/// Limits of the runs of `enn run` that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Longest age of a run; `None`: any.
    pub age_max: Option<Duration>,
    /// Most bytes of all runs together, and of the output that one run keeps; `None`: any.
    pub bytes_max: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { age_max: Some(Duration::from_secs(DAYS * DAY_S)), bytes_max: Some(BYTES) }
    }
}

/// The text that means no limit.
const UNLIMITED: &str = "unlimited";

/// Parses a number of days, or "unlimited".
pub fn days(text: &str) -> Option<Option<Duration>> {
    if text == UNLIMITED {
        return Some(None);
    }
    let days: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(days * DAY_S as f64).ok().map(Some)
}

/// Parses a number of bytes with one of the letters K, M, G, T (powers of 1024) or none, or "unlimited".
pub fn bytes(text: &str) -> Option<Option<u64>> {
    if text == UNLIMITED {
        return Some(None);
    }
    let text = text.trim_end_matches(['B', 'b']).trim_end_matches(['I', 'i']);
    let (digits, power) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        (at, 'T' | 't') => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.trim().parse().ok()?;
    number.checked_mul(1 << power).map(Some)
}

/// The removal of old runs, in a thread of its own: a launch does not wait for a disk.
#[derive(Debug)]
pub(crate) struct RetentionSweep {
    done: Receiver<()>,
}

impl RetentionSweep {
    /// Begins to remove the runs in `runs` that `retention` does not keep.
    pub(crate) fn start(runs: PathBuf, retention: Retention, now: SystemTime) -> Self {
        let (end, done) = bounded(1);
        let removal = move || {
            for removed in sweep(&runs, retention, now) {
                tracing::info!("removed the old run {}", removed.display());
            }
            // The receiver is gone when the launch has not waited.
            let _left = end.send(());
        };
        // Without a thread nothing is removed this time.
        let _refused = std::thread::Builder::new().name("enn-sweep".into()).spawn(removal);
        Self { done }
    }

    /// Waits until the removal is done, but not longer than `WAIT_MAX`.
    pub(crate) fn finish(self) {
        let _late = self.done.recv_timeout(WAIT_MAX);
    }
}

struct RemovableRun {
    path: PathBuf,
    written: SystemTime,
    bytes: u64,
}

/// Removes the runs that `retention` does not keep, and returns their paths.
fn sweep(runs: &Path, retention: Retention, now: SystemTime) -> Vec<PathBuf> {
    runs::sweep_leftovers(runs);
    let mut bytes_all = 0;
    let mut old = Vec::new();
    for (_, path) in run_dir::list_where(&[runs.to_owned()], run_dir::is_launch) {
        let bytes = size(&path);
        bytes_all += bytes;
        old.extend(removable(&path, now).map(|written| RemovableRun { path, written, bytes }));
    }
    old.sort_by_key(|run| run.written);
    let mut removed = Vec::new();
    for run in old {
        let age = now.duration_since(run.written).unwrap_or_default();
        let too_old = retention.age_max.is_some_and(|max| age > max);
        let too_much = retention.bytes_max.is_some_and(|max| bytes_all > max);
        if (too_old || too_much) && runs::remove(&run.path).is_ok() {
            bytes_all -= run.bytes;
            removed.push(run.path);
        }
    }
    removed
}

/// Returns when the run was last written to; `None` while a launcher may still work in it.
fn removable(path: &Path, now: SystemTime) -> Option<SystemTime> {
    let written = logs::last_written(path)?;
    let silent = now.duration_since(written).unwrap_or_default();
    let over = logs::has_ended(path) || silent >= SILENT_MIN;
    (over && !run_dir::is_living(path)).then_some(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_process::run_dir::RunDir;
    use std::fs::{self, File};
    use time::macros::datetime;

    const ENDED: &str =
        "{\"time\":2.0,\"event\":\"run_ended\",\"code\":0,\"seconds\":1.0,\"restarts\":0,\"rounds\":1}\n";

    /// Makes a run with a log of `bytes` that was written to `days` before `now`, and holds its lock.
    fn run(runs: &Path, name: &str, days: u64, bytes: usize, journal: &str, now: SystemTime) -> RunDir {
        let run = RunDir::create(runs, name, datetime!(2026-01-02 03:04:05 UTC)).unwrap();
        run.write_launch("x", &[], &run.path().join("logs")).unwrap();
        fs::create_dir_all(run.path().join("logs/x_1/attempt_0/0")).unwrap();
        let log = run.path().join("logs/x_1/attempt_0/0/stdout.log");
        fs::write(&log, vec![b'x'; bytes]).unwrap();
        fs::write(run.path().join("events.jsonl"), journal).unwrap();
        let then = now - Duration::from_secs(days * DAY_S);
        for file in [log, run.path().join("events.jsonl")] {
            File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
        }
        run
    }

    fn names(removed: &[PathBuf]) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().split('-').next().unwrap().to_owned();
        removed.iter().map(name).collect()
    }

    #[test]
    fn what_is_too_old_goes_and_what_lives_stays() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let keep = Retention { age_max: Some(Duration::from_secs(10 * DAY_S)), bytes_max: None };
        drop(run(dir.path(), "old", 11, 10, ENDED, now));
        drop(run(dir.path(), "young", 9, 10, ENDED, now));
        let living = run(dir.path(), "living", 40, 10, "", now);
        let trained = run(dir.path(), "trained", 40, 10, ENDED, now);
        fs::rename(trained.path().join("launch.json"), trained.path().join("run.json")).unwrap();
        drop(trained);
        assert_eq!(names(&sweep(dir.path(), keep, now)), ["old"]);
        assert!(living.path().join("logs").is_dir());
        drop(living);
        assert_eq!(names(&sweep(dir.path(), keep, now)), ["living"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the young one and the trained one");
    }

    #[test]
    fn the_oldest_go_until_the_others_fit() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, days) in [("b", 3), ("a", 4), ("c", 2)] {
            drop(run(dir.path(), name, days, 100_000, ENDED, now));
        }
        // Killed a moment ago, perhaps not everywhere: its end is not known.
        drop(run(dir.path(), "killed", 0, 100_000, "", now));
        let keep = |bytes| Retention { age_max: None, bytes_max: Some(bytes) };
        assert_eq!(names(&sweep(dir.path(), keep(500_000), now)), [""; 0]);
        assert_eq!(names(&sweep(dir.path(), keep(250_000), now)), ["a", "b"]);
        assert_eq!(names(&sweep(dir.path(), keep(0), now)), ["c"]);
        let later = now + 2 * SILENT_MIN;
        assert_eq!(names(&sweep(dir.path(), keep(0), later)), ["killed"]);
    }

    #[test]
    fn half_removed_runs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(".removed-x/logs")).unwrap();
        fs::create_dir_all(dir.path().join("something/else")).unwrap();
        sweep(dir.path(), Retention::default(), SystemTime::now());
        assert!(!dir.path().join(".removed-x").exists() && dir.path().join("something/else").exists());
    }

    #[test]
    fn limits_are_read() {
        assert_eq!(days("1.5"), Some(Some(Duration::from_secs(36 * 3600))));
        assert_eq!((days("unlimited"), days("-1"), days("x"), days("nan")), (Some(None), None, None, None));
        assert_eq!(
            ["0", "12", "2K", "3MiB", "1g"].map(bytes).map(Option::flatten),
            [0, 12, 2048, 3 << 20, 1 << 30].map(Some)
        );
        assert_eq!(
            (bytes("unlimited"), bytes(""), bytes("1.5G"), bytes("99999999999T")),
            (Some(None), None, None, None)
        );
    }
}
