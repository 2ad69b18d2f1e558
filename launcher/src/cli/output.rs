//! Standard output: JSON and text of the commands that print data.

use crate::Error;
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

/// Bytes as they are.
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Error::Output)
}
