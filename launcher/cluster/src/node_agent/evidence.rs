//! Log files of a worker: where they are, how they appear in the directory of a later round, and how they end.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// Bytes of standard error that are read for its last lines.
const STDERR_TAIL_BYTES: u64 = 16 << 10;
/// Lines of standard error that are shown with a failure.
const STDERR_LINES: usize = 20;

pub(super) const STDOUT: &str = "stdout.log";
pub(super) const STDERR: &str = "stderr.log";

/// Makes the logs in `from` appear in `to`, too, where those of a round are looked for.
pub(super) fn link_logs(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for name in [STDOUT, STDERR] {
        std::fs::hard_link(from.join(name), to.join(name))?;
    }
    Ok(())
}

/// Returns the last lines of standard error. A log that cannot be read leaves the failure without them.
pub(super) fn stderr_tail(logs: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(logs.join(STDERR))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(STDERR_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(STDERR_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    last_lines(&String::from_utf8_lossy(&bytes), STDERR_LINES)
}

/// Returns the last lines of a text that may begin in the middle of one.
fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        assert_eq!(last_lines("a\nb\nc\n\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }

    #[test]
    fn logs_appear_in_both_directories_and_their_end_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("0/1");
        std::fs::create_dir_all(&from).unwrap();
        let text: String = (0..30_000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(from.join(STDOUT), "").unwrap();
        std::fs::write(from.join(STDERR), text).unwrap();
        let to = dir.path().join("1/0");
        link_logs(&from, &to).unwrap();
        let tail = stderr_tail(&to);
        assert_eq!((tail.lines().count(), tail.lines().last()), (STDERR_LINES, Some("line 29999")));
        assert_eq!(stderr_tail(&dir.path().join("nowhere")), "");
    }
}
