//! A log file that is read to its end, again and again, while it grows.

use super::find::LogFile;
use memchr::memrchr_iter;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
};

const READ_BYTES: usize = 64 << 10;

/// A log file and the position up to which it was read.
#[derive(Debug)]
pub(super) struct GrowingFile {
    pub(super) log: LogFile,
    file: File,
}

impl GrowingFile {
    /// Opens the file at its beginning, or where its last `last` lines begin.
    pub(super) fn open(log: LogFile, last: Option<usize>) -> io::Result<Self> {
        let mut file = File::open(&log.path)?;
        if let Some(last) = last {
            let from = last_lines(&file, last)?;
            file.seek(SeekFrom::Start(from))?;
        }
        Ok(Self { log, file })
    }

    /// Passes the bytes written since the last call to `give`. A file that became shorter is read from its beginning.
    pub(super) fn read(&mut self, mut give: impl FnMut(&LogFile, &[u8]) -> io::Result<()>) -> io::Result<()> {
        if self.file.stream_position()? > self.file.metadata()?.len() {
            self.file.seek(SeekFrom::Start(0))?;
        }
        let mut buffer = [0; READ_BYTES];
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => give(&self.log, &buffer[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the position at which the last `count` lines begin. A last line without an end counts as one.
fn last_lines(file: &File, count: usize) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if count == 0 {
        return Ok(length);
    }
    let mut buffer = [0; READ_BYTES];
    let mut end = length;
    let mut seen = 0;
    while end > 0 {
        let from = end.saturating_sub(READ_BYTES as u64);
        let block = &mut buffer[..usize::try_from(end - from).unwrap_or(READ_BYTES)];
        file.read_exact_at(block, from)?;
        for at in memrchr_iter(b'\n', block) {
            let after = from + at as u64 + 1;
            // The end of the last line separates nothing.
            if after < length {
                seen += 1;
            }
            if seen >= count {
                return Ok(after);
            }
        }
        end = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::{super::stream_name::StreamName, *};

    #[test]
    fn the_last_lines_and_what_comes_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout.log");
        let long = "x".repeat(2 * READ_BYTES);
        std::fs::write(&path, format!("first\n{long}\nlast")).unwrap();
        let log = LogFile { attempt: 0, rank: 0, name: StreamName::Out, path: path.clone() };
        let text = |growing: &mut GrowingFile| {
            let mut text = Vec::new();
            growing
                .read(|_, bytes| {
                    text.extend_from_slice(bytes);
                    Ok(())
                })
                .unwrap();
            String::from_utf8(text).unwrap()
        };
        let open = |last| GrowingFile::open(log.clone(), last).unwrap();
        assert_eq!(text(&mut open(Some(1))), "last");
        assert_eq!(text(&mut open(Some(2))), format!("{long}\nlast"));
        assert_eq!(text(&mut open(Some(9))), text(&mut open(None)));
        let mut growing = open(Some(0));
        assert_eq!(text(&mut growing), "");
        std::fs::write(&path, format!("first\n{long}\nlast line\n")).unwrap();
        assert_eq!(text(&mut growing), " line\n");
        assert_eq!(text(&mut open(Some(1))), "last line\n");
        std::fs::write(&path, "anew\n").unwrap();
        assert_eq!(text(&mut growing), "anew\n");
        std::fs::write(&path, "").unwrap();
        assert_eq!(text(&mut open(Some(0))), "");
    }
}
