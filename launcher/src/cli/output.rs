//! Standard output: JSON and text of the commands that print data.

use crate::{Error, process::PatientWriter};
use enn_common::shown;
use serde_json::Value;
use std::io::{IsTerminal, Write};

/// One JSON document, indented.
pub(super) fn json(value: &Value) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Output(error.into()))?;
    bytes(format!("{}\n", shown::json(&text)).as_bytes())
}

/// One JSON document on a line.
pub(super) fn json_line(value: &Value) -> Result<(), Error> {
    bytes(format!("{}\n", shown::json(&value.to_string())).as_bytes())
}

/// Text for people, in which what a terminal obeys is seen and does nothing, and a line's end.
pub(super) fn text_line(text: &str) -> Result<(), Error> {
    bytes(format!("{}\n", shown::lines(text.trim_end_matches('\n'))).as_bytes())
}

/// Text that another program reads: as it is, but on a terminal like [`text_line`].
pub(super) fn document(text: &str) -> Result<(), Error> {
    if std::io::stdout().is_terminal() {
        return text_line(text);
    }
    bytes(format!("{}\n", text.trim_end_matches('\n')).as_bytes())
}

/// Lines of which parts come from files: a name in a checkpoint may hold a line's end.
pub(super) fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| shown::line(line)).collect::<Vec<_>>().join("\n")
}

/// Bytes as they are.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    stdout()?.write_all(bytes).map_err(Error::Output)
}

/// Shows lines and a question on standard error, and reads the user's answer from standard input.
pub(super) fn asked(told: &[String], question: &str) -> Result<String, Error> {
    let mut stderr = std::io::stderr();
    let mut answer = String::new();
    write!(stderr, "{}\n{question}", lines(told))
        .and_then(|()| stderr.flush())
        .and_then(|()| std::io::stdin().read_line(&mut answer))
        .map_err(Error::Output)?;
    Ok(answer)
}

/// Standard output without a buffer. Another program may have made it non-blocking: it is waited for all the same.
pub(super) fn stdout() -> Result<PatientWriter, Error> {
    PatientWriter::new(&std::io::stdout(), None).map_err(Error::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_seen_instead() {
        let told = ["a\nWRONG".to_owned(), "\u{1b}[2Jgröße 😀\u{9b}".to_owned()];
        assert_eq!(lines(&told), "a\\nWRONG\n\\u{1b}[2Jgröße 😀\\u{9b}");
    }
}
