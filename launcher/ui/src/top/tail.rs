//! The end of a worker's log, as the file grows.

use super::{rows::WorkerRow, state::Pane};
use crate::{follow, plain};
use nix::sys::inotify::Inotify;
use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// Bytes of a log that are looked at.
const TAIL_BYTES: u64 = 256 << 10;
/// Folders of logs that are looked through.
const FOLDERS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct LogTail {
    pub(super) path: Option<PathBuf>,
    pub(super) lines: Vec<String>,
    watch: Option<Inotify>,
    read: Option<(u64, std::time::SystemTime)>,
}

impl LogTail {
    /// Switches to this log, or reads what is new in it.
    pub(super) fn look(&mut self, path: Option<PathBuf>) {
        if self.path != path {
            *self = Self { path, ..Self::default() };
            // Without a watch the log is read with each measurement.
            self.watch = self.path.as_deref().and_then(|path| follow::watch(path).ok());
        }
        self.watch.iter().for_each(follow::drain);
        let Some(path) = &self.path else { return };
        let stamp = fs::metadata(path).ok().and_then(|data| Some((data.len(), data.modified().ok()?)));
        if stamp.is_some() && stamp == self.read {
            return;
        }
        self.read = stamp;
        self.lines = match end_of(path, TAIL_BYTES) {
            Ok(text) => plain::lines(&text),
            Err(error) => vec![format!("cannot read {}: {error}", path.display())],
        };
    }

    /// Readable when the log grew.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }
}

/// The last bytes of a file, at most so many, from the beginning of a line.
pub(super) fn end_of(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    let cut = if start == 0 { 0 } else { memchr::memchr(b'\n', &bytes).map_or(0, |at| at + 1) };
    Ok(String::from_utf8_lossy(&bytes[cut..]).into_owned())
}

/// The file of a worker's output below `logs`: `<round>/<rank>/` of ENN's own workers, `attempt_<round>/<local rank>/` of
/// other programs, there or in a folder below.
pub(super) fn path(logs: &[PathBuf], row: &WorkerRow, pane: Pane) -> Option<PathBuf> {
    let name = match pane {
        Pane::Stdout => "stdout.log",
        Pane::Stderr | Pane::Reasons => "stderr.log",
    };
    let own = Path::new(&row.round.to_string()).join(row.rank.to_string()).join(name);
    let attempt = Path::new(&format!("attempt_{}", row.round)).join(row.local_rank.to_string()).join(name);
    let below = logs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten().take(FOLDERS_MAX));
    let below: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
    let near = logs.iter().flat_map(|dir| [dir.join(&own), dir.join(&attempt)]);
    near.chain(below.iter().map(|dir| dir.join(&attempt))).find(|path| path.is_file())
}

/// Returns the pane that has content: standard error if the worker wrote any, else standard output, else the log of
/// events.
pub(super) fn default_pane(logs: &[PathBuf], row: Option<&WorkerRow>) -> Pane {
    let wrote = |pane: &Pane| {
        let log = row.and_then(|row| path(logs, row, *pane));
        log.and_then(|log| fs::metadata(log).ok()).is_some_and(|found| found.len() > 0)
    };
    [Pane::Stderr, Pane::Stdout].into_iter().find(wrote).unwrap_or(Pane::Reasons)
}

#[cfg(test)]
impl LogTail {
    /// A log without a file.
    pub(super) fn showing(path: &str, lines: Vec<String>) -> Self {
        Self { path: Some(path.into()), lines, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn row() -> WorkerRow {
        WorkerRow {
            rank: 3,
            local_rank: 1,
            host: "n".into(),
            round: 2,
            process: None,
            device: None,
            load: None,
            here: true,
        }
    }

    #[test]
    fn logs_of_both_kinds_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let logs = [dir.path().to_owned()];
        assert_eq!(path(&logs, &row(), Pane::Stdout), None);
        for place in ["none_x1/attempt_2/1/stdout.log", "2/3/stderr.log"] {
            fs::create_dir_all(dir.path().join(place).parent().unwrap()).unwrap();
            fs::write(dir.path().join(place), "").unwrap();
            let pane = if place.ends_with("stdout.log") { Pane::Stdout } else { Pane::Stderr };
            assert_eq!(path(&logs, &row(), pane), Some(dir.path().join(place)));
        }
    }

    #[test]
    fn a_log_that_is_empty_is_not_what_is_shown_first() {
        let dir = tempfile::tempdir().unwrap();
        let logs = [dir.path().to_owned()];
        assert_eq!(default_pane(&logs, None), Pane::Reasons);
        let folder = dir.path().join("attempt_2/1");
        fs::create_dir_all(&folder).unwrap();
        for (name, text, expected) in [
            ("stderr.log", "", Pane::Reasons),
            ("stdout.log", "epoch 1\n", Pane::Stdout),
            ("stderr.log", "warning\n", Pane::Stderr),
        ] {
            fs::write(folder.join(name), text).unwrap();
            assert_eq!(default_pane(&logs, Some(&row())), expected, "after {name}");
        }
    }

    #[test]
    fn a_growing_log_wakes_and_is_read_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stderr.log");
        let mut file = File::create(&path).unwrap();
        for line in 0..60_000 {
            writeln!(file, "line {line}").unwrap();
        }
        let mut tail = LogTail::default();
        tail.look(Some(path.clone()));
        assert!(tail.lines.len() > 10_000 && tail.lines.len() < 60_000);
        assert!(tail.lines[0].starts_with("line ") && tail.lines.last().is_some_and(|line| line == "line 59999"));
        writeln!(file, "\x1b[31mlast\x1b[0m").unwrap();
        let mut poll = [nix::poll::PollFd::new(tail.fd().unwrap(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut poll, 5_000u16).unwrap(), 1);
        tail.look(Some(path));
        assert_eq!(tail.lines.last().map(String::as_str), Some("last"));
        tail.look(None);
        assert!(tail.lines.is_empty() && tail.path.is_none());
    }
}
