//! Standard output: JSON and text of the commands that print data.

use crate::Error;
use enn_common::shown;
use enn_process::PatientWriter;
use serde::Serialize;
use serde_json::Value;
use std::{
    io::{IsTerminal, Write},
    os::fd::AsFd,
};

/// Returns the columns of the terminal; `None` if standard output is none.
pub(super) fn columns() -> Option<u16> {
    enn_process::window_columns(std::io::stdout().as_fd())
}

/// Prints an indented JSON document.
pub(super) fn json(value: &Value) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Output(error.into()))?;
    bytes(format!("{}\n", shown::json(&text)).as_bytes())
}

/// Prints a value as an indented JSON document if `is_json`, else the text.
pub(super) fn print(is_json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Error> {
    if is_json {
        return json(&serde_json::to_value(value).map_err(|error| Error::Output(error.into()))?);
    }
    text_line(&text())
}

/// Prints a JSON document on one line.
pub(super) fn json_line(value: &Value) -> Result<(), Error> {
    bytes(format!("{}\n", shown::json(&value.to_string())).as_bytes())
}

/// Prints text and a newline; control characters that a terminal would obey are escaped.
pub(super) fn text_line(text: &str) -> Result<(), Error> {
    bytes(format!("{}\n", shown::lines(text.trim_end_matches('\n'))).as_bytes())
}

/// Prints text for another program unchanged; on a terminal like [`text_line`].
pub(super) fn document(text: &str) -> Result<(), Error> {
    if std::io::stdout().is_terminal() {
        return text_line(text);
    }
    bytes(format!("{}\n", text.trim_end_matches('\n')).as_bytes())
}

/// Joins lines of which parts come from files; a newline in such a part is escaped.
pub(super) fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| shown::line(line)).collect::<Vec<_>>().join("\n")
}

pub(super) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    stdout()?.write_all(bytes).map_err(Error::Output)
}

/// Shows lines and a question on standard error, and reads the user's answer from standard input.
pub(super) fn ask(shown: &[String], question: &str) -> Result<String, Error> {
    let mut stderr = std::io::stderr();
    let mut answer = String::new();
    write!(stderr, "{}\n{question}", lines(shown))
        .and_then(|()| stderr.flush())
        .and_then(|()| std::io::stdin().read_line(&mut answer))
        .map_err(Error::Output)?;
    Ok(answer)
}

/// Returns standard output without a buffer, which also waits when another program has made it non-blocking.
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
