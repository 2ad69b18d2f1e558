//! Standard output: JSON and text of the commands that print data.

use crate::{Error, process::PatientWriter};
use serde_json::Value;
use std::io::Write;

/// One JSON document, indented.
pub(super) fn json(value: &Value) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Output(error.into()))?;
    text_line(&text)
}

/// Text and a line's end.
pub(super) fn text_line(text: &str) -> Result<(), Error> {
    bytes(format!("{}\n", text.trim_end_matches('\n')).as_bytes())
}

/// Lines of which parts come from files: a name in a checkpoint may hold what a terminal obeys, or a line's end.
pub(super) fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n")
}

/// A text in which control characters are seen and do nothing.
pub(super) fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, letter| {
        if letter.is_control() {
            out.extend(letter.escape_default());
        } else {
            out.push(letter);
        }
        out
    })
}

/// Bytes as they are.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    stdout()?.write_all(bytes).map_err(Error::Output)
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
