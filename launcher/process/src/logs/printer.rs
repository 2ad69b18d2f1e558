//! Log files as text for people, with whose line it is, or as JSON lines.
//!
//! Pure: bytes of a file in, bytes to print out.

use super::{
    find::LogFile,
    lines::LineBuffer,
    screen::{Screen, StreamId},
    selection::LogSelection,
    stream_name::StreamName,
};
use memchr::memchr;
use std::collections::BTreeMap;

/// The format in which log lines are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text lines, with their ranks when several files are selected.
    Text,
    /// A JSON object for each line: attempt, rank, stream, line.
    Json,
}

/// Formats log bytes for printing.
#[derive(Debug)]
pub struct Printer {
    form: LogFormat,
    /// Whether only one file is selected, whose bytes are printed unchanged.
    plain: bool,
    screen: Screen,
    parts: BTreeMap<StreamId, (LogFile, LineBuffer, Vec<u8>)>,
}

impl Printer {
    /// Makes a printer for the selected files.
    pub fn new(form: LogFormat, wanted: &LogSelection) -> Self {
        let plain = wanted.ranks.len() == 1 && wanted.out != wanted.err;
        Self { form, plain, screen: Screen::default(), parts: BTreeMap::new() }
    }

    /// Appends the text for `bytes` of a file to `out`.
    pub fn print(&mut self, log: &LogFile, bytes: &[u8], out: &mut Vec<u8>) {
        if self.plain && self.form == LogFormat::Text {
            return out.extend_from_slice(bytes);
        }
        let id = id(log);
        let (_, lines, line) = self.parts.entry(id).or_insert_with(|| (log.clone(), LineBuffer::default(), Vec::new()));
        match self.form {
            LogFormat::Text => {
                let prefix = prefix(log);
                lines.push(bytes, |ready| self.screen.show(id, &prefix, ready, out));
            }
            LogFormat::Json => objects(log, line, bytes, out),
        }
    }

    /// Appends the remaining lines without an end to `out`.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        for (id, (log, mut lines, line)) in std::mem::take(&mut self.parts) {
            lines.flush(|part| self.screen.show(id, &prefix(&log), part, out));
            if !line.is_empty() {
                object(&log, &line, out);
            }
        }
        self.screen.finish(out);
    }
}

/// Returns the id of a file, made of its attempt, rank and stream.
fn id(log: &LogFile) -> StreamId {
    // 31 bits of a rank are enough for all there are.
    (u64::from(log.attempt) << 32) | (u64::from(log.rank & (u32::MAX >> 1)) << 1) | log.name.index() as u64
}

fn prefix(log: &LogFile) -> Vec<u8> {
    match log.name {
        StreamName::Out => format!("[{}]:", log.rank),
        StreamName::Err => format!("[{} err]:", log.rank),
    }
    .into_bytes()
}

fn objects(log: &LogFile, line: &mut Vec<u8>, mut bytes: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = memchr(b'\n', bytes) {
        line.extend_from_slice(&bytes[..at]);
        object(log, line, out);
        line.clear();
        bytes = &bytes[at + 1..];
    }
    line.extend_from_slice(bytes);
}

fn object(log: &LogFile, line: &[u8], out: &mut Vec<u8>) {
    let line = String::from_utf8_lossy(line);
    let line = line.strip_suffix('\r').unwrap_or(&line);
    let object = serde_json::json!({ "attempt": log.attempt, "rank": log.rank, "stream": log.stream(), "line": line });
    out.extend_from_slice(enn_common::shown::json(&object.to_string()).as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(rank: u32, name: StreamName) -> LogFile {
        LogFile { attempt: 1, rank, name, path: "x".into() }
    }

    fn printed(form: LogFormat, wanted: &LogSelection, script: &[(LogFile, &str)]) -> String {
        let mut printer = Printer::new(form, wanted);
        let mut out = Vec::new();
        script.iter().for_each(|(log, text)| printer.print(log, text.as_bytes(), &mut out));
        printer.finish(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_say_whose_they_are_unless_only_one_file_is_wanted() {
        let all = LogSelection { ranks: Vec::new(), attempt: None, out: true, err: true };
        let script =
            [(log(0, StreamName::Out), "a\nb"), (log(2, StreamName::Err), "x\ny\n"), (log(0, StreamName::Out), "c\nd")];
        assert_eq!(printed(LogFormat::Text, &all, &script), "[0]:a\n[2 err]:x\n[2 err]:y\n[0]:bc\n[0]:d\n");
        let one = LogSelection { ranks: vec![0], err: false, ..all };
        assert_eq!(printed(LogFormat::Text, &one, &[(log(0, StreamName::Out), "a\nb\r")]), "a\nb\r");
    }

    #[test]
    fn an_object_for_each_line() {
        let all = LogSelection { ranks: vec![0], attempt: None, out: true, err: false };
        let text =
            printed(LogFormat::Json, &all, &[(log(0, StreamName::Out), "a\"\r\nb"), (log(0, StreamName::Out), "c")]);
        let objects: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects[0], serde_json::json!({ "attempt": 1, "rank": 0, "stream": "stdout", "line": "a\"" }));
        assert_eq!((objects.len(), &objects[1]["line"]), (2, &"bc".into()));
    }
}
